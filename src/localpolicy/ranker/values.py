"""Value of other lists than the logged ones: the estimate that chooses β and gives the verdict.

    by places   W = Σ_k c_k π(a at k) / Σ_k c_k μ(a at k): places are looked at whatever stands elsewhere
    cascade     W = Π π/μ of the place and those above: a reward may depend on what stands above, as where people stop

Weights are plain, on held-out requests, and capped where they speak for the new law: with rewards of at least 0 that
errs downwards only. The critic that made π is not in them. The list without a draw is always weighted by places, for a
cascade's weights of a list that is rarely drawn are useless: where people stop that makes too much of what the draw
costs, so the new law's gain over that list is estimated too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from localpolicy.measure.decisions import Decisions, effective_sample
from localpolicy.measure.estimate import clustered_se
from localpolicy.measure.intervals import lower_bound
from localpolicy.ranker.exposure import place_chances
from localpolicy.ranker.law import Law, log_chances, own_scores, shown_lists
from localpolicy.ranker.log import Padded, RequestLog

CAP = 10.0  # of a weight
Tilt = Callable[[Padded], np.ndarray]  # a function: block -> term added to the law's logits [B, C]
Form = Literal["by places", "cascade"]


class Gain(NamedTuple):
    """Gain of a law over the drawn or the undrawn list, per request, with its error."""

    mean: float
    se: float
    low: float  # one-sided, 95 %
    effective: float  # effective share of the sample under the weights
    requests: int

    @property
    def high(self) -> float:
        """Upper end of the interval, as far above the mean as `low` is below."""
        return 2 * self.mean - self.low


class Shown(NamedTuple):
    """R drawn places of a log: the rewards of their items, and the items' exposure under μ."""

    request: np.ndarray
    reward: np.ndarray
    exposure: np.ndarray  # Σ_k c_k μ(a at k)
    declared: np.ndarray  # c at the item's place in the undrawn list; 0 if it is not there
    row: np.ndarray  # of the candidate
    place: np.ndarray  # drawn places above it


