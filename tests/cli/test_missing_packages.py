"""Where a package is not installed every verb says in one sentence what brings it, with exit code 2."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from localpolicy.cli.main import GROUPS, VERBS
from localpolicy.cli.studies import PAPER
from localpolicy.serving.doctor import EXTRAS, REQUIRED

GOLDEN = max((Path(__file__).parents[1] / "golden").iterdir())
EVERY_EXTRA = [package.replace("-", "_") for packages in EXTRAS.values() for package in packages]
HIDDEN = {
    "without extras": [*EVERY_EXTRA, "opentelemetry"],
    "serve only": ["torch", "pyarrow", "duckdb", "scipy", "safetensors", "onnx", "onnxscript", "jinja2"],
    "without torch and numpy": ["torch", "numpy"],
}
DATA, RUN, EXPORT, PLAN = "data", "runs/mle", "exports/mle", "rollout.json"
OUT = ("--out", "out")
EVENTS = "world/events.parquet"
# What each verb needs, as people type it; `rollout`, `explore` and `paper` have verbs of their own.
TYPED: dict[str, tuple[str, ...]] = {
    "demo": ("demo", *OUT), "go": ("go", EVENTS, *OUT), "simulate": ("simulate", "bandit", *OUT),
    "prepare": ("prepare", "events", EVENTS, *OUT), "train": ("train", DATA, *OUT), "evaluate": ("evaluate", RUN),
    "compare": ("compare", RUN, "runs/lpi"), "gate": ("gate", "runs/lpi", "--against", RUN),
    "sweep": ("sweep", DATA, "--objective", "lpi_cb", "--over", "beta=1", *OUT),
    "distill": ("distill", "runs/lpi", *OUT),
    "extend": ("extend", RUN, "--items", "data/items.parquet", *OUT),
    "recommend": ("recommend", RUN, "--histories", "h.jsonl", *OUT), "export": ("export", RUN, *OUT),
    "improve": ("improve", EVENTS, *OUT), "rotate": ("rotate", "log.db", *OUT), "audit": ("audit", "log.db"),
    "erase": ("erase", "p1", "--log", "log.db"), "register": ("register", RUN, "--name", "shop"),
    "loop": ("loop", "bandit", *OUT), "verify": ("verify", RUN),
    "paper table1": ("paper", "table1", "--data", DATA, *OUT),
    "rollout judge": ("rollout", "judge", PLAN, "--log", "log.db"),
    "rollout back": ("rollout", "back", PLAN), "rollout plan": ("rollout", "plan", EXPORT, *OUT),
    "rollout size": ("rollout", "size", "events.parquet"), "explore plan": ("explore", "plan", EVENTS),
}  # fmt: skip
BY_EXTRA = {  # typed where no extra is installed
    "spark": [("prepare", "events", EVENTS, "--engine", "spark", *OUT)],
    "serve": [("export", RUN, *OUT), ("serve", EXPORT), ("audit", "postgresql://x/y")],
    "excel": [("prepare", "events", "log.xlsx", *OUT)],
    "lakes": [("prepare", "events", "delta+/lake", *OUT)],
    "sweep": [("sweep", DATA, "--objective", "lpi_cb", "--over", "beta=.1..1", "--search", "optuna", "--trials", "2",
               *OUT)],
    "track": [("train", DATA, "--objective", "mle", "--set", "train.tensorboard=true", *OUT)],
    "mlflow": [("register", RUN, "--name", "shop")],
}  # fmt: skip
# Runs every command in one process: starting one for each would take most of the time.
CODE = """
import contextlib, io, json, sys, traceback
from localpolicy.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv, said, code = ["lpi", *words], io.StringIO(), 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = traceback.format_exc()
    print(json.dumps([words, code, said.getvalue()]))
"""


@pytest.fixture
def place(tmp_path) -> Path:
    """The golden artefacts, a log of the service, and files that only their names make what they are."""
    shutil.copytree(GOLDEN, tmp_path / "place")
    connection = sqlite3.connect(tmp_path / "place" / "log.db")
    connection.executescript((GOLDEN / "log" / "log.sql").read_text())
    connection.close()
    shutil.copyfile(GOLDEN / EVENTS, tmp_path / "place" / "events.parquet")
    (tmp_path / "place" / "h.jsonl").write_text('{"history": []}\n')
    (tmp_path / "place" / "log.xlsx").write_bytes(b"PK\x03\x04")
    return tmp_path / "place"


def typed(commands: list[tuple[str, ...]], place: Path, hidden: str) -> list[tuple[list[str], object, str]]:
    """Exit code and output of each command where packages are hidden."""
    path = os.pathsep.join([str(Path(__file__).parent / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "HIDDEN": ",".join(HIDDEN[hidden]), "COLUMNS": "200"}
    code = [sys.executable, "-c", CODE, json.dumps(commands)]
    done = subprocess.run(code, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_every_verb_is_typed():
    with_verbs = {name.partition(" ")[0] for name in TYPED}
    assert with_verbs == {*VERBS, *filter(None, GROUPS)} - {"doctor", "serve"} and PAPER


@pytest.mark.parametrize("hidden", ["serve only", "without torch and numpy"])
def test_every_verb_names_the_package_that_it_lacks(hidden, place):
    for words, code, said in typed([*TYPED.values()], place, hidden):
        assert code == 2, (words, code, said)
        assert said.count("\n") == 1 and "pip install localpolicy" in said, (words, said)
        assert any(f"this needs {package}, " in said for package in REQUIRED), (words, said)
    assert not (place / "out").exists()
    (words, code, said), *rest = typed([("doctor",), ("--help",), ("--version",)], place, hidden)
    assert code == 2 and "MISSING" in said and "pip install 'torch'" in said, (words, said)
    assert [code for _, code, _ in rest] == [0, 0]


def test_every_extra_is_named_by_the_verbs_that_need_it(place):
    commands = [(extra, words) for extra, each in BY_EXTRA.items() for words in each]
    done = typed([words for _, words in commands], place, "without extras")
    for (extra, _), (words, code, said) in zip(commands, done, strict=True):
        assert code == 2, (words, code, said)
        assert f"pip install 'localpolicy[{extra}]'" in said.splitlines()[-1] and "Traceback" not in said, (words, said)
    assert not (place / "out").exists()
