"""Does what an answer would earn fall, where another figure decides? Nothing is recommended if the two disagree.

A figure such as liked@1 is of the item that is ranked first among those that a person rated. A policy can raise it by
ranking few dear items first for everybody. The reward per answer (`measure.answers`) is of all that it would show.
"""

from __future__ import annotations

from localpolicy.judge.case import Case
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.answers import Answers
from localpolicy.measure.significance import paired

UNKNOWN = "what an answer would earn is not known"
FALLS = "the figure that decides rises, but what an answer would earn falls"


def direction_check(new: Answers, old: Answers, rules: GateRules) -> Claim:
    """Claim that the reward per answer is not significantly lower than before."""
    if refusal := new.refusal or old.refusal:
        return check("direction", "not judged", f"{UNKNOWN}: {refusal}", plain=UNKNOWN, unit="answers")
    test = paired(new.values, old.values, new.choices.sequence, confidence=rules.confidence)
    outcome: Outcome = "cannot tell" if test.high < 0 else "yes"
    reason = (
        f"reward per answer {old.mean:.4f} -> {new.mean:.4f} by weights π/μ̂: {test.difference:+.4f} "
        f"({test.low:+.4f} to {test.high:+.4f}, n {test.n:,})"
    )
    return check("direction", outcome, reason, *test.numbers, plain=FALLS, unit="answers")


def no_lower_reward(case: Case) -> list[Claim]:
    """Claim on the reward per answer, if another metric decides."""
    return [] if case.old is None else [direction_check(case.answers.new, case.answers.old, case.rules)]
