"""Every verb from Python: frames and lists of lists in, refusals of everything else, baselines as runs, own metrics."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas
import polars
import pytest
import torch

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def made(small, tmp_path_factory):
    """A short run and a baseline of the small log."""
    folder = tmp_path_factory.mktemp("python")
    run = lp.train(small, "mle", out=folder / "mle", epochs=1, width=8, batch_size=64)
    knn = lp.train(small, "item-knn", out=folder / "knn")
    return SimpleNamespace(folder=folder, run=run, knn=knn, data=small)


def test_a_baseline_is_trained_by_its_name_and_is_a_run(made):
    assert made.knn.finished and made.knn.summary().startswith("item-kNN, fitted, in ")
    assert len(made.knn.recommend([[100, 101], []], 3).items) == 2
    found = lp.compare([made.run, made.knn], data=made.data, baselines=False)
    assert [each.name for each in found.evaluations] == ["mle", "knn"]
    with pytest.raises(ConfigError, match="epochs: item-kNN is fitted from counts and has no settings"):
        lp.train(made.data, "item-knn", out=made.folder / "other", epochs=3)


@pytest.mark.parametrize("which", ["run", "knn"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("u1", "got a value of type str"),
        (["u1"], "history 0 is 'u1'"),
        ([100, 101], r"history 0 is 100. One history is a list too: \[\[…\]\]"),
        ([["1"]], r"history 0: the log's items are whole numbers, got '1' \(str\)"),
        ([[100], [True]], "history 1: the log's items are whole numbers, got True"),
        ({"a": [1]}, "got a value of type dict"),
        ({1, 2}, "got a value of type set"),
        (iter([[100]]), "expected lists of item ids"),
        (pandas.DataFrame({"a": [1]}), "no column means sequence_id or item_id among a"),
    ],
)
def test_only_histories_are_taken_for_histories(made, which, given, said):
    with pytest.raises(DataError, match=said):
        getattr(made, which).recommend(given, 3)


@pytest.mark.parametrize("kind", [pandas.DataFrame, polars.DataFrame])
def test_a_frame_of_histories_is_what_it_says(made, kind):
    """In order of time, whatever the rows' order; events count; the lists say whose they are."""
    rows = {
        "user_id": ["b", "a", "a", "b"], "item_id": [102, 101, 100, 103], "ts": [9, 2, 1, 10],
        "event": ["click", "none", "click", "purchase"],
    }  # fmt: skip
    lists = made.run.recommend(kind(rows), 4)
    whose = {"a": ([100, 101], ["click", "none"]), "b": ([102, 103], ["click", "purchase"])}
    assert sorted(lists.ids) == ["a", "b"]
    expected = made.run.recommend([whose[who][0] for who in lists.ids], 4, events=[whose[who][1] for who in lists.ids])
    assert lists.items == expected.items
    torch.testing.assert_close(lists.log_probability, expected.log_probability)
    assert lists.to_arrow()["sequence_id"].to_pylist() == [who for who in lists.ids for _ in range(4)]
    nested = made.run.recommend(kind({"user": ["b", "a"], "history": [[102, 103], [100, 101]]}), 4)
    assert nested.ids == ["b", "a"]
    arrays = made.run.recommend([np.array([102, 103]), np.array([100, 101])], 4)
    assert nested.items == arrays.items


def test_recommend_gives_lists_back_or_writes_them(made):
    direct = made.run.recommend([[100], [101, 102]], 3)
    for run in (made.run, made.run.folder, str(made.run.folder)):
        assert lp.recommend(run, [[100], [101, 102]], k=3).items == direct.items
    assert lp.recommend(made.knn, [[100]], k=3).items == made.knn.recommend([[100]], 3).items
    assert lp.recommend(made.run, [[100], [101, 102]], k=3, out=made.folder / "lists.parquet") == 2


def test_given_pairs_are_scored(made):
    policy = made.run.policy()
    pairs = pandas.DataFrame({"user_id": ["a", "b", "a", "a"], "item_id": [100, 105, 111, 999]})
    histories = pandas.DataFrame({"user_id": ["a", "a", "b"], "item_id": [100, 101, 102]})
    table = policy.scores(pairs, histories)
    everything = policy.log_probabilities([[100, 101], [102]])
    expected = [everything[0, 0], everything[1, 5], everything[0, 11]]
    np.testing.assert_allclose(table["log_probability"].to_pylist()[:3], expected, rtol=1e-5)
    assert table["log_probability"][3].as_py() is None, "the policy never saw it"
    with pytest.raises(DataError, match="pairs: no history of 'z' is given"):
        policy.scores(pandas.DataFrame({"user_id": ["z"], "item_id": [100]}), histories)


def paid_first(rank, reward):
    return reward * (rank == 1)


def test_a_metric_of_ones_own_goes_through_all_verbs(made, tmp_path):
    config = {"metrics": [paid_first, "nDCG@20"]}
    found = lp.evaluate(made.run, config=config, out=tmp_path / "out")
    scores = found.scores
    answered = scores.event != scores.events.index("none")
    expected = (scores.reward * (scores.rank == 1))[answered].mean()
    assert found.estimate("all.paid_first").mean == pytest.approx(expected)
    both = lp.compare([made.run, made.knn], config=config, columns=["all.paid_first"], baselines=False)
    assert both.evaluations[0].estimate("all.paid_first").mean == pytest.approx(expected)
    judged = lp.gate(
        made.knn, against=[made.run], config=config, rules={"metric": "all.paid_first", "reference_fit": False}
    )
    assert judged.metric == "all.paid_first"
    with pytest.raises(ConfigError, match="a metric of your own needs a name"):
        lp.evaluate(made.run, config={"metrics": [lambda rank, reward: rank]}, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="must give a finite number for each of"):
        lp.evaluate(made.run, config={"metrics": [np.dot]}, out=tmp_path / "out")


def test_a_single_run_may_stand_by_itself(made):
    folder = str(made.run.folder)
    alone, listed = (lp.gate(made.knn, against=against) for against in (made.run, [folder]))
    assert (alone.against, alone.answer) == (listed.against, listed.answer)
    alone, listed = (lp.evaluate(made.knn, against=against).to_dict() for against in (folder, [made.run]))
    assert alone["divergence"] == listed["divergence"]
    assert len(lp.compare(folder, baselines=False).evaluations) == 1
