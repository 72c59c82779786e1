"""`rollout`: a candidate serves a growing share of people in stages, and none as soon as it is shown to do harm.

The rollout is a small JSON file that `lpi serve --rollout` reads again and again. `plan` writes it: which candidate,
which stages, by which rules it will be judged, and the current policy's rewards in the log; `size`
says how many persons and days that takes. `judge` reads the log and moves it: on to the next stage, back to serving
none, or not at all (see `rollout_decision`). Judging more often costs nothing: the tests hold at any moment.

Evidence belongs to one rollout and one version of its candidate. The tests accumulate over its stages; heads are
counted per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.ranker.layer import FILE as LAYER
from localpolicy.ranker.layer import Layer
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import only_writer
from localpolicy.runtime.formats import Format
from localpolicy.serving.assignment import BACK, SHADOW, share_of
from localpolicy.serving.database import Database
from localpolicy.serving.experiment_units import Tally, Units, rollout_lists, units_of
from localpolicy.serving.past import Past, known, read_past
from localpolicy.serving.records import new_id, now
from localpolicy.serving.reward_tests import LEAST_REWARDED, level
from localpolicy.serving.rollout_decision import CODES, RolloutVerdict, decide
from localpolicy.serving.rollout_rules import RolloutRules
from localpolicy.serving.sample_size import DAY_MS, RolloutSize, rollout_size

__all__ = ["RolloutRules", "RolloutSize", "RolloutVerdict", "judge", "plan", "read_plan", "roll_back", "size"]

FORMAT = Format(3, "end it (lpi rollout back) or move it away, and plan again with 'lpi rollout plan'")
ENDED_TOO = (2, *FORMAT.reads)  # formats that can be ended and put aside
AT_HAND_DAYS = 28  # days whose persons count as available, unless their number is stated
STAGES = (SHADOW, "1", "5", "25", "50", "100")  # percent of traffic


def plan(
    out: Path | str,
    *,
    candidate: Path | str | None = None,
    stages: Sequence[str] = STAGES,
    salt: str | None = None,
    rules: RolloutRules | None = None,
    logs: Sequence[Path | str] = (),
) -> dict[str, Any]:
    """Write the plan of a rollout of a run or export, at its first stage. A plan that has ended is put aside.

    `logs`: of the current policy, databases and folders of rotated days.
    """
    path, rules, shares = Path(out), rules or RolloutRules(), _shares(stages)
    past = read_past(logs, rules, at=now()) if logs else None
    known(rules, past)  # an error now, not at the first look
    with only_writer(path):
        return _planned(path, candidate, shares, salt, rules, past)


def size(
    logs: Sequence[Path | str],
    *,
    stages: Sequence[str] = STAGES,
    rules: RolloutRules | None = None,
    persons: int | None = None,
) -> RolloutSize:
    """Estimate from the current policy's log the persons and days that a rollout needs if the candidate is no worse.

    `persons` are available; None: those who come within four weeks.
    """
    rules = rules or RolloutRules()
    return _size(read_past(logs, rules, at=now()), rules, _shares(stages), persons)


def _size(past: Past, rules: RolloutRules, shares: dict[str, float], persons: int | None = None) -> RolloutSize:
    cv2 = level(np.zeros(0), known(rules, past)).cv2
    assert cv2 is not None  # the past has enough persons with a reward
    return rollout_size(
        cv2, {stage: (share, rules.margin_at(share)) for stage, share in shares.items()},
        least={stage: rules.least_persons(share) for stage, share in shares.items()},
        persons_a_day=past.persons_a_day, wait_days=rules.ripe_ms / DAY_MS,
        at_hand=persons or AT_HAND_DAYS * past.persons_a_day,
    )  # fmt: skip


def _shares(stages: Sequence[str]) -> dict[str, float]:
    """Return the share of each stage; raise ConfigError unless the stages rise and allow a comparison."""
    shares = {stage: share_of(stage) for stage in stages}
    if list(shares.values()) != sorted(shares.values()) or len(shares) != len(stages) or not stages:
        raise ConfigError(f"stages must rise, as in {', '.join(STAGES)}; got {', '.join(stages)}.")
    if 1.0 in shares.values() and not any(0 < share < 1 for share in shares.values()):
        raise ConfigError("100 needs a stage between 0 and 100 before it, where both policies are seen side by side: "
                          "else nothing shows that the candidate does no harm.")  # fmt: skip
    return shares


def _planned(
    path: Path,
    candidate: Path | str | None,
    shares: dict[str, float],
    salt: str | None,
    rules: RolloutRules,
    past: Past | None,
) -> dict[str, Any]:
    stages = list(shares)
    if path.exists():
        old = _read(path, ended=True)
        if old["stage"] != BACK and not old["done"]:
            raise ConfigError(f"{path} holds a running rollout (stage {old['stage']}). Judge it until it is done "
                              f"or rolled back, or end it now: lpi rollout back {path}.")  # fmt: skip
        write_json(path.with_name(f"{path.stem}-{old['id']}{path.suffix}"), old)
    moment = now()
    name = new_id(moment)
    content = {
        "format": FORMAT.current, "id": name, "candidate": None if candidate is None else _candidate(Path(candidate)),
        "salt": salt or name, "stages": stages, "stage": stages[0], "share": shares[stages[0]], "done": False,
        "rules": rules.model_dump(), "past": None if past is None else past.model_dump(),
        "size": None if past is None else _size(past, rules, shares).model_dump(), "since": moment,
        "history": [{"time": moment, "stage": stages[0], "why": "planned"}],
    }  # fmt: skip
    write_json(path, content)
    return content


def _candidate(path: Path) -> dict[str, str]:
    """Return the path and the version of the candidate's export."""
    from localpolicy.serving.exports import read_export
    from localpolicy.serving.service import exported

    if (path / LAYER).exists():
        return {"export": str(path.resolve()), "version": Layer(path).version}
    folder = exported(path).resolve()
    return {"export": str(folder), "version": read_export(folder).version}


