"""`rollout`: from nobody to everybody in stages, and back at once where the candidate does harm.

The rollout is a small JSON file that `lpi serve --rollout` reads again and again. `plan` writes it; `judge` looks at
the log and moves it: on to the next stage, back to nobody, or nowhere. Judging more often costs nothing: the tests
hold at any moment (see `sequential`). All alarms together are false with probability `alpha` at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from localpolicy.errors import ConfigError, RunError
from localpolicy.runtime.files import read_json, write_json
from localpolicy.serving.assignment import SHADOW
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.records import new_id, now
from localpolicy.serving.sequential import benefit, harm, ratio
from localpolicy.serving.units import Units, read_units
from localpolicy.settings import Settings

FORMAT = 1
STAGES = (SHADOW, "1", "5", "25", "50", "100")  # percent of traffic
BACK = "rolled back"
Decision = Literal["hold", "advance", "roll back", "done"]


class RolloutRules(Settings):
    """When a rollout goes on, and when it goes back."""

    alpha: float = Field(0.05, gt=0, lt=1, description="chance that any alarm is ever false")
    largest_reward: float = Field(1.0, gt=0, description="most that a list can bring; more is cut off")
    units: int = Field(1000, ge=1, description="persons a stage must have seen, both arms together, before the next")
    horizon: float = Field(3600.0, gt=0, description="seconds after a person's first list that count")
    shadow_failures: float = Field(0.001, ge=0, le=1, description="share of shadow answers that may fail")

    @property
    def reward_alpha(self) -> float:
        """Of the reward; the guardrails share the rest."""
        return 0.8 * self.alpha

    @property
    def guardrail_alpha(self) -> float:
        """Of each guardrail: fallbacks, and the ratio of the arms."""
        return 0.1 * self.alpha


def plan(
    out: Path | str,
    *,
    stages: Sequence[str] = STAGES,
    salt: str | None = None,
    rules: RolloutRules | None = None,
) -> dict[str, Any]:
    """Write a rollout that begins with its first stage."""
    path = Path(out)
    shares = {stage: _share(stage) for stage in stages}
    if list(shares.values()) != sorted(shares.values()) or len(shares) != len(stages) or not stages:
        raise ConfigError(f"stages must rise, as in {', '.join(STAGES)}; got {', '.join(stages)}.")
    if path.exists():
        raise ConfigError(f"{path} exists: a rollout is planned once. Choose another file.")
    moment = now()
    content = {
        "format": FORMAT, "salt": salt or new_id(moment), "stages": list(stages), "stage": stages[0],
        "share": shares[stages[0]], "rules": (rules or RolloutRules()).model_dump(), "since": moment,
        "history": [{"time": moment, "stage": stages[0], "why": "planned"}],
    }  # fmt: skip
    write_json(path, content)
    return content


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
        raise RunError(f"{path} is not a rollout; 'lpi rollout plan' makes one.")
    return content


class RolloutVerdict(Settings):
    """What a look at the log says."""

    decision: Decision = Field(description="go on, wait, or roll back")
    why: str = Field(description="the reason, in a sentence")
    stage: str = Field(description="the stage that was looked at")
    units: dict[str, int] = Field(description="persons by arm, over all stages")
    reward: dict[str, float | None] = Field(description="mean reward by arm")
    evidence: dict[str, float] = Field(description="log wealth of each test, and the level at which it is an alarm")

    @property
    def exit_code(self) -> int:
        """3 where the rollout goes back, else 0."""
        return 3 if self.decision == "roll back" else 0


def decide(
    units: Units, rules: RolloutRules, *, stage: str, stages: Sequence[str], shadow: tuple[int, int]
) -> RolloutVerdict:
    """What to do, from units of all stages so far; `shadow` counts shadow answers and failures."""
    evidence = _evidence(units, rules)
    arms = {"candidate": int(units.arm.sum()), "current": int((1 - units.arm).sum())}
    reward = {name: _mean(units.reward[units.arm == code]) for name, code in (("candidate", 1), ("current", 0))}

    def verdict(decision: Decision, why: str) -> RolloutVerdict:
        return RolloutVerdict(decision=decision, why=why, stage=stage, units=arms, reward=reward, evidence=evidence)

    for name, level, why in (
        ("harm", rules.reward_alpha, "the candidate earns less than the current policy"),
        ("fallbacks", rules.guardrail_alpha, "the candidate falls back more often"),
        (
            "ratio",
            rules.guardrail_alpha,
            "the arms are not given in the planned ratio: assignment or logging is broken",
        ),
    ):
        if evidence[name] >= -math.log(level):
            return verdict("roll back", f"{why} (evidence {evidence[name]:.1f}, alarm at {-math.log(level):.1f})")
    answered, failed = shadow
    if stage == SHADOW:
        if failed > rules.shadow_failures * answered and failed > 0:
            return verdict("roll back", f"{failed:,} of {answered:,} shadow answers failed")
        seen = answered
    else:
        seen = int((units.stage == stage).sum())
    if stage == stages[-1]:
        return verdict("done", "the last stage is reached and nothing speaks against it")
    if seen < rules.units:
        return verdict("hold", f"{seen:,} of {rules.units:,} persons seen in this stage")
    return verdict("advance", f"{seen:,} persons seen in this stage and no alarm")


def _evidence(units: Units, rules: RolloutRules) -> dict[str, float]:
    """log wealth of each test now; their largest ever, since an alarm once raised stays raised."""
    if not len(units.arm):
        return {"harm": 0.0, "benefit": 0.0, "fallbacks": 0.0, "ratio": 0.0}
    mixed = (units.probability > 0) & (units.probability < 1)
    arm, p = units.arm[mixed], units.probability[mixed]
    reward, fallback = units.reward[mixed], units.fallback[mixed]
    counts = {q: (int(units.arm[units.probability == q].sum()), int((units.probability == q).sum()))
              for q in np.unique(units.probability)}  # fmt: skip
    return {
        "harm": _largest(harm(arm, p, reward, largest=rules.largest_reward)),
        "benefit": _largest(benefit(arm, p, reward, largest=rules.largest_reward)),
        "fallbacks": _largest(harm(arm, p, 1 - fallback, largest=1.0)),
        "ratio": min(1e9, sum(ratio(given, total - given, float(q)) for q, (given, total) in counts.items())),
    }


def _largest(wealth: np.ndarray) -> float:
    return float(wealth.max(initial=0.0))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def judge(
    path: Path | str, *, log: Path | str, config: JoinConfig | None = None, apply: bool = True, at: int | None = None
) -> RolloutVerdict:
    """Look at the log, and move the rollout accordingly (unless `apply` is off)."""
    rollout = read_plan(path)
    stage = rollout["stage"]
    if stage == BACK:
        raise ConfigError(f"{path} was rolled back ({rollout['history'][-1]['why']}). Plan a new rollout.")
    rules, config = RolloutRules.parse(rollout["rules"]), config or JoinConfig()
    moment = now() if at is None else at
    shares = {name: _share(name) for name in rollout["stages"]}
    horizon = round(rules.horizon * 1000)
    units = read_units(log, shares, config=config, horizon_ms=horizon, upto=moment)
    verdict = decide(units, rules, stage=stage, stages=rollout["stages"], shadow=_shadow(log))
    if apply and verdict.decision in ("advance", "roll back"):
        stages = rollout["stages"]
        new = BACK if verdict.decision == "roll back" else stages[stages.index(stage) + 1]
        entry = {"time": moment, "stage": new, "why": verdict.why, "evidence": verdict.evidence}
        share = 0.0 if new == BACK else shares[new]
        write_json(Path(path), {**rollout, "stage": new, "share": share, "history": [*rollout["history"], entry]})
    return verdict


def _shadow(log: Path | str) -> tuple[int, int]:
    """How many shadow answers there were, and how many failed."""
    from localpolicy.serving.database import Database

    if Path(log).is_dir():
        return 0, 0
    database = Database(log)
    answered, failed = database.rows("SELECT COUNT(*), COALESCE(SUM(failed), 0) FROM shadow")[0]
    database.close()
    return int(answered), int(failed)
