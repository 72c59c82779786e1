"""Does any segment of the people or items lose?"""

from __future__ import annotations

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import no_loss
from localpolicy.judge.claims import Claim
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.summary import segments


def segment_check(new: Evaluation, deployed: Evaluation, name: str, rules: GateRules) -> Claim:
    """No segment loses significantly more than allowed, Holm-corrected over the segments."""
    parts = segments(new.scores, new.counts, new.known)
    every = {label: (new.values(name, here)[0], *deployed.values(name, here)) for label, here in parts.items()}
    values = {label: each for label, each in every.items() if len(each[0]) >= rules.min_segment}
    nothing = f"no segment has {rules.min_segment} positions"
    return no_loss("segments", values, rules.max_segment_loss, rules, nothing=nothing)


def no_segment_loses(case: Case) -> list[Claim]:
    """No loss in a segment."""
    if case.deployed is None:
        return []
    return [segment_check(case.evaluation, case.deployed, case.metric, case.rules)]
