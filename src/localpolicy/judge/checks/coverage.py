"""Do its lists still reach enough of the catalogue?"""

from __future__ import annotations

import numpy as np

from localpolicy.judge.case import Case
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluation import Evaluation


def coverage_check(new: Evaluation, deployed: Evaluation, rules: GateRules) -> Claim:
    """Claim that the lists reach a fair share of the items that the deployed policy's lists reach (no collapse)."""
    name = f"coverage@{new.settings['lists']}"
    mine, old = new.coverage, deployed.coverage
    ratio = mine / old if old > 0 else np.inf
    reason = (
        f"{name} {old:.3f} -> {mine:.3f}: {ratio:.2f} of the deployed policy's; at least {rules.min_coverage_ratio:g}"
    )
    outcome: Outcome = "yes" if ratio >= rules.min_coverage_ratio else "no"
    plain = f"its lists reach {ratio:.0%} of the items that the deployed policy's lists reach"
    return check("coverage", outcome, reason, float(ratio), n=len(new.scores), plain=plain)


def lists_reach_enough(case: Case) -> list[Claim]:
    """Coverage check against the lists of the deployed policy; none if that is the log itself."""
    return [] if case.deployed is None else [coverage_check(case.evaluation, case.deployed, case.rules)]
