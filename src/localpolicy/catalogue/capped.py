"""Logits of a capped tilt: log μ(a|x) + min((Q(x,a) - g(x))/β, log c), with g(x) = Σ_a μ(a|x) Q(x,a).

Without the cap c a tilt of one head by another is again a head (`logits.tilted`), and exp(Q/β) stakes everything on
the largest of many estimates, which is most probably too large. With it, all items that are good enough are treated
equally: none becomes more than c times as probable against an item of average reward.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

from torch import Tensor

from localpolicy.catalogue.shards import Shard, ShardedLogits
from localpolicy.logits import LinearLogits, Logits


class CappedLogits(NamedTuple):
    """base + min(scale · values, ceiling): a context's constants cancel, so ceiling = log c + scale · g(x)."""

    base: LinearLogits | ShardedLogits
    values: LinearLogits | ShardedLogits
    scale: float  # 1/β
    ceiling: Tensor  # [N]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.base.shape

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        values = self._capped(self.values.chunk(start, stop), self.ceiling[:, None])
        return self.base.chunk(start, stop, out=out).add_(values)

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]."""
        return self.base.at(items) + self._capped(self.values.at(items), self.ceiling)

    def _capped(self, values: Tensor, ceiling: Tensor) -> Tensor:
        return (self.scale * values).clamp(max=ceiling.to(values.dtype))

    def part(self, start: int, stop: int) -> CappedLogits:
        """Logits of positions start:stop, in a single process."""
        assert isinstance(self.base, LinearLogits) and isinstance(self.values, LinearLogits)
        base, values = (LinearLogits(part.hidden[start:stop], part.head) for part in (self.base, self.values))
        return CappedLogits(base, values, self.scale, self.ceiling[start:stop])


ShardedRows = ShardedLogits | CappedLogits  # of the latter, both parts are sharded


def is_sharded(rows: Logits) -> TypeGuard[ShardedRows]:
    """Whether the items of these logits are split over ranks."""
    return isinstance(rows.base if isinstance(rows, CappedLogits) else rows, ShardedLogits)


def shard_of(rows: ShardedRows) -> Shard:
    """Shard of the catalogue that this rank holds."""
    base = rows.base if isinstance(rows, CappedLogits) else rows
    assert isinstance(base, ShardedLogits), "rows of one process have no ranks to ask"
    return base.head.shard
