"""The lines that a newcomer types first, as they stand in the documents."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

import localpolicy as lp


class MyObjective(lp.Objective):
    tau: float = 0.5

    def terms(self, readout):
        return lp.weighted(readout.logp, readout.reward**self.tau)


class MyNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, embedded, layout):
        return self.mix(embedded)


def table(rows=3_000):
    random = np.random.default_rng(0)
    return pa.table(
        {
            "session": np.repeat(np.arange(rows // 6), 6),
            "product": [f"p{number}" for number in random.integers(0, 20, rows)],
            "what": random.choice(["buy", "view"], rows, p=[0.3, 0.7]),
            "when": np.arange(rows),
        }
    )


def as_frame(kind):
    if kind == "arrow":
        return table()
    if kind == "duckdb":
        import duckdb

        rows = table()  # noqa: F841 - DuckDB finds it by its name
        return duckdb.sql("SELECT * FROM rows")
    module = pytest.importorskip(kind)
    return table().to_pandas() if kind == "pandas" else module.from_arrow(table())


COLUMNS = {"sequence_id": "session", "item_id": "product", "event": "what", "timestamp": "when"}
REWARDS = {"buy": 1.0, "view": 0.2}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_lines_run_as_written(here, caplog):
    pytest.importorskip("pandas")
    caplog.set_level(logging.INFO, logger="localpolicy")
    frame = table().to_pandas()
    data = lp.prepare(
        frame,
        columns={"sequence_id": "session", "item_id": "product", "event": "what", "timestamp": "when"},
        rewards={"buy": 1.0, "view": 0.2},
    )
    mle = lp.train(data, "mle", epochs=5)
    lpi = lp.train(data, lp.LPI(beta=0.3), seed=1, epochs=5)
    result = lp.compare([mle, lpi])
    assert "nDCG@20" in str(result) and "<table" in result._repr_html_() and len(repr(result)) < 200
    result.to_html("report.html")
    assert (here / "report.html").read_text().startswith("<!doctype html>")
    assert list(result.to_frame()["policy"])[:2] == [mle.folder.name, lpi.folder.name]
    lists = lpi.recommend([["p4"], ["p3", "p8"]], k=5).to_frame()
    assert len(lists) == 10
    own = lp.train(data, MyObjective(tau=0.7), epochs=1)
    assert own.config.objective == MyObjective(tau=0.7)
    net = lp.train(data, "mle", backbone=MyNet(), epochs=1)
    assert "MyNet" in str(lp.evaluate(net, against=[mle]).settings) or lp.evaluate(net, against=[mle]).metrics
    assert lp.train(data, "mle", backbone="gru", epochs=1, width=8).config.model.backbone == "gru"
    assert "lpi/data" in caplog.text  # where it went, since no folder was named
    assert data.path == mle.folder.parent / "data"


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "duckdb"])
def test_any_table_goes_in_and_comes_out(kind, here):
    data = lp.prepare(as_frame(kind), columns=COLUMNS, rewards=REWARDS, out="data")
    assert data.to_arrow().num_rows == 3_000
    assert data.to_dict()["counts"]["items"] == 20


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: lp.train(data, "mle", epoch=3), "did you mean 'epochs'"),
        (lambda data: lp.train(data, "lpi_lr"), "did you mean 'lpi_rl'"),
        (lambda data: lp.train(data, "lpi_rl", betta=3), "did you mean 'beta'"),
        (lambda data: lp.prepare(table(), colums=COLUMNS), "did you mean 'columns'"),
        (lambda data: lp.sweep(data, lp.LPI(), over={"betta": [1, 2]}), "did you mean 'beta'"),
    ],
)
def test_a_typo_names_the_nearest(call, message, here, small):
    with pytest.raises(Exception, match=message) as caught:
        call(small)
    assert isinstance(caught.value, Exception) and "Traceback" not in str(caught.value)


def test_nothing_prints(here, capfd, monkeypatch):
    """Messages go through logging: a notebook shows what was asked for, and nothing else."""
    monkeypatch.setattr(logging.getLogger("localpolicy"), "handlers", [])  # a command in this process adds one
    data = lp.prepare(table(), columns=COLUMNS, rewards=REWARDS)
    lp.train(data, "mle", epochs=1)
    assert capfd.readouterr() == ("", "")
