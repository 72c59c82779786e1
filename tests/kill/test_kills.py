"""A verb that writes may be killed at any moment: run again it ends with the same bytes, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_logs import write_small

from localpolicy.runs.config import Config
from localpolicy.runtime.files import SEAL
from localpolicy.training.train import train

KILLS = int(os.environ.get("KILLS", "3"))  # of each verb
SMALL = ("--device", "cpu", "--epochs", "1", "--set", "model.width=4", "--set", "train.batch_size=64")
VERBS = {
    "prepare": ("prepare", "events", "{place}/log.csv", "--out", "{out}/data", "--force", "--threads", "1"),
    "simulate": ("simulate", "bandit", "--sequences", "200", "--items", "20", "--out", "{out}/world", "--force"),
    "train": ("train", "{place}/data", "--objective", "lpi_rl", "--out", "{out}/run", "--resume", *SMALL),
    "sweep": ("sweep", "{place}/data", "--objective", "lpi_rl", "--over", "beta=0.3,1", "--processes", "1",
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
}  # fmt: skip
# Fields of a manifest that say how long it took, and of which process.
CLOCKS = {"seconds", "peak_memory_bytes", "made", "created", "path", "from_run", SEAL}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    data = write_small(folder / "data", sequences=200)
    for name, seed in (("run", 0), ("other", 1)):
        steps = {"epochs": 1, "device": "cpu", "seed": seed}
        train(
            data,
            out=folder / name,
            config=Config.parse({"model": {"width": 4}, "objective": {"name": "sqn"}, "train": steps}),
        )
    (folder / "histories.jsonl").write_text(3000 * '{"history": [100, 101]}\n')
    rng = np.random.default_rng(0)
    rows = [f"{s},{rng.integers(20)},{rng.choice(['click', 'purchase'])},{t}" for s in range(300) for t in range(6)]
    (folder / "log.csv").write_text("\n".join(["sequence_id,item_id,event,timestamp", *rows]) + "\n")
    return folder


def moments(verb: str) -> list[str]:
    """Half at calls of the file system, spread evenly, half at random times."""
    shares = np.random.default_rng(len(verb)).uniform(0.05, 0.9, KILLS)
    chosen = (np.arange(KILLS) + 1) / (KILLS + 1)
    return [f"disk:{chosen[at]}" if at % 2 == 0 else f"time:{shares[at]}" for at in range(KILLS)]


def contents(folder: Path) -> dict[str, object]:
    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def content(path: Path) -> object:
    found = path.read_bytes().replace(b"/broken/", b"/whole/")  # a result names its runs
    if path.suffix == ".json":
        return without_clocks(json.loads(found))
    if path.suffix == ".html":  # holds the time it took
        return len(found) > 1000
    return found


def without_clocks(found: object) -> object:
    if isinstance(found, dict):
        return {name: without_clocks(value) for name, value in found.items() if name not in CLOCKS}
    if isinstance(found, list):
        return [without_clocks(value) for value in found]
    return found


@pytest.fixture(scope="module")
def killed(place):
    """How all of them ended; what they said."""
    work = {
        verb: ([word.replace("{place}", str(place)) for word in words], moments(verb)) for verb, words in VERBS.items()
    }
    command = [sys.executable, Path(__file__).with_name("killing_verbs.py"), place / "killed"]
    done = subprocess.run(
        command, input=json.dumps(work), capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr[-3000:]


@pytest.mark.parametrize("verb", VERBS)
def test_killed_and_run_again_a_verb_ends_the_same(verb, killed, place):
    every, said = killed
    first, *endings, last = every[verb]
    assert (first, last) == ("finished", "finished"), (every[verb], said)
    assert set(endings) <= {"killed", "finished"}, (endings, said)
    assert "killed" in endings
    whole, broken = (contents(place / "killed" / verb / name) for name in ("whole", "broken"))
    assert broken.keys() == whole.keys(), "nothing is left behind, and nothing is missing"
    for name in whole:
        assert broken[name] == whole[name], name
