"""Initial weights."""

from __future__ import annotations

import torch
from torch import Tensor


def normal(*size: int, scale: float) -> Tensor:
    """Normal numbers times `scale`.

    On the meta device sizes alone: arithmetic there makes torch load its compiler, which takes a second.
    """
    made = torch.empty(*size)
    return made if made.is_meta else torch.randn(*size) * scale
