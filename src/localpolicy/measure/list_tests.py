"""Tests of what an estimate of a list's value assumes, on lists that μ drew with known propensities.

    cascade     the reward of place j depends on the items of places 1 to j: so, whatever stands above, it is
                uncorrelated with the ratios ρ of the places below, E_μ[(ρ_i - 1) (r_j - r̄_j)] = 0 for each i > j.
                Their sum over i is tested, which is the product ρ_{j+1} ... ρ_k - 1 to first order and has no tails:
                by the product itself, lists of ten accused a true cascade in 5 of 20 logs
    stopping    people leave after a reward: so places below one earn less than their items do elsewhere

Errors are clustered: the lists of one person are not independent. A test that fires where nothing is wrong costs
precision, for the estimate that stands instead assumes less; one that misses costs the truth, so that no verdict hangs
on the first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimate import clustered_se, sequences_of

LEVEL = 0.05  # of each test


class Checked(NamedTuple):
    """Result of a test of an assumption."""

    p: float  # two-sided, or of the one side that matters
    place: int | None  # counted from 1: where it fails most clearly; None: over all places together
    t: float  # there, in standard errors

    @property
    def fails(self) -> bool:
        """Whether the assumption is given up."""
        return self.p < LEVEL


def cascade_test(log: Decisions) -> Checked | None:
    """Test of whether rewards depend on items below in the list; None if no list has two places.

    Σ_j of the covariances gets half of the level, for a list's places mostly behave equally; the places by themselves
    share the other half, for they may differ in sign.
    """
    place, below = log.places, pull_below(log)
    asked = ~_last(log) & (log.weight > 0)  # decided by the places above, so that what is left has the same law
    if not asked.any():
        return None
    place, below, reward, person = place[asked], below[asked], log.reward[asked], log.sequence[asked]
    product = _centred(below, place) * _centred(reward, place)
    lists = (np.cumsum(log.places == 0) - 1)[asked]
    each = [_student(product[place == at], person[place == at]) for at in np.unique(place)]
    whose, where = np.unique(lists, return_index=True)
    joint = _student(np.bincount(np.searchsorted(whose, lists), weights=product), person[where])
    worst = min(range(len(each)), key=lambda at: each[at].p)
    single = each[worst]._replace(p=min(1.0, len(each) * each[worst].p), place=int(np.unique(place)[worst]) + 1)
    found = min(joint, single, key=lambda one: one.p)
    return found._replace(p=min(1.0, 2 * found.p)) if len(each) > 1 else joint


BINS = 10  # of scores, at each place


def stopping_test(log: Decisions, score: np.ndarray) -> Checked | None:
    """One-sided test of whether places below a reward earn less than other places; None without any.

    A place's reward is compared with the mean of its place among items of about the same `score` [n] (how much μ makes
    of it). Where rewards have several sizes the test also asks below the largest (a purchase): half of the level each.
    """
    reward, place = log.reward, log.places
    if not (place > 0).any() or not (reward > 0).any():
        return None
    cell = place * BINS + _bins(score, place)
    residual = _centred(reward, cell)
    sizes = np.unique(reward[reward > 0])
    each = [_below(log, residual, least) for least in ([sizes[0]] if len(sizes) == 1 else [sizes[0], sizes[-1]])]
    found = min(each, key=lambda one: one.p)
    return found._replace(p=min(1.0, len(each) * found.p))


def _below(log: Decisions, residual: np.ndarray, least: float) -> Checked:
    """One-sided test that places below a reward of at least `least` have a mean residual below 0."""
    met = np.cumsum(log.reward >= least)
    at_start: np.ndarray = np.repeat(
        (met - (log.reward >= least))[log.starts], np.diff(np.append(log.starts, len(met)))
    )
    here = met - (log.reward >= least) > at_start
    found = _student(residual[here], log.sequence[here]) if here.any() else Checked(1.0, None, 0.0)
    return found._replace(p=found.p / 2 if found.t < 0 else 1 - found.p / 2)


def _bins(score: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Tenth of the scores at its own place that each score is in: [n]."""
    found = np.zeros(len(score), np.int64)
    for number in range(int(place.max(initial=0)) + 1):
        here = np.flatnonzero(place == number)
        edges = np.quantile(score[here], np.arange(1, BINS) / BINS) if len(here) else []
        found[here] = np.searchsorted(edges, score[here], side="right")
    return found


def by_whole_lists(log: Decisions) -> Decisions:
    """Decisions with every reward weighted by the ratio of its whole list: unbiased whatever rewards depend on."""
    return log._replace(weight=np.repeat(log.whole_weight, np.diff(np.append(log.starts, len(log.weight)))))


def pull_below(log: Decisions) -> np.ndarray:
    """Σ_{i > j} (ρ_i - 1) of each row's list [n]: how much likelier π makes what is below it; 0 at its last place."""
    pull, ratio, place = np.zeros(len(log.weight)), log.one_place, log.places
    for number in range(int(place.max(initial=0)), 0, -1):
        here = np.flatnonzero(place == number)
        pull[here - 1] = ratio[here] - 1 + pull[here]
    return pull


def _last(log: Decisions) -> np.ndarray:
    """Mask of the rows at the last place of their list."""
    return np.append(log.places[1:] == 0, True)


def _centred(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """values - their mean at the same place."""
    return np.asarray(values - (np.bincount(place, values) / np.maximum(np.bincount(place), 1))[place])


def _student(values: np.ndarray, persons: np.ndarray) -> Checked:
    """mean = 0, two-sided, by Student's t of as many persons as there are."""
    if sequences_of(persons) < 2 or not (se := clustered_se(values, persons)) > 0:
        return Checked(1.0, None, 0.0)
    t = float(values.mean()) / se
    return Checked(2 * float(stdtr(sequences_of(persons) - 1, -abs(t))), None, t)
