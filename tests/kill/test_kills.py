"""A verb that writes may be killed, run twice at once, or meet a full disk: run again it ends with the same bytes.

`KILLS=20 PAIRS=10 FULL=10 pytest tests/kill` for more of each; `VERBS=train,sweep` for some verbs alone.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_logs import write_small

from localpolicy.runs.config import Config
from localpolicy.runtime.files import SEAL
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import Log
from localpolicy.serving.records import Feedback, Request, new_id
from localpolicy.serving.rotate import rotate
from localpolicy.training.train import train

KILLS, PAIRS, FULL = (
    int(os.environ.get(name, often)) for name, often in (("KILLS", "2"), ("PAIRS", "0"), ("FULL", "0"))
)
SMALL = ("--device", "cpu", "--epochs", "1", "--set", "model.width=4", "--set", "train.batch_size=64")
VERBS = {
    "prepare": ("prepare", "events", "{place}/log.csv", "--out", "{out}/data", "--force", "--threads", "1"),
    "simulate": ("simulate", "bandit", "--sequences", "200", "--items", "20", "--out", "{out}/world", "--force"),
    "train": ("train", "{place}/small", "--objective", "lpi_rl", "--out", "{out}/run", "--resume", *SMALL),
    "sweep": ("sweep", "{place}/small", "--objective", "lpi_rl", "--over", "beta=0.3,1", "--processes", "1",
              "--out", "{out}/sweep", *SMALL),
    "recommend": ("recommend", "{place}/run", "--histories", "{place}/histories.jsonl", "--out", "{out}/lists.jsonl",
                  "-k", "5"),
    "evaluate": ("evaluate", "{place}/run", "--json", "{out}/figures.json"),
    "compare": ("compare", "{place}/run", "{place}/other", "--no-baselines", "--html", "{out}/page.html"),
    "paper": ("paper", "table2", "--simulate", "retailrocket", "--sequences", "300", "--items", "30",
              "--out", "{out}/paper"),
    "loop": ("loop", "bandit", "--rounds", "1", "--sequences", "300", "--items", "12", "--objectives", "mle",
             "--out", "{out}/loop", "--set", "train.epochs=1", "--set", "model.width=4"),
    "distill": ("distill", "{place}/run", "--epochs", "1", "--beta", "0.5", "--out", "{out}/student", "--force"),
    # From here on by hand alone (`make trials`): each is made of the same few ways to write.
    "append": ("prepare", "events", "{place}/day.csv", "--append", "{out}/data", "--out", "{out}/data", "--force",
               "--threads", "1"),
    "gate": ("gate", "{place}/run", "--against", "{place}/other", "--no-baselines", "--json", "{out}/gate.json"),
    "export": ("export", "{place}/run", "--out", "{out}/export", "--force"),
    "go": ("go", "{place}/log.csv", "--out", "{out}/go", "--yes", "--minutes", "5", "--set", "model.width=4",
           "--set", "train.epochs=1"),
    "audit": ("audit", "{place}/served.db", "--json", "{out}/audit.json"),
    "rotate": ("rotate", "{out}/served.db", "--out", "{out}/events", "--json", "{out}/files.json"),
    "erase": ("erase", "p3", "--log", "{out}/served.db", "--files", "{out}/events", "--json", "{out}/erased.json"),
    "plan": ("rollout", "plan", "{place}/run", "--out", "{out}/rollout.json"),
    "judge": ("rollout", "judge", "{out}/rollout.json", "--log", "{place}/served.db", "--json", "{out}/judged.json"),
}  # fmt: skip
COPIES = {
    "append": ("data",), "rotate": ("served.db",), "erase": ("served.db", "events"), "judge": ("rollout.json",),
}  # fmt: skip
ALWAYS = [*VERBS][: [*VERBS].index("append")]
ASKED = os.environ.get("VERBS", ",".join(VERBS if PAIRS or FULL else ALWAYS)).split(",")
ONCE = {"append": 2, "plan": 2}  # a second run is refused: the day's bytes, or a rollout in progress, are there
# Fields of a manifest that say how long it took, and of which process.
CLOCKS = {
    "seconds",
    "peak_memory_bytes",
    "made",
    "created",
    "path",
    "from_run",
    "time",
    "began",
    "id",
    "salt",
    "since",
    SEAL,
}
FULL_WORDS = ("No space left", "disk is full", "could not be written", "disk or database is full")
START = 1_700_000_000_000
TOKEN = r"-\d{13}-[0-9a-f]{8}\.parquet"  # in a rotated file's name: until when, and a token of its own


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    data = write_small(folder / "small", sequences=200)
    for name, seed in (("run", 0), ("other", 1)):
        steps = {"epochs": 1, "device": "cpu", "seed": seed}
        train(
            data,
            out=folder / name,
            config=Config.parse({"model": {"width": 4}, "objective": {"name": "sqn"}, "train": steps}),
        )
    (folder / "histories.jsonl").write_text(3000 * '{"history": [100, 101]}\n')
    rng = np.random.default_rng(0)
    for name, first in (("log", 0), ("day", 300)):
        rows = [f"{s},{rng.integers(20)},{rng.choice(['click', 'purchase'])},{t}"
                for s in range(first, first + 300) for t in range(6)]  # fmt: skip
        (folder / f"{name}.csv").write_text("\n".join(["sequence_id,item_id,event,timestamp", *rows]) + "\n")
    if {*ASKED} - {*ALWAYS}:
        from commands import lpi

        assert lpi("prepare", "events", folder / "log.csv", "--out", folder / "data", "--threads", "1").returncode == 0
        if "judge" in ASKED:
            assert lpi("rollout", "plan", folder / "run", "--out", folder / "rollout.json").returncode == 0
        serve(folder)
    return folder


def serve(folder: Path) -> None:
    """A served log of two days: the first rotated to `events`, the second still in it."""
    log = Log(folder / "served.db")
    try:
        for day in range(2):
            time = START + 86_400_000 * day
            lists = [
                Request(id=new_id(time + number), time=time + number, person=f"p{number % 20}", history=(),
                        items=[1, 2], propensities=[0.5, 0.25], policy="abc", beta=None, mode="drawn", floor=0.0,
                        item_filter=Filter(), deferred=False, share=1.0)
                for number in range(400)
            ]  # fmt: skip
            answers = [
                Feedback(id=f"{one.id}-{day}", request=one.id, item=1, event="click", reward=None, time=one.time + 1000,
                         late=False)
                for one in lists
            ]  # fmt: skip
            for record in (*lists, *answers):
                assert log.append(record).result(60)
            if day == 0:
                rotate(log.address, out=folder / "events", upto=time + 86_400_000)
    finally:
        log.close()


def moments(verb: str) -> list[str]:
    """Half at calls of the file system, spread evenly, half at random times; pairs and full disks as many as asked."""
    rng = np.random.default_rng(len(verb))
    shares = rng.uniform(0.05, 0.9, KILLS)
    chosen = (np.arange(KILLS) + 1) / (KILLS + 1)
    kills = [f"disk:{chosen[at]}" if at % 2 == 0 else f"time:{shares[at]}" for at in range(KILLS)]
    pairs = [f"pair:{share}" for share in (np.arange(PAIRS) ** 2 / max(1, PAIRS) ** 2)]  # most of them close together
    return [*kills, *pairs, *(f"full:{share}" for share in (np.arange(FULL) + 0.5) / max(1, FULL))]


def contents(folder: Path) -> dict[str, object]:
    """Contents of files by name, without ours that name a call: a second rotation finds all done, and lists no file."""
    ours = ("-wal", "-shm", "erased.json", "files.json")
    return {name_of(path, folder): content(path) for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.endswith(ours)}  # fmt: skip


def name_of(path: Path, folder: Path) -> str:
    return re.sub(TOKEN, ".parquet", str(path.relative_to(folder)))


def content(path: Path) -> object:
    if path.suffix == ".db":
        with sqlite3.connect(path) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: sorted(map(repr, database.execute(f"SELECT * FROM {name}"))) for name in tables
                    if name not in ("rotations", "erasures")}  # fmt: skip
    if path.suffix == ".parquet" and path.name.startswith(("events-", "requests-", "feedback-")):
        return pq.read_table(path).to_pylist()
    found = re.sub(rb"/(broken|(pair|full|after-full)-\d+)/", b"/whole/", path.read_bytes())  # a result names its runs
    found = re.sub(TOKEN.encode(), b".parquet", found)
    if "/go/" in str(path) and path.suffix != ".npy":  # runs have the minutes that are left
        return len(found) > 0
    if path.suffix == ".json":
        return without_clocks(json.loads(found))
    if path.suffix in (".html", ".sh"):  # holds the time it took
        return len(found) > 100
    return found


def without_clocks(found: object) -> object:
    if isinstance(found, dict):
        return {name: without_clocks(value) for name, value in found.items() if name not in CLOCKS}
    if isinstance(found, list):
        return [without_clocks(value) for value in found]
    return found


@pytest.fixture(scope="module")
def tried(place):
    """Exit and messages of every verb, each run once."""
    work = {
        verb: (
            [word.replace("{place}", str(place)) for word in VERBS[verb]],
            {str(place / name): name for name in COPIES.get(verb, ())},
            moments(verb),
        )
        for verb in ASKED
    }
    command = [sys.executable, Path(__file__).with_name("trying_verbs.py"), place / "tried"]
    done = subprocess.run(
        command, input=json.dumps(work), capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def same(one: Path, other: Path) -> None:
    """Nothing is left behind, nothing is missing, nothing differs."""
    whole, found = contents(one), contents(other)
    assert found.keys() == whole.keys()
    for name in whole:
        assert found[name] == whole[name], name


@pytest.mark.skipif(not KILLS, reason="KILLS=0")
@pytest.mark.parametrize("verb", ASKED)
def test_a_verb_run_again_after_a_kill_ends_as_without_one(verb, tried, place):
    (code, said), endings = tried[verb]["whole"][0], tried[verb]["broken"]
    assert code in (0, 3, 4, 5, 6), said
    codes = [ending for ending, _ in endings]
    assert set(codes) <= {"killed", code, ONCE.get(verb, code)} and codes[-1] in (code, ONCE.get(verb)), endings
    assert "killed" in codes
    same(*(place / "tried" / verb / name for name in ("whole", "broken")))


@pytest.mark.skipif(not PAIRS, reason="by hand: PAIRS=10")
@pytest.mark.parametrize("verb", ASKED)
def test_two_at_once_end_equally_or_one_gets_the_reason(verb, tried, place):
    ((code, _),) = tried[verb]["whole"]
    for ending, said in tried[verb]["pair"]:
        assert ending in (code, 2) and "Traceback" not in said, (ending, said)
    refused = sum(ending == 2 != code for ending, _ in tried[verb]["pair"])
    folders = sorted((place / "tried" / verb).glob("pair-*"))
    assert len(folders) == PAIRS
    for folder in folders:
        same(place / "tried" / verb / "whole", folder)
    print(f"\n{verb}: {PAIRS} pairs, {refused} refused")


@pytest.mark.skipif(not FULL, reason="by hand, as root: FULL=10")
@pytest.mark.parametrize("verb", ASKED)
def test_a_full_disk_is_called_one_and_with_room_the_verb_ends_the_same(verb, tried, place):
    ((code, _),), endings = tried[verb]["whole"], tried[verb]["full"]
    told = 0
    for (ending, said), (again, then) in zip(endings[::2], endings[1::2], strict=True):
        assert ending in (code, 2) and "Traceback" not in said, (ending, said)
        if ending != code:
            told += 1
            assert any(words in said for words in FULL_WORDS), said
        assert again in (code, ONCE.get(verb, code)), (said, then)
    for folder in sorted((place / "tried" / verb).glob("after-full-*")):
        same(place / "tried" / verb / "whole", folder)
    print(f"\n{verb}: {FULL} disks, {told} too small")
