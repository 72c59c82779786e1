"""A disk that takes no more while a world is written: exit 2, the folder named, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from localpolicy.cli.main import main
main()
"""


@pytest.mark.parametrize(
    "options",
    [["store"], ["bandit"], ["store", "--prepared"], ["yoochoose"], ["retailrocket"], ["netflix"]],
    ids=" ".join,
)
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, options: list[str]) -> None:
    command = [sys.executable, "-c", LIMITED, "simulate", *options, "--sequences", "3000"]
    result = subprocess.run([*command, "--out", str(tmp_path / "world")], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert f"{tmp_path / 'world'} could not be written: File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
