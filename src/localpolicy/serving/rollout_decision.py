"""The decision about a rollout's stage: advance, roll back, hold, or end unproven.

Everything here is computed from units (see `experiment_units`), rules and the log's past: no file is read. The tests
hold at any moment (see `sequential`), for rewards that no longer change. All alarms together are false with
probability `alpha` at most. A stage is left on proof that the candidate loses no more than the stage's margin, never
for want of proof that it does harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from localpolicy.errors import DataError
from localpolicy.serving.assignment import SHADOW, share_of
from localpolicy.serving.experiment_units import Units
from localpolicy.serving.past import Past, known
from localpolicy.serving.reward_tests import LEAST_REWARDED, Known, harm, level, no_harm
from localpolicy.serving.rollout_rules import RolloutRules
from localpolicy.serving.sample_size import GIVEN_UP, persons_needed
from localpolicy.serving.sequential import falls, ratio
from localpolicy.settings import Settings

ARMS = {"candidate": 1, "current": 0}
ROUNDING = 1e-9  # of what a list can bring, by which sums of floats may leave it
CODES = {"advance": 0, "done": 0, "roll back": 3, "unproven": 4, "hold": 5}
Decision = Literal["hold", "advance", "roll back", "unproven", "done"]


class RolloutVerdict(Settings):
    """Decision about a rollout at one moment, with its reason and the evidence for it."""

    decision: Decision = Field(description="advance, hold, roll back, or end without a proof")
    why: str = Field(description="the reason, in a sentence")
    stage: str = Field(description="the stage that was looked at")
    margin: float | None = Field(None, description="the loss that must be ruled out here; null: none")
    units: dict[str, int] = Field({}, description="persons by arm, over all stages, whose reward can no longer change")
    waiting: dict[str, int] = Field({}, description="persons by arm whose reward can still change")
    reward: dict[str, float | None] = Field({}, description="mean reward of a list by arm, of those that cannot change")
    evidence: dict[str, float] = Field({}, description="largest log wealth of each test so far")
    most: int | None = Field(
        None, description="number of persons at which the stage ends unproven; null: not known yet"
    )
    unknown_events: int = Field(0, description="answers whose event the reward map does not know: not counted")

    @property
    def exit_code(self) -> int:
        """0: advance, or done; 3: rolled back; 4: neither harm nor its absence could be proven; 5: wait."""
        return CODES[self.decision]


def decide(
    units: Units, rules: RolloutRules, past: Past | None = None, *, stage: str, stages: Sequence[str],
    shadow: tuple[int, int], at: int,
) -> RolloutVerdict:  # fmt: skip
    """Decide from the units of all stages so far; `shadow` counts shadow answers and failures.

    Arms and first lists cannot change: their alarms are judged at once. Rewards are judged once they are ripe.
    """
    ripened = units.first + rules.ripe_ms <= at
    ripe, here = units.where(ripened), stage == units.stage
    share, before = share_of(stage), known(rules, past)
    evidence, margin, most = _guardrails(units), rules.margin_at(share), None

    def by_arm(count: Any) -> dict[str, Any]:
        return {name: count(code) for name, code in ARMS.items()}

    def verdict(decision: Decision, why: str) -> RolloutVerdict:
        return RolloutVerdict(
            decision=decision, why=why, stage=stage, margin=margin, evidence=evidence, most=most,
            units=by_arm(lambda code: int((ripe.arm == code).sum())),
            waiting=by_arm(lambda code: int(((units.arm == code) & ~ripened).sum())),
            reward=by_arm(lambda code: _mean(ripe.reward[ripe.arm == code])),
        )  # fmt: skip

    def alarm(name: str, alpha: float, why: str) -> RolloutVerdict | None:
        if evidence[name] < -math.log(alpha):
            return None
        return verdict("roll back", f"{why} (evidence {evidence[name]:.1f}, alarm at {-math.log(alpha):.1f})")

    found = alarm("fallbacks", rules.guardrail_alpha, "the candidate falls back more often") or alarm(
        "ratio", rules.guardrail_alpha, "the arms are not given in the planned ratio: assignment or logging is broken"
    )
    answered, failed = shadow
    if found is None and stage == SHADOW and failed > rules.shadow_failures * answered:
        found = verdict("roll back", f"{failed:,} of {answered:,} shadow answers failed")
    if found is not None:
        return found
    _check_range(ripe, before)
    mixed = ripe.where((ripe.probability > 0) & (ripe.probability < 1))
    given = mixed.arm, mixed.probability, mixed.reward
    evidence["harm"] = _largest(harm(*given, before))
    if margin is not None:
        evidence["no harm"] = _largest(no_harm(*given, before, margin=margin))
        cv2 = level(mixed.reward, before).cv2
        most = None if cv2 is None else math.ceil(persons_needed(cv2, share, margin, c=GIVEN_UP))
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
    open_ = int((here & ~ripened).sum())
    more = f"; {open_:,} persons can still answer" if open_ else ""
    for what, (count, needed) in seen.items():
        if count < needed:
            return verdict("hold", f"{count:,} of {needed:,} {what} in this stage{more}")
    seen_text = ", ".join(f"{count:,} {what}" for what, (count, _) in seen.items())
    if margin is None:
        return verdict("done" if last else "advance", f"{seen_text} in this stage and no alarm")
    enough, loss = -math.log(rules.advance_alpha), f"a loss of {_share(margin)}"
    if evidence["no harm"] >= enough:
        proof = f"{loss} or more is ruled out (evidence {evidence['no harm']:.1f}, enough at {enough:.1f})"
        return verdict("done" if last else "advance", f"{seen_text} in this stage: {proof}")
    persons = seen["persons"][0]
    if most is not None and persons >= most:
        return verdict("unproven", f"{persons:,} persons in this stage could rule out neither {loss} nor that the "
                                   "candidate earns as much as the current policy")  # fmt: skip
    limit = f"fewer than {LEAST_REWARDED} persons brought a reward" if most is None else f"given up at {most:,}"
    return verdict("hold", f"{loss} is not ruled out yet (evidence {evidence['no harm']:.1f}, enough at {enough:.1f}) "
                           f"by {persons:,} persons in this stage ({limit}){more}")  # fmt: skip


def _guardrails(units: Units) -> dict[str, float]:
    """Return the log wealth of the tests that need no reward, over all units."""
    mixed = units.where((units.probability > 0) & (units.probability < 1))
    counts = {q: (int(units.arm[units.probability == q].sum()), int((units.probability == q).sum()))
              for q in np.unique(units.probability)}  # fmt: skip
    return {
        "fallbacks": _largest(falls(mixed.arm, mixed.probability, 1 - mixed.fallback)),
        "ratio": min(1e9, sum(ratio(given, total - given, float(q)) for q, (given, total) in counts.items())),
    }


def _check_range(ripe: Units, of: Known) -> None:
    """Raise DataError if a reward is below the assumed least, or the current policy's above the assumed largest.

    The candidate's rewards may exceed it.
    """
    slack = ROUNDING * (of.cut - of.low)
    low = ripe.reward < of.low - slack
    high = (ripe.reward > of.cut + slack) & (ripe.arm == 0) & (not of.tail)
    outside = ripe.reward[low | high]
    if len(outside):
        raise DataError(
            f"{len(outside):,} of {len(ripe.reward):,} persons brought {outside.min():g} to {outside.max():g} a list; "
            f"the plan says {of.low:g} to {of.cut:g}. The tests hold within that range only, so nothing is "
            "judged. Plan a new rollout with the log of the current policy (--log), with --places if lists are longer "
            "than planned, or with smallest_reward and largest_reward (--set). Answers that cannot be right are set "
            "aside with --set answers.largest_reward=… (of one answer)."
        )


def _largest(wealth: np.ndarray) -> float:
    return float(wealth.max(initial=0.0))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _share(margin: float) -> str:
    return f"{100 * margin:.3g} %"
