"""Results print themselves, and give their numbers back as a dict and as a table."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import localpolicy.report.results  # noqa: F401  (registers how results are shown)
from localpolicy.errors import ConfigError
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.measure.evaluate import evaluate
from localpolicy.model.lists import Lists
from localpolicy.report.results import tables_of
from localpolicy.report.table import Table
from localpolicy.results import Result
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.training.train import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("shown")
    write_prepared(
        StoreWorld(StoreConfig(items=30, categories=3, mean_length=8), seed=0), folder / "data", sequences=300
    )
    return [
        train(
            folder / "data",
            out=folder / f"mle-{seed}",
            config=Config.parse(
                {"objective": {"name": "mle"}, "model": {"width": 8}, "train": {"epochs": 1, "seed": seed}}
            ),
        )
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def results(runs: list[Run]) -> dict[str, Result]:
    return {
        "Run": runs[0],
        "Evaluation": evaluate(runs[0], against=runs[1:]),
        "Comparison": compare(runs, episodes=20),
        "Gate": gate(runs[0], against=runs[1:]),
        "Lists": runs[0].policy().recommend([[1, 2], [3]], 4),
    }


KINDS = ("Run", "Evaluation", "Comparison", "Gate", "Lists")


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_prints_itself(results: dict[str, Result], kind: str) -> None:
    result = results[kind]
    assert re.fullmatch(rf"<{kind}: .{{10,300}}>", repr(result)), "one short line"
    tables = tables_of(result)
    assert tables and all(isinstance(table, Table) for table in tables)
    assert all(table.title in str(result) for table in tables)
    html = result._repr_html_()
    assert html is not None and html.count("<table") == len(tables) and "@scope (.localpolicy)" in html
    assert "th.number" in html and "h1" not in html.replace("<h1", "h1"), "the rules of tables alone"


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_gives_its_numbers_back(results: dict[str, Result], kind: str) -> None:
    result = results[kind]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)), "plain numbers, fit for JSON"
    table = result.to_arrow()
    assert isinstance(table, pa.Table) and table.num_rows


def test_a_comparisons_table_holds_the_numbers_of_its_dict(results: dict[str, Result]) -> None:
    said = results["Comparison"].to_dict()
    rows = {row["policy"]: row for row in results["Comparison"].to_arrow().to_pylist()}
    assert list(rows) == list(said["policies"])
    for name, policy in said["policies"].items():
        assert rows[name]["JS"] == policy["divergence"]["js"]["mean"]
        assert rows[name]["coverage@20"] == policy["policy"]["coverage@20"]
        assert rows[name]["true J"] == policy["truth"]["value"]
        for column in said["columns"]:
            group, metric = column.split(".")
            assert rows[name][column] == policy["metrics"][group][metric]["mean"]
            for other in ("HR@5", "nDCG@10"):
                assert rows[name][f"{group}.{other}"] == policy["metrics"][group][other]["mean"]
            gain = said["gains"].get(name, {}).get(column)
            assert rows[name][f"{column} gain"] == (gain and gain["difference"])
            assert rows[name][f"{column} gain p"] == (gain and gain["holm_p"])


def test_a_comparison_writes_its_whole_page(
    results: dict[str, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    path = results["Comparison"].to_html(tmp_path / "page.html")
    assert "Policies compared" in path.read_text() and 'id="chart-specs"' in path.read_text()
    verdict = results["Gate"].to_html(tmp_path / "gate.html").read_text()
    assert results["Gate"].to_dict()["reason"] in unescape(verdict) and "Next:" in verdict
    assert "<table" in results["Evaluation"].to_html(tmp_path / "evaluation.html").read_text()


def test_frames_are_pandas_where_it_is_installed(results: dict[str, Result]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = results["Comparison"].to_frame()
    assert isinstance(frame, pandas.DataFrame) and list(frame["policy"])[:2] == ["mle-0", "mle-1"]


def test_lists_as_rows() -> None:
    lists = Lists([["a", "b"], ["c", "a"]], torch.tensor([[0, 1], [2, 0]]), torch.tensor([[0.5, 0.25]] * 2).log(), None)
    assert lists.to_arrow().to_pylist()[2] == {"history": 1, "place": 1, "item": "c", "probability": pytest.approx(0.5)}
    assert repr(lists) == "<Lists: 2 of 2 items; the first: a, b>"


def test_without_tables_the_summary_is_printed() -> None:
    class Bare(Result):
        def summary(self) -> str:
            return "nothing registered"

    assert str(Bare()) == repr(Bare()) == "<Bare: nothing registered>"
    assert Bare()._repr_html_() is None


def test_what_has_no_page_says_so(tmp_path: Path) -> None:
    from localpolicy.report.results import write_page

    with pytest.raises(ConfigError, match="cannot be written as a page"):
        write_page(3, tmp_path / "page.html")