def read_plan(path: Path | str) -> dict[str, Any]:
    """Read a rollout's file."""
    return _read(Path(path))


def _read(path: Path, *, ended: bool = False) -> dict[str, Any]:
    """Read the plan in today's format; with `ended` (it only has to be ended) as it is."""
    content = read_json(path)
    if not isinstance(content, dict) or "stages" not in content:
        raise RunError(f"{path} is not a rollout. Move it away; then 'lpi rollout plan' makes one.")
    if ended and content.get("format") in ENDED_TOO:
        return content
    return FORMAT.upgraded(content, path)


def judge(path: Path | str, *, log: Path | str, apply: bool = True, at: int | None = None) -> RolloutVerdict:
    """Judge the rollout by the log, and move it accordingly (unless `apply` is off).

    A lock admits one process at a time: a second one, which read the log before the first rolled back, would advance.
    """
    with only_writer(Path(path)) if apply else nullcontext():
        return _judged(Path(path), log, apply, at)


def _judged(path: Path, log: Path | str, apply: bool, at: int | None) -> RolloutVerdict:
    rollout = read_plan(path)
    stage, stages = rollout["stage"], rollout["stages"]
    if stage == BACK:
        last = rollout["history"][-1]
        return RolloutVerdict(decision=last.get("decision", "roll back"), stage=stage, why=last["why"])
    rules, moment = RolloutRules.parse(rollout["rules"]), now() if at is None else at
    past = None if rollout["past"] is None else Past.parse(rollout["past"])
    shares = _shares(stages)
    units, shadow, tally = _units_of(log, rollout, rules, shares)
    verdict = decide(units, rules, past, stage=stage, stages=stages, shadow=shadow, at=moment)
    verdict = verdict.model_copy(update={"unknown_events": tally.set_aside})
    blind = tally.set_aside > max(tally.known, 0 if CODES[verdict.decision] == 0 else LEAST_REWARDED)
    if blind and verdict.decision != "roll back" and not rollout["done"]:
        raise DataError(
            f"{tally.set_aside:,} of {tally.set_aside + tally.known:,} answers are of no event that this plan has a "
            f"reward for ({rules.answers.rewards}): harm would not be seen, so it goes no further. End it (lpi "
            "rollout back), and plan it with the --rewards of your events."
        )
    stays = verdict.decision == "hold" or (verdict.decision == "unproven" and rules.unproven == "hold")
    if apply and not stays and not (verdict.decision == "done" and rollout["done"]):
        new = {"roll back": BACK, "unproven": BACK, "done": stage}.get(verdict.decision)
        new = new or stages[stages.index(stage) + 1]
        entry = {"time": moment, "stage": new, "decision": verdict.decision, "why": verdict.why,
                 "evidence": verdict.evidence}  # fmt: skip
        changed = {"stage": new, "share": 0.0 if new == BACK else shares[new], "done": verdict.decision == "done"}
        if changed["done"]:  # everyone gets the candidate until something else is put into the place of these
            changed["replaces"] = sorted(tally.policies.get("current", ()))
        write_json(path, {**rollout, **changed, "history": [*rollout["history"], entry]})
    return verdict


def roll_back(path: Path | str, *, why: str) -> None:
    """End a rollout by hand: the candidate gets no more traffic, whatever the log says."""
    with only_writer(Path(path)):
        rollout = _read(Path(path), ended=True)
        if rollout["stage"] == BACK or rollout["done"]:
            raise ConfigError(f"{path} holds no running rollout: it is {'done' if rollout['done'] else BACK}.")
        entry = {"time": now(), "stage": BACK, "why": why}
        history = [*rollout["history"], entry]
        write_json(Path(path), {**rollout, "stage": BACK, "share": 0.0, "history": history})


def _units_of(
    log: Path | str, rollout: dict[str, Any], rules: RolloutRules, shares: dict[str, float]
) -> tuple[Units, tuple[int, int], Tally]:
    """Read this rollout's units, its shadow answers with failures, and counts over its lists."""
    database, tally = Database(log), Tally()
    try:
        lists = rollout_lists(database, rollout["id"], rules.answers, tally)
        units = units_of(lists, shares, horizon_ms=rules.horizon_ms)
        query = "SELECT COUNT(*), COALESCE(SUM(failed), 0) FROM shadow WHERE rollout = ?"
        answered, failed = database.rows(query, (rollout["id"],))[0]
    finally:
        database.close()
    found = tally.policies.get("candidate", set())
    expected = {rollout["candidate"]["version"]} if rollout["candidate"] else found
    if len(found) > 1 or not found <= expected:
        raise RunError(f"the candidate's lists were made by {', '.join(sorted(found))}; evidence is about one version. "
                       "Plan a new rollout.")  # fmt: skip
    return units, (int(answered), int(failed)), tally
