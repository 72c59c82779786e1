"""`commands.sh` of `lpi go`, run from the log on, does what `go` did."""

from __future__ import annotations

import json
import shlex
import shutil
from importlib import import_module

import numpy as np
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.runs.run import Run

SMALL = ("--set", "train.epochs=2", "--set", "model.width=8", "--set", "train.batch_size=64", "--device", "cpu")


def lpi(*words: object) -> object:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


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
    monkeypatch.setattr(import_module("localpolicy.study.jobs"), "cores", lambda: 1)
    write_shop(tmp_path / "a shop.csv", sessions=200)
    out = tmp_path / "go"
    done = lpi("go", tmp_path / "a shop.csv", "--out", out, *SMALL)
    verdict = json.loads((out / "verdict.json").read_text())
    made = {run.name: Run(run).manifest["policy_sha256"] for run in (out / "runs").iterdir()}
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
    assert steps == ["prepare", *["train"] * 6, "gate", "compare"]
    assert {run.name: Run(run).manifest["policy_sha256"] for run in (out / "runs").iterdir()} == made
    assert {name: found[name] for name in ("answer", "sentence", "checks")} == {
        name: verdict[name] for name in ("answer", "sentence", "checks")
    }
