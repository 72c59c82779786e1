"""The month as tables: its lists' law and both of its estimates, enumerated over all lists of three of four items."""

from __future__ import annotations

import runpy
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
LAW = np.array([0.6, 0.25, 0.1, 0.05])
LISTS = np.array(list(permutations(range(4), 3)))


@pytest.fixture(scope="module")
def table():
    sys.path.insert(0, str(FOLDER))
    try:
        yield runpy.run_path(str(FOLDER / "month_table.py"))
    finally:
        sys.path.remove(str(FOLDER))


def chances(law: np.ndarray, floor: float, even: np.ndarray) -> np.ndarray:
    """The probability of each of LISTS: at each place (1 - ε) π(a) / Σ π(open) + ε u(a) / Σ u(open)."""
    found = []
    for row in LISTS:
        chance, left = 1.0, list(range(4))
        for item in row:
            chance *= (1 - floor) * law[item] / law[left].sum() + floor * even[item] / even[left].sum()
            left.remove(item)
        found.append(chance)
    return np.array(found)


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_an_item_is_in_a_list_as_often_as_all_lists_together_say(table, floor):
    even = np.array([0.2, 0.2, 1.2, 0.2])
    chance = chances(LAW, floor, even)
    expected = [chance[(item == LISTS).any(1)].sum() for item in range(4)]
    assert table["inclusion"](LAW, floor, even) == pytest.approx(expected)
    assert sum(expected) == pytest.approx(3)


def test_lists_are_drawn_by_that_law(table):
    """With the propensities that it states, of each place given those above."""
    even, count = np.array([0.2, 0.2, 1.2, 0.2]), 20_000
    items, stated = table["draw"](np.tile(LAW, (count, 1)), 0.3, even, np.random.default_rng(0))
    chance = dict(zip(map(tuple, LISTS), chances(LAW, 0.3, even), strict=True))
    assert stated.prod(1) == pytest.approx([chance[tuple(row)] for row in items])
    for row, expected in chance.items():
        assert abs((items == row).all(1).mean() - expected) < 5 * (expected * (1 - expected) / count) ** 0.5


def test_both_estimates_are_the_value_of_a_list(table):
    """A log of every list once is that of the even law."""
    reward, even = np.array([0.2, 0.9, 0.4, 0.7]), np.full(4, 0.25)
    stated = np.tile([1 / 4, 1 / 3, 1 / 2], (len(LISTS), 1))
    log = table["Day"](even[None], even, np.zeros(len(LISTS), int), LISTS, stated, reward[LISTS], np.zeros(len(LISTS)))
    expected = chances(LAW, 0.0, even) @ reward[LISTS].sum(1)
    shown = np.full((1, 4), 3 / 4)
    cascade, places = table["under_cascade"](LAW[None], log), table["by_places"](LAW[None], log, shown)
    assert cascade.mean == pytest.approx(expected)
    assert places.mean == pytest.approx(expected)
    for found in (cascade, places):  # at the mean of the log an estimate's influences add up to nothing
        assert found.influence.sum() == pytest.approx(0, abs=1e-12)
    assert places.effective > cascade.effective
    assert table["drawn_value"](LAW, reward, 0.0) == pytest.approx(expected)
