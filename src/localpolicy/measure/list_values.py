"""Values of lists from lists that μ drew, by what each estimate assumes of people, and how places are looked at.

    by places       place k is looked at with probability c_k, whatever stands elsewhere: an item's reward is weighted
                    by the ratio of its looked-at exposure, W = Σ_k c_k π(a at k) / Σ_k c_k μ(a at k)
    by item and place   a reward depends on the item and its place alone: π(a at k) / μ(a at k)
    cascade         it depends on the items above, too: the product of the ratios down to the place
    whole lists     it may depend on anything: the product of all ratios of the list

The fewer they assume, the more lists they need: to detect a gain of 5 % in lists of ten about 1 : 4 : 20 : 90.
Weights by places are capped, which for rewards of at least 0 can only lower a value. They are plain: a reward model
that made π must not be in its verdict, for under a cap it praises its own noise.

Joachims et al. 2017 and Wang et al. 2018 (position-based), Li et al. 2018 (item-position), McInerney et al. 2020
(cascade), Agarwal et al. 2019 (places compared on the items that stood at both).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from localpolicy.errors import DataError
from localpolicy.measure.decisions import Decisions, OverlapRules, effective_sample
from localpolicy.measure.intervals import Contributions
from localpolicy.measure.list_tests import Checked, by_whole_lists, cascade_test, stopping_test

CAP = 10.0  # of weights by places and by item and place
Form = Literal["by places", "by item and place", "cascade", "whole lists"]


class PlacedLists(NamedTuple):
    """n places of lists that μ drew, list by list and place by place, with the chances of their items elsewhere."""

    log: Decisions  # as whole lists: π/μ down to each place
    mu: np.ndarray  # [n, K] chance of each row's item at each place under μ
    pi: np.ndarray  # [n, K] the same under π


def weights(lists: PlacedLists, form: Form, examined: np.ndarray | None = None) -> np.ndarray:
    """Importance weights of each reward under one assumption `form` [n]; `examined` c [K] is for "by places"."""
    if form == "cascade":
        return np.asarray(lists.log.weight)
    if form == "whole lists":
        return np.asarray(by_whole_lists(lists.log).weight)
    if form == "by places":
        assert examined is not None
        exposure, base = lists.pi @ examined, lists.mu @ examined
    else:
        at = np.arange(len(lists.mu)), lists.log.places
        exposure, base = lists.pi[at], lists.mu[at]
    return np.asarray(np.minimum(_over(exposure, base), CAP))


def contributions(lists: PlacedLists, weight: np.ndarray) -> Contributions:
    """Σ_j w_j r_j of every list."""
    log = lists.log
    return Contributions(log.summed(weight * log.reward), log.clusters, weight, log.reward)


def against(lists: PlacedLists, declared: np.ndarray, examined: np.ndarray) -> np.ndarray:
    """Weights by places for a list that was never drawn; `declared` is each row's place in it, -1 if absent."""
    at = np.where(declared >= 0, examined[np.maximum(declared, 0)], 0.0)
    base = lists.mu @ examined
    return _over(at, base)


