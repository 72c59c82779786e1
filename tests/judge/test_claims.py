"""A claim: what came of it in a word, as a fact, in doubt, and for machines."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gate_examples import made

from localpolicy.judge.claims import CHECKS, Claim, Gate, check
from localpolicy.judge.gate import GateRules
from localpolicy.judge.gate_ranks import coverage_check, too_few
from localpolicy.report.gate import gate_claims


@pytest.mark.parametrize(
    ("outcome", "holds", "asked"),
    [("yes", True, True), ("no", False, True), ("cannot tell", None, True), ("not asked", None, False)],
)
def test_an_outcome_is_whether_it_holds_and_whether_it_was_asked(outcome, holds, asked):
    claim = check("gain", outcome, "why", 0.1, 0.05, float("inf"), 300)
    assert (claim.holds, claim.asked, claim.outcome) == (holds, asked, outcome)
    assert (claim.rule, claim.claim) == CHECKS["gain"]
    said = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
    assert (said["outcome"], said["holds"], said["n"], said["high"]) == (outcome, holds, 300, None)


def test_a_fact_refuses_nothing_and_names_nothing_to_do():
    fact = check("baselines", "no", "it is worse", needed=400, instead="item-kNN").as_fact("the value decides")
    assert fact.as_fact("the time was over") == fact, "one reason is enough"
    assert fact.outcome == "not asked" and fact.needed is None and fact.instead is None
    assert fact.because == "not asked, since the value decides: it is worse"


def test_doubt_takes_a_yes_away_and_leaves_a_no():
    told = {outcome: check("gain", outcome, "why").in_doubt("But").outcome for outcome in ("yes", "no", "cannot tell")}
    assert told == {"yes": "cannot tell", "no": "no", "cannot tell": "cannot tell"}
    assert check("gain", "yes", "why").in_doubt("But").because == "why. But"


def test_too_few_sequences_say_how_many_positions_they_would_need():
    """3 sequences of 2 positions, 32 are needed: ⌈6 · 32 / 3⌉ positions."""
    clusters = np.repeat([0, 1, 2], 2)
    found = too_few(clusters, GateRules(min_sequences=32))
    assert found is not None and found[0] == 64 and "3 sequences are too few" in found[1]
    assert too_few(clusters, GateRules(min_sequences=3)) is None


def test_a_page_shows_the_very_checks_that_were_asked():
    new, old = made("new", np.ones(4)), made("old", np.ones(4))
    asked = coverage_check(new, old, GateRules())
    fact = Claim("JS", "a rule", None, "it stays near", "", asked=False)
    assert gate_claims(Gate([asked, fact], new, old, GateRules())) == [asked] and asked.value == 1.0
