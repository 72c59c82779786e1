"""The shop with a foreign ranker: the quality of its lists, its log, and its stops."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.errors import ConfigError
from localpolicy.ranker.reading import read_requests
from localpolicy.simulation import simulate
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig


def test_the_ranker_is_good_and_not_the_best():
    world, rng = ForeignRanker(seed=3), np.random.default_rng(0)
    requests = world.requests(4000, rng)
    own, best, any_ = (np.argsort(-values, axis=1)[:, :10] for values in (requests.score, requests.log_odds,
                                                                       rng.random(requests.score.shape)))  # fmt: skip
    value = {name: world.value(requests, lists).mean() for name, lists in (("own", own), ("best", best), ("any", any_))}
    assert value["any"] < 0.6 * value["own"] < 0.6 * 0.95 * value["best"]
    drawn = world.value(requests, world.lists(requests, rng)).mean()
    assert 0.97 < drawn / value["own"] < 1  # a draw at τ = .1 costs about 1 %


@pytest.mark.parametrize("stops", [0.0, 0.6])
def test_clicks_have_the_value_that_is_promised(stops):
    world, rng = ForeignRanker(RankerConfig(stops=stops), seed=3), np.random.default_rng(0)
    requests = world.requests(20_000, rng)
    lists = world.lists(requests, rng)
    clicks = world.clicks(requests, lists, rng).sum(1)
    promised = world.value(requests, lists)
    assert clicks.mean() == pytest.approx(promised.mean(), abs=4 * (clicks - promised).std() / np.sqrt(20_000))


def test_a_flawless_ranker_is_the_best():
    world = ForeignRanker(RankerConfig(flawless=True))
    requests = world.requests(100, np.random.default_rng(0))
    assert np.array_equal(np.argsort(requests.score, 1), np.argsort(requests.log_odds, 1))


def test_the_log_is_read_and_repeats_by_seed(tmp_path):
    made = [simulate("ranker", tmp_path / name, sequences=120, seed=seed, changes=["places=4"])
            for name, seed in (("one", 1), ("two", 1), ("three", 2))]  # fmt: skip
    logs = [read_requests(one.path / "requests.parquet", one.path / "outcomes.parquet",
                          items=one.path / "items.parquet") for one in made]  # fmt: skip
    assert len(logs[0]) == made[0].rows["requests"] == 120
    assert logs[0].reward().sum() == made[0].rows["clicks"]
    assert set(logs[0].context) == {"weekend", "thrift", "keen"}
    assert set(logs[0].columns) == {"price", "new", "category"}
    same = [(made[0].path / name).read_bytes() == (made[1].path / name).read_bytes()
            for name in ("requests.parquet", "outcomes.parquet", "items.parquet")]  # fmt: skip
    assert all(same)
    assert not np.array_equal(logs[0].score, logs[2].score)


def test_columns_can_be_withheld(tmp_path):
    made = simulate("ranker", tmp_path / "log", sequences=120, changes=["withheld=true"])
    log = read_requests(made.path / "requests.parquet", items=made.path / "items.parquet")
    assert not log.context and not log.columns


def test_lists_longer_than_candidates_are_refused():
    with pytest.raises(ConfigError, match="places <= candidates <= items"):
        ForeignRanker(RankerConfig(places=60))
