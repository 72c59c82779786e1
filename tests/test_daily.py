"""The cron job of docs/daily.md over seven simulated days: the very script, its exit codes, and what it leaves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.data.store import Prepared
from localpolicy.errors import LocalPolicyError
from localpolicy.runs.run import Run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "daily.sh"
DAYS = [f"2026-11-{10 + number}" for number in range(7)]
SET = ("model.width=16", "train.batch_size=64", "train.learning_rate=0.01")
TRAINING = f"--objective mle --epochs 2 --device cpu {' '.join(f'--set {one}' for one in SET)}"
RULES = "{min_sequences: 10, baselines: false}"  # a small shop, whose rule of thumb item-kNN knows as well
CLIENT = """#!{python} -SE
import json, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({place!r})
    line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    answer = json.loads(line.makefile().readline())
sys.stdout.write(answer["stdout"]); sys.stderr.write(answer["stderr"]); sys.exit(answer["code"])
"""


def write_day(path: Path, number: int, *, sessions: int = 150) -> None:
    """Sessions that walk through the catalogue and buy what they looked at last; every day two products are new."""
    rng = np.random.default_rng(number)
    products = 30 + 2 * number
    lines = ["session,product,what,when"]
    for session in range(sessions):
        first = int(rng.integers(products))
        for step, product in enumerate([first, first + 1, first + 2, first + 2]):
            what = "buy" if step == 3 else "view"
            when = f"{DAYS[number]}T10:{session % 60:02d}:{step:02d}"
            lines.append(f"d{number}s{session},p{product % products},{what},{when}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def lpi_beside(tmp_path, monkeypatch):
    """`lpi` on the path that hands its words to this process: the script is real, and torch is imported once."""
    place = tmp_path / "line"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(place))
    listening.listen()
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "lpi"
    client.write_text(CLIENT.format(python=sys.executable, place=str(place)))
    client.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES)
    path = f"{client.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TRAINING": TRAINING, "RULES": "rules.yaml"}
    listening.settimeout(0.05)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        script = subprocess.Popen(
            ["sh", str(SCRIPT), *map(str, words)], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        while script.poll() is None:
            try:
                line, _ = listening.accept()
            except TimeoutError:
                continue
            with line, line.makefile() as words_of:
                done = CliRunner().invoke(app, json.loads(words_of.readline()))
                if done.exception and not isinstance(done.exception, SystemExit | LocalPolicyError):
                    script.kill()
                    raise done.exception
                mended = isinstance(done.exception, LocalPolicyError)
                answer = {
                    "stdout": done.stdout,
                    "stderr": f"lpi: {done.exception}\n" if mended else "",
                    "code": 2 if mended else done.exit_code,
                }
                line.sendall(json.dumps(answer).encode() + b"\n")
        return subprocess.CompletedProcess(script.args, script.returncode, *script.communicate())

    yield run
    listening.close()


def test_seven_days(lpi_beside, tmp_path):
    deployed = []
    for number, day in enumerate(DAYS):
        write_day(tmp_path / f"{day}.csv", number)
        before = Path("deployed").resolve()
        done = lpi_beside(day, f"{day}.csv")
        assert done.returncode in (0, 3, 4), done.stderr
        after = Path("deployed").resolve()
        assert after == (Path("runs", day).resolve() if done.returncode == 0 else before)
        deployed.append(after.name)
        data = Prepared(f"data/{day}")
        assert data.manifest["counts"]["sequences"] == 150 * (number + 1)
        if number == 0:
            continue
        verdict = json.loads(Path("verdicts", f"{day}.json").read_text())
        assert {"deploy": 0, "do not deploy": 3, "cannot tell": 4}[verdict["answer"]] == done.returncode
        # Both were measured on today's rows; what the deployed run does not know is counted, in words.
        older = Run(before)
        unknown = data.n_items - Prepared(older.data_folders[0]).n_items
        notes = " ".join(verdict["notes"])
        assert unknown == 2 * (number - DAYS.index(before.name))
        assert f"deployed does not know {unknown} of {data.n_items} items" in notes
        assert "was trained on other data" in notes and "flatter" not in notes
        assert verdict["evaluation"]["settings"]["data"] == data.digest == verdict["deployed"]["settings"]["data"]
        assert "have the same seed" not in notes
    assert len(set(deployed)) > 1, "a day that brings new products and more sessions is better at some time"
    # The same day again changes nothing and says the same; its log under another day's name is refused.
    again = lpi_beside(DAYS[-1], f"{DAYS[-1]}.csv")
    assert again.returncode == done.returncode and Path("deployed").resolve().name == deployed[-1]
    twice = lpi_beside("2026-11-17", f"{DAYS[-1]}.csv")
    assert twice.returncode == 2 and not Path("data/2026-11-17").exists(), twice.stderr
    assert Path("today").resolve().name == DAYS[-1] and Path("deployed").resolve().name == deployed[-1]


def test_the_page_holds_the_script():
    assert SCRIPT.read_text() in (ROOT / "docs" / "daily.md").read_text()
