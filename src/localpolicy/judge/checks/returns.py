"""Does a visit earn more, where what is shown now changes what comes later? Of logs with propensities.

The value per decision is that of the next reward. Where the log shows that the item drawn now changes what its visit
earns later (`measure.later`), or where the new policy's own choices do, the return decides in its place: of whole
visits if the log covers them, else of one deviation (`measure.returns`). One deviation is a gain to first order, so
nothing is recommended by it where the next reward and the return point in different directions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import gain_claim
from localpolicy.judge.checks.value import UNKNOWN, gain_in_value, value_tests
from localpolicy.judge.claims import Claim, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.estimate import clustered_se, sequences_of, t_reach
from localpolicy.measure.later import Later, later_in
from localpolicy.measure.returns import ReturnGain, ReturnModel, Visits, read_visits, return_gain
from localpolicy.measure.summary import Scores

EARNS = "what a visit earns"
HIGHER = {
    "yes": f"{EARNS} is higher", "no": f"{EARNS} is no higher", "lower": f"{EARNS} is lower",
    "cannot tell": f"{EARNS} is not significantly higher",
}  # fmt: skip
DECIDES = "the return decides: what is shown now changes what the visit earns later"
APART = "what it earns at once and what a visit earns point in different directions"


class Returns(NamedTuple):
    """What the log says of visits: the gain in their return, and whether what is shown now matters later."""

    gain: ReturnGain
    base: float  # what a visit, or a decision of one, earned by the log
    later: Later
    own: float  # by how much the new policy's choices change later rewards, in standard errors
    reach: float  # of these, from where on they matter

    @property
    def decides(self) -> bool:
        """Whether the next reward alone is not what is asked."""
        return self.later.matters or abs(self.own) > self.reach


def returns_of(
    new: Scores, old: Scores | None, known: Visits, later: Later, *, n_items: int, rules: GateRules
) -> Returns | None:
    """The gain in return over the old policy, or over the log; None if visits have one decision, or μ is unknown.

    Q̂ is fitted on the `known` visits, which are others than those that were scored.
    """
    read = read_visits(new)
    if read is None or not (read[0].step > 0).any():
        return None
    (visits, weight), beside = read, None if old is None else read_visits(old)
    base = np.ones(len(weight)) if beside is None else beside[1]
    model = ReturnModel.fit(known, gamma=1.0, n_items=n_items)
    gain = return_gain(visits, weight, None if beside is None else base, model, rules=rules.refusals)
    here = visits.known(weight + base)
    visits, moved = visits.at(here), (weight - base)[here]
    rest = visits.returns(1.0) - visits.reward
    changed = moved * (rest - model.context(visits) + visits.reward.mean())
    se, count = clustered_se(changed, visits.sequence), sequences_of(visits.sequence)
    own = float(changed.mean()) / se if se > 0 else 0.0
    reach = t_reach(count - 1, rules.confidence) if count > 1 else np.inf
    earned = gain.old.mean if gain.asked == "visit" else float(visits.reward.mean())
    return Returns(gain, earned, later, own, reach)


def return_check(found: Returns, rules: GateRules) -> Claim:
    """The gain in return is significant."""
    gain, unit = found.gain.gain, found.gain.unit
    asked = "a whole visit" if found.gain.asked == "visit" else "one deviation, all later items left to the log"
    if found.gain.refusal is not None:
        reason = f"no estimate of the return of {asked}: {found.gain.refusal}"
        return check("return", "cannot tell", reason, n=gain.n, plain=UNKNOWN.replace("reward", "return"), unit=unit)
    test = value_tests({"": gain}, rules.confidence)[""]
    reason = (
        f"what is shown now changes what comes later (t {found.later.t:.1f} in the log, {found.own:+.1f} by its own "
        f"choices), so what counts is the return of {asked}: gain {gain.mean:+.4f}, {rules.confidence:.0%} interval "
        f"{test.low:+.4f} to {test.high:+.4f} ({gain.n:,} {unit}, effective sample {found.gain.overlap.effective:,.0f})"
    )
    return gain_claim("return", test, found.base, reason, HIGHER, rules, unit=unit)


def by_return(value: Claim, found: Returns | None, rules: GateRules) -> list[Claim]:
    """The claim on the value, or that on the return before it if the future matters."""
    if found is None or not found.decides:
        return [value]
    decides, at_once = return_check(found, rules), value.value
    if decides.holds and found.gain.asked == "deviation" and (at_once is None or at_once <= 0):
        beside = "unknown" if at_once is None else f"{at_once:+.4f}"
        because = f"{decides.because}. The next reward alone: {beside}"
        decides = replace(decides, holds=None, because=because, plain=APART, needed=None)
    return [decides, value.as_fact(DECIDES)]


def gain_in_reward(case: Case) -> list[Claim]:
    """It earns significantly more: by decision, or by visit where the future matters."""
    value, *others = gain_in_value(case)
    old = None if case.deployed is None else case.deployed.scores
    if case.evaluation.scores.propensity is None:
        return [value, *others]
    known = Visits.of_split(case.data, "train")
    found = returns_of(
        case.evaluation.scores, old, known, later_in(case.data), n_items=case.data.n_items, rules=case.rules
    )
    return [*by_return(value, found, case.rules), *others]
