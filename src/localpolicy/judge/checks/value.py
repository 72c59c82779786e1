"""Does it earn more, by the log's own propensities?

What is compared is what each earns: per decision, or per whole list where the log has lists (see
`measure.decisions`). Where a value is refused nothing stands in for it: neither ranks, nor the log's own mean, nor
the value of a first place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import gain_claim, would_tell
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import CASCADE, Estimand
from localpolicy.measure.estimators import Contributions, contributions, logged, skewed
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import Key, Paired, holm_steps
from localpolicy.measure.value import OffPolicy

NO_PROPENSITIES, UNKNOWN = "the log has no propensities", "its reward cannot be estimated from this log"
REWARD = "its estimated reward"
HIGHER = {  # by outcome, if the value decides
    "yes": f"{REWARD} is higher", "no": f"{REWARD} is no higher", "lower": f"{REWARD} is lower",
    "cannot tell": f"{REWARD} is not significantly higher",
}  # fmt: skip
NO_LOWER = {"yes": f"{REWARD} is no lower", "no": f"{REWARD} is lower", "cannot tell": f"{REWARD} may be lower"}


class Valued(NamedTuple):
    """Contributions to a policy's estimated value, or the reason why it cannot be estimated."""

    found: Contributions | None
    refusal: str = ""
    needed: int | None = None  # decisions, or lists, with which there might be one


def valued(value: OffPolicy | None, rules: GateRules) -> Valued:
    """Value of a policy, or the refusal if overlap with the log is too small."""
    if value is None:
        return Valued(None, NO_PROPENSITIES)
    if value.refusal is not None:
        return Valued(None, value.refusal, value.overlap.needed)
    return Valued(contributions(value.log, rules.estimator))


def too_little(refusals: Mapping[str, str]) -> str:
    """Text that names the policies without a value, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, refusal in refusals.items():
        by_reason.setdefault(refusal, []).append(name)
    said = (f"{', '.join(names)} ({refusal})" for refusal, names in by_reason.items())
    return f"the log says too little of {', and of '.join(said)}"


def both_values(
    new: Evaluation, deployed: Evaluation | None, rules: GateRules, estimand: Estimand | None = None
) -> tuple[Valued, Valued]:
    """Values of the new and the deployed policy on the same decisions; for the log itself its own mean reward.

    An `estimand` names another question than the log's own.
    """
    found = [None if each is None else each.off_policy for each in (new, deployed)]
    if estimand is not None:
        found = [None if value is None else value.beside.get(estimand) for value in found]
    mine, theirs = found
    return valued(mine, rules), Valued(logged(mine.log)) if mine and deployed is None else valued(theirs, rules)


def value_tests(gaps: Mapping[Key, Contributions], confidence: float) -> dict[Key, Paired]:
    """Test of each difference in value, Holm-corrected over all; intervals allow for skewness, without p-values."""
    clear = {name: abs(gap.mean) / (gap.se or math.inf) for name, gap in gaps.items()}
    bounds = holm_steps(clear, lambda name, each: skewed(gaps[name], confidence=each), confidence)
    none = math.nan
    return {name: Paired(gap.mean, gap.se, *bounds[name], none, none, gap.n, none) for name, gap in gaps.items()}


def value_check(new: Evaluation, deployed: Evaluation | None, rules: GateRules, *, decides: bool = True) -> Claim:
    """Claim that the estimated gain in reward is significant; without `decides`, that it is no significant loss.

    Paired: what luck gave the log it gave both.
    """
    (mine, base), value = both_values(new, deployed, rules), new.off_policy
    if value is None:
        outcome: Outcome = "cannot tell" if decides else "not asked"
        return check("value", outcome, NO_PROPENSITIES, plain=UNKNOWN, unit="decisions")
    count, unit = value.overlap.n, value.unit
    if mine.found is None:
        reason = f"no estimate of {new.name}: {mine.refusal}{_others(new, deployed, rules)}"
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
    return replace(claim, because=claim.because + _others(new, deployed, rules))


OTHERS: dict[Estimand, tuple[str, str]] = {  # texts for information, with and without an estimate
    CASCADE: ("The whole list, if no reward depends on the items below, which this log does not refute", ""),
    "first place": ("Its first place alone", ". Its first place cannot be estimated"),
}


def _others(new: Evaluation, deployed: Evaluation | None, rules: GateRules) -> str:
    """Text on gains of lists by other questions, for information; empty if there are none."""
    said = ""
    for estimand, (what, otherwise) in OTHERS.items():
        if new.off_policy is not None and estimand in new.off_policy.beside:
            mine, base = (each.found for each in both_values(new, deployed, rules, estimand))
            gap = None if mine is None or base is None else mine - base
            low, high = (math.nan, math.nan) if gap is None else skewed(gap, confidence=rules.confidence)
            known = f". {what}: {gap.mean:+.4f} ({low:+.4f} to {high:+.4f}), which decides nothing" if gap else ""
            said += known or otherwise
    return said


def gain_in_value(case: Case) -> list[Claim]:
    """Claims that the new policy's estimated value is significantly higher."""
    return [value_check(case.evaluation, case.deployed, case.rules)]


def no_lower_value(case: Case) -> list[Claim]:
    """Claim that the new policy earns not significantly less, if another check decides; none against the log itself."""
    return [] if case.deployed is None else [value_check(case.evaluation, case.deployed, case.rules, decides=False)]
