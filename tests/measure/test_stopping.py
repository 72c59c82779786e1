"""Whether people stop after a reward: found where they do, and keen visitors are not taken for it."""

from __future__ import annotations

import numpy as np

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.list_tests import stopping_test

V, K = 5, 3
MU = np.array([0.35, 0.25, 0.2, 0.15, 0.05])
PI = np.array([0.15, 0.2, 0.2, 0.25, 0.2])
WORTH = np.array([0.3, 0.5, 0.4, 0.8, 0.6])
LOOKED = np.array([1.0, 0.6, 0.25])


def law(policy: np.ndarray, lists: np.ndarray) -> np.ndarray:
    """π(a|open) of each place of each list."""
    chosen = policy[lists]
    return chosen / (1 - np.cumsum(chosen, 1) + chosen)


def drawn(count: int, kind: str, seed: int) -> Decisions:
    """Lists of μ as those of π, looked at by places; where it "stops", nobody takes a second item."""
    rng = np.random.default_rng(seed)
    lists = np.argsort(-(np.log(MU) + rng.gumbel(size=(count, V))), axis=1)[:, :K]
    taken = rng.random(lists.shape) < WORTH[lists] * LOOKED
    if kind == "stops":
        taken &= np.cumsum(taken, axis=1) <= 1
    weight = (law(PI, lists) / law(MU, lists)).cumprod(1).ravel()
    people, places = np.repeat(np.arange(count), K), np.tile(np.arange(K), count)
    return Decisions(weight, taken.ravel().astype(float), people, place=places)


def test_stopping_is_found_and_keenness_is_not_taken_for_it():
    fired = sum(stopping_test(drawn(1_000, "stops", seed), np.zeros(3_000)).fails for seed in range(10))
    assert fired == 10
    rng = np.random.default_rng(0)
    log = drawn(1_000, "places", 0)
    keen = np.repeat(rng.random(1_000) < 0.5, K) * 1.0
    found = stopping_test(log._replace(reward=keen * log.reward), np.zeros(3_000))
    assert found.t > 4 and not found.fails and found.p > 0.99


def test_stopping_after_the_largest_reward_alone_is_found():
    """Small rewards above go with more below (keenness); only after a large one people leave."""
    rng = np.random.default_rng(5)
    count = 3_000
    keen = np.where(rng.random(count) < 0.5, 0.15, 0.8)[:, None]
    wanted = rng.random((count, K)) < keen
    large = wanted & (rng.random((count, K)) < 0.15)
    gone = np.column_stack([np.zeros(count, bool), np.cumsum(large, 1)[:, :-1] > 0])
    reward = (wanted & ~gone) * np.where(large, 1.0, 0.1)
    log = Decisions(np.ones(count * K), reward.ravel(), np.repeat(np.arange(count), K),
                    place=np.tile(np.arange(K), count))  # fmt: skip
    assert stopping_test(log, np.zeros(count * K)).fails
    small = log._replace(reward=np.where(large & ~gone, 0.1, reward).ravel())
    assert stopping_test(small, np.zeros(count * K)).t > stopping_test(log, np.zeros(count * K)).t


def test_there_is_nothing_to_test_without_rewards_or_places_below():
    log = drawn(50, "places", 0)
    assert stopping_test(log._replace(reward=np.zeros(150)), np.zeros(150)) is None
    assert stopping_test(log.at(log.places == 0), np.zeros(50)) is None
