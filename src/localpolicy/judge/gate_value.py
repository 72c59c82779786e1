"""The gate's checks by value, where the log has propensities: of a policy against the deployed one, and of baselines.

What is compared is what each earns: per decision, or per whole list where the log has lists (see
`measure.decisions`). Where a value is refused nothing stands in for it: neither ranks, nor the log's own mean, nor
the value of a first place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from localpolicy.judge.claims import LEFT_OUT, UNJUDGED, Claim, Outcome, check, unjudged
from localpolicy.judge.gate_ranks import best_baseline, gain_claim, would_tell
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import Estimand
from localpolicy.measure.estimators import Contributions, contributions, logged, skewed
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import Key, Paired, holm_steps
from localpolicy.measure.value import OffPolicy

NO_PROPENSITIES, UNKNOWN = "the log has no propensities", "its reward cannot be estimated from this log"
REWARD = "its estimated reward"
HIGHER = {  # what came of it, where it decides
    "yes": f"{REWARD} is higher", "no": f"{REWARD} is no higher", "lower": f"{REWARD} is lower",
    "cannot tell": f"{REWARD} is not significantly higher",
}  # fmt: skip
NO_LOWER = {"yes": f"{REWARD} is no lower", "no": f"{REWARD} is lower", "cannot tell": f"{REWARD} may be lower"}


class Valued(NamedTuple):
    """A policy's value, or why there is none."""

    found: Contributions | None
    refusal: str = ""
    needed: int | None = None  # decisions, or lists, with which there might be one


def valued(value: OffPolicy | None, rules: GateRules) -> Valued:
    """The value of a policy, where the log carries it (see `measure.decisions.overlap`)."""
    if value is None:
        return Valued(None, NO_PROPENSITIES)
    if value.refusal is not None:
        return Valued(None, value.refusal, value.overlap.needed)
    return Valued(contributions(value.log, rules.estimator))


def too_little(refusals: Mapping[str, str]) -> str:
    """Of whom the log says too little, and why; those with the same reason share it."""
    by_reason: dict[str, list[str]] = {}
    for name, refusal in refusals.items():
        by_reason.setdefault(refusal, []).append(name)
    said = (f"{', '.join(names)} ({refusal})" for refusal, names in by_reason.items())
    return f"the log says too little of {', and of '.join(said)}"


def both_values(
    new: Evaluation, deployed: Evaluation | None, rules: GateRules, estimand: Estimand | None = None
) -> tuple[Valued, Valued]:
    """Of a policy and of what is deployed, on the same decisions: the log's own mean where the log is its own.

    An `estimand` names another question than the log's own.
    """
    found = [None if each is None else each.off_policy for each in (new, deployed)]
    if estimand is not None:
        found = [None if value is None else value.beside.get(estimand) for value in found]
    mine, theirs = found
    return valued(mine, rules), Valued(logged(mine.log)) if mine and deployed is None else valued(theirs, rules)


def value_tests(gaps: Mapping[Key, Contributions], confidence: float) -> dict[Key, Paired]:
    """Differences in value that are read together: intervals that allow for skewness, by Holm's steps; no p-values."""
    clear = {name: abs(gap.mean) / (gap.se or math.inf) for name, gap in gaps.items()}
    bounds = holm_steps(clear, lambda name, each: skewed(gaps[name], confidence=each), confidence)
    none = math.nan
    return {name: Paired(gap.mean, gap.se, *bounds[name], none, none, gap.n, none) for name, gap in gaps.items()}


