"""What a visit earns where an item decides what comes next: the return, by logged propensities.

A value per decision is that of one deviation's own reward. Where what is shown changes what comes later, it has another
sign than what a visit earns. Two questions ask for the return, as far as the log carries them:

visit       π draws every item of a visit: Σ_t γ^t [ρ_1..ρ_t (r_t - Q̂_t) + ρ_1..ρ_{t-1} E_π Q̂_t], doubly robust.
            Its weights are products, so that few visits of many steps stand for π
deviation   π draws one item, or a few in a row, and μ all later ones: E_μ[w (G - Q̂) + E_π Q̂], G being all that the
            visit earned from here on. It needs no more overlap than that number of decisions does; if one gains in
            all contexts, π gains (the policy improvement theorem). As many items are asked for as the log covers: what
            a few in a row bring is nearer to what a visit earns

Q̂(x, a) = V̂(x) + q(a) is a plain model of means, fitted on other rows. It is never the critic that made the policy: what
a critic gets wrong its policy prefers, and both would agree. Any Q̂ leaves the estimates unbiased.

Jiang and Li 2016 (doubly robust, step by step); Kakade and Langford 2002 (one deviation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.data.store import Prepared
from localpolicy.logits import Logits
from localpolicy.measure.decisions import Decisions, Overlap, OverlapRules, overlap, ratios
from localpolicy.measure.estimate import credible_means
from localpolicy.measure.intervals import Contributions
from localpolicy.types import Batch

if TYPE_CHECKING:
    from localpolicy.measure.position_metrics import Scores

Asked = Literal["visit", "deviation"]
NO_ITEM = -1  # before the first decision of a visit
LONGEST = 200  # steps that V̂ tells apart
IN_A_ROW = (6, 4, 3, 2, 1)  # items that π draws in a deviation: the most that the log covers


class Visits(NamedTuple):
    """Decisions by visit in order of time, all [n]; a list of several items is one decision."""

    sequence: np.ndarray
    item: np.ndarray
    reward: np.ndarray
    before: np.ndarray  # the item of the decision before, or NO_ITEM
    step: np.ndarray  # decisions of the visit before this one

    @classmethod
    def of(cls, sequence: np.ndarray, item: np.ndarray, reward: np.ndarray) -> Visits:
        """Build from rows sorted by visit and time."""
        begins = np.diff(sequence, prepend=-1) != 0
        first = np.flatnonzero(begins)
        step = np.arange(len(sequence)) - np.repeat(first, np.diff(np.append(first, len(sequence))))
        before = np.where(begins, NO_ITEM, np.roll(item, 1)).astype(np.int64)
        return cls(sequence, item.astype(np.int64), reward.astype(np.float64), before, step)

    @classmethod
    def of_split(cls, data: Prepared, split: str) -> Visits:
        """Build from the decisions of a split; a list counts as its first item with the sum of its rewards."""
        source, (rows, starts) = data[split], decision_rows(data, split)
        first, reward = rows[starts], np.asarray(source.arrays["reward"])[rows]
        earned = np.add.reduceat(reward, starts) if len(starts) else reward
        return cls.of(source.sequence[first], np.asarray(source.arrays["item"])[first], earned)

    def at(self, chosen: np.ndarray) -> Visits:
        """Decisions of the chosen visits."""
        return Visits(*(column[chosen] for column in self))

    def known(self, weight: np.ndarray) -> np.ndarray:
        """Mask of the decisions in visits without a NaN weight: [n]."""
        return ~np.isin(self.sequence, self.sequence[np.isnan(weight)])

    @property
    def starts(self) -> np.ndarray:
        """Index of the first decision of each visit: [U]."""
        return np.flatnonzero(self.step == 0)

    def back(self, gained: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """v_t = gained_t + factor_t v_{t+1}, from the end of each visit: [n]."""
        value, later = gained.astype(np.float64), np.zeros(len(gained))
        for here in reversed(self._by_step()):
            value[here] += factor[here] * later[here]
            earlier = here[self.step[here] > 0]
            later[earlier - 1] = value[earlier]
        return value

    def next(self, values: np.ndarray, end: float = 0.0) -> np.ndarray:
        """Value of the following decision of the same visit [n]; `end` at the last one."""
        return np.where(np.append(self.step[1:], 0) > 0, np.append(values[1:], end), end)

    def last(self, values: np.ndarray) -> np.ndarray:
        """Value of the preceding decision of the same visit [n]; 0 at the first one."""
        return np.where(self.step > 0, np.roll(values, 1), 0.0)

    def forth(self, gained: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """v_t = gained_t + factor_t v_{t-1}, from the beginning of each visit: [n]."""
        value = gained.astype(np.float64)
        for here in self._by_step()[1:]:
            value[here] += factor[here] * value[here - 1]
        return value

    def returns(self, gamma: float) -> np.ndarray:
        """G_t = r_t + γ G_{t+1}."""
        return self.back(self.reward, np.full(len(self.reward), gamma))

    def _by_step(self) -> list[np.ndarray]:
        return np.split(np.argsort(self.step, kind="stable"), np.cumsum(np.bincount(self.step))[:-1])


def decision_rows(data: Prepared, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a split that a policy chose, and which of these begin a decision; a list counts as one."""
    source, rows = data[split], np.flatnonzero(data.chosen(split))
    if "above" not in source.arrays:
        return rows, np.arange(len(rows))
    begins = np.diff(source.sequence[rows], prepend=-1) != 0
    return rows, np.flatnonzero((source.arrays["above"][rows] == 0) | begins)


