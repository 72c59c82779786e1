"""Gains in one figure and losses in another: paired with a base, one family of tests, and which policy beats which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from measured import holm

from localpolicy.measure.estimate import Estimate, mean_estimate
from localpolicy.measure.gains import beaten_by, exchanges
from localpolicy.measure.significance import paired

FIGURES = ("purchase.nDCG@20", "click.nDCG@20")
SEQUENCE = np.repeat(np.arange(40), 3)


@dataclass
class Fixed:
    name: str
    known: dict[str, np.ndarray]

    def estimate(self, name: str) -> Estimate:
        return mean_estimate(*self.values(name))

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.known[name], SEQUENCE


def policy(name: str, purchase: float, click: float, seed: int) -> Fixed:
    rng = np.random.default_rng(seed)
    known = {}
    for figure, mean in zip(FIGURES, (purchase, click), strict=True):
        noise = 0.05 * rng.standard_normal(len(SEQUENCE))
        known[figure] = mean + noise - noise.mean()
    return Fixed(name, known)


BASE = policy("base", 0.40, 0.20, 0)
POLICIES = [policy("far", 0.50, 0.10, 1), policy("mild", 0.45, 0.20, 2), policy("beaten", 0.42, 0.15, 3)]


def test_gains_are_paired_differences_of_one_family():
    found = exchanges([(each, BASE) for each in POLICIES], FIGURES)
    alone = {
        (each.name, name): paired(each.values(name)[0], *BASE.values(name)) for each in POLICIES for name in FIGURES
    }
    corrected = dict(zip(alone, holm([test.p for test in alone.values()]), strict=True))
    for each, wanted in zip(found, ((0.10, -0.10), (0.05, 0.0), (0.02, -0.05)), strict=True):
        for name, difference in zip(FIGURES, wanted, strict=True):
            assert each.gains[name].difference == pytest.approx(difference, abs=1e-12)
            assert each.gains[name].holm_p == pytest.approx(corrected[each.name, name])
    assert [each.gains[FIGURES[1]].sign for each in found] == [-1, 0, -1]


def test_a_policy_is_beaten_by_those_larger_in_both():
    assert [each.beaten_by for each in exchanges([(each, BASE) for each in POLICIES], FIGURES)] == [[], [], ["mild"]]
    points = [(1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (2.0, 0.9), (0.5, 1.0)]
    assert [beaten_by(points, place) for place in range(5)] == [[], [], [0, 1, 3], [], [0, 1]]


def test_each_policy_has_a_base_of_its_own():
    """A point with one seed is compared with the base of that seed."""
    other = policy("base", 0.45, 0.20, 4)
    first, second = exchanges([(POLICIES[0], BASE), (POLICIES[0], other)], FIGURES)
    assert first.gains[FIGURES[0]].difference - second.gains[FIGURES[0]].difference == pytest.approx(0.05)
