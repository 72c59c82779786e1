"""Does the order of what people rated get worse?"""

from __future__ import annotations

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import unmeasured
from localpolicy.judge.claims import Claim, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import AGREEMENT, LIKED
from localpolicy.measure.significance import paired


def agreement_check(new: Evaluation, deployed: Evaluation, rules: GateRules) -> Claim:
    """Claim that the order of rated items does not agree significantly less with their ratings than before."""
    mine, old, clusters = new.values(AGREEMENT)[0], *deployed.values(AGREEMENT)
    if not len(mine):
        return check("agreement", "not asked", unmeasured(AGREEMENT), n=0)
    test = paired(mine, old, clusters, confidence=rules.confidence)
    if test.alike:
        reason = f"the two order rated items alike, {old.mean():.4f} of the pairs as the person did (n {test.n:,})"
        return check("agreement", "yes", reason, 0.0, n=test.n)
    reason = (
        f"pairs of rated items ordered as the person rated them: {old.mean():.4f} -> {mine.mean():.4f}, difference "
        f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}, n {test.n:,})"
    )
    plain = "it orders what people rated worse than before"
    return check("agreement", "no" if test.high < 0 else "yes", reason, *test.numbers, plain=plain)


def agreement(case: Case) -> list[Claim]:
    """Claims that rated items are ordered no worse than before; none if the log has no ratings."""
    if case.deployed is None or case.metric != LIKED:
        return []
    return [agreement_check(case.evaluation, case.deployed, case.rules)]
