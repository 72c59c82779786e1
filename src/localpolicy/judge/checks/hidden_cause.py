"""How strong must a hidden cause be to undo the gain? A figure for a person, never a threshold."""

from __future__ import annotations

import math

from localpolicy.judge.case import Case
from localpolicy.judge.claims import Claim, check
from localpolicy.measure.answers import Answers
from localpolicy.measure.sensitivity import STRONGEST, Sensitivity, sensitivity

ASSUMED = "each weight within [w/Γ, Γw]: the marginal sensitivity model"


def hidden_cause_check(found: Sensitivity, n: int) -> Claim:
    """Claim, for information, with Γ* of the gain and the Γ of the strongest cause that the log shows."""
    seen = "the log shows no cause to compare it with"
    if found.yardstick is not None:
        seen = f"leaving out {found.cause} amounts to {found.yardstick:.2f}"
    if found.strength <= 1:
        return check("hidden cause", "not asked", f"there is no significant gain to undo; {seen} ({ASSUMED})", 1.0, n=n)
    if math.isinf(found.strength):
        plain = f"no hidden cause that changes choices by a factor below {STRONGEST:g} undoes the gain ({seen})"
    else:
        plain = f"a hidden cause that changes choices by a factor of {found.strength:.2f} undoes the gain ({seen})"
    return check("hidden cause", "not asked", f"{plain} ({ASSUMED})", found.strength, n=n, plain=plain, unit="answers")


def of_answers(case: Case, new: Answers, old: Answers) -> list[Claim]:
    """Claim on the hidden cause that would undo a gain in reward per answer; none if that gain is not known."""
    if new.refusal or old.refusal or new.weight is None:
        return []
    choices = new.choices
    found = sensitivity(
        case.data, case.split, new.weight, choices.reward, choices.sequence, old.values,
        confidence=case.rules.confidence,
    )  # fmt: skip
    return [hidden_cause_check(found, len(choices.reward))]


def hidden_cause(case: Case) -> list[Claim]:
    """Claim on how strong a hidden cause must be to undo the gain in the reward per answer."""
    return of_answers(case, case.answers.new, case.answers.old)
