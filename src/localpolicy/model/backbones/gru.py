"""A gated recurrent network over the history (Hidasi et al. 2016, "Session-based Recommendations with RNNs").

Departures: all positions are trained with the full softmax, instead of ranking losses over sampled items.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from localpolicy.model.backbones.layout import Layout


class GRU(nn.Module):
    """Stacked GRU layers and a norm. `heads` has no meaning here and is ignored."""

    def __init__(self, *, width: int, length: int, blocks: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.recurrent = nn.GRU(width, width, num_layers=blocks, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        """Hidden states [M, D] of embedded tokens [M, D]."""
        embedded = functional.dropout(embedded, self.dropout, self.training)
        hidden, _ = self.recurrent(layout.pad(embedded))
        return self.norm(functional.dropout(layout.flatten(hidden), self.dropout, self.training))  # type: ignore[no-any-return]
