"""A reader from outside: passed as an object, named on the command line, or registered by an installed package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from raw_logs import random_log, stored, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.quality import measure
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError
from localpolicy.report.results import quality_tables, write_quality

ROWS = random_log()
MODULE = """
import json
from pathlib import Path
import pyarrow as pa

Path(__file__).with_name("imported").touch()

class Lines:
    preset = {"rewards": {"purchase": 3, "click": 1}, "columns": {"sequence_id": "who"}}

    def tables(self, paths, config, scratch):
        rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return [pa.Table.from_pylist(rows)]

def not_a_reader():
    pass
"""


class Lines:
    """Reads JSON lines."""

    def tables(self, paths, config, scratch):
        return [pa.Table.from_pylist([json.loads(line) for path in paths for line in path.read_text().splitlines()])]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """JSON lines, and a package that can read them."""
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps({**row, "who": row["sequence_id"]}) for row in ROWS))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "outside.py").write_text(MODULE)
    info = tmp_path / "site" / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[localpolicy.readers]\nlines = outside:Lines\nbroken = outside:Missing\n")
    return path


@pytest.fixture
def installed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(log.parent / "site")
    monkeypatch.delitem(sys.modules, "outside", raising=False)


def test_a_reader_may_be_an_object(log: Path, tmp_path: Path) -> None:
    plain = prepare(write_parquet(tmp_path / "log.parquet", ROWS), out=tmp_path / "plain")
    assert stored(prepare(log, source=Lines(), out=tmp_path / "data")) == stored(plain)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("source", ["outside:Lines", "lines"])
def test_a_reader_is_found_by_its_name(log: Path, tmp_path: Path, source: str) -> None:
    data = prepare(log, source=source, out=tmp_path / "data")
    assert data.manifest["rewards"] == {"click": 1.0, "purchase": 3.0}  # the reader's preset
    assert data.manifest["source"] == source


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("outside:Nothing", "outside has no Nothing"),
        ("nowhere:Lines", "cannot import nowhere .*Expected package.module:Name"),
        ("outside:not_a_reader", "is not a reader: it has no method tables"),
        ("broken", "'broken' is registered as outside:Missing, which cannot be imported"),
        ("linse", "did you mean 'lines'"),
    ],
)
def test_a_name_without_a_reader_is_refused(log: Path, tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(log, source=source, out=tmp_path / "data")


def test_the_command_line_and_nothing_that_a_file_names_is_imported(log: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for source in ("outside:Lines", "lines"):
        command = [sys.executable, "-m", "localpolicy", "prepare", source, str(log), "--out", str(tmp_path / "data")]
        path = {"PYTHONPATH": ":".join([str(site), *sys.path])}
        result = subprocess.run([*command, "--force"], capture_output=True, text=True, check=False, env=path)
        assert result.returncode == 0, result.stderr
        (site / "imported").unlink()
        data = Prepared(tmp_path / "data")
        assert data.manifest["source"] == source
        list(quality_tables(data, measure(data)))
        write_quality(data, measure(data))
        assert not (site / "imported").exists()
