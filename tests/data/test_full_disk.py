"""A disk that really refuses to take more: the kernel's limit on file sizes stands in for its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from localpolicy.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("options", "limit"),
    [([], 100_000), (["--memory", "20MB", "--no-keep-log"], 3_000_000)],
    ids=["the arrays do not fit", "what memory does not hold does not fit"],
)
def test_a_disk_that_fills_up_is_reported(tmp_path: Path, options: list[str], limit: int) -> None:
    rng = np.random.default_rng(0)
    events = 400_000 if options else 60_000
    columns = {
        "sequence_id": rng.integers(events // 8, size=events),
        "item_id": rng.integers(1000, size=events),
        "event": np.repeat("click", events),
        "timestamp": rng.integers(10**12, 2 * 10**12, size=events),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    command = [sys.executable, "-c", LIMITED.format(limit=limit), "prepare", "events", str(tmp_path / "log.parquet")]
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "data"), *options], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2, result.stderr
    if options:  # DuckDB's own files
        assert "lpi: the disk is full" in result.stderr and "raise --memory" in result.stderr
    else:
        assert "data could not be written: File too large" in result.stderr and "make room" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]
