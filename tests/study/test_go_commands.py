"""`commands.sh` of `lpi go`, run from the log on, does what `go` did."""

from __future__ import annotations

import json
import shlex
import shutil
from importlib import import_module

import numpy as np
import pytest
from commands import invoked as lpi

from localpolicy.runs.config import Config
from localpolicy.runs.run import Run

SMALL = ("--set", "train.epochs=2", "--set", "model.width=8", "--set", "train.batch_size=64", "--device", "cpu")


def write_shop(path, sessions: int) -> None:
    rng = np.random.default_rng(0)
    lines = ["visitor,product,action,when"]
    for session in range(sessions):
        for step, product in enumerate(rng.integers(12, size=4).tolist()):
            action = "purchase" if product < 4 and rng.random() < 0.5 else "view"
            lines.append(f"v{session},p{product},{action},2026-11-16T10:{session % 60:02d}:{step:02d}")
    path.write_text("\n".join(lines) + "\n")


def test_the_commands_do_what_go_does(tmp_path, monkeypatch):
    """Of all that `go` made, only the commands and the settings are kept: they give equal weights and one verdict."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    write_shop(tmp_path / "a shop.csv", sessions=200)
    out = tmp_path / "go"
    kept = ("--duplicates", "consecutive", "--session-gap", "1h")
    done = lpi("go", tmp_path / "a shop.csv", "--out", out, *kept, *SMALL)
    verdict = json.loads((out / "verdict.json").read_text())
    made = {run.name: Run(run).manifest["policy_sha256"] for run in (out / "runs").iterdir()}
    trained = len(made) + len([*(out / "baselines").iterdir()])
    for folder in ("data", "runs", "baselines"):
        shutil.rmtree(out / folder)
    steps = []
    for line in (out / "commands.sh").read_text().splitlines():
        words = shlex.split(line.partition("|| ")[2] or line, comments=True)
        if words:
            assert words[0] == "lpi"
            asked = ["--json", tmp_path / "again.json"] if words[1] == "gate" else []
            ended = lpi(*words[1:], *asked)
            steps.append(words[1])
            if asked:
                assert ended.exit_code == done.exit_code
                found = json.loads((tmp_path / "again.json").read_text())
            else:
                assert ended.exit_code == 0, ended.output
    assert steps == ["prepare", *["train"] * trained, "gate", "compare"]
    assert {run.name: Run(run).manifest["policy_sha256"] for run in (out / "runs").iterdir()} == made
    assert {name: found[name] for name in ("answer", "sentence", "checks")} == {
        name: verdict[name] for name in ("answer", "sentence", "checks")
    }


def write_ratings(path, *, times: bool) -> None:
    """Sorted by film within each person; a few films are rated by nearly everybody."""
    rng = np.random.default_rng(0)
    lines = [f"user_id,film_id,rating{',timestamp' if times else ''}"]
    for person in range(150):
        for film in sorted(rng.choice(40, size=8, replace=False, p=np.arange(40, 0, -1) ** 2 / 22_140).tolist()):
            when = f",{1_700_000_000 + int(rng.integers(10**6))}" if times else ""
            lines.append(f"u{person},{film},{1 + (film + person) % 5}{when}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("times", "check"), [(False, "order"), (True, "training")])
def test_the_gate_of_the_commands_sees_what_go_sees(tmp_path, monkeypatch, times, check):
    """Rows in no order of time, and training that the clock ended: before, `go` knew of them and `lpi gate` did not."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    if check == "training":
        whole, hurry = Config.trained_with, {"minutes": 1e-6 / 60}
        monkeypatch.setattr(
            Config, "trained_with", lambda self, **to: whole(self, **(hurry if "minutes" in to else to))
        )
    write_ratings(tmp_path / "log.csv", times=times)
    out = tmp_path / "go"
    (tmp_path / "rules.yaml").write_text("min_sequences: 5\n")
    epochs = ("--set", "train.epochs=4") if check == "training" else ()
    done = lpi("go", tmp_path / "log.csv", "--out", out, "--rules", tmp_path / "rules.yaml", *SMALL, *epochs)
    verdict = json.loads((out / "verdict.json").read_text())
    first, *rest = verdict["checks"]
    assert done.exit_code == 4 and first["figure"] == check and {each["outcome"] for each in rest} == {"not asked"}
    assert "popularity" not in verdict["sentence"], "no baseline is named on figures that mean nothing"
    line = next(line for line in (out / "commands.sh").read_text().splitlines() if line.startswith("lpi gate"))
    again = lpi(*shlex.split(line)[1:], "--json", tmp_path / "again.json")
    found = json.loads((tmp_path / "again.json").read_text())
    assert again.exit_code == 4 and all(found[name] == verdict[name] for name in ("sentence", "checks", "rules"))