def read_visits(scores: Scores) -> tuple[Visits, np.ndarray] | None:
    """Decisions by visit of a scored policy, with π/μ of each (NaN if unknown); None without propensities.

    A list is one decision, with the product of its places' ratios; not known where a row of it is missing. None where
    the log has no propensities.
    """
    weight = ratios(scores)
    if weight is None:
        return None
    columns = (scores.sequence, scores.item, scores.reward, weight)
    if scores.above is None:
        return Visits.of(*columns[:3]), weight
    return of_lists(*columns, scores.list_number, scores.above, scores.place)


def of_lists(
    sequence: np.ndarray, item: np.ndarray, reward: np.ndarray, weight: np.ndarray, list_number: np.ndarray,
    above: np.ndarray, place: np.ndarray | None,
) -> tuple[Visits, np.ndarray]:  # fmt: skip
    """Visits from rows of lists, one decision per list, and π/μ of each: NaN if a row of its list is missing."""
    starts = np.flatnonzero(np.diff(list_number, prepend=-1))
    step = np.arange(len(weight)) - np.repeat(starts, np.diff(np.append(starts, len(weight))))
    whole = (above == step) & ((above if place is None else place) == step)
    product = np.multiply.reduceat(np.where(whole, weight, np.nan), starts)
    return Visits.of(sequence[starts], item[starts], np.add.reduceat(reward, starts)), product


class ReturnModel(NamedTuple):
    """Q̂(x, a) = V̂(x) + q(a), V̂(x) = mean + of this step + of the item before; shrunken means one after another."""

    gamma: float
    by_step: np.ndarray  # [LONGEST + 1]
    by_item: np.ndarray  # [V + 1] of the item before; the last is of none
    of_taken: np.ndarray  # [V] q: what an item's return is above V̂

    @classmethod
    def fit(cls, visits: Visits, *, gamma: float, n_items: int, target: np.ndarray | None = None) -> ReturnModel:
        """Fit the model to returns (or to `target`) of visits other than those that are judged."""
        left = visits.returns(gamma) if target is None else target
        by_step = credible_means(_steps(visits), left, n_items=LONGEST + 1)
        left = left - by_step[_steps(visits)]
        by_item = credible_means(visits.before % (n_items + 1), left, n_items=n_items + 1)
        left = left - by_item[visits.before]
        return cls(gamma, by_step, by_item, credible_means(visits.item, left, n_items=n_items))

    def context(self, visits: Visits) -> np.ndarray:
        """V̂(x) of each decision: [n]."""
        return np.asarray(self.by_step[_steps(visits)] + self.by_item[visits.before])

    def logits(self, batch: Batch) -> Logits:
        """q as a row over the catalogue, the same at all positions: for E_π q."""
        import torch

        return SparseLogits.constant(torch.from_numpy(self.of_taken.astype(np.float32)), batch)


def _steps(visits: Visits) -> np.ndarray:
    return np.asarray(np.minimum(visits.step, LONGEST))


class Opinion(NamedTuple):
    """Q̂ of the taken item and its mean under one policy, at each decision: both [n]."""

    taken: np.ndarray  # Q̂(x, a)
    expected: np.ndarray  # Σ_a π(a|x) Q̂(x, a)

    @classmethod
    def of(cls, model: ReturnModel, visits: Visits, expected: np.ndarray | None = None) -> Opinion:
        """Q̂ by a return model; without `expected` (Σ_a π(a|x) q(a) [n]) only V̂, equal for all policies."""
        context = model.context(visits)
        if expected is None:
            return cls(context, context)
        return cls(context + model.of_taken[visits.item], context + expected)


# ---------------------------------------------------------------------- estimates


def of_visits(visits: Visits, weight: np.ndarray, opinion: Opinion, *, gamma: float) -> Contributions:
    """V_t = E_π Q̂ + ρ_t (r_t + γ V_{t+1} - Q̂), at the first decision of each visit."""
    gained = opinion.expected + weight * (visits.reward - opinion.taken)
    value = visits.back(gained, gamma * weight)
    starts = visits.step == 0
    leverage = visits.forth(np.where(starts, weight, 0.0), gamma * weight)
    return Contributions(value[starts], visits.sequence[starts], leverage, visits.reward)


