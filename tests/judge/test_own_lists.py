"""Whatever is deployed may stand on either side: files and frames of lists, and saved baselines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from gate_examples import small_config
from measured import evaluate_policy

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluate import evaluate
from localpolicy.model.baselines import BASELINES
from localpolicy.model.histories import recommend_with
from localpolicy.model.list_policy import read_list_policy
from localpolicy.report.comparison import write_comparison
from localpolicy.runs.baselines import fit_baseline, load_baseline
from localpolicy.runs.run import Run
from localpolicy.training.train import train


def write_lists(path, rows, names):
    pa.csv.write_csv(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)


def test_a_file_of_lists_is_a_policy(place, tmp_path):
    """Perfect lists for each sequence, by rank, beat the estimate; and the estimate does not replace them."""
    data = Prepared(place / "data")
    ids, items = data.sequence_ids("test").to_pylist(), data.catalogue["item_id"].to_pylist()
    rows = []
    for number, sequence in enumerate(data["test"]):
        for after, item in enumerate(sequence["item"]):
            rows += [(ids[number], after, items[item], 1), (ids[number], after, items[(item + 7) % 30], 2)]
    write_lists(tmp_path / "deployed.csv", rows, ["sequence_id", "after", "item_id", "rank"])
    by_ranks = GateRules(baselines=False, metric="reward-weighted.nDCG@20")
    found = gate(place / "mle0", against=[tmp_path / "deployed.csv", place / "mle1"], rules=by_ranks)
    assert found.deployed.name == "deployed.csv" and (found.deployed.scores.rank == 1).all()
    assert found.answer == "do not deploy"
    unsaid = gate(place / "mle0", against=[tmp_path / "deployed.csv", place / "mle1"], rules={"baselines": False})
    assert unsaid.answer == "cannot tell", "ranks alone do not say what people would have answered"
    assert [one.name for one in found.evaluation.divergence.references] == ["mle1"], "ranks are no probabilities"
    new = gate(tmp_path / "deployed.csv", against=[place / "mle0"], rules=by_ranks, data=data)
    assert next(check for check in new.checks if check.figure == "gain").outcome == "yes"
    fit_baseline("item-kNN", data, out=tmp_path / "neighbours")
    beside = compare([tmp_path / "deployed.csv", place / "mle0", tmp_path / "neighbours"], baselines=False)
    assert [one.estimate("all.nDCG@20").mean == 1.0 for one in beside.evaluations] == [True, False, False]
    assert beside.gains["deployed.csv"]["purchase.nDCG@20"].sign == 1 and beside.baseline == "mle0"
    write_comparison(beside, tmp_path / "page.html")
    alone = evaluate(tmp_path / "deployed.csv", data=data, out=tmp_path / "out")
    assert alone.estimate("all.nDCG@20").mean == 1.0
    with pytest.raises(Exception, match="name the prepared data with data="):
        evaluate(tmp_path / "deployed.csv", out=tmp_path / "out")


def perfect_lists(data, people):
    """What each of these people took first, as the frame of somebody's own recommender."""
    ids, items = data.sequence_ids("test").to_pylist(), data.catalogue["item_id"].to_pylist()
    sequences = list(data["test"])
    return [
        {"user_id": ids[number], "item_id": items[item], "score": 9.0 - place, "rank": place}
        for number in people
        for place, item in enumerate(dict.fromkeys(sequences[number]["item"].tolist()), start=1)
    ]


def test_ones_own_lists_are_whose_they_say_and_all_are_measured_on_the_same_people(place, tmp_path):
    data = Prepared(place / "data")
    half = range(0, len(data["test"]), 2)
    frame = pa.Table.from_pylist(perfect_lists(data, half))
    found = compare([place / "mle0", place / "mle1", frame], data=data, baselines=False)
    own = found.evaluations[-1]
    assert own.name == "own lists" and set(own.scores.sequence) <= set(half)
    assert (own.scores.rank <= 8).all(), "everything that was taken is in their own list"
    for other in found.evaluations[:-1]:
        np.testing.assert_array_equal(other.scores.sequence, own.scores.sequence)
    assert any(f"lists for {len(half)} of the {len(data['test'])} sequences" in note for note in found.notes)
    judged = gate(place / "mle0", against=[frame, place / "mle1"], rules={"baselines": False}, data=data)
    np.testing.assert_array_equal(judged.evaluation.scores.sequence, own.scores.sequence)
    assert judged.deployed.name == "own lists"
    with pytest.raises(ConfigError, match="rules: min_gian: no such key .did you mean 'min_gain'"):
        gate(place / "mle0", against=[place / "mle1"], rules={"min_gian": 1}, data=data)
    with pytest.raises(ConfigError, match="expected a run.*got a value of type int"):
        compare([place / "mle0", 7], data=data)


