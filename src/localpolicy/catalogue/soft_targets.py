"""Cross-entropy towards a whole distribution over the catalogue, with gradients, for distilling a policy.

Blocks of a few positions are formed again for the gradient: memory does not grow with N x V.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from localpolicy.catalogue.blocks import part_of
from localpolicy.catalogue.chunks import summing_type
from localpolicy.logits import LinearLogits, Logits

CELLS = 1 << 24  # numbers of one block: 64 MiB of float32


def cross_entropy(rows: LinearLogits, target: Logits) -> Tensor:
    """-Σ_a softmax(target)_a log softmax(row)_a, the target a constant: [N]."""
    positions, items = rows.shape
    block = max(1, CELLS // items)
    blocks = [
        checkpoint(_cross_entropy, rows.hidden[start : start + block], *rows.head,
                   part_of(target, start, min(start + block, positions)), use_reentrant=False,
                   preserve_rng_state=False)
        for start in range(0, positions, block)
    ]  # fmt: skip
    return torch.cat(blocks) if blocks else rows.hidden.new_zeros(0)


def _cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Logits) -> Tensor:
    logits = hidden @ weight.T if bias is None else torch.addmm(bias, hidden, weight.T)
    logits = logits.to(summing_type(logits))
    with torch.no_grad():
        share = torch.softmax(target.chunk(0, weight.shape[0]).to(logits.dtype), dim=1)
    return -(share * torch.log_softmax(logits, dim=1)).sum(1)
