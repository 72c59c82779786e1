"""`rollout`: a candidate serves a growing share of people in stages, and none at once where it does harm.

The rollout is a small JSON file that `lpi serve --rollout` reads again and again. `plan` writes it: which candidate,
which stages, and by which rules it will be judged. `judge` looks at the log and moves it: on to the next stage, back
to serving none, or not at all (see `decision`). Judging more often costs nothing: the tests hold at any moment.

Evidence belongs to one rollout and one version of its candidate. The tests accumulate over its stages; heads are
counted per stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import only_writer
from localpolicy.serving.assignment import BACK, SHADOW
from localpolicy.serving.database import Database
from localpolicy.serving.decision import CODES, RolloutRules, RolloutVerdict, decide
from localpolicy.serving.records import new_id, now
from localpolicy.serving.units import Told, rollout_lists, units_of

__all__ = ["RolloutRules", "RolloutVerdict", "judge", "plan", "read_plan", "roll_back"]  # lp.rollout

FORMAT = 2
STAGES = (SHADOW, "1", "5", "25", "50", "100")  # percent of traffic


def plan(
    out: Path | str,
    *,
    candidate: Path | str | None = None,
    stages: Sequence[str] = STAGES,
    salt: str | None = None,
    rules: RolloutRules | None = None,
) -> dict[str, Any]:
    """Write a rollout of a run or export that begins with its first stage. One that has ended is put aside."""
    path, rules = Path(out), rules or RolloutRules()
    shares = {stage: _share(stage) for stage in stages}
    if list(shares.values()) != sorted(shares.values()) or len(shares) != len(stages) or not stages:
        raise ConfigError(f"stages must rise, as in {', '.join(STAGES)}; got {', '.join(stages)}.")
    with only_writer(path):
        return _planned(path, candidate, shares, salt, rules)


def _planned(
    path: Path, candidate: Path | str | None, shares: dict[str, float], salt: str | None, rules: RolloutRules
) -> dict[str, Any]:
    (low, high), stages = rules.range, list(shares)
    if path.exists():
        old = read_plan(path)
        if old["stage"] != BACK and not old["done"]:
            raise ConfigError(f"{path} holds a rollout that goes on (stage {old['stage']}). Judge it until it is done "
                              f"or rolled back, or end it now: lpi rollout back {path}.")  # fmt: skip
        write_json(path.with_name(f"{path.stem}-{old['id']}{path.suffix}"), old)
    moment = now()
    name = new_id(moment)
    content = {
        "format": FORMAT, "id": name, "candidate": None if candidate is None else _candidate(Path(candidate)),
        "salt": salt or name, "stages": stages, "stage": stages[0], "share": shares[stages[0]], "done": False,
        "rules": {**rules.model_dump(), "smallest_reward": low, "largest_reward": high}, "since": moment,
        "history": [{"time": moment, "stage": stages[0], "why": "planned"}],
    }  # fmt: skip
    write_json(path, content)
    return content


def _candidate(path: Path) -> dict[str, str]:
    """Where the candidate's export lies, and which version it is."""
    from localpolicy.serving.recommender import read_export
    from localpolicy.serving.service import exported

    folder = exported(path).resolve()
    return {"export": str(folder), "version": read_export(folder)["version"]}


def _share(stage: str) -> float:
    try:
        share = 0.0 if stage == SHADOW else float(stage) / 100
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ConfigError(f"a stage is 'shadow' or a percentage up to 100, got '{stage}'.")
    return share


def read_plan(path: Path | str) -> dict[str, Any]:
    """A rollout's file."""
    content = read_json(Path(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT or "stages" not in content:
        raise RunError(f"{path} is not a rollout of this version. Move it away; then 'lpi rollout plan' makes one.")
    return content


def judge(path: Path | str, *, log: Path | str, apply: bool = True, at: int | None = None) -> RolloutVerdict:
    """Look at the log, and move the rollout accordingly (unless `apply` is off).

    One process at a time: a second one, which looked before the first had rolled back, would advance.
    """
    with only_writer(Path(path)) if apply else nullcontext():
        return _judged(Path(path), log, apply, at)


def _judged(path: Path, log: Path | str, apply: bool, at: int | None) -> RolloutVerdict:
    rollout = read_plan(path)
    stage, stages = rollout["stage"], rollout["stages"]
    if stage == BACK:
        return RolloutVerdict(decision="roll back", stage=stage, why=rollout["history"][-1]["why"])
    rules, moment = RolloutRules.parse(rollout["rules"]), now() if at is None else at
    shares = {name: _share(name) for name in stages}
    lists, shadow, told = _read(log, rollout, rules)
    units = units_of(lists, shares, horizon_ms=rules.horizon_ms)
    verdict = decide(units, rules, stage=stage, stages=stages, shadow=shadow, at=moment)
    verdict = verdict.model_copy(update={"unknown_events": told.set_aside})
    if CODES[verdict.decision] == 0 and not rollout["done"] and told.set_aside > told.known:
        raise DataError(
            f"{told.set_aside:,} of {told.set_aside + told.known:,} answers are of no event that this plan has a "
            f"reward for ({rules.answers.rewards}): harm would not be seen, so it goes no further. End it (lpi "
            "rollout back), and plan it with the --rewards of your events."
        )
    if apply and verdict.decision != "hold" and not (verdict.decision == "done" and rollout["done"]):
        new = {"roll back": BACK, "done": stage}.get(verdict.decision) or stages[stages.index(stage) + 1]
        entry = {"time": moment, "stage": new, "why": verdict.why, "evidence": verdict.evidence}
        changed = {"stage": new, "share": 0.0 if new == BACK else shares[new], "done": verdict.decision == "done"}
        if changed["done"]:  # everyone gets the candidate until something else is put into the place of these
            changed["replaces"] = sorted(
                {one.policy for one in lists if one.arm == "current" and one.mode != "fallback"}
            )
        write_json(path, {**rollout, **changed, "history": [*rollout["history"], entry]})
    return verdict


def roll_back(path: Path | str, *, why: str) -> None:
    """End a rollout by hand: the candidate serves no one any more, whatever the log says."""
    with only_writer(Path(path)):
        rollout = read_plan(path)
        if rollout["stage"] == BACK or rollout["done"]:
            raise ConfigError(f"{path} holds no rollout that goes on: it is {'done' if rollout['done'] else BACK}.")
        entry = {"time": now(), "stage": BACK, "why": why}
        history = [*rollout["history"], entry]
        write_json(Path(path), {**rollout, "stage": BACK, "share": 0.0, "history": history})


def _read(log: Path | str, rollout: dict[str, Any], rules: RolloutRules) -> tuple[list[Any], tuple[int, int], Told]:
    """This rollout's lists, its shadow answers with failures, and how many answers count."""
    database = Database(log)
    try:
        lists, told = rollout_lists(database, rollout["id"], rules.answers)
        query = "SELECT COUNT(*), COALESCE(SUM(failed), 0) FROM shadow WHERE rollout = ?"
        answered, failed = database.rows(query, (rollout["id"],))[0]
    finally:
        database.close()
    found = {made.policy for made in lists if made.arm == "candidate" and made.mode != "fallback"}
    expected = {rollout["candidate"]["version"]} if rollout["candidate"] else found
    if len(found) > 1 or not found <= expected:
        raise RunError(f"the candidate's lists were made by {', '.join(sorted(found))}; evidence is about one version. "
                       "Plan a new rollout.")  # fmt: skip
    return lists, (int(answered), int(failed)), told
