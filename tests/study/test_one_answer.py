"""One answer per log, whichever way one came: `lpi go`, or its steps by hand with other seeds, under default rules."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from commands import invoked as lpi

ANSWERS = {0: "deploy", 3: "do not deploy", 4: "cannot tell", 6: "nothing to decide", 7: "test online"}
QUICK = ("train.epochs=8", "train.learning_rate=0.01", "train.batch_size=64", "model.width=16")
SLOWER = (
    "train.epochs=12",
    "train.learning_rate=0.003",
    "train.batch_size=64",
)  # what opinions need: they differ little
ITEMS, STEPS = 12, 4
PEOPLE = {"shop": 4000, "drawn": 3000}  # of the others 1,500


def write_log(path: Path, kind: str) -> None:
    """A log in which some items are bought, liked or clicked far more often than others, whatever came before."""
    rng, people = np.random.default_rng(0), PEOPLE.get(kind, 1500)
    wanted = np.linspace(0.05, 0.6, ITEMS)
    chance = rng.permutation(np.linspace(1, 4, ITEMS)) / (2.5 * ITEMS)
    shown = rng.choice(ITEMS, size=(people, STEPS), p=chance)
    for step in range(1, STEPS):  # the next item of the catalogue more often than not
        follows = rng.random(people) < 0.6
        shown[follows, step] = (shown[follows, step - 1] + 1) % ITEMS
    taken = rng.random(shown.shape) < wanted[shown]
    heads = {
        "shop": "sequence_id,item_id,event,timestamp", "clicks": "sequence_id,item_id,timestamp",
        "ratings": "sequence_id,item_id,rating,timestamp", "shown": "sequence_id,item_id,clicked,timestamp",
        "drawn": "sequence_id,item_id,clicked,propensity,timestamp",
    }  # fmt: skip
    lines = [heads[kind]]
    for person in range(people):
        for step in range(STEPS):
            item, yes = int(shown[person, step]), int(taken[person, step])
            next_one = step > 0 and item == (shown[person, step - 1] + 1) % ITEMS
            drawn = 0.4 * chance[item] + 0.6 * next_one if step else chance[item]
            response = {
                "shop": ("view", "purchase")[yes], "ratings": str(1 + 2 * yes + int(rng.integers(3))),
                "shown": str(yes), "drawn": f"{yes},{drawn:.9f}",
            }.get(kind)  # fmt: skip
            when = 1_700_000_000 + 86_400 * (person % 30) + 60 * step + person
            lines.append(",".join([f"u{person}", f"p{item}", *([response] if response else []), str(when)]))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("shop", "test online"), ("drawn", "deploy"), ("shown", "cannot tell"), ("ratings", "cannot tell"),
        ("clicks", "nothing to decide"),
    ],
)  # fmt: skip
def test_go_and_the_steps_by_hand_give_one_answer(kind, answer, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    changes = SLOWER if kind == "ratings" else QUICK
    small = (*(word for change in changes for word in ("--set", change)), "--device", "cpu")
    write_log(tmp_path / "log.csv", kind)
    done = lpi("go", "log.csv", "--out", "go", "--yes", "--minutes", "600", *small)
    found = json.loads(Path("go/verdict.json").read_text())["answer"]
    assert ANSWERS[done.exit_code] == found and found == answer

    prepared = next(line for line in Path("go/commands.sh").read_text().splitlines() if "lpi prepare" in line)
    words = shlex.split(prepared.partition("|| ")[2] or prepared, comments=True)
    words[words.index("--out") + 1] = "data"
    assert lpi(*words[1:]).exit_code == 0
    for seed in (0, 1):
        assert lpi("train", "data", "--objective", "mle", "--seed", seed, "--out", f"mle-{seed}", *small).exit_code == 0
    new, against = "mle-1", ["--against", "mle-0"]
    if found != "nothing to decide":
        by = ("--objective", "auto", "--logging", "mle-0", "--seed", "2")
        assert lpi("train", "data", *by, "--out", "new", *small).exit_code == 0
        new, against = "new", [*(["--against", "log"] if kind == "drawn" else []), *against, "--against", "mle-1"]
    assert ANSWERS[lpi("gate", new, *against, "--device", "cpu").exit_code] == found
