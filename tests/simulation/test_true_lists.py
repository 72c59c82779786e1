"""Lists drawn without replacement, enumerated."""

from itertools import permutations

import numpy as np
import pytest

from localpolicy.simulation.lists import list_value, place_chances


def enumerated(policy: np.ndarray, places: int) -> np.ndarray:
    """P(a at place j), from the probability of every list there is."""
    found = np.zeros((len(policy), places))
    for order in permutations(range(len(policy)), places):
        chance = np.prod([policy[item] / (1 - policy[list(order[:j])].sum()) for j, item in enumerate(order)])
        for j, item in enumerate(order):
            found[item, j] += chance
    return found


@pytest.mark.parametrize(("items", "places", "sharpness"), [(6, 3, 1.0), (7, 4, 3.0), (5, 5, 2.0), (4, 1, 6.0)])
def test_chances_of_places_are_those_of_all_lists(items, places, sharpness):
    policy = np.exp(sharpness * np.random.default_rng(items).standard_normal(items))
    policy /= policy.sum()
    np.testing.assert_allclose(place_chances(policy, places), enumerated(policy, places), atol=1e-10)


def test_an_item_that_is_never_shown_stands_nowhere():
    chances = place_chances(np.array([0.0, 0.7, 0.3]), 2)
    np.testing.assert_allclose(chances, [[0, 0], [0.7, 0.3], [0.3, 0.7]], atol=1e-12)


def test_a_list_earns_what_its_places_do():
    rng = np.random.default_rng(1)
    policy, reward, examined = rng.dirichlet(np.ones(5), 2), rng.random((2, 5)), np.array([1.0, 0.5, 0.25])
    expected = [
        (enumerated(law, 3) * worth[:, None] * examined).sum() for law, worth in zip(policy, reward, strict=True)
    ]
    np.testing.assert_allclose(list_value(policy, reward, examined), expected, atol=1e-10)