def spread_of(logits: np.ndarray, value: np.ndarray) -> float:
    """Sum over requests of the variance of values [B, C] under the law with logits [B, C]."""
    weight = np.exp(logits - logits.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    mean = (weight * value).sum(1, keepdims=True)
    return float((weight * (value - mean) ** 2).sum())


class ListValues:
    """Estimator of gains on some requests of a log, for any tilt of its law."""

    def __init__(
        self, log: RequestLog, law: Law, requests: np.ndarray, examined: np.ndarray, reward: np.ndarray
    ) -> None:
        self.log, self.law, self.examined = log, law, examined
        self.blocks = list(log.padded(requests))
        self.requests = np.concatenate([block.requests for block in self.blocks])
        self.number = np.zeros(len(log), np.int64)
        self.number[self.requests] = np.arange(len(self.requests))
        self.logits = [law.logits(log, block) for block in self.blocks]
        parts = [self._shown(block, logits, reward) for block, logits in zip(self.blocks, self.logits, strict=True)]
        self.shown = Shown(*(np.concatenate([getattr(part, name) for part in parts]) for name in Shown._fields))

    def _curve(self, block: Padded) -> tuple[np.ndarray, np.ndarray]:
        """Return the examination c of drawn places [B, K], 0 elsewhere, and the number of drawn places [B]."""
        lists = shown_lists(self.log, block)
        drawn = (lists.at >= 0).sum(1) - lists.pinned
        place = lists.pinned[:, None] + np.arange(lists.at.shape[1])
        curve = np.where(np.arange(lists.at.shape[1]) < drawn[:, None], self._at(place), 0.0)
        return curve, drawn

    def _at(self, place: np.ndarray) -> np.ndarray:
        return np.asarray(self.examined[np.minimum(place, len(self.examined) - 1)])

    def _asked(self, block: Padded) -> np.ndarray:
        """Return the positions of the items shown at drawn places; -1 elsewhere."""
        lists = shown_lists(self.log, block)
        return np.where(np.arange(lists.at.shape[1]) >= lists.pinned[:, None], lists.at, -1)

    def _exposure(self, block: Padded, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ_k c_k P(a at k) [B, S] of shown items, and a mask of the cells that hold one."""
        asked, (curve, _) = self._asked(block), self._curve(block)
        chances = place_chances(logits, asked, curve.shape[1])
        return np.einsum("bsk,bk->bs", chances, curve), asked >= 0

    def _shown(self, block: Padded, logits: np.ndarray, reward: np.ndarray) -> Shown:
        exposure, real = self._exposure(block, logits)
        asked = self._asked(block)
        at = np.maximum(asked, 0)
        scores = np.where(np.isneginf(logits), -np.inf, block.of(own_scores(self.log), -np.inf))
        rank = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
        _, drawn = self._curve(block)
        stands = np.take_along_axis(rank, at, 1)
        declared = np.where(stands < drawn[:, None], self._at(stands + shown_lists(self.log, block).pinned[:, None]), 0)
        rows = np.take_along_axis(block.rows, at, 1)[real]
        above = np.arange(asked.shape[1]) - shown_lists(self.log, block).pinned[:, None]
        return Shown(np.repeat(self.number[block.requests], real.sum(1)), reward[rows], exposure[real], declared[real],
                     rows, above[real])  # fmt: skip

    def weights(self, tilt: Tilt, form: Form = "by places") -> np.ndarray:
        """Return the weight W of every drawn place under the tilted law."""
        if form == "cascade":
            return self._down_to(tilt)
        found = []
        for block, logits in zip(self.blocks, self.logits, strict=True):
            exposure, real = self._exposure(block, logits + tilt(block))
            found.append(exposure[real])
        return np.asarray(np.concatenate(found) / self.shown.exposure)

    def _down_to(self, tilt: Tilt) -> np.ndarray:
        """Return Π π/μ over each drawn place and those above it."""
        found = []
        for block, logits in zip(self.blocks, self.logits, strict=True):
            lists = shown_lists(self.log, block)
            ratio = log_chances(logits + tilt(block), lists) - log_chances(logits, lists)
            found.append(np.exp(ratio.cumsum(1))[self._asked(block) >= 0])
        return np.concatenate(found)

    def spread(self, advantage: np.ndarray) -> float:
        """sd(Â): root mean square of its deviation within requests, under the law of the first drawn place."""
        parts = zip(self.blocks, self.logits, strict=True)
        return math.sqrt(
            sum(spread_of(logits, block.of(advantage, 0.0)) for block, logits in parts) / len(self.requests)
        )

    def decisions(self, tilt: Tilt) -> Decisions:
        """Drawn places with the ratios of the tilted law, for tests of what the estimates assume."""
        people = self.log.clusters[self.requests][self.shown.request]
        return Decisions(self._down_to(tilt), self.shown.reward, people, place=self.shown.place)

    @property
    def undrawn(self) -> np.ndarray:
        """Weights W of the ranker's own list, best first."""
        return np.asarray(self.shown.declared / self.shown.exposure)

    @property
    def undrawn_whole(self) -> np.ndarray:
        """Weights W of the ranker's own list, scaled to the exposure that it has: E Σ c W over shown places is Σ c.

        A layer hardly ever shows some items of the ranker's own list, so that most logs lack them: with plain weights
        the list would seem to earn less than it does.
        """
        share, number = self.log.weight[self.requests], self.shown.request
        place = self.shown.place + self.log.pinned[self.requests][number]
        due = share[number] * self._at(place)
        held = float((due * self.undrawn).sum() / due.sum())
        return self.undrawn / held if held else self.undrawn

    def gain(self, weight: np.ndarray, over: np.ndarray | None = None, *, cap: float = CAP) -> Gain:
        """Estimate the gain of capped weights over the drawn lists, or over other weights."""
        base = 1.0 if over is None else over
        change = (np.minimum(weight, cap) - base) * self.shown.reward
        per_request = np.bincount(self.shown.request, weights=change, minlength=len(self.requests))
        share = self.log.weight[self.requests]
        per_request = per_request * share / share.mean()
        people = self.log.clusters[self.requests]
        return Gain(float(per_request.mean()), clustered_se(per_request, people), lower_bound(per_request, people),
                    effective_sample(weight) / len(weight), len(per_request))  # fmt: skip

    @property
    def earned(self) -> float:
        """Mean reward of a drawn list per request."""
        share = self.log.weight[self.requests]
        return float(np.average(np.bincount(self.shown.request, self.shown.reward, len(self.requests)), weights=share))
