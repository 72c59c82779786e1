"""The shop: an exactly known logging policy, calibrated shares, and look-ahead that matters when it is on."""

from __future__ import annotations

import numpy as np
import pytest
from shop_agents import FarSighted, Myopic

from localpolicy.errors import ConfigError
from localpolicy.simulation.distributions import Lengths, PopularityLaw
from localpolicy.simulation.events import Events
from localpolicy.simulation.shoppers import Shoppers
from localpolicy.simulation.store_config import StoreConfig
from localpolicy.simulation.store_world import REWARDS, StoreWorld

TINY = StoreWorld(StoreConfig(items=30, categories=4, mean_length=6, max_length=12), seed=2)
DEFAULT = StoreWorld()


def one_chunk(world: StoreWorld, sequences: int, seed: int = 1) -> Events:
    (chunk,) = world.log(sequences, seed)
    return chunk


@pytest.mark.parametrize("stretch", [0.3, 0.65, 1.0])
def test_popularity_is_a_distribution_and_is_sampled(stretch: float) -> None:
    law, n = PopularityLaw(stretch, 0.2), 7
    probability = law.probability(np.arange(n), n)
    assert probability.sum() == pytest.approx(1)
    assert np.all(np.diff(probability) <= 1e-12)
    edges = np.concatenate([[0], np.cumsum(probability)])
    middles = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_array_equal(law.sample(middles, n), np.arange(n))
    np.testing.assert_array_equal(law.sample(np.array([0.0, 1 - 1e-16]), n), [0, n - 1])


def test_popularity_by_hand() -> None:
    """γ = 1, τ = 1/n: F(k) ∝ 1 − e^(−k), so probabilities fall by e."""
    probability = PopularityLaw(1.0, 1 / 3).probability(np.arange(3), 3)
    np.testing.assert_allclose(probability, (1 - np.exp(-1)) * np.exp([0, -1, -2]) / (1 - np.exp(-3)))


def test_lengths_follow_their_law() -> None:
    lengths = Lengths(short=(0.2, 0.3), tail=2.0, scale=1.0, longest=50).sample(200_000, np.random.default_rng(0))
    assert lengths.min() == 1
    assert lengths.max() == 50
    for k, share in ((1, 0.2), (2, 0.3), (3, 0.5 * (1 - 1 / 4)), (4, 0.5 * (1 / 4 - 1 / 9))):
        assert (lengths == k).mean() == pytest.approx(share, abs=0.005)


def test_logged_propensities_are_the_exact_rows() -> None:
    chunk = one_chunk(TINY, 200)
    start = np.cumsum(chunk.lengths) - chunk.lengths
    for step in range(8):
        here = start[chunk.lengths > step]
        history = here[:, None] + np.arange(step)
        rows = TINY.logging_probabilities(chunk.item[history], chunk.event[history])
        np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
        assert rows.min() > 0
        taken = rows[np.arange(len(here)), chunk.item[here + step]]
        np.testing.assert_allclose(chunk.propensity[here + step], taken, rtol=1e-5)


@pytest.mark.parametrize("events", [[0, 0, 0], [1, 0, 1], [1, 2, 1], [0, 1, 0]])
def test_items_are_drawn_as_the_exact_rows_say(events: list[int]) -> None:
    n = 40_000
    items = np.tile([3, 17, 3], (n, 1))
    history = np.tile(events, (n, 1))
    drawn, probability = TINY.logging_agent()(items, history, np.random.default_rng(0))
    (row,) = TINY.logging_probabilities(items[:1], history[:1])
    expected = n * row
    statistic = ((np.bincount(drawn, minlength=30) - expected) ** 2 / expected).sum()
    assert abs(statistic - 29) < 5 * np.sqrt(2 * 29)
    np.testing.assert_allclose(probability, row[drawn], rtol=1e-5)


