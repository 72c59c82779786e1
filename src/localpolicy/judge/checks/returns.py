"""Does a visit earn more, where what is shown now changes what comes later? Of logs with propensities.

The value per decision is that of the next reward. Where the log shows that the item drawn now changes what its visit
earns later (`measure.later`), or where the new policy's own choices do, the return decides in its place: of whole
visits if the log covers them, else of as many items in a row as it covers (`measure.returns`). Such a deviation is a
gain to first order, so nothing is recommended by it where what these items earn and the return point in different
directions.
"""

from __future__ import annotations

from dataclasses import replace

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import gain_claim
from localpolicy.judge.checks.value import UNKNOWN, gain_in_value, value_tests
from localpolicy.judge.claims import Claim, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.later import Returns

EARNS = "what a visit earns"
HIGHER = {
    "yes": f"{EARNS} is higher", "no": f"{EARNS} is no higher", "lower": f"{EARNS} is lower",
    "cannot tell": f"{EARNS} is not significantly higher",
}  # fmt: skip
DECIDES = "the return decides: what is shown now changes what the visit earns later"
APART = "what it earns at once and what a visit earns point in different directions"


def return_check(found: Returns, rules: GateRules) -> Claim:
    """Claim that the gain in return is significant."""
    gain, unit = found.gain.gain, found.gain.unit
    asked, steps, each = "a whole visit", found.gain.steps, ""
    if found.gain.asked == "deviation":
        asked = f"{'one deviation' if steps == 1 else f'{steps} items in a row'}, all later items left to the log"
        each = " an item"
    if found.gain.refusal is not None:
        reason = f"no estimate of the return of {asked}: {found.gain.refusal}"
        return check("return", "cannot tell", reason, n=gain.n, plain=UNKNOWN.replace("reward", "return"), unit=unit)
    test = value_tests({"": gain}, rules.confidence)[""]
    reason = (
        f"what is shown now changes what comes later (t {found.later.t:.1f} in the log, {found.own:+.1f} by its own "
        f"choices), so what counts is the return of {asked}: gain {gain.mean:+.4f}{each}, "
        f"{rules.confidence:.0%} interval {test.low:+.4f} to {test.high:+.4f} "
        f"({gain.n:,} {unit}, effective sample {found.gain.overlap.effective:,.0f})"
    )
    return gain_claim("return", test, found.base, reason, HIGHER, rules, unit=unit)


def by_return(value: Claim, found: Returns | None, rules: GateRules) -> list[Claim]:
    """The claim on the value; preceded by the claim on the return if what is shown now changes later rewards."""
    if found is None or not found.decides:
        return [value]
    decides, steps = return_check(found, rules), found.gain.steps
    at_once = value.value if steps == 1 else found.gain.within
    if decides.holds and found.gain.asked == "deviation" and (at_once is None or at_once <= 0):
        beside = "unknown" if at_once is None else f"{at_once:+.4f}"
        because = f"{decides.because}. {'The next reward' if steps == 1 else 'What these items earn'} alone: {beside}"
        decides = replace(decides, holds=None, because=because, plain=APART, needed=None)
    return [decides, value.as_fact(DECIDES)]


def gain_in_reward(case: Case) -> list[Claim]:
    """Claims that the new policy earns significantly more: per decision, or per visit if later rewards change."""
    value, *others = gain_in_value(case)
    return [*by_return(value, case.returns, case.rules), *others]
