"""The cron job of docs/daily.md over seven simulated days: the page's script, its exit codes, and its files."""

from __future__ import annotations

import json
import os
import shutil
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
from localpolicy.serving.database import Database
from localpolicy.serving.deployment import Deployment
from localpolicy.serving.export import export
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import write
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import Feedback, Request, new_id, now
from localpolicy.serving.rollout import roll_back

ROOT = Path(__file__).parents[1]
SCRIPT, FURTHER = ROOT / "examples" / "daily.sh", ROOT / "examples" / "rollout.sh"
DAYS = [f"2026-11-{10 + number}" for number in range(7)]
SET = ("model.width=16", "train.batch_size=64", "train.learning_rate=0.01")
TRAINING = f"--objective mle --epochs 2 --device cpu {' '.join(f'--set {one}' for one in SET)}"
# Who is in which arm differs from run to run: no alarm may come by chance, and no proof stay away.
CAUTION = "--set alpha=0.001 --margin 0.5"
ROLLOUT = f"--stages 50,100 --units 60 --people 20 --places 3 --set lists=20 {CAUTION}"
LINES = ["data:", "items:", "training:", "judgement:", "next:"]
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
    environment = {**os.environ, "PATH": path, "TRAINING": TRAINING, "RULES": "rules.yaml", "ROLLOUT": ROLLOUT}
    listening.settimeout(0.05)

    def run(*words: object, script: Path = SCRIPT, gate: int | None = None) -> subprocess.CompletedProcess[str]:
        script = subprocess.Popen(
            ["sh", str(script), *map(str, words)], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        while script.poll() is None:
            try:
                line, _ = listening.accept()
            except TimeoutError:
                continue
            with line, line.makefile() as words_of:
                asked = json.loads(words_of.readline())
                if gate is not None and asked[0] == "gate":
                    line.sendall(json.dumps({"stdout": "", "stderr": "", "code": gate}).encode() + b"\n")
                    continue
                done = CliRunner().invoke(app, asked)
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


def test_the_daily_script_runs_for_seven_days(lpi_beside, tmp_path):
    """People chose themselves in these logs: no night deploys, and a test by hand puts a candidate into its place."""
    deployed = []
    for number, day in enumerate(DAYS):
        write_day(tmp_path / f"{day}.csv", number)
        before = Path("deployed").resolve()
        done = lpi_beside(day, f"{day}.csv")
        assert done.returncode in ((0,) if number == 0 else (3, 4, 7)), done.stderr
        assert [line.split()[1] for line in done.stdout.splitlines()] == LINES and not done.stderr
        assert f"{30 + 2 * number}, {30 if number == 0 else 2} of them new" in done.stdout
        after = Path("deployed").resolve()
        assert after == (Path("runs", day).resolve() if number == 0 else before)
        if done.returncode == 7:
            planned = json.loads(Path("rollout.json").read_text())
            assert Path(planned["candidate"]["export"]) == Path("exports", day).resolve() and planned["share"] == 0.5
            again = lpi_beside(day, f"{day}.csv")
            assert again.returncode == 7 and json.loads(Path("rollout.json").read_text())["id"] == planned["id"]
            assert lpi_beside("2026-11-30", f"{day}.csv").returncode == 2, "a day is taken once"
            roll_back("rollout.json", why="tested elsewhere: it is better")
            Path("deployed").unlink()
            Path("deployed").symlink_to(f"runs/{day}")
        deployed.append(Path("deployed").resolve().name)
        data = Prepared(f"data/{day}")
        assert data.manifest["counts"]["sequences"] == 150 * (number + 1)
        if number == 0:
            continue
        verdict = json.loads(Path("verdicts", f"{day}.json").read_text())
        assert verdict["sentence"] in done.stdout and "mle in" in done.stdout
        assert {"test online": 7, "do not deploy": 3, "cannot tell": 4}[verdict["answer"]] == done.returncode
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
    assert again.returncode == (0 if deployed[-1] == DAYS[-1] else done.returncode)
    assert Path("deployed").resolve().name == deployed[-1]
    twice = lpi_beside("2026-11-17", f"{DAYS[-1]}.csv")
    assert twice.returncode == 2 and not Path("data/2026-11-17").exists(), twice.stderr
    assert Path("today").resolve().name == DAYS[-1] and Path("deployed").resolve().name == deployed[-1]


def visits(number: int, chances: dict[str, float], *, persons: int = 150) -> None:
    """Log a day of a service through the service's own code; arms buy with these chances."""
    deployment = Deployment(Path("served"), rollout=Path("rollout.json"))
    rng = np.random.default_rng(number)
    start = now() - (40 - number) * 86_400_000
    database = Database("log.db", create=True)
    with database.transaction():
        for one in range(persons):
            person, at = f"v{number}-{one}", start + one * 1000
            route = deployment.route(person)
            past = [f"p{rng.integers(30)}"]
            event = route.recommender.default_event
            found = route.recommender.recommend([past], 3, events=[[event]], seed=int(rng.integers(2**31)))
            request = Request(
                id=new_id(at), time=at, person=person, history=[(past[0], event)], items=found.items[0],
                propensities=found.propensity[0].tolist(), policy=route.recommender.version, beta=None, mode="drawn",
                floor=0.0, item_filter=Filter(), deferred=False, share=1.0, arm=route.arm, stage=route.stage,
                rollout=route.rollout,
            )  # fmt: skip
            write(database, request)
            if rng.random() < chances[route.arm]:
                item = found.items[0][int(rng.integers(3))]
                write(
                    database, Feedback(request.id, request.id, item, ("view", "buy")[one % 2], None, at + 60_000, False)
                )
    database.close()


def test_the_round_ends_in_production(lpi_beside, tmp_path):
    """A good candidate is served at the end, a bad one is rolled back, and the good one stays."""
    write_day(tmp_path / "first.csv", 0)
    assert lpi_beside(DAYS[0], "first.csv").returncode == 0
    export("deployed", out=f"exports/{DAYS[0]}")
    shutil.copytree(f"exports/{DAYS[0]}", "served")
    steps = [
        ({"": 0.4, "current": 0.3, "candidate": 0.8}, 7, [0, 0]),  # what is worth a test online gets one
        ({"": 0.4, "current": 0.4, "candidate": 0.0}, 0, [3, 3]),
    ]
    number = 1
    for day, (chances, answer, codes) in zip(DAYS[1:], steps, strict=False):
        before = Recommender("served").version
        visits(number, chances)
        done = lpi_beside(day, "log.db", gate=answer)
        assert done.returncode == answer, done.stderr + Path(f"verdicts/{day}-audit.txt").read_text()
        assert f"next: a rollout of runs/{day} begins with 50 % of the people" in done.stdout
        assert lpi_beside(day, "log.db", gate=answer).returncode == answer, "run again, it changes nothing"
        assert lpi_beside("log.db", script=FURTHER).returncode == 5, "nobody was asked yet"
        for code in codes:
            number += 1
            visits(number, chances, persons=300 if code == 0 else 900)
            moved = lpi_beside("log.db", script=FURTHER)
            assert moved.returncode == code, moved.stdout + moved.stderr
            if number == 2:  # it is at 100 %, and not done
                waits = lpi_beside(DAYS[5], "log.db", gate=0)
                assert waits.returncode == 5 and "goes on" in waits.stdout
                assert f"exports/{day}" in Path("rollout.json").read_text() and not Path("exports", DAYS[5]).exists()
        good = codes == [0, 0]
        assert Recommender("served").version == (Recommender(f"exports/{day}").version if good else before)
        assert Path("deployed").resolve().name == (day if good else DAYS[1])
        number += 1


def test_the_page_names_the_scripts():
    for script in (SCRIPT, FURTHER):
        assert f"(../examples/{script.name})" in (ROOT / "docs" / "daily.md").read_text()