def test_propensities_are_calibrated_over_a_whole_log() -> None:
    """E[1/μ(a|h)] = V for every history, since μ has full support; so for the mean over a log."""
    chunk = one_chunk(
        StoreWorld(StoreConfig(items=30, categories=4, exploration=1, popularity_scale=2.0, repeats=0)), 5000
    )
    inverse = 1 / chunk.propensity
    assert abs(inverse.mean() - 30) < 5 * inverse.std() / np.sqrt(len(inverse))


def test_the_logging_agent_and_the_log_are_the_same_policy() -> None:
    """The log keeps a summary step by step; the agent rereads whole histories. Same luck, same log."""
    (reread,) = TINY.log(300, 1, agent=TINY.logging_agent())
    chunk = one_chunk(TINY, 300)
    np.testing.assert_array_equal(chunk.item, reread.item)
    np.testing.assert_array_equal(chunk.event, reread.event)
    np.testing.assert_allclose(chunk.propensity, reread.propensity)


def test_an_agent_without_probabilities_logs_none() -> None:
    (chunk,) = TINY.log(20, 1, agent=lambda items, events, rng: np.zeros(len(items)))
    assert not chunk.item.any()
    assert np.isnan(chunk.propensity).all()


@pytest.mark.parametrize("items", [1000, 70_000])
def test_the_shares_of_the_default_shop_are_those_of_a_shop(items: int) -> None:
    world = StoreWorld(StoreConfig(items=items))
    chunk = one_chunk(world, 4000)
    answered = chunk.event > 0
    assert 0.25 < answered.mean() < 0.40
    assert 0.03 < (chunk.event == 2).sum() / answered.sum() < 0.07
    key = np.repeat(chunk.sequence, chunk.lengths) * items + chunk.item
    _, first = np.unique(key, return_index=True)
    repeated = np.ones(len(key), bool)
    repeated[first] = False
    assert 0.20 < (repeated & answered).sum() / answered.sum() < 0.40
    assert chunk.lengths.max() <= world.config.max_length
    assert chunk.lengths.mean() == pytest.approx(20, rel=0.05)
    np.testing.assert_array_equal(chunk.reward, np.array([0.0, 0.2, 1.0])[chunk.event])


def test_the_popularity_of_items_is_heavy_tailed() -> None:
    chunk = one_chunk(StoreWorld(StoreConfig(items=5000)), 4000)
    counts = np.sort(np.bincount(chunk.item, minlength=5000))[::-1]
    assert counts[:50].sum() / counts.sum() > 0.10
    assert counts[2500:].sum() / counts.sum() < 0.35


def test_time_runs_within_a_sequence() -> None:
    chunk = one_chunk(TINY, 300)
    sequence = np.repeat(chunk.sequence, chunk.lengths)
    assert np.all(np.diff(chunk.time)[np.diff(sequence) == 0] > 0)


