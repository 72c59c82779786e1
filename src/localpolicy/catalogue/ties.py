"""Ties of scores: two scores are equal if they differ by less than the rounding of a product may change.

Items with equal rows (new ones, whose features agree) have equal scores in exact arithmetic. A matrix product rounds
each of them in an order that depends on the CPU, the shape and the place in a tile, so `==` would find some of these
ties on one machine and others on the next. Scores that are formed by products therefore tie within `ROUNDING`: a ratio
of probabilities of 1.00001 orders nobody's list. Scores that were given as they are (counts, ranks, a file) tie if they
are equal.
"""

from __future__ import annotations

from torch import Tensor

from localpolicy.catalogue.capped import CappedLogits
from localpolicy.catalogue.shards import ShardedLogits
from localpolicy.logits import LinearLogits, Logits

ROUNDING = 2.0**-17  # of a score, or of 1 where it is smaller: about 64 units in the last place of float32


def tie_bounds(rows: Logits, own: Tensor) -> tuple[Tensor, Tensor]:
    """(low, high) [N] of the scores that tie with `own`."""
    if not isinstance(rows, LinearLogits | ShardedLogits | CappedLogits):
        return own, own
    width = own.abs().clamp(min=1.0) * ROUNDING
    return own - width, own + width
