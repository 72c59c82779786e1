"""Item and user means against a critic: they find planted means, read the past alone, and warn if they win."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.training.critic_quality import CriticError, ReturnsLog, fit_plain, read_decisions

PRIOR = 20


def log_of(generosity: float, *, sequences: int = 400, length: int = 30, items: int = 5, seed: int = 0) -> ReturnsLog:
    """Rewards that are an item's mean plus the sequence's own; γ = 0."""
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(sequences), length)
    item = rng.integers(items, size=len(sequence))
    user = generosity * rng.standard_normal(sequences)[sequence]
    reward = item / items + user + 0.1 * rng.standard_normal(len(sequence))
    history = np.tile(np.arange(length), sequences)
    return ReturnsLog(sequence, item, reward, reward, np.ones(len(item)), history)


def error(model, log):
    return float(np.mean((model(log) - log.returns) ** 2))


def test_it_finds_what_was_planted():
    train, held_out = log_of(1.0), log_of(1.0, seed=1)
    plain = fit_plain(train, n_items=5)
    np.testing.assert_allclose(plain.mean_return - plain.mean_return.mean(), np.arange(5) / 5 - 0.4, atol=0.05)
    items_alone = plain._replace(generosity=0.0)
    assert error(plain, held_out) < 0.5 * error(items_alone, held_out) < 0.5 * held_out.returns.var()
    nothing = fit_plain(log_of(0.0), n_items=5)
    assert abs(nothing.generosity) < 0.1 < plain.generosity


def test_by_hand_and_from_the_past_alone():
    """One item of mean 0 in all: u is the mean of earlier rewards, over their number plus 20."""
    rewards, history = np.array([1.0, 3.0, 0.0, -4.0]), np.array([0, 1, 2, 0])
    log = ReturnsLog(np.array([0, 0, 0, 1]), np.zeros(4, int), rewards, np.zeros(4), np.ones(4), history)
    plain = fit_plain(log, n_items=2)
    assert plain.mean_reward[0] == 0.0 and plain.mean_reward[1] == 0.0
    found = plain._replace(generosity=1.0, mean_return=np.array([0.5, 9.0]))(log)
    np.testing.assert_allclose(found, [0.5, 0.5 + 1 / (1 + PRIOR), 0.5 + 4 / (2 + PRIOR), 0.5])


def test_an_item_that_was_never_taken_has_the_mean_of_all():
    log = log_of(0.0)
    assert fit_plain(log, n_items=6).mean_return[5] == pytest.approx(log.returns.mean())


def test_decisions_are_those_of_the_windows(small):
    windows = Windows(small, "train", WindowConfig(length=6))
    log = read_decisions(windows, gamma=0.5, batch_size=7)
    lasts = np.flatnonzero(np.r_[log.sequence[1:] != log.sequence[:-1], True])
    np.testing.assert_allclose(log.returns[lasts], log.reward[lasts])
    inner = np.setdiff1d(np.arange(len(log.item)), lasts)
    np.testing.assert_allclose(log.returns[inner], log.reward[inner] + 0.5 * log.returns[inner + 1], atol=1e-6)


def test_a_critic_that_is_no_better_is_warned_of():
    assert CriticError(0.9, 1.0, 2.0).warning is None
    assert "does not predict returns better than item and user means" in CriticError(1.0, 1.0, 2.0).warning
