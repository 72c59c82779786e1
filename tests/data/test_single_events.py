"""An impression log whose sequences are single events, as Open Bandit's: it trains with no setting."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import localpolicy


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "random" / "men" / "men.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["timestamp", "item_id", "position", "click", "propensity_score"])
        for number in range(400):
            when = f"2019-11-24 00:{number // 60:02d}:{number % 60:02d}+00:00"
            rows.writerow([when, rng.integers(6), rng.integers(3), int(rng.random() < 0.2), 1 / 6])
    return path


def test_training_needs_no_setting(log: Path, tmp_path: Path) -> None:
    data = localpolicy.prepare(log, source="openbandit", out=tmp_path / "data")
    run = localpolicy.train(data, "mle", out=tmp_path / "run", epochs=1, device="cpu")
    assert run.finished and run.config.train.min_history == 0
