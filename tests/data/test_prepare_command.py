"""The verb: options reach the function, results go to stdout, mistakes are plain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from raw_logs import random_log, write_csv, write_parquet
from typer.testing import CliRunner

from localpolicy.cli.data import prepare
from localpolicy.cli.options import complete
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(complete(prepare))


def lpi(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_options_reach_the_data_set(tmp_path: Path) -> None:
    rows = [
        {"user": r["sequence_id"], "item": r["item_id"], "what": r["event"][0], "ms": r["timestamp"]}
        for r in random_log()
    ]
    log = write_csv(tmp_path / "log.csv", rows)
    (tmp_path / "map.yaml").write_text("sequence_id: user\nitem_id: item\nevent: what\ntimestamp: ms\n")
    options = ["--rename", "c=click,p=purchase", "--rewards", "click=0,purchase=2", "--session-gap", "30m"]
    options += ["--min-events", "2", "--validation", "0.2", "--test", "0.2", "--seed", "4", "--duplicates", "exact"]
    out = lpi(
        "events",
        log,
        "--out",
        tmp_path / "data",
        "--columns",
        tmp_path / "map.yaml",
        *options,
        "--json",
        tmp_path / "r.json",
    )
    data = Prepared(tmp_path / "data")
    chosen = {
        key: data.manifest["settings"][key] for key in ("session_gap", "min_events", "seed", "duplicates", "validation")
    }
    assert chosen == {"session_gap": 1800, "min_events": 2, "seed": 4, "duplicates": "exact", "validation": 0.2}
    assert data.manifest["rewards"] == {"click": 0, "purchase": 2}
    assert "leaks and quality" in out
    assert "sequences" in out
    assert (data.path / "quality.html").exists()
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["counts"] == data.manifest["counts"]
    assert report["quality"]["events"] == sum(data.manifest["counts"]["events"].values())


def test_append_on_the_command_line_adds_a_log_once(tmp_path: Path) -> None:
    for number in range(2):
        write_parquet(tmp_path / f"{number}.parquet", random_log(number))
    lpi("events", tmp_path / "0.parquet", "--out", tmp_path / "a", "--split", "time")
    lpi("events", tmp_path / "1.parquet", "--out", tmp_path / "b", "--append", tmp_path / "a")
    assert sum(Prepared(tmp_path / "b").manifest["counts"]["events"].values()) == 1200
    (tmp_path / "b" / "quality.html").unlink()  # as where the call was killed before it wrote the page
    with pytest.raises(DataError, match="is part of .* already"):
        lpi("events", tmp_path / "1.parquet", "--out", tmp_path / "b", "--append", tmp_path / "b", "--force")
    assert (tmp_path / "b" / "quality.html").exists()


@pytest.mark.parametrize("columns", ["nothing.yaml", "sequence_id=", "a=b,a=c"])
def test_a_column_map_that_cannot_be_read(tmp_path: Path, columns: str) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    with pytest.raises(ConfigError, match="columns: "):
        lpi("events", log, "--out", tmp_path / "data", "--columns", columns)
