"""The bandit world: exact sums against its own log, and the mathematics of the tilted optimum."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.errors import ConfigError
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.events import Events

WORLD = BanditWorld(BanditConfig(contexts=30, items=12), seed=3)
BETAS = (2.0, 0.5, 0.1, 0.02)


def logged(world: BanditWorld, sequences: int, **options: np.ndarray) -> Events:
    (chunk,) = world.log(sequences, 1, **options)
    return chunk


def decisions(world: BanditWorld, chunk: Events) -> tuple[np.ndarray, np.ndarray]:
    """The context's number and the action of each sequence."""
    rows = chunk.item.reshape(len(chunk.lengths), -1)
    number = {tuple(history): x for x, history in enumerate(world.contexts.tolist())}
    return np.array([number[tuple(row)] for row in rows[:, :-1].tolist()]), rows[:, -1]


def kl(world: BanditWorld, policy: np.ndarray) -> float:
    terms = np.where(policy > 0, policy * np.log(np.maximum(policy, 1e-300) / world.logging), 0)
    return float(world.context_probabilities @ terms.sum(1))


def test_the_world_is_a_proper_bandit() -> None:
    assert len({tuple(row) for row in WORLD.contexts.tolist()}) == 30
    assert WORLD.reward.min() > 0
    assert WORLD.reward.max() < 1
    assert WORLD.logging.min() > 0
    np.testing.assert_allclose(WORLD.logging.sum(1), 1)
    np.testing.assert_allclose(WORLD.context_probabilities.sum(), 1)
    assert np.all(np.diff(WORLD.context_probabilities) <= 0)


def test_value_by_hand() -> None:
    world = BanditWorld(BanditConfig(contexts=2, items=2, history=2))
    world.reward = np.array([[0.1, 0.9], [0.4, 0.6]])
    world.context_probabilities = np.array([0.25, 0.75])
    policy = np.array([[0.5, 0.5], [1.0, 0.0]])
    assert world.value(policy) == pytest.approx(0.25 * (0.05 + 0.45) + 0.75 * 0.4)
    assert world.optimum() == pytest.approx(0.25 * 0.9 + 0.75 * 0.6)


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_the_logs_mean_reward_estimates_the_exact_value(noise: float) -> None:
    world = BanditWorld(BanditConfig(contexts=30, items=12, noise=noise), seed=3)
    chunk = logged(world, 60_000)
    reward = chunk.reward[chunk.event != world.events.index("context")]
    se = reward.std() / np.sqrt(len(reward))
    assert abs(reward.mean() - world.logging_value()) < 4 * se


def test_noise_leaves_the_mean_alone_and_sets_the_spread() -> None:
    """Var(R|x,a) = ν² r (1 − r)."""
    for noise in (0.0, 0.5):
        world = BanditWorld(BanditConfig(contexts=2, items=2, history=2, noise=noise), seed=1)
        chunk = logged(world, 60_000)
        context, action = decisions(world, chunk)
        chosen = (context == 0) & (action == 1)
        reward, r = chunk.reward.reshape(len(context), -1)[chosen, -1], world.reward[0, 1]
        assert reward.mean() == pytest.approx(r, abs=5 * noise / np.sqrt(chosen.sum()) + 1e-12)
        assert reward.var() == pytest.approx(noise**2 * r * (1 - r), rel=0.1, abs=1e-12)


def test_frequencies_and_propensities_are_those_of_mu() -> None:
    sequences = 60_000
    chunk = logged(WORLD, sequences)
    context, action = decisions(WORLD, chunk)
    propensity = chunk.propensity.reshape(sequences, -1)
    assert np.isnan(propensity[:, :-1]).all()
    np.testing.assert_array_equal(propensity[:, -1], WORLD.logging[context, action])
    counts = np.zeros(WORLD.logging.shape)
    np.add.at(counts, (context, action), 1)
    expected = sequences * WORLD.context_probabilities[:, None] * WORLD.logging
    # Pearson's statistic has mean ~cells and variance ~2 cells.
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - counts.size) < 5 * np.sqrt(2 * counts.size)


def test_another_policy_can_be_logged() -> None:
    policy = WORLD.tilted(0.1)
    chunk = logged(WORLD, 60_000, probabilities=policy)
    context, action = decisions(WORLD, chunk)
    np.testing.assert_array_equal(chunk.propensity[3::4], policy[context, action])
    reward = chunk.reward[3::4]
    assert abs(reward.mean() - WORLD.value(policy)) < 4 * reward.std() / np.sqrt(len(reward))


def test_rows_are_history_then_one_decision() -> None:
    chunk = logged(WORLD, 100)
    names = np.array(WORLD.events)[chunk.event].reshape(100, 4)
    assert set(names[:, :3].ravel()) == {"context"}
    assert set(names[:, 3]) == {"none", "click"}
    np.testing.assert_array_equal(names[:, 3] == "click", chunk.reward[3::4] >= 0.5)
    assert not chunk.reward.reshape(100, 4)[:, :3].any()
    assert np.all(np.diff(chunk.time.reshape(100, 4)) > 0)


def test_the_tilted_optimum_improves_as_beta_falls() -> None:
    values = [WORLD.value(WORLD.tilted(beta)) for beta in BETAS]
    assert WORLD.logging_value() < values[0]
    assert np.all(np.diff(values) > 0)
    assert values[-1] < WORLD.optimum()
    assert WORLD.value(WORLD.tilted(1e-4)) == pytest.approx(WORLD.optimum())
    np.testing.assert_allclose(WORLD.tilted(1e9), WORLD.logging)


