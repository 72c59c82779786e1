"""The gate's checks by value, where the log has propensities: of a policy against the deployed one, and of baselines.

What is compared is what each earns: per decision, or per whole list where the log has lists (see
`measure.decisions`). Where a value is refused nothing stands in for it: neither ranks, nor the log's own mean, nor
the value of a first place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from localpolicy.judge.claims import LEFT_OUT, Claim, GateRules, Outcome, check
from localpolicy.judge.gate_ranks import in_words, outcome_of, would_tell
from localpolicy.measure.decisions import Estimand
from localpolicy.measure.estimators import Bounds, Contributions, contributions, logged, skewed
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.off_policy import OffPolicy
from localpolicy.measure.significance import holm_steps

NO_PROPENSITIES = "the log has no propensities"
HIGHER = {"yes": "higher", "no": "no higher", "lower": "lower", "cannot tell": "not significantly higher"}


class Valued(NamedTuple):
    """A policy's value, or why there is none."""

    found: Contributions | None
    refusal: str = ""
    needed: int | None = None  # decisions, or lists, with which there might be one


def off_policy_of(evaluation: Evaluation, estimand: Estimand | None) -> OffPolicy | None:
    """What the log says of its value; of another question than the log's own where that is named."""
    value = evaluation.off_policy
    return value if value is None or estimand is None else value.beside.get(estimand)


def valued(evaluation: Evaluation, rules: GateRules, estimand: Estimand | None = None) -> Valued:
    """The value of a policy, where the log carries it."""
    value = off_policy_of(evaluation, estimand)
    if value is None:
        return Valued(None, NO_PROPENSITIES)
    if value.refusal is not None:
        return Valued(None, value.refusal, value.overlap.needed)
    if (near := value.overlap.near) < rules.min_effective_share:
        return Valued(
            None, f"effective sample of {near:.1%} of the decisions; {rules.min_effective_share:.0%} are needed"
        )
    return Valued(contributions(value.log, rules.estimator))


def base_value(
    new: Evaluation, deployed: Evaluation | None, rules: GateRules, estimand: Estimand | None = None
) -> Valued:
    """What is deployed earns: the log's own mean where the log is its own, else its estimate on the same decisions."""
    if deployed is not None:
        return valued(deployed, rules, estimand)
    value = off_policy_of(new, estimand)
    return Valued(None, NO_PROPENSITIES) if value is None else Valued(logged(value.log))


def value_check(new: Evaluation, deployed: Evaluation | None, rules: GateRules, *, decides: bool = True) -> Claim:
    """The estimated gain in reward is significant; where it does not decide, that it is no significant loss.

    Paired: what luck gave the log it gave both.
    """
    mine, base = valued(new, rules), base_value(new, deployed, rules)
    unit, count = ("decisions", None) if new.off_policy is None else (new.off_policy.unit, new.off_policy.overlap.n)
    if mine.found is None:
        outcome: Outcome = "cannot tell" if decides or mine.refusal != NO_PROPENSITIES else "not asked"
        reason = mine.refusal
        if reason != NO_PROPENSITIES:
            reason = f"no estimate of {new.name}: {reason}{_first_place(new, deployed, rules)}"
        plain = "its reward cannot be estimated from this log"
        return check("value", outcome, reason, n=count, needed=mine.needed, plain=plain, unit=unit)
    if base.found is None:
        assert deployed is not None
        reason = (
            f"no estimate of {deployed.name}, which is deployed: {base.refusal}. The log's mean does not stand for it. "
            "If the deployed policy wrote the log, judge against what it showed: --against log"
        )
        plain = f"the reward of {deployed.name} cannot be estimated from this log"
        return check("value", "cannot tell", reason, n=count, needed=base.needed, plain=plain, unit=unit)
    gap = mine.found - base.found
    interval = skewed(gap, confidence=rules.confidence)
    old, whose = base.found.mean, "the log's own" if deployed is None else f"{deployed.name}'s"
    margin = rules.value_margin * abs(old)
    asked = f"above {rules.min_gain:g}" if decides else f"above -{margin:.4f}, {rules.value_margin:.0%} of it"
    assert new.off_policy is not None
    reason = (
        f"estimated J {'per list ' if unit == 'lists' else ''}{mine.found.mean:.4f} against {whose} {old:.4f}: "
        f"difference {gap.mean:+.4f}, {rules.confidence:.0%} interval {interval.low:+.4f} to {interval.high:+.4f} "
        f"({gap.n:,} {unit}, effective sample {new.off_policy.overlap.effective:,.0f}); its lower end must "
        f"be {asked}"
    )
    if gap.unknown > 0:
        reason += f". It holds {gap.unknown:.4f} either way for what is shown now and never was in the log"
    if decides:
        outcome, told = outcome_of(*interval, old, rules)
        reason += told
        plain = f"its estimated reward is {in_words(outcome, *interval, HIGHER, rules)}"
    else:
        outcome = "yes" if interval.low > -margin else "no" if interval.high < -margin else "cannot tell"
        words = {"yes": "is no lower", "no": "is lower", "cannot tell": "may be lower"}
        plain = f"its estimated reward {words[outcome]}"
    needed = None
    if outcome == "cannot tell":
        smallest = rules.smallest_gain * abs(old)
        gain = max(gap.mean - rules.min_gain, smallest) if decides else gap.mean + margin
        needed, told = would_tell(gap, gain - gap.unknown, rules, unit=unit)
        reason += told
    reason += _first_place(new, deployed, rules)
    return check("value", outcome, reason, gap.mean, *interval, gap.n, needed, plain=plain, unit=unit)


