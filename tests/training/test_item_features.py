"""Runs with item features: equal, resumed, captured, put together; useless columns are left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from broken_runs import train_until
from small_logs import small_item_table, write_small

from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError
from localpolicy.judge.compare import compare
from localpolicy.model.weights import load_weights
from localpolicy.report.comparison import comparison_section
from localpolicy.report.tables import comparison_tables
from localpolicy.runs.config import Config
from localpolicy.training import cuda_graphs, trainer
from localpolicy.training.setup import item_inputs
from localpolicy.training.train import train

COLUMNS = ("brand", "tags", "price", "text")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    ids = np.arange(100, 112)
    return write_small(tmp_path_factory.mktemp("features") / "data", item_id=ids, item_table=small_item_table(ids))


def config(name="mle", **changes):
    return Config.parse(
        {
            "data": {"length": 6},
            "model": {"width": 8, "features": COLUMNS, "id_dropout": 0.2, **changes.pop("model", {})},
            "objective": {"name": name},
            "train": {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", **changes},
        }
    )


def comparable(run):
    return (run.folder / "policy.safetensors").read_bytes(), (run.folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["mle", "lpi_rl", "lpi_rl_weighted"])
def test_a_stopped_run_resumes_exactly(name, data, tmp_path):
    settings = config(name, checkpoint_every=2)
    whole = train(data, out=tmp_path / "whole", config=settings)
    train_until(7, data, out=tmp_path / "broken", config=settings)
    resumed = train(data, out=tmp_path / "broken", config=settings, resume=True)
    assert comparable(resumed) == comparable(whole)
    weights = load_weights(whole.folder / "policy.safetensors")
    learnt = [tensor for key, tensor in weights.items() if key.endswith("features.weight")]
    assert learnt and all(tensor.abs().max() > 0 for tensor in learnt)
    lists = whole.policy().recommend([[100, 101]], 3, events=[["click", "none"]])
    assert len(set(lists.items[0])) == 3


@pytest.mark.parametrize("name", ["mle", "lpi_rl_weighted"])
def test_steps_of_a_fixed_size_train_the_same(name, data, tmp_path, monkeypatch):
    settings = config(name, model={"dropout": 0.0, "id_dropout": 0.0})
    plain = train(data, out=tmp_path / "plain", config=settings)
    monkeypatch.setattr(trainer, "refusal", lambda *_: None)
    start = cuda_graphs.CapturedSteps.__init__

    def on_a_cpu(self, *given):
        start(self, *given)
        self.refused = "a CPU has no graphs"

    monkeypatch.setattr(cuda_graphs.CapturedSteps, "__init__", on_a_cpu)
    fixed = train(data, out=tmp_path / "fixed", config=settings)
    for one, two in zip(plain.metrics(), fixed.metrics(), strict=True):
        for group in ("losses", "weights", "validation"):
            assert two[group] == pytest.approx(one[group], rel=2e-3, abs=2e-4), group


def world(tmp_path, *, shuffled):
    """Data in which the next item has the brand of the one before nine times in ten; 'colour' is random."""
    draw = np.random.default_rng(0)
    items = 60
    brand = draw.integers(0, 6, items)
    sequences = []
    for _ in range(400):
        item = [int(draw.integers(items))]
        for _ in range(5):
            own = np.flatnonzero(brand == brand[item[-1]])
            item.append(int(draw.choice(own)) if draw.random() < 0.9 else int(draw.integers(items)))
        sequences.append(item)
    shown = draw.permutation(brand) if shuffled else brand
    log = pa.table({"sequence_id": np.repeat(np.arange(400), 6), "item_id": np.concatenate(sequences),
                    "timestamp": np.tile(np.arange(6), 400)})  # fmt: skip
    table = pa.table({"item_id": np.arange(items), "brand": [f"b{b}" for b in shown],
                      "colour": [f"c{c}" for c in draw.integers(0, 6, items)],
                      "weight": draw.normal(size=items)})  # fmt: skip
    return prepare(log, out=tmp_path / f"data-{shuffled}", items=table, event="click")


def test_uninformative_columns_are_left_out(tmp_path):
    true, false = world(tmp_path, shuffled=False), world(tmp_path, shuffled=True)
    settings = {"epochs": 1, "width": 8, "device": "cpu"}
    run = train(true, "mle", out=tmp_path / "true", **settings)
    assert run.config.model.features == ["brand"]
    assert "colour is left out" in run.config.auto["model.features"]
    useless = train(false, "mle", out=tmp_path / "false", **settings)
    assert useless.config.model.features == []
    none = train(false, "mle", out=tmp_path / "none", features=(), **settings)
    assert comparable(useless) == comparable(none)


def test_features_that_cannot_be_are_refused(data, small, tmp_path):
    with pytest.raises(ConfigError, match="has no column 'brnad'.*brand"):
        train(data, "mle", out=tmp_path / "a", features=("brnad",))
    with pytest.raises(ConfigError, match="prepared without an item table"):
        train(small, "mle", out=tmp_path / "b", features=("brand",))
    with pytest.raises(ConfigError, match="brand, brand names a column twice"):
        train(data, "mle", out=tmp_path / "d", features=("brand", "brand"))
    with pytest.raises(ConfigError, match="needs tied heads"):
        train(data, "mle", out=tmp_path / "c", features=("brand",), tied=False)


def test_a_comparison_says_what_features_bring(tmp_path):
    data = world(tmp_path, shuffled=False)
    settings = {"epochs": 4, "width": 8, "batch_size": 32, "learning_rate": 0.02, "device": "cpu"}
    ways = {"with": {"features": ["brand"]}, "without": {"features": []},
            "dealt": {"features": ["brand"], "shuffle_features": 3}}  # fmt: skip
    runs = [train(data, "mle", out=tmp_path / name, **way, **settings) for name, way in ways.items()]
    other = train(data, "mle", out=tmp_path / "other", features=(), **{**settings, "seed": 1})
    wider = train(data, "mle", out=tmp_path / "wider", features=("brand",), **{**settings, "width": 12})
    result = compare([other, *runs, wider], baselines=False)
    gains = {each.policy: each for each in result.feature_gains}
    assert set(gains) == {"with", "dealt"}  # of `wider` there is no twin without
    assert [each.against for each in gains.values()] == ["without", "without"]  # of its own seed, not `other`
    assert [each.shuffled for each in gains.values()] == [False, True]
    gap = np.mean(result["with"].values("logp")[0] - result["without"].values("logp")[0])
    assert gains["with"].tests["logp"].difference == pytest.approx(gap)
    assert gains["with"].tests["logp"].sign > 0 >= gains["dealt"].tests["logp"].sign
    table = comparison_tables(result)[-1]
    assert table.title == "What item features bring"
    assert [row[1:3] for row in table.plain()] == [["brand", "without"], ["brand, shuffled", "without"]]
    claims = {claim.claim: claim.holds for claim in comparison_section(result).claims}
    assert claims["with gains by its item features (brand)"]
    assert claims["shuffled among the items, these features bring nothing (dealt)"]
    assert [each["policy"] for each in result.to_dict()["features"]] == ["with", "dealt"]


def test_a_shuffled_table_has_a_seed_of_its_own(data, tmp_path):
    config = Config.parse({"model": {"features": ["brand"], "shuffle_features": 5}, "train": {"seed": 7}})
    deal = np.random.default_rng(5).permutation(data.n_items)
    true = item_inputs(data, config.with_changes(["model.shuffle_features=null"])).encoded
    dealt = item_inputs(data, config).encoded
    values = [[encoded.keys[encoded.row[at]] for at in encoded.offsets[:-1]] for encoded in (true.taken(deal), dealt)]
    assert values[0] == values[1]
    assert not np.array_equal(true.row, dealt.row)
    assert np.array_equal(dealt.row, item_inputs(data, config.with_changes(["train.seed=8"])).encoded.row)