@pytest.mark.parametrize("beta", BETAS)
def test_the_values_slope_is_the_variance_of_the_reward(beta: float) -> None:
    """dJ(π_β)/d(1/β) = E_x Var_{π_β}(r)."""
    policy = WORLD.tilted(beta)
    mean = (policy * WORLD.reward).sum(1)
    variance = WORLD.context_probabilities @ ((policy * WORLD.reward**2).sum(1) - mean**2)
    h = 1e-4 / beta
    up, down = (WORLD.value(WORLD.tilted(1 / (1 / beta + step))) for step in (h, -h))
    assert variance > 1e-5
    assert (up - down) / (2 * h) == pytest.approx(variance, rel=1e-4)


@pytest.mark.parametrize("beta", BETAS)
def test_the_tilted_policy_attains_the_regularised_maximum(beta: float) -> None:
    """J(π_β) − β KL(π_β‖μ) = E_x β log E_μ e^{r/β}, and no other policy exceeds it."""
    policy = WORLD.tilted(beta)
    free = beta * np.log((WORLD.logging * np.exp(WORLD.reward / beta)).sum(1))
    maximum = WORLD.context_probabilities @ free
    assert WORLD.value(policy) - beta * kl(WORLD, policy) == pytest.approx(maximum)
    for other in (WORLD.logging, WORLD.tilted(1.3 * beta), np.full_like(policy, 1 / WORLD.n_items)):
        assert WORLD.value(other) - beta * kl(WORLD, other) < maximum


def test_the_quality_dial_makes_a_better_logging_policy() -> None:
    values = [BanditWorld(BanditConfig(quality=quality)).logging_value() for quality in (-1, 0, 1, 2)]
    assert np.all(np.diff(values) > 0)


def test_a_context_taste_is_a_function_of_its_items() -> None:
    """Two histories of the same items in another order are the same taste: a network can generalise."""
    world = BanditWorld(BanditConfig(contexts=300, items=8, history=3))
    by_items: dict[tuple[int, ...], np.ndarray] = {}
    shared = 0
    for history, row in zip(world.contexts.tolist(), world.reward, strict=True):
        key = tuple(sorted(history))
        shared += key in by_items
        np.testing.assert_allclose(by_items.setdefault(key, row), row, rtol=1e-9)
    assert shared > 50


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"temperature": 0}, "temperature"),
        ({"noise": 1.5}, "noise"),
        ({"itms": 5}, "did you mean 'items'"),
        ({"items": 1}, "items"),
    ],
)
def test_dials_out_of_range_are_refused(dials: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BanditConfig.parse(dials)


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"temperature": 0.01}, "Raise 'temperature'"),
        ({"items": 3, "history": 1, "contexts": 10}, "lower 'contexts'"),
        ({"items": 1_000_000, "contexts": 1000}, "at most"),
    ],
)
def test_worlds_that_cannot_be_are_refused(dials: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BanditWorld(BanditConfig.parse(dials))


def test_policies_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="one row per context"):
        WORLD.value(np.ones((2, 2)))
    with pytest.raises(ConfigError, match="sum 1"):
        WORLD.value(WORLD.logging * 2)
    with pytest.raises(ConfigError, match="above 0"):
        WORLD.tilted(0)


TOLD = BanditConfig(contexts=40, items=400, features=2, told=0.9, new_items=0.5, new_rounds=2, taste=0.0)


def test_true_features_predict_the_reward_and_false_ones_do_not() -> None:
    """Without taste an item's logit is its appeal: columns explain `told` of its variance together, or nothing."""
    world = BanditWorld(TOLD, seed=1)
    table = world.item_table()
    assert table is not None and table.column_names == ["item_id", "true_1", "true_2", "false_1", "false_2"]
    appeal = np.log(world.reward / (1 - world.reward))[0]
    for kind, low, high in (("true", 0.8, 0.97), ("false", 0.0, 0.12)):
        columns = [np.array(table[f"{kind}_{number}"].to_pylist()) for number in (1, 2)]
        x = np.concatenate([column[:, None] == np.unique(column) for column in columns], 1).astype(float)
        fitted = x @ np.linalg.lstsq(x, appeal, rcond=None)[0]
        assert low < 1 - np.var(appeal - fitted) / np.var(appeal) < high, kind
    assert 0.8 < np.std(appeal) / TOLD.appeal < 1.2, "as spread as without features"


def test_new_items_come_round_by_round_and_are_unknown_to_mu() -> None:
    world = BanditWorld(TOLD, seed=1)
    assert [world.on_sale(number) for number in (0, 1, 2, 3)] == [200, 300, 400, 400]
    assert [len(world.item_table(number) or ()) for number in (0, 1, 2)] == [200, 300, 400]
    assert world.logging[:, :200].min() > 0 == world.logging[:, 200:].max()
    assert world.contexts.max() < 200, "histories are of items that there were"
    assert world.reward[:, 200:].max() > world.reward[:, 200:].min() > 0, "what they are worth is known"
    assert all(chunk.item.max() < 200 for chunk in world.log(2_000, seed=0))


def test_without_features_a_world_has_no_table_and_is_what_it_was() -> None:
    assert WORLD.item_table() is None
    assert WORLD.on_sale(0) == WORLD.n_items
