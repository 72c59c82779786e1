"""An audit passes a true log and names each planted fault."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from scipy import stats

from localpolicy.errors import DataError
from localpolicy.serving.audit import audit
from localpolicy.serving.audit_findings import _same_lengths, distribution, uniformity
from localpolicy.serving.audit_lists import BINS, Evidence
from localpolicy.serving.database import Database
from localpolicy.serving.export import export
from localpolicy.serving.exports import write_description
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import write
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import Feedback, Request, new_id
from localpolicy.serving.rotate import rotate
from localpolicy.serving.sampling import conditional_propensities, plackett_luce, transforms

START = 1_700_000_000_000
LISTS = int(os.environ.get("LPI_AUDITED_LISTS", "1500"))


@pytest.fixture(scope="module")
def other(exported, tmp_path_factory) -> Recommender:
    """Another policy: the same network with another bias."""
    folder = shutil.copytree(exported.folder, tmp_path_factory.mktemp("other") / "export")
    model = onnx.load(folder / "policy.onnx")
    (bias,) = [one for one in model.graph.initializer if list(one.dims) == [12]][:1]
    values = numpy_helper.to_array(bias)
    bias.CopyFrom(numpy_helper.from_array(values + np.linspace(0, 3, 12, dtype=np.float32), bias.name))
    onnx.save(model, folder / "policy.onnx")
    about = json.loads((folder / "export.json").read_text())
    about["files"]["policy.onnx"] = hashlib.sha256((folder / "policy.onnx").read_bytes()).hexdigest()
    write_description(folder, {**about, "version": "0" * 16})
    return Recommender(folder)


def simulate(
    path: Path, exported: Recommender, *, lists: int = LISTS, k: int = 3, fault=None, seed: int = 0, **settings
):
    """A shop's log: histories of a few items, some with a filter; `fault` alters what is played or logged."""
    rng = np.random.default_rng(seed)
    database = Database(path, create=True)
    with database.transaction():
        for start in range(0, lists, 500):
            size = min(500, lists - start)
            histories = [rng.integers(100, 112, rng.integers(0, 5)).tolist() for _ in range(size)]
            events = [[exported.events[item % 3] for item in history] for history in histories]
            filters = [Filter(seen=True) if n % 3 == 0 else Filter(exclude=(101,)) if n % 3 == 1 else Filter()
                       for n in range(size)]  # fmt: skip
            given = dict(events=events, filters=filters, seed=seed + start, **settings)
            found = exported.recommend(histories, k, **given)
            items, propensity = [list(one) for one in found.items], found.propensity
            for number in range(size):
                record = dict(
                    id=new_id(START + start + number), time=START + start + number, person=f"p{start + number}",
                    history=list(zip(histories[number], events[number], strict=True)), items=items[number],
                    propensities=propensity[number].tolist(), policy=exported.version, beta=settings.get("beta"),
                    mode="drawn" if settings.get("sample", True) else "top", floor=settings.get("floor", 0.0),
                    item_filter=filters[number], deferred=False, share=1.0,
                )  # fmt: skip
                if fault is not None:
                    record = fault(record)
                write(database, Request(**record))
                answer = Feedback(record["id"], record["id"], record["items"][0], "click", None, record["time"], False)
                write(database, answer)
    database.close()
    return path


def faults(found) -> str:
    return " ".join(one.text for one in found.findings if one.status == "fault")


@pytest.mark.parametrize("settings", [{}, {"beta": 0.3}, {"floor": 0.2}, {"sample": False}], ids=str)
def test_a_true_log_passes(exported, tmp_path, settings):
    """The full trial: LPI_AUDITED_LISTS=1000000."""
    log = simulate(tmp_path / "log.db", exported, **settings)
    found = audit(log, runs=[exported.folder])
    assert not faults(found), faults(found)
    assert found.exit_code == (4 if settings.get("sample") is False else 0) and found.lists == LISTS
    print(f"{found.lists:,} lists: exit code {found.exit_code}")
    if settings:
        return
    rotate(log, out=tmp_path / "events", upto=START + 10**9)
    again = audit(tmp_path / "events", runs=[exported.folder])
    assert again.exit_code == 0 and again.lists == LISTS


def test_a_true_log_of_rounded_rows_passes_with_these_rows_alone(run, tmp_path):
    rounded = export(run.folder, out=tmp_path / "export", int8=True)
    log = simulate(tmp_path / "log.db", rounded)
    assert audit(log, runs=[rounded.folder]).exit_code == 0
    (found,) = [one for one in audit(log, runs=[run.folder]).findings if rounded.version in one.text]
    assert found.status != "ok", "the run itself is another policy"


def test_audit_finds_argmax_played_and_softmax_logged(exported, tmp_path):
    def fault(record):
        history, events = zip(*record["history"], strict=True) if record["history"] else ((), ())
        best = exported.recommend([history], 3, events=[events], filters=[record["item_filter"]], sample=False)
        logits = exported.logits([history], [events])
        gone = record["item_filter"].forbidden(history, exported.index)
        logged = conditional_propensities(logits, best.indices, forbidden=[gone])
        return {**record, "items": best.items[0], "propensities": logged[0].tolist()}

    found = audit(simulate(tmp_path / "log.db", exported, lists=200, fault=fault), runs=[exported.folder])
    assert found.exit_code == 3 and "argmax played, softmax logged" in faults(found)


