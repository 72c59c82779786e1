"""What a sequence held before a position, over its whole history and not only the window a policy reads."""

from __future__ import annotations

import torch
from torch import Tensor

from localpolicy.data.batches import Windows


def repeats(offsets: Tensor, item: Tensor) -> Tensor:
    """Whether each event's item came earlier in its sequence: [E]."""
    sequence = torch.repeat_interleave(torch.arange(len(offsets) - 1, device=item.device), offsets.diff())
    key = sequence * (int(item.max()) + 1 if len(item) else 1) + item.long()
    order = torch.argsort(key, stable=True)
    again = torch.zeros_like(key, dtype=torch.bool)
    again[order[1:]] = key[order[1:]] == key[order[:-1]]
    return again


def seen_pairs(windows: Windows, sequence: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
    """(position, item) for all that came before each position, which has `history` actions before it in `sequence`."""
    position = torch.repeat_interleave(torch.arange(len(history), device=history.device), history)
    step = torch.arange(len(position), device=history.device) - (history.cumsum(0) - history)[position]
    return position, windows.arrays["item"][windows.offsets[sequence][position] + step].long()