def value_check(new: Evaluation, deployed: Evaluation | None, rules: GateRules, *, decides: bool = True) -> Claim:
    """The estimated gain in reward is significant; where it does not decide, that it is no significant loss.

    Paired: what luck gave the log it gave both.
    """
    (mine, base), value = both_values(new, deployed, rules), new.off_policy
    if value is None:
        outcome: Outcome = "cannot tell" if decides else "not asked"
        return check("value", outcome, NO_PROPENSITIES, plain=UNKNOWN, unit="decisions")
    count, unit = value.overlap.n, value.unit
    if mine.found is None:
        reason = f"no estimate of {new.name}: {mine.refusal}{_first_place(new, deployed, rules)}"
        return check("value", "cannot tell", reason, n=count, needed=mine.needed, plain=UNKNOWN, unit=unit)
    if base.found is None:
        assert deployed is not None
        reason = (
            f"no estimate of {deployed.name}, which is deployed: {base.refusal}. The log's mean does not stand for it. "
            "If the deployed policy wrote the log, judge against what it showed: --against log"
        )
        plain = f"the reward of {deployed.name} cannot be estimated from this log"
        return check("value", "cannot tell", reason, n=count, needed=base.needed, plain=plain, unit=unit)
    gap, old = mine.found - base.found, base.found.mean
    test = value_tests({"": gap}, rules.confidence)[""]
    whose = "the log's own" if deployed is None else f"{deployed.name}'s"
    margin = rules.value_margin * abs(old)
    asked = f"above {rules.min_gain:g}" if decides else f"above -{margin:.4f}, {rules.value_margin:.0%} of it"
    reason = (
        f"estimated J {'per list ' if unit == 'lists' else ''}{mine.found.mean:.4f} against {whose} {old:.4f}: "
        f"difference {gap.mean:+.4f}, {rules.confidence:.0%} interval {test.low:+.4f} to {test.high:+.4f} "
        f"({gap.n:,} {unit}, effective sample {value.overlap.effective:,.0f}); its lower end must be {asked}"
    )
    if gap.unknown > 0:
        reason += f". The interval is wider by {gap.unknown:.4f} at each end, since the log never showed some items"
    if decides:
        claim = gain_claim("value", test, old, reason, HIGHER, rules, unit=unit, unknown=gap.unknown)
    else:
        outcome = "yes" if test.low > -margin else "no" if test.high < -margin else "cannot tell"
        more = would_tell(test, gap.mean + margin - gap.unknown, rules, unit=unit)
        needed, told = more if outcome == "cannot tell" else (None, "")
        claim = check("value", outcome, reason + told, *test.numbers, needed, plain=NO_LOWER[outcome], unit=unit)
    return replace(claim, because=claim.because + _first_place(new, deployed, rules))


def _first_place(new: Evaluation, deployed: Evaluation | None, rules: GateRules) -> str:
    """Of a log of lists, the exact gain of the first place: a fact beside the list's value, which it is not."""
    if new.off_policy is None or "first place" not in new.off_policy.beside:
        return ""
    mine, base = (each.found for each in both_values(new, deployed, rules, "first place"))
    if mine is None or base is None:
        return ". Its first place cannot be estimated either"
    gap = mine - base
    low, high = skewed(gap, confidence=rules.confidence)
    return f". Beside it, its first place alone: {gap.mean:+.4f} ({low:+.4f} to {high:+.4f}), which decides nothing"


def baselines_by_value(
    new: Evaluation, deployed: Evaluation | None, baselines: list[Evaluation], rules: GateRules
) -> Claim:
    """No simple baseline earns significantly more, as the distribution it is served as.

    One whose value is refused neither blocks nor passes, and is named. One that is not told from the new policy does
    not block either: the question is whether to replace what is deployed.
    """
    if not baselines:
        return LEFT_OUT
    mine, base = (each.found for each in both_values(new, deployed, rules))
    values = {each.name: valued(each.off_policy, rules) for each in (new, *baselines)}
    known = {each.name: found for each in baselines if (found := values[each.name].found) is not None}
    refused = {name: each.refusal for name, each in values.items() if each.found is None}
    if mine is None or not known:
        unit = "decisions" if new.off_policy is None else new.off_policy.unit
        return check("baselines", "not judged", unjudged(too_little(refused)), plain=UNJUDGED, unit=unit)
    tests = value_tests({name: mine - theirs for name, theirs in known.items()}, rules.confidence)
    means = {name: found.mean for name, found in known.items()}
    best, reason = best_baseline("estimated J", mine.mean, means, tests)
    beside = f". Not judged: {too_little(refused)}" if refused else ""
    assert new.off_policy is not None
    numbers, unit = tests[best].numbers, new.off_policy.unit
    better = {name: test.difference for name, test in tests.items() if test.sign < 0}
    if better:
        name = min(better, key=lambda each: better[each])
        gains = base is not None and skewed(known[name] - base, confidence=rules.confidence).low > rules.min_gain
        because, plain = f"{reason}: {name} earns more{beside}", f"the simple baseline {name} earns more"
        return check("baselines", "no", because, *numbers, instead=name if gains else None, plain=plain, unit=unit)
    open_ones = [name for name, test in tests.items() if test.low <= 0]
    beaten = "it earns more than every simple baseline that can be judged"
    told = f": its reward is not significantly different from that of {', '.join(open_ones)}"
    plain = "no simple baseline earns significantly more" if open_ones else beaten
    because = reason + (told if open_ones else f": {beaten}") + beside
    return check("baselines", "yes", because, *numbers, plain=plain, unit=unit)
