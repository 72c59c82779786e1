"""A CCB log made by Vowpal Wabbit itself, with Vowpal Wabbit's own estimates: the files in tests/ranker/vowpal.

    pip install vowpalwabbit==9.11.9
    python tools/vowpal_log.py tests/ranker/vowpal

Vowpal Wabbit draws two slots of five actions, learns from what came back, and its draws are written as its decision
service writes them (`log.json.gz`). `vowpal.json` keeps what it reads out of that log: the actions, probabilities and
cost of every slot; the actions of another policy, greedy and trained on it, in every first slot; and its own estimate
of that policy's cost there (`-t` with `--cb_type ips`).
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from vowpalwabbit import Workspace, __version__, pyvw

EVENTS = 400
TOPICS = ("sport", "art", "food", "news", "music")
LIKED = {"ann": 0, "bob": 2, "cat": 4}
COMMON = "--ccb_explore_adf --dsjson --quiet -q UT -q ST"
CCB = pyvw.LabelType.CONDITIONAL_CONTEXTUAL_BANDIT


def parsed(workspace: Workspace, event: dict[str, Any]) -> Any:
    """An event as Vowpal Wabbit's examples."""
    return workspace.parse(json.dumps(event), labelType=CCB)


def predicted(workspace: Workspace, event: dict[str, Any]) -> list[list[tuple[int, float]]]:
    """Actions and probabilities of every slot, the drawn action first."""
    examples = parsed(workspace, event)
    found: list[list[tuple[int, float]]] = workspace.predict(examples)
    workspace.finish_example(examples)
    return found


def learn(workspace: Workspace, event: dict[str, Any]) -> None:
    """Learn from one event."""
    examples = parsed(workspace, event)
    workspace.learn(examples)
    workspace.finish_example(examples)


def drawn(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Events whose slots Vowpal Wabbit drew."""
    vw, events = Workspace(f"{COMMON} --epsilon 0.4 --random_seed 5"), []
    for number in range(EVENTS):
        person = list(LIKED)[rng.integers(len(LIKED))]
        actions = [{"T": {"topic": topic, "price": round(float(rng.random()), 3)}} for topic in TOPICS]
        slots = [{"_id": f"{number}-{slot}", "S": {"top": top}} for slot, top in enumerate((1, 0))]
        event: dict[str, Any] = {"Timestamp": "2026-01-01T00:00:00.0000000Z", "Version": "1", "EventId": f"e{number}",
                                 "c": {"U": {"id": person}, "_multi": actions, "_slots": slots},
                                 "VWState": {"m": "m"}}  # fmt: skip
        nothing = [{"_id": slot["_id"], "_label_cost": 0.0, "_a": [0], "_p": [1.0]} for slot in slots]
        event["_outcomes"] = [
            {"_label_cost": -float(rng.random() < (0.7 if place[0][0] == LIKED[person] else 0.2)), "_id": slot["_id"],
             "_a": [int(action) for action, _ in place], "_p": [float(chance) for _, chance in place]}
            for slot, place in zip(slots, predicted(vw, {**event, "_outcomes": nothing}), strict=True)
        ]  # fmt: skip
        learn(vw, event)
        events.append(event)
    return events


def first_slots(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its first slot alone."""
    about = {**event["c"], "_slots": event["c"]["_slots"][:1]}
    return {**event, "c": about, "_outcomes": event["_outcomes"][:1]}


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    events = drawn(np.random.default_rng(1))
    with gzip.open(folder / "log.json.gz", "wt") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    reader, labels = Workspace(COMMON), []
    for event in events:
        examples = parsed(reader, event)
        slots = [pyvw.CCBLabel.from_example(one) for one in examples if one.get_ccb_type() == 2]
        labels.append([{"actions": [one.action for one in slot.outcome.action_probs],
                        "chances": [one.score for one in slot.outcome.action_probs],
                        "cost": slot.outcome.cost} for slot in slots])  # fmt: skip
        reader.finish_example(examples)
    with tempfile.TemporaryDirectory() as work:
        model, path = Path(work) / "model", Path(work) / "first.json"
        path.write_text("".join(json.dumps(first_slots(event)) + "\n" for event in events))
        other = Workspace(f"{COMMON} --epsilon 0 --cb_type ips -f {model}")
        for event in events[: EVENTS // 2]:
            learn(other, event)
        other.finish()
        judge = f"--dsjson --quiet -t -i {model}"
        asked = Workspace(judge)
        best = [predicted(asked, first_slots(event))[0][0][0] for event in events]
        whole = Workspace(f"{judge} -d {path}")
        cost = whole.get_sum_loss()
    told = {"version": __version__, "labels": labels, "best": best, "cost": cost / len(events)}
    (folder / "vowpal.json").write_text(json.dumps(told) + "\n")
    print(f"Vowpal Wabbit {__version__}: {len(events)} events, cost of the other policy {told['cost']:.6f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
