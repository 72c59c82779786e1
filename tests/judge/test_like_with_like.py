"""Two policies as they may be compared: kept by one figure, on the same rows, of different seeds."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from gate_examples import shop, small_config
from measured import evaluate_policy, log, policy

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.judge.checks.gains import gain_check
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluate import evaluate
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.model.catalogue_mapping import remap
from localpolicy.runs.folder import LIKELIEST
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sealed
from localpolicy.training.train import train


def test_a_run_keeps_its_weights_of_the_best_likelihood_whatever_selects(place):
    run = Run(place / "chosen")
    best = max(run.metrics(), key=lambda line: line["validation"]["logp"])
    assert run.manifest["likeliest"]["epoch"] == best["epoch"] and run.manifest["likeliest"]["step"] == best["step"]
    held_out = {"config": EvaluateConfig(split="validation"), "window": run.config.data, "name": "x"}
    found = evaluate_policy(run.policy(likeliest=True), Prepared(place / "data"), **held_out)
    assert found.estimate("logp").mean == pytest.approx(run.manifest["likeliest"]["value"], abs=1e-5)
    assert not (place / "mle0" / LIKELIEST).exists(), "a run selected by likelihood has one file for both"
    plain = Run(place / "mle0")
    assert plain.policy(likeliest=True).network.embedding.equal(plain.policy().network.embedding)
    assert run.manifest["patience"] == run.config.train.patience


def broken_apart(place, tmp_path):
    """A run with good selected weights, and with those of an untrained network as the most likely ones."""
    copy = tmp_path / "chosen"
    shutil.copytree(place / "chosen", copy)
    train(Prepared(place / "data"), out=tmp_path / "poor", config=small_config(seed=2, epochs=1, learning_rate=1e-5))
    shutil.copyfile(tmp_path / "poor" / "policy.safetensors", copy / LIKELIEST)
    from localpolicy.runtime.files import sha256

    about = json.loads((copy / "manifest.json").read_text())
    about["likeliest"]["sha256"] = about["files"][LIKELIEST] = sha256(copy / LIKELIEST)
    (copy / "manifest.json").write_text(json.dumps(sealed(about)))
    return copy, about


def test_a_gain_that_selection_made_is_no_gain(place, tmp_path):
    """The weights kept by purchase nDCG are good; by the common figure they are not, and that decides."""
    copy, about = broken_apart(place, tmp_path)
    found = gate(copy, against=[place / "mle0"], rules=GateRules(baselines=False, metric="purchase.nDCG@20"))
    gain = next(check for check in found.checks if check.figure == "gain")
    assert gain.outcome == "no" and "chosen by purchase.nDCG@20, that of mle0 by logp" in gain.because
    as_kept = gain_check(found.evaluation, found.deployed, found.metric, found.rules)
    assert gain.value < as_kept.value - 0.1, "the selected weights would have looked far better"
    beside = compare([place / "mle0", copy], baselines=False)
    assert beside.gains["chosen"][found.metric].difference == gain.value, "a comparison shows the gate's gain"
    assert beside["chosen"].estimate(found.metric).mean > beside["mle0"].estimate(found.metric).mean + gain.value
    assert any("the epochs of chosen and mle0 were chosen by different figures" in note for note in beside.notes)
    assert beside.to_dict()["notes"] == list(beside.notes)
    about["likeliest"].pop("sha256")
    (copy / "manifest.json").write_text(json.dumps(sealed(about)))
    older = gate(copy, against=[place / "mle0"], rules=GateRules(baselines=False, metric="purchase.nDCG@20"))
    refused = next(check for check in older.checks if check.figure == "gain")
    assert refused.outcome == "cannot tell" and "has no weights kept by likelihood" in refused.because
    assert "were chosen by different figures" in refused.plain and refused.needed is None
    assert "--set train.select='purchase.nDCG@20'" in refused.because
    refusing = compare([place / "mle0", copy], baselines=False)
    assert "chosen" not in refusing.gains and any("train both with one rule" in note for note in refusing.notes)


def test_runs_kept_by_one_metric_are_compared_as_they_were_kept(place):
    found = gate(place / "mle1", against=[place / "mle0"], rules=GateRules(baselines=False))
    gain = next(check for check in found.checks if check.figure == "gain")
    assert "was chosen by" not in gain.because and not found.deploy
    assert gain.n == 675 and found.metric == "reward-weighted.nDCG@20"


def test_one_seed_on_both_sides_is_flagged(place, tmp_path):
    train(Prepared(place / "data"), out=tmp_path / "twin", config=small_config("reward_weighted", epochs=1))
    found = gate(tmp_path / "twin", against=[place / "mle0", place / "mle1"], rules=GateRules(baselines=False))
    assert any("twin and mle0 have the same seed (0)" in note for note in found.notes)
    assert not any("mle1" in note for note in found.notes)
    said = evaluate(tmp_path / "twin", against=[place / "mle0"], out=tmp_path / "out").settings["notes"]
    assert any("have the same seed" in note for note in said)
    beside = compare([place / "mle0", tmp_path / "twin"], against=[place / "mle1"], baselines=False)
    assert not any("have the same seed" in note for note in beside.notes)
    beside = compare([place / "mle0", place / "mle1", tmp_path / "twin"], baselines=False)
    assert [note for note in beside.notes if "twin and mle0 have the same seed (0)" in note]


def test_yesterdays_run_is_measured_on_todays_rows(place, tmp_path):
    """It does not know the three new items: what happens on them counts against it, and is counted in words."""
    today = shop(tmp_path / "today", days=2, seed=5)
    train(today, out=tmp_path / "new", config=small_config(seed=3))
    found = gate(tmp_path / "new", against=[place / "mle0"], rules=GateRules(baselines=False, metric="all.nDCG@20"))
    unknown = np.asarray(today["test"].arrays["item"]) >= 30
    assert any(
        f"mle0 does not know 3 of 33 items: {unknown.sum()} of the {len(unknown)} events" in note
        for note in found.notes
    )
    assert any("mle0 was trained on other data" in note for note in found.notes)
    lost = found.deployed.scores.item >= 30
    assert lost.any() and (found.deployed.scores.rank[lost] >= 31).all(), "ranked behind all it knows"
    assert np.isfinite(found.deployed.scores.logp).all() and np.isfinite(found.evaluation.divergence.js.overall.mean)
    # On the items both know, in an order of their own, it is the policy that it was.
    assert found.deployed.scores.rank[~lost].mean() < 20
    beside = compare([tmp_path / "new", place / "mle0"], baselines=False)
    assert beside.data.path == today.path and len({len(one.scores) for one in beside.evaluations}) == 1
    np.testing.assert_array_equal(beside["mle0"].scores.rank, found.deployed.scores.rank)
    assert any("mle0 does not know 3 of 33 items" in note for note in beside.notes)
    older = gate(place / "mle0", against=[tmp_path / "new"], data=today, rules=GateRules(baselines=False))
    assert older.evaluation.name == "mle0" and len(older.evaluation.scores) == len(found.evaluation.scores)


def test_rows_that_a_run_was_trained_on_decide_nothing(place, tmp_path):
    own = Prepared(place / "data")
    with writing(tmp_path / "leaky", kind=own.kind, events=own.events, rewards=own.manifest["rewards"]) as store:
        for split, source in (("train", "test"), ("validation", "validation"), ("test", "train")):
            part = own[source]
            store.splits[split].append(np.diff(part.offsets), {name: np.asarray(a) for name, a in part.arrays.items()})
            store.splits[split].append_ids(own.sequence_ids(source))
        store.write_items(own.catalogue["item_id"].combine_chunks(), own.catalogue["count"].to_numpy())
    found = gate(place / "mle0", against=[place / "mle1"], data=tmp_path / "leaky", rules=GateRules(baselines=False))
    assert any("was trained on 450 of the 450 sequences" in note for note in found.notes)
    assert next(check for check in found.checks if check.figure == "gain").outcome != "yes"


def test_a_policy_on_a_catalogue_in_another_order_is_the_same(tmp_path):
    """Rows follow the ids; rank and probability of what both know do not move."""
    data = log(tmp_path / "data", [[0, 1, 2, 3], [4, 5, 6]], items=9)
    order = np.array([8, 2, 5, 0, 1, 7, 3, 6, 4])
    other = log(
        tmp_path / "other", [[int(np.flatnonzero(order == i)[0]) for i in one] for one in ([0, 1, 2, 3], [4, 5, 6])],
        items=9, item_id=order,
    )  # fmt: skip
    mine = policy(data)
    from localpolicy.data.batches import WindowConfig

    here, there = (
        evaluate_policy(remap(mine, where), where, name="x", window=WindowConfig()) for where in (data, other)
    )
    np.testing.assert_allclose(there.scores.rank, here.scores.rank)
    np.testing.assert_allclose(there.scores.logp, here.scores.logp, atol=1e-5)
