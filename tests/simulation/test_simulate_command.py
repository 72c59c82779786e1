"""`lpi simulate`: a skin over one function, quick to start and clear when refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from localpolicy.simulation import load_world


def lpi(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "localpolicy", "simulate", *arguments], capture_output=True, text=True, check=False
    )


def test_simulate_writes_a_world_and_names_its_files(tmp_path: Path) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    done = lpi("bandit", "--out", str(out), "--sequences", "200", "--set", "contexts=10", "--json", str(figures))
    assert (done.returncode, done.stderr) == (0, "")
    assert "J of the logging policy" in done.stdout
    assert load_world(out).config.contexts == 10
    found = json.loads(figures.read_text())
    assert found["rows"]["context"] == 600
    assert found["logging_value"] == load_world(out).logging_value()


def test_a_typo_names_the_nearest_world(tmp_path: Path) -> None:
    done = lpi("retailroket", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "did you mean 'retailrocket'" in done.stderr


def test_simulating_needs_no_torch() -> None:
    code = "import sys, localpolicy.simulation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
