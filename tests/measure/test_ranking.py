"""Ranking metrics against their definitions on formed lists, and against an independent library."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from measured import EVENTS, scores

from localpolicy.errors import ConfigError
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import is_certain, metric
from localpolicy.measure.position_metrics import (
    coverage,
    figure,
    flat,
    groups,
    popularity,
    popularity_bands,
    ranking,
    segments,
    shown_figures,
)


def by_hand(name: str, order: list[int], item: int) -> float:
    """The metric of a list [best first], from the list itself."""
    kind, _, k = name.partition("@")
    shown = order[: int(k)] if k else order
    if item not in shown:
        return 0.0
    place = shown.index(item) + 1
    return {"HR": 1.0, "nDCG": 1 / math.log2(place + 1), "MRR": 1 / place}[kind]


@pytest.mark.parametrize("name", ["HR@1", "HR@5", "HR@20", "nDCG@5", "nDCG@20", "MRR", "MRR@10"])
def test_metrics_of_lists_agree_with_their_definition(name):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50, 30))
    items = rng.integers(0, 30, 50)
    ranks = 1.0 + (values > values[np.arange(50), items][:, None]).sum(1)
    expected = [by_hand(name, np.argsort(-row).tolist(), item) for row, item in zip(values, items, strict=True)]
    np.testing.assert_allclose(metric(name)(ranks), expected)


def test_a_tie_counts_by_half():
    assert metric("HR@1")(np.array([1.5])).tolist() == [0.0]
    assert metric("HR@2")(np.array([1.5])).tolist() == [1.0]
    np.testing.assert_allclose(metric("nDCG@2")(np.array([1.5])), 1 / math.log2(2.5))


def test_unknown_metrics_are_refused_by_name():
    with pytest.raises(ConfigError, match="did you mean 'nDCG'"):
        metric("nDGC@20")
    with pytest.raises(ConfigError, match="write it as nDCG@20"):
        metric("HR@0")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_metrics_against_ranx(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # what it compiles takes half a minute, and has forty lists to measure
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranx = pytest.importorskip("ranx")
        rng = np.random.default_rng(1)
        values, items = rng.standard_normal((40, 60)), rng.integers(0, 60, 40)
        truth = ranx.Qrels({str(q): {str(item): 1} for q, item in enumerate(items)})
        run = ranx.Run({str(q): {str(i): float(v) for i, v in enumerate(row)} for q, row in enumerate(values)})
        theirs = ranx.evaluate(truth, run, ["hit_rate@10", "ndcg@10", "mrr@10"])
    ranks = 1.0 + (values > values[np.arange(40), items][:, None]).sum(1)
    for ours, name in (("HR@10", "hit_rate@10"), ("nDCG@10", "ndcg@10"), ("MRR@10", "mrr@10")):
        assert metric(ours)(ranks).mean() == pytest.approx(theirs[name])


def test_groups_hold_answers_only():
    made = scores(event=[0, 1, 2, 1], repeat=[True, True, False, False], rank=[1.0, 1.0, 3.0, 30.0])
    found = {name: here.tolist() for name, here in groups(made).items()}
    assert found == {
        "click": [False, True, False, True],
        "purchase": [False, False, True, False],
        "all": [False, True, True, True],
        "repeat": [False, True, False, False],
        "new": [False, False, True, True],
    }
    figures = ranking(made, ["HR@20"])
    assert figures["click.HR@20"].mean == 0.5
    assert figures["all.HR@20"].mean == pytest.approx(2 / 3)
    assert figures["new.HR@20"].n == 2
    assert flat(made, ["HR@20"])["purchase.HR@20"] == 1.0


def test_average_reward_pays_only_for_the_first_item():
    made = scores(item=[1, 2, 1, 0], top=[1, 1, 1, 2], reward=[1.0, 1.0, 0.2, 1.0], events=EVENTS)
    assert figure(made, "AR@1").mean == pytest.approx((1.0 + 0.2) / 4)


def test_coverage_and_popularity_follow_from_the_lists():
    counts = np.array([6, 3, 1, 0])
    assert coverage(np.array([5, 0, 1, 0])) == 0.5
    logged = (6 * 6 + 3 * 3 + 1 * 1) / 10
    assert popularity(np.array([0, 2, 2, 0]), counts) == pytest.approx((3 + 1) / 2 / logged)
    assert popularity(counts, counts) == pytest.approx(1.0)


def test_popularity_bands_share_the_events():
    bands = popularity_bands(np.array([1, 50, 10, 20, 10, 9]))
    assert bands["head"].tolist() == [False, True, False, False, False, False]
    assert bands["middle"].tolist() == [False, False, False, True, False, False]
    assert sum(band.astype(int) for band in bands.values()).tolist() == [1] * 6


def test_segments_cover_every_position_once_by_kind():
    made = scores(history=[1, 5, 6, 10, 11, 16], item=[0, 1, 2, 0, 1, 2], repeat=[False, True] * 3)
    found = segments(made, np.array([5, 3, 1]))
    for start in ("history", "popularity"):
        assert sum(here.astype(int) for name, here in found.items() if name.startswith(start)).tolist() == [1] * 6
    assert found["history ≤ 5"].tolist() == [True, True, False, False, False, False]
    assert found["history 6-10"].tolist() == [False, False, True, True, False, False]
    assert found["history > 15"].tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("name", ["HR@5", "nDCG@5", "MRR@5", "nDCG@20", "MRR"])
def test_items_that_tie_share_their_places(name):
    """The expectation over all orders of those that tie, place by place."""
    above, tied = np.array([0, 2, 4, 5, 0, 30]), np.array([0, 5, 1, 3, 39, 0])
    places = [range(first + 1, first + 1 + others + 1) for first, others in zip(above, tied, strict=True)]
    expected = [np.mean([metric(name)(np.array([float(place)]))[0] for place in shared]) for shared in places]
    np.testing.assert_allclose(metric(name)(1 + above + tied / 2, tied), expected)


def test_forty_items_that_tie_are_hit_by_chance():
    """The middle of their places would say never."""
    assert metric("HR@5")(np.array([1 + 39 / 2]), np.array([39])) == pytest.approx(5 / 40)


def test_the_values_behind_the_likelihood_are_those_of_its_figure():
    """Among what could be chosen, where the log says what that was: a test of two policies is of what tables show."""
    made = scores(logp=[-3.0, -2.0], logp_open=[-1.0, np.nan])
    shown = shown_figures(made, np.ones(3), 1)
    evaluation = Evaluation(name="policy", figures=shown, divergence=None, scores=made, counts=np.ones(3), settings={})
    assert evaluation.estimate("logp").mean == evaluation.values("logp")[0].mean() == (-1.0 - 2.0) / 2


def test_a_hit_rate_of_no_more_items_than_places_is_certain():
    assert is_certain("HR@5", 5) and is_certain("purchase.HR@20", 4) and not is_certain("HR@5", 6)
    assert not is_certain("nDCG@20", 4) and not is_certain("MRR", 1) and not is_certain("AR@1", 1)
