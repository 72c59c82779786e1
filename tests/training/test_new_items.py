"""Items without events: mixtures of items like them, bounded, and given to a run without training."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from small_logs import small_item_table, write_small

import localpolicy as lp
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, LocalPolicyError, RunError
from localpolicy.judge.gate import gate
from localpolicy.measure.evaluate import evaluate
from localpolicy.model.weights import load_weights
from localpolicy.report.comparison import comparison_section
from localpolicy.report.results import tables_of
from localpolicy.runs.run import Run
from localpolicy.training.train import train

ITEMS, BRANDS = 60, 6


def walks(draw, brand, *, sequences=250, length=6, without=()):
    """Sequences in which the next item has the brand of the one before nine times in ten."""
    items, rows = np.setdiff1d(np.arange(len(brand)), without), []
    for number in range(sequences):
        item = int(draw.choice(items))
        for step in range(length):
            rows.append((number, item, step))
            alike = items[brand[items] == brand[item]]
            item = int(draw.choice(alike)) if draw.random() < 0.9 else int(draw.choice(items))
    sequence, item, time = (np.array(each) for each in zip(*rows, strict=True))
    event = np.where(draw.random(len(item)) < 0.3, "purchase", "click")
    return pa.table({"sequence_id": sequence, "item_id": item, "timestamp": time, "event": event})


BRAND = np.arange(ITEMS) % BRANDS
COLD = np.arange(54, 60)  # one of each brand


def item_table(items=ITEMS):
    return pa.table(
        {"item_id": np.arange(items), "brand": [f"b{item % BRANDS}" for item in range(items)],
         "title": [f"thing {item}" for item in range(items)]}
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Prepared:
    log = walks(np.random.default_rng(0), BRAND, without=COLD)
    return prepare(log, out=tmp_path_factory.mktemp("new") / "data", items=item_table())


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    out = tmp_path_factory.mktemp("new") / "run"
    return train(data, "mle", out=out, epochs=8, width=16, device="cpu", learning_rate=0.01)


def test_cold_items_are_shown_to_those_who_like_their_kind(data, run):
    assert run.config.model.features == ["brand"]
    policy = run.policy()
    ids = policy.items["item_id"].to_pylist()
    p = policy.log_probabilities([[0, 6, 12], [1, 7, 13]]).exp()
    at = {item: number for number, item in enumerate(ids)}
    own, other = p[0, at[54]] / p[1, at[54]], p[1, at[55]] / p[0, at[55]]
    assert own > 3 and other > 3  # 54 has the brand of 0, 55 that of 1
    cold = [at[item] for item in COLD]
    bound = run.config.model.new_items
    assert (p[:, cold].sum(1) / (1 - p[:, cold].sum(1))).max() <= bound


def test_held_out_items_say_how_far_new_ones_rise(run):
    """One item in nine stands for a new one, as often taken as the others: about as much is given to the new."""
    policy = run.policy()
    rise = float(load_weights(run.folder / "policy.safetensors")["features.rise"])
    assert -2 < rise <= 0
    p = policy.log_probabilities([[int(item)] for item in range(54)]).exp()
    cold = [policy.items["item_id"].to_pylist().index(item) for item in COLD]
    assert 0.03 < float(p[:, cold].sum(1).mean()) < 0.15  # 6 of 60 items


def test_an_extended_run_keeps_every_old_row(data, run, tmp_path):
    new = pa.table({"item_id": [100, 101, 3], "brand": ["b0", "b1", "b4"], "title": ["new zero", "new one", "old"]})
    wider = lp.extend(run, new, out=tmp_path / "wider")
    before, after = (load_weights(each.folder / "policy.safetensors") for each in (run, wider))
    assert before.keys() == after.keys()
    for name, old in before.items():
        grown = name == "embedding" or (name.endswith("bias") and len(old) == ITEMS)
        assert len(after[name]) == len(old) + (2 if grown else 0), name
        assert torch.equal(after[name][: len(old)], old), name
    policy = wider.policy()
    assert policy.items["item_id"].to_pylist() == [*run.policy().items["item_id"].to_pylist(), 100, 101]
    p = policy.log_probabilities([[0, 6, 12], [1, 7, 13]]).exp()
    assert p[0, ITEMS] / p[1, ITEMS] > 3 and p[1, ITEMS + 1] / p[0, ITEMS + 1] > 3
    same = run.policy().with_items(new)
    assert torch.equal(same.log_probabilities([[0, 6, 12], [1, 7, 13]]).exp(), p)
    assert wider.manifest["extended"]["new_items"] == 2
    # It is a run like others: it is judged on the run's data, extended again, and read in histories.
    counts = [evaluate(each, device="cpu").metrics["all"]["nDCG@10"].n for each in (run, wider)]
    assert counts[0] == counts[1] > 0
    again = lp.extend(wider, pa.table({"item_id": [200], "brand": ["b2"]}), out=tmp_path / "more")
    assert again.policy().n_items == ITEMS + 3
    assert policy.recommend([[100]], 3).names is not None


@pytest.fixture(scope="module")
def wider(run, tmp_path_factory) -> Run:
    new = pa.table({"item_id": [100, 101], "brand": ["b0", "b1"]})
    return lp.extend(run, new, out=tmp_path_factory.mktemp("new") / "wider")


def test_the_gate_knows_an_extended_run(run, wider, tmp_path):
    """On the log of its training it is its origin; a newer log may tell them apart."""
    more = lp.extend(wider, pa.table({"item_id": [200], "brand": ["b2"]}), out=tmp_path / "more")
    for new, old in ((wider, run), (more, run), (run, wider)):
        found = gate(new, against=[old], config={"split": "validation"}, device="cpu", rules={"baselines": False})
        assert found.answer == "nothing to decide" and "extended by items" in found.sentence, found.sentence
        assert "two seeds" not in found.sentence
    newer = prepare(walks(np.random.default_rng(5), BRAND), out=tmp_path / "newer", items=item_table())
    found = gate(wider, against=[run], data=newer, device="cpu", rules={"baselines": False})
    assert "two seeds" not in found.sentence and "extended by" not in found.sentence


def test_a_warm_start_says_which_extended_items_the_data_lack(data, run, wider, tmp_path, caplog):
    settings = {"epochs": 1, "width": 16, "device": "cpu"}
    train(data, "mle", out=tmp_path / "next", warm_start=str(wider.folder), **settings)
    assert "2 items that lpi extend gave" in caplog.text and "(100, 101)" in caplog.text and "--items" in caplog.text
    caplog.clear()
    train(data, "mle", out=tmp_path / "plain", warm_start=str(run.folder), **settings)
    more = pa.concat_tables(
        [item_table(), pa.table({"item_id": [100, 101], "brand": ["b0", "b1"], "title": ["c", "d"]})]
    )
    log = walks(np.random.default_rng(0), BRAND, without=COLD)
    train(
        prepare(log, out=tmp_path / "more", items=more),
        "mle",
        out=tmp_path / "kept",
        warm_start=str(wider.folder),
        **settings,
    )
    assert "lpi extend gave" not in caplog.text
    assert Run(tmp_path / "kept").policy().n_items == ITEMS + 2


def test_extending_a_closed_form_grows_its_tables(data, tmp_path):
    wide = train(data, "lpi_rl", out=tmp_path / "run", epochs=1, width=8, device="cpu")
    wider = lp.extend(wide, pa.table({"item_id": [100], "brand": ["b0"]}), out=tmp_path / "wider")
    before, after = (load_weights(each.folder / "policy.safetensors") for each in (wide, wider))
    grown = {name: len(tensor) - len(before[name]) for name, tensor in after.items()}
    tables = ["logging.embedding", "logging.heads.policy.bias", "critics.0.embedding", "critics.0.heads.reward.bias"]
    assert {name: more for name, more in grown.items() if more} == dict.fromkeys(tables, 1)
    assert len(wider.policy().recommend([[100, 0]], 5).items[0]) == 5


def test_the_only_column_that_a_run_does_not_know_holds_the_ids(run):
    new = pa.table({"product": [70, 71], "brand": ["b1", "b2"]})
    assert run.policy().with_items(new).items["item_id"].to_pylist()[-2:] == [70, 71]
    with pytest.raises(DataError, match="Rename its column of item ids to item_id"):
        run.policy().with_items(new.append_column("sku", pa.array([1, 2])))


def test_what_cannot_be_extended_says_why(data, run, tmp_path):
    with pytest.raises(DataError, match="all 2 items of the table are in the policy's catalogue already"):
        lp.extend(run, pa.table({"item_id": [1, 2], "brand": ["b1", "b2"]}), out=tmp_path / "a")
    plain = train(data, "mle", out=tmp_path / "plain", features=[], epochs=1, width=8, device="cpu")
    with pytest.raises(RunError, match=r"does not use the columns.*features=\["):
        lp.extend(plain, pa.table({"item_id": [100], "brand": ["b1"]}), out=tmp_path / "b")
    settings = {"features": ["brand"], "shuffle_features": 0, "epochs": 1, "width": 8, "device": "cpu"}
    control = train(data, "mle", out=tmp_path / "control", **settings)
    with pytest.raises(RunError, match="trained on a shuffled item table"):
        lp.extend(control, pa.table({"item_id": [100], "brand": ["b1"]}), out=tmp_path / "c")


def test_new_vectors_are_as_long_as_the_old(tmp_path):
    ids = np.arange(100, 112)
    data = write_small(tmp_path / "data", item_id=ids, item_table=small_item_table(ids))
    run = train(data, "mle", out=tmp_path / "run", features=["text"], epochs=1, width=8, device="cpu")
    with pytest.raises(DataError, match="'text' holds vectors of 2 numbers; earlier ones have 3"):
        lp.extend(run, pa.table({"item_id": [1], "text": [[1.0, 2.0]]}), out=tmp_path / "wider")


def test_a_swap_takes_the_extended_export(run, tmp_path):
    pytest.importorskip("onnxruntime")
    from localpolicy.serving.deployment import Slot

    wider = lp.extend(run, pa.table({"item_id": [100], "brand": ["b0"], "title": ["new"]}), out=tmp_path / "wider")
    lp.export(run.folder, out=tmp_path / "export")
    slot = Slot(tmp_path / "export", 1)
    slot.refresh()
    before = slot.loaded.n_items
    lp.export(wider, out=tmp_path / "export", force=True)
    assert slot.refresh() and slot.loaded.n_items == before + 1
    logits = slot.loaded.logits([[0, 6, 12]])
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert np.allclose(p[0], wider.policy().log_probabilities([[0, 6, 12]]).exp().numpy()[0], atol=1e-6)
    assert slot.loaded.called([100, 3]) == ["new", "thing 3"]
    drawn = slot.loaded.recommend([[0, 6, 12]] * 50, 1, seed=0)
    assert np.allclose(drawn.propensity[:, 0], p[0][drawn.indices[:, 0]], rtol=1e-4)


def test_embeddings_of_similar_items_are_similar(run, tmp_path):
    found = lp.similar(run, [0], k=5)
    assert list(found["similar"] % BRANDS) == [0] * 5
    assert list(found["name"]) == [f"thing {item}" for item in found["similar"]]
    for ids in (pd.Series([0, 1]), np.array([0, 1]), (0, 1)):
        assert list(lp.similar(run, ids, k=1)["item_id"]) == [0, 1]
    assert len(lp.similar(run, [])) == 0 and len(lp.similar(run, 0)) == 10
    for ids, k, said in (
        (["0"], 1, "no item '0': ids are of type int"), ([[0]], 1, "no item [0]"), ([0], 2.5, "whole number")
    ):  # fmt: skip
        with pytest.raises(LocalPolicyError) as error:
            lp.similar(run, ids, k=k)
        assert said in str(error.value)
    rows = run.embeddings(tmp_path / "rows.parquet")
    assert len(rows) == ITEMS and len(rows["embedding"][0]) == 16
    assert (tmp_path / "rows.parquet").exists()
    with pytest.raises(DataError, match="no item 999"):
        lp.similar(run, [999])


def test_cold_items_are_a_segment(tmp_path):
    draw = np.random.default_rng(1)
    log = walks(draw, BRAND, without=COLD)
    last = log["timestamp"].to_numpy() == 5
    item = log["item_id"].to_numpy().copy()
    some = last & (draw.random(len(item)) < 0.2)
    item[some] = 54 + item[some] % BRANDS
    log = log.set_column(1, "item_id", pa.array(item))
    data = prepare(log, out=tmp_path / "data", items=item_table(), split="last")
    assert not data.known_items[[data.catalogue["item_id"].to_pylist().index(i) for i in COLD]].any()
    run = train(data, "mle", out=tmp_path / "run", epochs=5, width=16, device="cpu", learning_rate=0.02)
    found = evaluate(run, device="cpu")
    cold = found.metrics["cold items"]["nDCG@10"]
    assert cold.n == some.sum() and cold.mean > 0.05
    plain = train(
        data, "mle", out=tmp_path / "plain", features=[], epochs=5, width=16, device="cpu", learning_rate=0.02
    )
    assert cold.mean > 2 * evaluate(plain, device="cpu").metrics["cold items"]["nDCG@10"].mean


def test_names_stand_wherever_lists_are_shown(data, run, tmp_path):
    lists = lp.recommend(run, [[0, 6], [1]], k=3)
    assert lists.names == [[f"thing {item}" for item in items] for items in lists.items]
    assert tables_of(lists)[0].plain()[0][1:] == lists.names[0]
    knn = lp.train(data, "item-knn", out=tmp_path / "knn")
    assert lp.recommend(knn, [[0]], k=2).names == [[f"thing {item}" for item in knn.recommend([[0]], k=2).items[0]]]
    for ending in ("jsonl", "csv"):
        lp.recommend(run, [[0, 6], [1]], k=3, out=tmp_path / f"lists.{ending}")
    written = [json.loads(line)["names"] for line in (tmp_path / "lists.jsonl").read_text().splitlines()]
    assert written == lists.names
    assert pd.read_csv(tmp_path / "lists.csv")["name"].tolist() == [name for names in lists.names for name in names]
    sample = comparison_section(lp.compare(run, against=run, baselines=False), titles={"0": "zero"}).samples[0]
    shown = [item.rpartition(" (")[0] for item in sample.history] + [item for item, _ in sample.lists["run"]]
    assert all(name == "zero" or name.startswith("thing ") for name in shown) and len(shown) > 5