def of_deviations(
    visits: Visits, weight: np.ndarray, opinion: Opinion, *, gamma: float, steps: int = 1, after: bool = True
) -> Contributions:
    """v_t = E_π Q̂ + ρ_t (r_t + γ v_{t+1} - Q̂), `steps` times from v = G on: π draws G items, μ the rest.

    Without what comes `after` these items v begins at 0.
    """
    value = visits.returns(gamma) if after else np.zeros(len(weight))
    share, leverage = np.ones(len(weight)), np.zeros(len(weight))
    for _ in range(steps):
        value = opinion.expected + weight * (visits.reward + gamma * visits.next(value) - opinion.taken)
        leverage += weight * share
        share = gamma * visits.last(weight * share)
    leverage += visits.forth(share, np.full(len(weight), gamma)) if after else 0.0
    return Contributions(value, visits.sequence, leverage, visits.reward)


class ReturnGain(NamedTuple):
    """Gain in return of one policy over another, with its overlap and the estimand that was covered."""

    asked: Asked
    gain: Contributions  # paired: its mean is the gain, per visit, or per item that a deviation draws
    old: Contributions  # what the other earns
    overlap: Overlap  # of the new policy, or of the worse covered of the two
    steps: int = 1  # items in a row that the policies draw in a deviation
    within: float | None = None  # the gain in the rewards of these items alone
    items: float = 1.0  # items that a deviation draws on average: fewer at the end of a visit

    @property
    def refusal(self) -> str | None:
        """Reason why the log does not support the estimate; None if it does."""
        return self.overlap.refusal

    @property
    def unit(self) -> Literal["visits", "decisions"]:
        """Unit of the sample size: visits or decisions."""
        return "visits" if self.asked == "visit" else "decisions"


def return_gain(
    visits: Visits, new: np.ndarray, old: np.ndarray | None, model: ReturnModel, *, rules: OverlapRules | None = None
) -> ReturnGain:
    """Estimate the gain in return: of whole visits if the log covers them, else of a few items in a row.

    Without `old` it is over the log's own policy. Visits of which a weight is not known are left out.
    """
    weights = [new, np.ones(len(new)) if old is None else old]
    known = visits.known(weights[0] + weights[1])
    visits, weights = visits.at(known), [each[known] for each in weights]
    none = np.zeros(len(weights[1]))
    of_old = Opinion(none, none) if old is None else Opinion.of(model, visits)
    opinions = (Opinion.of(model, visits), of_old)
    covered = _worse([_of_whole_visits(visits, each, model.gamma, rules) for each in weights])
    if covered.refusal is None:
        mine, theirs = (
            of_visits(visits, weight, opinion, gamma=model.gamma)
            for weight, opinion in zip(weights, opinions, strict=True)
        )
        return ReturnGain("visit", mine - theirs, theirs, covered)
    steps, covered = _in_a_row(visits, weights, model.gamma, rules)
    mine, theirs = (
        of_deviations(visits, weight, opinion, gamma=model.gamma, steps=steps)
        for weight, opinion in zip(weights, opinions, strict=True)
    )
    mean = np.full(len(visits.reward), visits.reward.mean())
    first, second = (
        of_deviations(visits, weight, Opinion(mean, mean), gamma=model.gamma, steps=steps, after=False).mean
        for weight in weights
    )
    # Deviations of several items overlap: what each of them gains counts every item so often.
    items = float(np.minimum(visits.back(np.ones(len(mean)), np.ones(len(mean))), steps).mean())
    return ReturnGain("deviation", (mine - theirs).per(items), theirs, covered, steps, (first - second) / items, items)


def _in_a_row(
    visits: Visits, weights: list[np.ndarray], gamma: float, rules: OverlapRules | None
) -> tuple[int, Overlap]:
    """Largest number of consecutive items that the log covers, with the overlap."""
    earned, longest = visits.returns(gamma), int(visits.step.max()) + 1
    for steps in IN_A_ROW:
        if steps > 1 and steps >= longest:  # whole visits, which are not covered
            continue
        covered = _worse(
            [
                overlap(Decisions(_of_rows(visits, each, steps), earned, visits.sequence), rules, single=each)
                for each in weights
            ]
        )
        if covered.refusal is None:
            break
    return steps, covered


def _of_rows(visits: Visits, weight: np.ndarray, steps: int) -> np.ndarray:
    """ρ_t ρ_{t+1} ... over `steps` decisions from each row on, fewer at the visit's end: [n]."""
    product = np.ones(len(weight))
    for _ in range(steps):
        product = weight * visits.next(product, end=1.0)
    return product


def _of_whole_visits(visits: Visits, weight: np.ndarray, gamma: float, rules: OverlapRules | None) -> Overlap:
    """Overlap of whole visits: how well the log's visits cover those of a policy."""
    product = np.multiply.reduceat(weight, visits.starts)
    earned = visits.returns(gamma)[visits.starts]
    return overlap(Decisions(product, earned, visits.sequence[visits.starts]), rules, single=weight)


def _worse(found: list[Overlap]) -> Overlap:
    """The refused overlap if there is one, else the one with the smaller effective sample."""
    return min(found, key=lambda each: (each.refusal is None, each.effective))