def test_a_filter_applied_after_the_draw(exported, tmp_path):
    def fault(record):
        history, events = zip(*record["history"], strict=True) if record["history"] else ((), ())
        everything = exported.recommend([history], 12, events=[events], seed=int(record["time"]))
        gone = {101, *history} if record["item_filter"] != Filter() else set()
        kept = [place for place, item in enumerate(everything.items[0]) if item not in gone][:3]
        items = [everything.items[0][place] for place in kept]
        return {**record, "items": items, "propensities": [everything.propensity[0][place] for place in kept]}

    found = audit(simulate(tmp_path / "log.db", exported, lists=300, fault=fault), runs=[exported.folder])
    assert found.exit_code == 3 and "the filter was applied after the draw" in faults(found)


def test_audit_finds_a_stale_policy_version(exported, other, tmp_path):
    log = simulate(tmp_path / "log.db", other, lists=200, fault=lambda record: {**record, "policy": exported.version})
    found = audit(log, runs=[exported.folder, other.folder])
    assert found.exit_code == 3
    assert f"stale policy version: lists named {exported.version} were drawn by {other.version}" in faults(found)
    alone = audit(log, runs=[exported.folder])
    assert alone.exit_code == 3 and "propensities are not those of policy" in faults(alone)


def test_other_faults_are_named(exported, tmp_path):
    forgotten = simulate(
        tmp_path / "floor.db", exported, lists=100, fault=lambda record: {**record, "floor": 0.3}
    )  # fmt: skip
    assert "the exploration floor is not in the propensities" in faults(audit(forgotten, runs=[exported.folder]))
    softened = simulate(
        tmp_path / "top.db", exported, lists=100, sample=False, fault=lambda one: {**one, "propensities": [0.5] * 3}
    )
    assert "a top-k list is logged with propensities other than 1" in faults(audit(softened, runs=[exported.folder]))
    reversed_ = simulate(
        tmp_path / "rev.db", exported, lists=100, sample=False, fault=lambda one: {**one, "items": one["items"][::-1]}
    )
    assert "a list logged as the best k holds others" in faults(audit(reversed_, runs=[exported.folder]))


def test_lists_drawn_flatter_than_logged(exported, other, tmp_path):
    """Right propensities for what was shown, but shown by another policy: only the distribution tells."""

    def fault(record):
        history, events = zip(*record["history"], strict=True) if record["history"] else ((), ())
        indices = np.array([[exported.index[item] for item in record["items"]]])
        gone = record["item_filter"].forbidden(history, exported.index)
        logged = conditional_propensities(exported.logits([history], [events]), indices, forbidden=[gone])
        return {**record, "propensities": logged[0].tolist(), "policy": exported.version}

    found = audit(simulate(tmp_path / "log.db", other, fault=fault), runs=[exported.folder])
    assert found.exit_code == 3 and "not drawn with the logged probabilities" in faults(found)


def relogged(exported, choose):
    """A fault that shows what `choose(scores, first item, rng)` says, and logs the policy's own propensities for it."""
    rng = np.random.default_rng(5)

    def fault(record):
        history, events = zip(*record["history"], strict=True) if record["history"] else ((), ())
        logits = exported.logits([history], [events])
        gone = record["item_filter"].forbidden(history, exported.index)
        scores = logits[0].astype(float)
        scores[gone] = -np.inf
        indices = choose(scores, exported.index[record["items"][0]], rng)[None]
        logged = conditional_propensities(logits, indices, forbidden=[gone])
        return {**record, "items": [exported.ids[index] for index in indices[0]], "propensities": logged[0].tolist()}

    return fault


def best_after_the_first(scores, first, rng):
    return np.array([first, *[item for item in np.argsort(-scores) if item != first][:2]])


def worst_last(scores, first, rng):
    order = np.argsort(-scores)
    return order[np.isfinite(scores[order])][[0, 1, -1]]


def at_twice_the_temperature(scores, first, rng):
    return np.argsort(-(scores / 2 + rng.gumbel(size=len(scores))))[:3]


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (best_after_the_first, "places 2 to 3 always take the most probable item that is left"),
        (worst_last, "argmax played"),
        (at_twice_the_temperature, "items are not drawn with the logged probabilities"),
    ],
)
def test_every_place_is_tested_given_those_above(exported, tmp_path, choose, said):
    """First places and propensities may all be right: what is drawn below them is tested too."""
    fault = relogged(exported, choose)
    found = audit(simulate(tmp_path / "log.db", exported, lists=600, fault=fault), runs=[exported.folder])
    assert found.exit_code == 3 and said in faults(found), faults(found)