def _over(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """values / base, and 0 where the base is 0."""
    return np.asarray(np.divide(values, base, out=np.zeros_like(values), where=base > 0))


# ---------------------------------------------------------------------- how places are looked at

STEPS, CLOSE = 10_000, 1e-10
LEAST_LOOKED = 1e-12  # of a place without rewards
OUTSIDE = 1e-6  # chance below which an item counts as never there


class Examined(NamedTuple):
    """Examination probability of each list place, relative to the first of the places it can be compared with."""

    curve: np.ndarray  # c [K], 1 at the first place of each group
    group: np.ndarray  # [K] the first of the places that each is compared with; of pinned places: itself

    @classmethod
    def known(cls, curve: np.ndarray) -> Examined:
        """Examination from a curve measured elsewhere, for places that can all be compared."""
        return cls(curve, np.zeros(len(curve), np.int64))

    def covers(self, lists: PlacedLists) -> bool:
        """Whether both policies show every item only at places that can be compared with each other."""
        apart = self.group != self.group[lists.log.places][:, None]
        return not ((lists.mu > OUTSIDE) & apart).any() and not ((lists.pi > OUTSIDE) & apart).any()


def examination(mu: np.ndarray, place: np.ndarray, reward: np.ndarray) -> Examined:
    """Estimate c of every place from the chances of each row's item at all places [n, K], its place and reward.

    Of an item that μ shows at k and at l, a reward at k counts μ(a at l) / (μ(a at k) + μ(a at l)), and one at l the
    rest: so both counts are of the same items, and their expectations are as c_k to c_l. All pairs together are
    Bradley and Terry's (1952) law, whose likelihood has one maximum. Nothing is assumed of the items, and nothing
    shrunk: a ridge on places made errors of 40 %.
    """
    if (reward < 0).any():
        raise DataError("how places are looked at is estimated from rewards of at least 0; found negative ones.")
    places = mu.shape[1]
    counts = np.zeros((places, places))
    for k in range(places):
        here = place == k
        both = mu[here, k, None] + mu[here]
        counts[k] = reward[here] @ np.divide(mu[here], both, out=np.zeros_like(both), where=both > 0)
    np.fill_diagonal(counts, 0.0)
    met = counts + counts.T
    group, won, curve = _groups(met > 0), counts.sum(1), np.ones(places)
    for _ in range(STEPS):
        games = (met / (curve[:, None] + curve)).sum(1)
        new = np.divide(won, games, out=np.ones(places), where=games > 0)
        new = np.maximum(new / np.where(new[group] > 0, new[group], 1.0), LEAST_LOOKED)
        done = np.abs(new - curve).max() < CLOSE
        curve = new
        if done:
            break
    return Examined(curve, group)


def _groups(pairs: np.ndarray) -> np.ndarray:
    """First place of the group that each place is connected to by pairs: [K]."""
    joined = pairs | np.eye(len(pairs), dtype=bool)
    for _ in pairs:
        joined = joined @ joined
    return np.asarray(joined.argmax(1))


# ---------------------------------------------------------------------- which estimate stands


class Chosen(NamedTuple):
    """The estimate of whole lists that is used, with the tests of its assumptions."""

    form: Form
    weight: np.ndarray  # [n]
    effective: float  # share of the sample that the weights leave, of places or of whole lists
    stopping: Checked | None  # whether places below a reward earn less
    below: Checked | None  # whether rewards depend on the items below
    examined: Examined
    why: str  # in words
    refusal: str | None  # why it is no estimate; None where it is one

    def contributions(self, lists: PlacedLists) -> Contributions:
        """Σ_j w_j r_j of every list."""
        return contributions(lists, self.weight)


def value_of_lists(
    lists: PlacedLists,
    examined: Examined | None = None,
    *,
    score: np.ndarray | None = None,
    rules: OverlapRules | None = None,
) -> Chosen:
    """Choose the weights by places, cascade or whole lists by tests of the log: the least variance not refuted.

    How places are looked at is estimated from the lists themselves where it is not given. Where a law moves items
    between places that were never mixed, the cascade stands, which needs no c. `score` [n] orders items by what they
    earn as far as that is known, for the test of stopping (default: their exposure under μ).
    """
    log = lists.log
    curve = examination(lists.mu, log.places, log.reward) if examined is None else examined
    below, stopping = cascade_test(log), stopping_test(log, lists.mu @ curve.curve if score is None else score)
    form: Form = "by places"
    why = "places are looked at whatever stands elsewhere, as far as the log tells"
    if below is not None and below.fails:
        form, why = "whole lists", "rewards depend on the items below"
    elif stopping is not None and stopping.fails:
        form, why = "cascade", "places below a reward earn less: people stop"
    elif not curve.covers(lists):
        form, why = "cascade", "items change places that the log never mixed: how these are looked at is not known"
    weight = weights(lists, form, curve.curve)
    unit, least = log.whole_weight if form == "whole lists" else weight, (rules or OverlapRules()).min_effective
    share = effective_sample(unit) / max(len(unit), 1)
    few = share * len(log.starts)
    refusal = f"effective sample {few:.1f} of {len(log.starts):,} lists; {least:g} are needed" if few < least else None
    return Chosen(form, weight, share, stopping, below, curve, why, refusal)
