"""What a look at a rollout's log says: go on to the next stage, roll back, or wait.

Everything here is computed from units (see `units`) and rules: no file is read. The tests hold at any moment (see
`sequential`), for rewards that no longer change. All alarms together are false with probability `alpha` at most. A
stage that has seen enough people is still not left while the evidence speaks rather for harm than against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from localpolicy.data.rewards import RewardMap
from localpolicy.errors import ConfigError, DataError
from localpolicy.serving.assignment import SHADOW
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.sequential import benefit, harm, ratio
from localpolicy.serving.units import Units
from localpolicy.settings import Settings

ARMS = {"candidate": 1, "current": 0}
ROUNDING = 1e-9  # of the range, by which sums of floats may leave it
CODES = {"advance": 0, "done": 0, "roll back": 3, "hold": 5}
Decision = Literal["hold", "advance", "roll back", "done"]


class RolloutRules(Settings):
    """When a rollout goes on, and when it goes back."""

    alpha: float = Field(0.05, gt=0, lt=1, description="chance that any alarm is ever false")
    answers: JoinConfig = Field(JoinConfig(), description="how answers become rewards, and until when they count")
    horizon: float = Field(
        3600.0, gt=0, description="seconds after a person's first list that count towards the reward"
    )
    places: int = Field(10, ge=1, description="longest list: says, with the rewards, what a list can bring")
    smallest_reward: float | None = Field(None, description="least that a list can bring; null: from the reward map")
    largest_reward: float | None = Field(None, description="most that a list can bring; null: from the reward map")
    units: int = Field(1000, ge=1, description="persons that a stage must see before the next one starts")
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
