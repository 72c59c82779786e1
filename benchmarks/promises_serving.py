"""What the audit and the rollout promise, measured: rates of false accusations and alarms, and of faults found.

    python benchmarks/promises_serving.py [--repeats 100] [--seed 0] [--only second]

Each function gives rows (promise, world, times it happened, of how many, what is promised). Seeds are fixed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rollout_rates import outcomes

from localpolicy.serving.assignment import Assignment
from localpolicy.serving.audit_findings import distribution
from localpolicy.serving.audit_lists import Evidence
from localpolicy.serving.database import Database
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import write
from localpolicy.serving.records import Feedback, Request, new_id
from localpolicy.serving.rollout import RolloutRules, judge, plan
from localpolicy.serving.sampling import plackett_luce, transforms

START, HOUR = 1_700_000_000_000, 3_600_000


class Row(NamedTuple):
    """One measured rate."""

    promise: str
    world: str
    times: int
    of: int
    promised: str


# ---------------------------------------------------------------------- the audit


def policies() -> dict[str, np.ndarray]:
    """Laws of one context, from flat to heavy-tailed."""
    rng = np.random.default_rng(0)
    laws = {f"{items:,} items, sd {sd}": rng.standard_normal(items) * sd for items, sd in ((12, 1), (300, 1), (300, 3))}
    for share in (0.99, 0.999):
        laws[f"one of 300 items at {share}"] = np.log(np.r_[share, np.full(299, (1 - share) / 299)])
    return laws


def accused(logits: np.ndarray, lists: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether the audit of draws finds fault with lists that name this law."""
    evidence = Evidence(lists=len(lists))
    evidence.add(*transforms(np.broadcast_to(logits, (len(lists), len(logits))), lists, rng=rng))
    return any(finding.status == "fault" for finding in distribution(evidence))


def true_logs(repeats: int, *, seed: int = 0) -> Iterator[Row]:
    """Logs drawn as they say."""
    rng = np.random.default_rng([1, seed])
    for name, logits in policies().items():
        for size in (50, 500):
            tables = np.broadcast_to(logits, (size, len(logits)))
            times = sum(accused(logits, plackett_luce(tables, 5, rng=rng).indices, rng) for _ in range(repeats))
            yield Row("true logs accused", f"{name}, {size} lists of 5", times, repeats, "<= 0.1 %")


def wrong_logs(repeats: int, *, seed: int = 0, lists: int = 1000, items: int = 40, k: int = 5) -> Iterator[Row]:
    """Lists that were not drawn as they say; their propensities are those of the named policy."""
    for fault in ("temperature 1.3", "places below the first by argmax", "places below the first at random",
                  "another version's draws"):  # fmt: skip
        times = 0
        for repeat in range(repeats):
            rng = np.random.default_rng([2, seed, repeat])
            logits = rng.standard_normal(items) * 1.5
            drawn = {"temperature 1.3": logits / 1.3, "another version's draws": logits + 0.5 * rng.normal(size=items)}
            shown = plackett_luce(np.broadcast_to(drawn.get(fault, logits), (lists, items)), k, rng=rng).indices
            if fault.startswith("places"):
                below = rng.random((lists, items)) if fault.endswith("random") else logits[None].repeat(lists, 0)
                below[np.arange(lists), shown[:, 0]] = np.inf
                shown = np.argsort(-below, axis=1)[:, :k]
            times += accused(logits, shown, rng)
        yield Row("wrong logs found", f"{fault}, {lists:,} lists of {k} of {items}", times, repeats, ">= 95 %")


# ---------------------------------------------------------------------- rollouts


SECOND = {  # of lists that bring 1 with chance 0.3: the candidate's chance, what is promised, persons at 50 %
    "A/A": (0.3, "<= 5 %", 3_000),
    "the candidate earns nothing": (0.0, ">= 95 %", 3_000),
    "the candidate earns 20 % less": (0.24, ">= 95 %", 20_000),
}