def test_lists_are_judged_on_the_windows_of_the_trained_run_with_them(place, tmp_path):
    """Before, the gate took the default window where the candidate was a file, and compare that of the run."""
    data = Prepared(place / "data")
    config = small_config().with_changes(["data.length=2", "train.min_history=2"])
    short = train(data, out=tmp_path / "short", config=config)
    frame = pa.Table.from_pylist(perfect_lists(data, range(len(data["test"]))))
    judged = gate(frame, against=[short], rules={"baselines": False}, data=data)
    compared = compare([frame, short], data=data, baselines=False)["own lists"]
    assert judged.evaluation.settings["length"] == compared.settings["length"] == 2
    assert judged.evaluation.settings["min_history"] == compared.settings["min_history"] == 2
    np.testing.assert_array_equal(judged.evaluation.scores.rank, compared.scores.rank)


def test_lists_whose_owners_are_unknown_are_refused_and_a_rank_beats_a_score(place, tmp_path):
    data = Prepared(place / "data")
    rows = [{"who": 1, "item_id": 100}, {"who": 2, "item_id": 100}]
    pa.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "lists.csv")
    with pytest.raises(DataError, match="1 items are listed more than once, and no column says whose"):
        read_list_policy(tmp_path / "lists.csv", data, "test")
    rows = [
        {"item": 100, "score": 1.0, "rank": 2},
        {"item": 101, "score": 9.0, "rank": 2.5},
        {"item": 102, "score": 3.0, "rank": 1},
    ]
    pa.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "lists.csv")
    found = read_list_policy(tmp_path / "lists.csv", data, "test")
    assert found.order == "rank" and found.item.tolist() == [2, 0, 1] and "the rank is taken" in found.notes[0]


def test_the_latest_list_of_a_sequence_holds_and_a_list_without_an_owner_is_everyones(place, tmp_path):
    data = Prepared(place / "data")
    ids = data.sequence_ids("test").to_pylist()
    rows = [(ids[1], 0, 100, 2.0), (ids[1], 0, 101, 1.0), (ids[1], 3, 105, 1.0)]
    write_lists(tmp_path / "lists.csv", rows, ["sequence_id", "after", "item_id", "score"])
    found = read_list_policy(tmp_path / "lists.csv", data, "test")
    assert found.lists_of(np.array([1, 1, 1, 0]), np.array([0, 2, 3, 1])).tolist() == [0, 0, 1, -1]
    share = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    np.testing.assert_allclose(found.weight[:2], share)
    write_lists(tmp_path / "all.csv", [(110, 0.5), (111, 0.25)], ["item_id", "probability"])
    everyone = read_list_policy(tmp_path / "all.csv", data, "test")
    assert everyone.lists_of(np.array([0, 224]), np.array([0, 3])).tolist() == [0, 0]
    windows = Run(place / "mle0").config.data
    shown = evaluate_policy(everyone, data, name="x", window=windows).scores
    assert set(shown.top) == {10} and (shown.rank[shown.item == 10] == 1).all()