def _first_place(new: Evaluation, deployed: Evaluation | None, rules: GateRules) -> str:
    """Of a log of lists, the exact gain of the first place: a fact beside the list's value, which it is not."""
    if off_policy_of(new, "first place") is None:
        return ""
    mine, base = valued(new, rules, "first place").found, base_value(new, deployed, rules, "first place").found
    if mine is None or base is None:
        return ". Its first place cannot be estimated either"
    gap = mine - base
    low, high = skewed(gap, confidence=rules.confidence)
    return f". Beside it, its first place alone: {gap.mean:+.4f} ({low:+.4f} to {high:+.4f}), which decides nothing"


def family(gaps: Mapping[str, Contributions], confidence: float) -> dict[str, Bounds]:
    """Intervals of differences that are read together, by Holm's steps."""
    clear = {name: abs(gap.mean) / (gap.se or math.inf) for name, gap in gaps.items()}
    return holm_steps(clear, lambda name, each: skewed(gaps[name], confidence=each), confidence)


def baselines_by_value(
    new: Evaluation, deployed: Evaluation | None, baselines: list[Evaluation], rules: GateRules
) -> Claim:
    """No simple baseline earns significantly more, as the distribution it is served as.

    One whose value is refused neither blocks nor passes, and is named. One that is not told from the new policy does
    not block either: the question is whether to replace what is deployed.
    """
    if not baselines:
        return LEFT_OUT
    mine, base = valued(new, rules).found, base_value(new, deployed, rules).found
    values = {baseline.name: valued(baseline, rules).found for baseline in baselines}
    known = {name: found for name, found in values.items() if found is not None}
    unknown = [name for name in values if name not in known]
    refused = f"Not judged, since the log says too little of their reward: {', '.join(unknown)}" if unknown else ""
    if mine is None or not known:
        return check("baselines", "not asked", refused or "the value of the new policy is not known")
    tests = family({name: mine - theirs for name, theirs in known.items()}, rules.confidence)
    best = min(known, key=lambda name: mine.mean - known[name].mean)
    figures = ", ".join(f"{name} {found.mean:.4f}" for name, found in known.items())
    gap, (low, high) = mine.mean - known[best].mean, tests[best]
    reason = f"estimated J {mine.mean:.4f} against {figures}; against {best} {gap:+.4f} ({low:+.4f} to {high:+.4f})"
    reason = ". ".join(filter(None, [reason, refused]))
    assert new.off_policy is not None
    numbers, unit = (gap, low, high, mine.n), new.off_policy.unit
    better = [name for name, bounds in tests.items() if bounds.high < 0]
    if better:
        name = min(better, key=lambda each: mine.mean - known[each].mean)
        gains = base is not None and skewed(known[name] - base, confidence=rules.confidence).low > rules.min_gain
        plain = f"the simple baseline {name} earns more"
        return check(
            "baselines", "no", f"{reason}: {name} earns more", *numbers, instead=name if gains else None, plain=plain,
            unit=unit,
        )  # fmt: skip
    open_ones = [name for name, bounds in tests.items() if bounds.low <= 0]
    beaten = "it earns more than every simple baseline that can be judged"
    told = f". Not told from {', '.join(open_ones)}" if open_ones else f": {beaten}"
    plain = "no simple baseline earns more" if open_ones else beaten
    return check("baselines", "yes", reason + told, *numbers, plain=plain, unit=unit)
