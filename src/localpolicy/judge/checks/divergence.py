"""How far does it move from the log, and is that within the budget?"""

from __future__ import annotations

from dataclasses import astuple

from localpolicy.errors import ConfigError
from localpolicy.judge.case import Case
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.divergence import Divergence, two_digits
from localpolicy.measure.estimate import Interval


def divergence_checks(divergence: Divergence | None, rules: GateRules) -> list[Claim]:
    """Claims that JS is within its budget and a multiple of the floor; ConfigError for a budget below the floor."""
    if divergence is None:
        reason = "no reference estimates the logging policy: give an mle run with --against"
        plain = "its distance from the log is not known"
        return [check("divergence", "cannot tell" if rules.bounds_distance else "not asked", reason, plain=plain)]
    js, budget, most = divergence.js.overall, rules.max_js, rules.max_floor_ratio
    floor = None if divergence.floor_js is None else divergence.floor_js.overall.mean
    noise = "" if floor is None else two_digits(floor)
    beside = f"floor {noise}" if noise else "noise floor not known (give a second reference of another seed)"
    names = ", ".join(reference.name for reference in divergence.references)
    if budget is not None and floor is not None and budget < floor:
        raise ConfigError(
            f"max_js: a budget of {budget:g} is below the noise floor ({noise} between {names}): a retrained "
            "copy of the deployed policy would fail it. Raise the budget."
        )
    _, low, high = astuple(Interval.from_estimate(js, confidence=rules.confidence))
    outcome: Outcome = "not asked"
    if budget is not None:
        outcome = "yes" if high <= budget else "no" if low > budget else "cannot tell"
    reason = (
        f"JS {js.mean:.4f} ({low:.4f} to {high:.4f}, n {js.n:,}) from {names}; {beside}; "
        f"{'no budget set (max_js)' if budget is None else f'budget {budget:g}'}"
    )
    plain = f"it {'moves' if outcome == 'no' else 'may move'} further from the log than the budget allows"
    checks = [check("divergence", outcome, reason, js.mean, low, high, js.n, plain=plain)]
    if most is not None and (ratio := divergence.above_floor) is None:
        reason, plain = f"{beside}, and max_floor_ratio asks for it", "the noise floor is not known"
        checks.append(check("divergence over floor", "cannot tell", reason, plain=plain))
    elif most is not None and ratio is not None:
        reason = f"{ratio:.1f} times the floor; at most {most:g}"
        plain = f"it moves {ratio:.1f} times as far from the log as noise does"
        within: Outcome = "yes" if ratio <= most else "no"
        checks.append(check("divergence over floor", within, reason, ratio, n=js.n, plain=plain))
    return checks


def within_budget(case: Case) -> list[Claim]:
    """Claims that the divergence from the estimates of the log stays within the rules' budgets."""
    return divergence_checks(case.evaluation.divergence, case.rules)