def second_rollouts(repeats: int, *, seed: int = 0) -> Iterator[Row]:
    """A first rollout is rolled back; of a second one, on the same log, the truth is known. Judged every half hour.

    Answers take 20 minutes on average in one arm, 5 in the other. Large ones are repeated less often.
    """
    for name, (chance, promised, persons) in SECOND.items():
        alarms, times = 0, repeats if persons < 10_000 else max(1, repeats // 5)
        for repeat in range(times):
            with tempfile.TemporaryDirectory() as folder:
                alarms += _second(Path(folder), np.random.default_rng([3, seed, repeat]), chance, persons)
        yield Row("second rollout rolled back", f"{name}, {persons:,} persons at 50 %", alarms, times, promised)


def _second(here: Path, rng: np.random.Generator, chance: float, persons: int) -> bool:
    rules = RolloutRules(units=min(persons, 3_000), people=1_000, places=1)
    path, at, decision = here / "rollout.json", START, ""
    for number, (candidate, size) in enumerate(((0.0, 600), (chance, persons))):
        content = plan(path, stages=["50", "100"], rules=rules)
        assert not judge(path, log=_log(here), at=at, apply=False).units.get("candidate"), "nothing is inherited"
        at = _visits(_log(here), content, rng, (0.3, candidate), size, at, f"{number}")
        end = at + rules.ripe_ms
        while at <= end:
            decision = judge(path, log=_log(here), at=at).decision
            if decision != "hold":
                break
            at += HOUR // 2
        at = end
        assert number or decision == "roll back"
    return decision == "roll back"


def _log(here: Path) -> Path:
    Database(here / "log.db", create=True).close()
    return here / "log.db"


def _visits(
    log: Path, content: dict[str, Any], rng: Any, chances: tuple[float, float], size: int, at: int, name: str
) -> int:
    """Visits over an hour; when the last was made."""
    assignment, database = Assignment.of(content), Database(log)
    with database.transaction():
        for number, time in enumerate(np.sort(rng.integers(at, at + HOUR, size)).tolist()):
            person = f"{name}-{number}"
            candidate = assignment.is_candidate(person)
            request = Request(
                id=new_id(time), time=time, person=person, history=[], items=[1], propensities=[0.5],
                policy=f"new{name}" if candidate else "old", beta=None, mode="drawn", floor=0.0, item_filter=Filter(),
                deferred=False, share=1.0, arm="candidate" if candidate else "current", stage="50",
                rollout=content["id"],
            )  # fmt: skip
            write(database, request)
            if rng.random() < chances[candidate]:
                later = min(rng.exponential(20 if candidate else 5) * 60_000, HOUR)
                write(database, Feedback(request.id, request.id, 1, "purchase", None, time + int(later), False))
    database.close()
    return at + HOUR


def whole_rollouts(repeats: int, *, seed: int = 0) -> Iterator[Row]:
    """Lists of ten, shares of 1, 5, 25, 50 and 100 %, by the default rules (see rollout_rates.py)."""
    for truth, wanted, promised in ((0.0, "roll back", "<= 5 %"), (0.0, "done", ">= 95 %"),
                                    (-0.1, "half", "<= 5 %"), (-0.3, "roll back", ">= 95 %")):  # fmt: skip
        found = list(outcomes("lists", truth, repeats, seed=seed))
        times = sum(one.decision == wanted or (wanted == "half" and one.stage in ("50", "100")) for one in found)
        said = {"half": "reached half of the people", "roll back": "rolled back"}.get(wanted, wanted)
        yield Row(f"rollout {said}", f"truly {truth:+.0%}, lists of ten", times, repeats, promised)


CELLS: dict[str, Callable[[int, int], Iterator[Row]]] = {  # repeats, seed
    "true logs": lambda repeats, seed: true_logs(10 * repeats, seed=seed),
    "wrong logs": lambda repeats, seed: wrong_logs(repeats, seed=seed),
    "second": lambda repeats, seed: second_rollouts(repeats, seed=seed),
    "whole": lambda repeats, seed: whole_rollouts(max(1, repeats // 5), seed=seed),
}


def rows(repeats: int = 100, seed: int = 0) -> Iterator[Row]:
    """Rows of all cells; whole rollouts are repeated less often."""
    for cell in CELLS.values():
        yield from cell(repeats, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(CELLS), default=list(CELLS))
    given = parser.parse_args()
    for name in given.only:
        for row in CELLS[name](given.repeats, given.seed):
            said = f"{row.promise:<32} {row.world:<64} {row.times:>5,} of {row.of:<6,} promised {row.promised}"
            print(said, flush=True)