@pytest.mark.parametrize("largest", [0.5, 0.99, 0.999999])
def test_true_logs_of_peaked_policies_are_not_accused(largest):
    """One item holds nearly everything and 50 lists were drawn: 200 such logs, and no accusation (1e-4 is promised)."""
    rng = np.random.default_rng(0)
    logits = np.log(np.r_[largest, np.full(199, (1 - largest) / 199)])[None].repeat(50, 0)
    accused = 0
    for _ in range(200):
        evidence = Evidence(lists=50)
        evidence.add(*transforms(logits, plackett_luce(logits, 2, rng=rng).indices, rng=rng))
        (finding,) = distribution(evidence)
        accused += finding.status == "fault"
    assert accused == 0


def test_a_place_that_was_drawn_as_logged_is_not_blamed():
    """The best item holds .999, so all lists begin with it, as they should; the second place is by argmax."""
    rng = np.random.default_rng(0)
    logits = np.log(np.r_[1e5, np.arange(100, 0, -1)])[None].repeat(200, 0)
    assert (plackett_luce(logits, 1, rng=rng).indices == 0).mean() > 0.9
    evidence = Evidence(lists=200)
    evidence.add(*transforms(logits, np.tile([0, 1], (200, 1)), rng=rng))
    (finding,) = distribution(evidence)
    assert finding.status == "fault" and "place 2 always takes" in finding.text, finding.text


@pytest.mark.parametrize("d", [0.625, 0.75, 0.875])
def test_the_test_of_uniformity_is_exact_at_the_edges_of_bins(d):
    """Of two values the distance is d >= 1/2 or more exactly where both are at least d, or both at most 1 - d."""
    above, below = np.zeros(BINS, int), np.zeros(BINS, int)
    above[[int(d * BINS), -1]] = 1
    below[[0, int((1 - d) * BINS) - 1]] = 1
    assert uniformity(above) == pytest.approx(2 * (1 - d) ** 2) == pytest.approx(uniformity(below))


def test_an_id_that_occurs_twice_is_found_and_others_are_not():
    evidence = Evidence(expected=4)
    for name in ("a", "b", "a", "c"):
        evidence.see({"id": name, "mode": "drawn"}, [[len(name), "click"]])
    assert evidence.doubled == 1 and evidence.lists == 4
    assert [part.total() for part in evidence.lengths] == [2, 2], "the first half, and the second"


def test_lengths_are_compared_as_scipy_does():
    rng = np.random.default_rng(0)
    for first, second in ((rng.poisson(4, 300), rng.poisson(4, 300)), (rng.poisson(4, 300), rng.poisson(6, 200))):
        expected = stats.ks_2samp(first, second, method="asymp").pvalue
        assert _same_lengths(Counter(first.tolist()), Counter(second.tolist())) == pytest.approx(expected)


def test_what_an_audit_keeps_does_not_grow_with_the_log():
    """But for 8 bytes for an id: ten times the lists, the same arrays."""
    rng = np.random.default_rng(0)
    logits, sizes = np.zeros((100, 20)), []
    for blocks in (1, 10):
        evidence = Evidence()
        for _ in range(blocks):
            evidence.add(*transforms(logits, plackett_luce(logits, 3, rng=rng).indices, rng=rng))
        sizes.append(sum(counts.nbytes for counts in evidence.uniform.values()))
        assert evidence.uniform[0, 0].sum() == 100 * blocks
    assert sizes[0] == sizes[1] == 2 * 3 * 8 * BINS


def test_a_history_is_no_answer(exported, tmp_path):
    """Rotated, lists without an answer are as many as before, though rows of their histories stand before them."""
    log = simulate(tmp_path / "log.db", exported, lists=60)
    database = Database(log)
    database.execute("DELETE FROM feedback WHERE id IN (SELECT id FROM feedback ORDER BY id LIMIT 45)")
    database.close()
    rotate(log, out=tmp_path / "events", upto=START + 1000)
    texts = [finding.text for finding in audit(tmp_path / "events").findings if finding.check == "feedback"]
    assert texts == [f"{45 / 60:.1%} of the lists have no answer; 0 answers came late."]


def test_audit_passes_no_log_that_cannot_decide(exported, tmp_path):
    log = simulate(tmp_path / "log.db", exported, lists=100)
    found = audit(log)
    assert found.exit_code == 4 and "were not given" in found.findings[1].text
    few = simulate(tmp_path / "few.db", exported, lists=10)
    assert audit(few, runs=[exported.folder]).exit_code == 4
    assert audit(log, runs=[exported.folder], answered=1.1).exit_code == 3
    for nothing in (tmp_path / "none.db", tmp_path):
        with pytest.raises(DataError):
            audit(nothing)


def test_answers_to_a_list_that_is_missing(exported, tmp_path):
    log = simulate(tmp_path / "log.db", exported, lists=100)
    database = Database(log)
    database.execute("DELETE FROM requests WHERE time < ?", (START + 5,))
    database.close()
    assert "5 answers name a request that is missing" in faults(audit(log, runs=[exported.folder]))
