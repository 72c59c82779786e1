"""Backbones: what turns histories into hidden states.

A backbone is any `nn.Module` called as `backbone(embedded, layout) -> hidden`, where

    embedded [M, D]  the embedded tokens of a batch, flat, without padding
    layout           where each token stands; `layout.pad` and `layout.flatten` convert to and from [B, T, D]
    hidden   [M, D]  the context of each token: it must depend on this and earlier tokens of its sequence alone

Adding one = one file + one line below. A user's own module is passed to `Network` as `backbone=` directly.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from localpolicy.model.backbones.convolution import Convolution
from localpolicy.model.backbones.gru import GRU
from localpolicy.model.backbones.layout import Layout
from localpolicy.model.backbones.sasrec import SASRec


class Backbone(Protocol):
    """Histories in, hidden states out."""

    def __call__(self, embedded: Tensor, layout: Layout) -> Tensor:
        """[M, D] -> [M, D]."""
        ...


BACKBONES: dict[str, type[nn.Module]] = {"sasrec": SASRec, "gru": GRU, "convolution": Convolution}

__all__ = ["BACKBONES", "Backbone", "Layout"]