def test_the_probability_matrices_agree_with_the_single_items() -> None:
    shoppers = Shoppers.arrive(50, TINY.config, TINY.goods, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for _ in range(12):
        shoppers.answer(rng.integers(30, size=50), rng)
    click, purchase = shoppers.click_probabilities(), shoppers.purchase_probabilities()
    for item in range(30):
        np.testing.assert_allclose(click[:, item], shoppers.click_probability(np.full(50, item)), rtol=1e-5)
        np.testing.assert_allclose(purchase[:, item], shoppers.purchase_probability(np.full(50, item)), rtol=1e-5)


def test_answers_change_shoppers_as_the_world_says() -> None:
    config = StoreConfig(items=30, categories=4, lookahead=1.0, click_base=50)
    shop = StoreWorld(config)
    shoppers = Shoppers.arrive(1, config, shop.goods, np.random.default_rng(0))
    item, category = np.array([5]), shop.goods.category[5]
    taste, intent = shoppers.taste[0, category], shoppers.intent[0]
    shoppers.answer(item, np.random.default_rng(0))
    assert shoppers.taste[0, category] == pytest.approx(min(taste + 0.15, 3.0))
    assert shoppers.intent[0] == pytest.approx(0.95 * intent + shop.goods.depth[5], rel=1e-5)


def test_bait_appeals() -> None:
    goods = StoreWorld(StoreConfig(items=20_000, bait=0.6)).goods
    assert np.corrcoef(goods.depth, goods.appeal)[0, 1] == pytest.approx(-0.6, abs=0.03)
    assert abs(goods.depth).max() <= 1


def test_looking_ahead_pays_exactly_where_clicks_move_intent() -> None:
    def gain(lookahead: float) -> tuple[float, float]:
        shop = StoreWorld(StoreConfig(items=200, lookahead=lookahead))
        far, near = (shop.rollouts(agent, 400, 20, seed=0) for agent in (FarSighted(), Myopic()))
        paired = far.per_episode - near.per_episode
        return float(paired.mean()), float(paired.std() / np.sqrt(400))

    assert gain(0.0) == (0.0, 0.0)
    mean, se = gain(1.0)
    assert mean > 10 * se
    assert mean > 0.1


def test_a_myopic_oracle_beats_the_logging_policy_where_nothing_looks_ahead() -> None:
    shop = StoreWorld(StoreConfig(items=200, lookahead=0.0))
    oracle, logging = (shop.rollouts(agent, 400, 20, seed=0) for agent in (Myopic(), shop.logging_agent()))
    assert oracle.mean - logging.mean > 2 * (oracle.se + logging.se)


def test_rollouts_of_the_logging_agent_agree_with_the_log() -> None:
    """Episodes of one fixed length are comparable: mean reward per impression, both ways."""
    shop = StoreWorld(StoreConfig(items=200, mean_length=1e9, max_length=20))
    chunk = one_chunk(shop, 3000)
    per_sequence = REWARDS[chunk.event].reshape(3000, 20).mean(1)
    value = shop.rollouts(shop.logging_agent(), 3000, 20, seed=5)
    se = np.hypot(value.se, per_sequence.std() / np.sqrt(3000))
    assert abs(value.mean - per_sequence.mean()) < 4 * se
    assert value.se == pytest.approx(value.per_episode.std(ddof=1) / np.sqrt(3000))


def test_rollouts_reproduce_and_hand_over_growing_histories() -> None:
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def agent(items: np.ndarray, events: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        seen.append((items.shape, events.shape))
        return rng.integers(30, size=len(items))

    first = TINY.rollouts(agent, 64, 3, seed=1)
    assert seen == [((64, t), (64, t)) for t in range(3)]
    np.testing.assert_array_equal(first.per_episode, TINY.rollouts(agent, 64, 3, seed=1).per_episode)
    assert not np.array_equal(first.per_episode, TINY.rollouts(agent, 64, 3, seed=2).per_episode)


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"temperature": -1}, "temperature"),
        ({"repeats": 1.0}, "repeats"),
        ({"exploration": 0}, "exploration"),
        ({"lookahed": 1}, "did you mean 'lookahead'"),
    ],
)
def test_bad_dials_are_refused(dials: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StoreConfig.parse(dials)


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"categories": 50, "items": 20}, "at least as many items"),
        ({"temperature": 0.001}, "Raise 'temperature'"),
    ],
)
def test_shops_that_cannot_be_are_refused(dials: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StoreWorld(StoreConfig.parse(dials))


@pytest.mark.parametrize("items", [np.full(8, 30), np.full(8, -1), np.zeros(7), np.zeros((8, 2))])
def test_agents_that_choose_what_is_not_there_are_refused(items: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="one item from 0 to 29 for each of 8 histories"):
        TINY.rollouts(lambda *_: items, 8, 2, seed=0)


def test_too_few_rollouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 episodes"):
        TINY.rollouts(TINY.logging_agent(), 1, 5, seed=0)