@pytest.mark.parametrize(
    ("rows", "names", "message"),
    [
        ([("a", 1)], ["sequence_id", "what"], "no column item_id"),
        ([("nobody", 100)], ["sequence_id", "item_id"], "no list is of a sequence of the test split"),
        ([(100, 0.9), (101, 0.9)], ["item_id", "probability"], "sum to 1.8"),
        ([(100, "x")], ["item_id", "score"], "score must be numbers"),
        ([("film", 1)], ["item_id", "rank"], "item_id is string, and the log writes it as int64"),
    ],
)
def test_a_file_that_holds_no_lists_is_refused(place, tmp_path, rows, names, message):
    write_lists(tmp_path / "lists.csv", rows, names)
    with pytest.raises(DataError, match=message):
        read_list_policy(tmp_path / "lists.csv", Prepared(place / "data"), "test")


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in ("dearest", "most recent")])
def test_a_baseline_saves_loads_and_recommends(name, place, tmp_path):
    data = Prepared(place / "data")
    fitted = fit_baseline(name, data, out=tmp_path / "base")
    again = fit_baseline(name, data, out=tmp_path / "again")
    loaded = load_baseline(tmp_path / "base")
    weights = [(tmp_path / folder / "policy.safetensors").read_bytes() for folder in ("base", "again")]
    assert weights[0] == weights[1]
    windows = Run(place / "mle0").config.data
    one, two = (evaluate_policy(each, data, name="x", window=windows).scores for each in (fitted, loaded))
    assert one.rank.tolist() == two.rank.tolist() and one.logp.tolist() == two.logp.tolist()
    histories = [[105, 106], []]
    lists = recommend_with(loaded, histories, 3)
    assert lists.items == recommend_with(again, histories, 3).items and len(lists.items[0]) == 3
    if name == "last item":
        assert lists.items[0][0] == 106
    assert 106 not in recommend_with(loaded, histories, 3, exclude_seen=True).items[0]


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors", "items.parquet"])
def test_a_baseline_with_an_altered_file_is_refused(name, place, tmp_path):
    fit_baseline("popularity", place / "data", out=tmp_path / "base")
    content = bytearray((tmp_path / "base" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "base" / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{name} was altered"):
        load_baseline(tmp_path / "base")


def test_a_saved_baseline_stands_on_either_side(place, tmp_path):
    fit_baseline("item-knn", place / "data", out=tmp_path / "knn")
    found = gate(place / "mle0", against=[tmp_path / "knn", place / "mle1"], rules=GateRules(metric="all.nDCG@20"))
    assert found.deployed.name == "knn" and found.evaluation.divergence.references[0].name == "mle1"
    baselines = next(check for check in found.checks if check.figure == "baselines")
    assert "item-kNN" not in baselines.because, "it is what is deployed already"
    turned = gate(tmp_path / "knn", against=[place / "mle0"], data=place / "data")
    assert turned.evaluation.name == "knn" and turned.evaluation.divergence is not None
    with pytest.raises(ConfigError, match="did you mean 'item-kNN'"):
        fit_baseline("item-kn", place / "data", out=tmp_path / "other")


def test_a_raw_log_is_not_taken_for_lists(place, tmp_path):
    data = Prepared(place / "data")
    who, items = data.sequence_ids("test").to_pylist()[:3], data.catalogue["item_id"].to_pylist()[:3]
    for names, rest, reason in (
        (("event", "timestamp"), ("view", 5), "it has event and timestamp, and none of probability, score, rank"),
        (("rating",), (4,), "it has rating, and none of"),
        (("event_type", "position"), ("view", 1), "it has event_type[.]"),
    ):
        log = tmp_path / f"{names[0]}.csv"
        write_lists(log, [(*pair, *rest) for pair in zip(who, items, strict=True)], ["user_id", "item_id", *names])
        with pytest.raises(DataError, match=f"looks like a log, not like lists: {reason}"):
            compare([place / "mle0", log])
    dated = tmp_path / "dated.csv"
    write_lists(dated, [(*pair, 5, 1) for pair in zip(who, items, strict=True)], ["user_id", "item_id", "date", "rank"])
    assert read_list_policy(dated, data, "test").order == "rank"


def test_ids_of_lists_in_a_text_file_are_those_of_the_log(tmp_path):
    """Before: 007 of a CSV was 7, which no log of texts has, and such items were left out of the lists."""
    for change, written in ((lambda number: f"{number:05d}", "{:05d}"), (int, "{}.0")):
        rows = {"sequence_id": [], "item_id": [], "timestamp": []}
        for number in range(240):
            for name, value in zip(rows, (change(number // 4), change(number % 7), number), strict=True):
                rows[name].append(value)
        data = prepare(pa.table(rows), out=tmp_path / "data", event="click", force=True)
        lists = "".join(f"{written.format(who)},{written.format(item)}\n" for who in range(60) for item in range(7))
        (tmp_path / "lists.csv").write_text(f"user_id,item_id\n{lists}")
        read = read_list_policy(tmp_path / "lists.csv", data, "test")
        assert len(read.people) == len(data["test"]) and len(read.item) == 7 * len(data["test"]) and not read.notes
