"""`rollout`: from nobody to everybody in stages, and back at once where the candidate does harm.

The rollout is a small JSON file that `lpi serve --rollout` reads again and again. `plan` writes it: which candidate,
which stages, and by which rules it will be judged. `judge` looks at the log and moves it: on to the next stage, back
to nobody, or nowhere. Judging more often costs nothing: the tests hold at any moment (see `sequential`), for rewards
that no longer change (see `units`). All alarms together are false with probability `alpha` at most. A stage that has
seen enough people is still not left while the evidence speaks rather for harm than against it.

Evidence belongs to one rollout and one version of its candidate. The tests accumulate over its stages; heads are
counted per stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from localpolicy.data.rewards import RewardMap
from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import only_writer
from localpolicy.serving.assignment import BACK, SHADOW
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.records import new_id, now
from localpolicy.serving.sequential import benefit, harm, ratio
from localpolicy.serving.units import Told, Units, rollout_lists, units_of
from localpolicy.settings import Settings

FORMAT = 2
STAGES = (SHADOW, "1", "5", "25", "50", "100")  # percent of traffic
ARMS = {"candidate": 1, "current": 0}
ROUNDING = 1e-9  # of the range, by which sums of floats may leave it
CODES = {"advance": 0, "done": 0, "roll back": 3, "hold": 5}
Decision = Literal["hold", "advance", "roll back", "done"]


class RolloutRules(Settings):
    """When a rollout goes on, and when it goes back."""

    alpha: float = Field(0.05, gt=0, lt=1, description="chance that any alarm is ever false")
    answers: JoinConfig = Field(JoinConfig(), description="how answers become rewards, and until when they count")
    horizon: float = Field(3600.0, gt=0, description="seconds after a person's first list that count")
    places: int = Field(10, ge=1, description="longest list: with the reward map it says what a list can bring")
    smallest_reward: float | None = Field(None, description="least that a list can bring; null: from the reward map")
    largest_reward: float | None = Field(None, description="most that a list can bring; null: from the reward map")
    units: int = Field(1000, ge=1, description="persons a stage must have seen, both arms together")
    people: int = Field(100, ge=1, description="of these, persons who were given the candidate")
    lists: int = Field(100, ge=1, description="lists of these")
    hold_above: float = Field(
        1.0, ge=1, description="no stage is left while the evidence of harm, an e-value, is above this (1: none "
        "either way; the alarm is at 1/(0.8 alpha))"
    )  # fmt: skip
    shadow_failures: float = Field(0.001, ge=0, le=1, description="share of shadow answers that may fail")

    @property
    def reward_alpha(self) -> float:
        """Of the reward; the guardrails share the rest."""
        return 0.8 * self.alpha

    @property
    def guardrail_alpha(self) -> float:
        """Of each guardrail: fallbacks, and the ratio of the arms."""
        return 0.1 * self.alpha

    @property
    def horizon_ms(self) -> int:
        """In milliseconds."""
        return round(self.horizon * 1000)

    @property
    def ripe_ms(self) -> int:
        """How long after its first list a unit can still change."""
        return self.horizon_ms + self.answers.window_ms

    @property
    def range(self) -> tuple[float, float]:
        """What a list can bring: as stated, else 1 to `places` times what one item can bring."""
        stated = self.smallest_reward, self.largest_reward
        if None in stated and self.answers.aggregation == "sum":
            raise ConfigError("where several answers to one item are summed, no reward map says what a list can bring: "
                              "state smallest_reward and largest_reward.")  # fmt: skip
        worth = RewardMap.parse(self.answers.rewards)
        one = [self.answers.default, *worth.names.values(), *(reward for _, reward in worth.thresholds)]
        one += [] if worth.otherwise is None else [worth.otherwise]
        mapped = min(min(one), self.places * min(one)), max(max(one), self.places * max(one))  # lists may be shorter
        low, high = (bound if given is None else given for given, bound in zip(stated, mapped, strict=True))
        if not low < high:
            raise ConfigError(f"a list must be able to bring more than {low:g} and less than {high:g}.")
        return low, high


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


class RolloutVerdict(Settings):
    """What a look at the log says."""

    decision: Decision = Field(description="go on, wait, or roll back")
    why: str = Field(description="the reason, in a sentence")
    stage: str = Field(description="the stage that was looked at")
    units: dict[str, int] = Field({}, description="persons by arm, over all stages, whose reward can no longer change")
    waiting: dict[str, int] = Field({}, description="persons by arm whose reward can still change")
    reward: dict[str, float | None] = Field({}, description="mean reward of a list by arm, of those that cannot change")
    evidence: dict[str, float] = Field({}, description="log wealth of each test, and the level at which it is an alarm")
    unknown_events: int = Field(0, description="answers whose event the reward map does not know: not counted")

    @property
    def exit_code(self) -> int:
        """0: advance, or done; 3: rolled back; 5: wait."""
        return CODES[self.decision]


def decide(
    units: Units, rules: RolloutRules, *, stage: str, stages: Sequence[str], shadow: tuple[int, int], at: int
) -> RolloutVerdict:
    """What to do, from units of all stages so far; `shadow` counts shadow answers and failures.

    Arms and first lists cannot change: their alarms are judged at once. Rewards are judged once they are ripe.
    """
    ripened = units.first + rules.ripe_ms <= at
    ripe, here = units.where(ripened), stage == units.stage
    evidence = _guardrails(units)

    def by_arm(count: Any) -> dict[str, Any]:
        return {name: count(code) for name, code in ARMS.items()}

    def verdict(decision: Decision, why: str) -> RolloutVerdict:
        return RolloutVerdict(
            decision=decision, why=why, stage=stage, evidence=evidence,
            units=by_arm(lambda code: int((ripe.arm == code).sum())),
            waiting=by_arm(lambda code: int(((units.arm == code) & ~ripened).sum())),
            reward=by_arm(lambda code: _mean(ripe.reward[ripe.arm == code])),
        )  # fmt: skip

    def alarm(name: str, level: float, why: str) -> RolloutVerdict | None:
        if evidence[name] < -math.log(level):
            return None
        return verdict("roll back", f"{why} (evidence {evidence[name]:.1f}, alarm at {-math.log(level):.1f})")

    found = alarm("fallbacks", rules.guardrail_alpha, "the candidate falls back more often") or alarm(
        "ratio", rules.guardrail_alpha, "the arms are not given in the planned ratio: assignment or logging is broken"
    )
    answered, failed = shadow
    if found is None and stage == SHADOW and failed > rules.shadow_failures * answered:
        found = verdict("roll back", f"{failed:,} of {answered:,} shadow answers failed")
    if found is not None:
        return found
    evidence |= _rewards(ripe, rules)
    found = alarm("harm", rules.reward_alpha, "the candidate earns less than the current policy")
    if found is not None:
        return found
    last = stage == stages[-1]
    if stage == SHADOW:
        seen = {"shadow answers": (answered, rules.units)}
    else:
        mine = here & ripened & (units.arm == 1)
        seen = {
            "persons": (int((here & ripened).sum()), rules.units),
            "persons with the candidate": (int(mine.sum()), rules.people),
            "lists of theirs": (int(units.lists[mine].sum()), rules.lists),
        }
    for what, (count, needed) in seen.items():
        if count < needed:
            open_ = int((here & ~ripened).sum())
            more = f"; {open_:,} persons can still answer" if open_ else ""
            return verdict("hold", f"{count:,} of {needed:,} {what} in this stage{more}")
    told = ", ".join(f"{count:,} {what}" for what, (count, _) in seen.items())
    # Too little for an alarm is no reason to show a doubtful candidate to ten times as many.
    if not last and (doubt := math.exp(evidence["harm now"])) > rules.hold_above:
        more = f"the evidence that the candidate earns less is {doubt:.1f} (alarm at {1 / rules.reward_alpha:.0f})"
        return verdict("hold", f"{told} in this stage, but {more}: more must be seen before more get it")
    return verdict("done" if last else "advance", f"{told} in this stage and no alarm")


def _guardrails(units: Units) -> dict[str, float]:
    """log wealth of the tests that need no reward, over all units."""
    mixed = units.where((units.probability > 0) & (units.probability < 1))
    counts = {q: (int(units.arm[units.probability == q].sum()), int((units.probability == q).sum()))
              for q in np.unique(units.probability)}  # fmt: skip
    return {
        "fallbacks": _largest(harm(mixed.arm, mixed.probability, 1 - mixed.fallback, largest=1.0)),
        "ratio": min(1e9, sum(ratio(given, total - given, float(q)) for q, (given, total) in counts.items())),
    }


def _rewards(ripe: Units, rules: RolloutRules) -> dict[str, float]:
    """log wealth of the tests of rewards; their largest ever, since an alarm once raised stays raised."""
    low, high = rules.range
    slack = ROUNDING * (high - low)
    outside = ripe.reward[(ripe.reward < low - slack) | (ripe.reward > high + slack)]
    if len(outside):
        raise DataError(
            f"{len(outside):,} of {len(ripe.reward):,} persons brought {outside.min():g} to {outside.max():g} a list; "
            f"the plan says {low:g} to {high:g}. The test holds within the stated range only, so nothing is judged. "
            "Plan a new rollout whose smallest_reward and largest_reward hold what a list can bring (--set), or "
            "with --places, if lists are longer than planned. Answers that cannot be right are set aside with "
            "--set answers.largest_reward=… (of one answer)."
        )
    mixed = ripe.where((ripe.probability > 0) & (ripe.probability < 1))
    given = mixed.arm, mixed.probability, np.clip(mixed.reward, low, high)
    harmed = harm(*given, largest=high, smallest=low)
    return {
        "harm": _largest(harmed),
        "harm now": float(harmed[-1]) if len(harmed) else 0.0,
        "benefit": _largest(benefit(*given, largest=high, smallest=low)),
    }


def _largest(wealth: np.ndarray) -> float:
    return float(wealth.max(initial=0.0))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


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
    """End a rollout by hand: nobody gets the candidate any more, whatever the log says."""
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
