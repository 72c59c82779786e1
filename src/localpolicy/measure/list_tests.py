"""Tests of what an estimate of a list's value assumes, on lists that μ drew with known propensities.

    cascade     the reward of place j depends on the items of places 1 to j: so, whatever stands above, it is
                uncorrelated with the ratio ρ of the places below, E_μ[(ρ_{j+1} ... ρ_k - 1) (r_j - r̄_j)] = 0
    stopping    people leave after a reward: so places below one earn less than their items do elsewhere

Errors are clustered: the lists of one person are not independent. A test that fires where nothing is wrong costs
precision, for the estimate that stands instead assumes less; one that misses costs the truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimate import clustered_se, sequences_of

LEVEL = 0.05  # of each test


class Checked(NamedTuple):
    """What a test of an assumption found."""

    p: float  # two-sided, or of the one side that matters
    place: int | None  # counted from 1: where it fails most clearly; None: over all places together
    t: float  # there, in standard errors

    @property
    def fails(self) -> bool:
        """Whether the assumption is given up."""
        return self.p < LEVEL


def cascade_test(log: Decisions) -> Checked | None:
    """Whether rewards depend on the items below; None where no list has a place below another.

    Σ_j of the covariances gets half of the level, for a list's places are mostly alike; the places by themselves share
    the other half, for they may differ in sign.
    """
    place, below = log.places, ratios_below(log)
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


def by_whole_lists(log: Decisions) -> Decisions:
    """The same with every reward weighted by the ratio of its whole list: right whatever a reward depends on."""
    return log._replace(weight=np.repeat(log.whole_weight, np.diff(np.append(log.starts, len(log.weight)))))


def ratios_below(log: Decisions) -> np.ndarray:
    """ρ_{j+1} ... ρ_k of each row's list [n]: 1 at its last place."""
    below, ratio, place = np.ones(len(log.weight)), log.one_place, log.places
    for number in range(int(place.max(initial=0)), 0, -1):
        here = np.flatnonzero(place == number)
        below[here - 1] = ratio[here] * below[here]
    return below


def _last(log: Decisions) -> np.ndarray:
    """Whether a row is the last place of its list."""
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
