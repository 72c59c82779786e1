"""A claim: its outcome in a word, as information, as inconclusive, and as JSON."""

from __future__ import annotations

import json
from html import unescape

import numpy as np
import pytest
from gate_examples import made

from localpolicy.judge.checks.gains import gain_check, too_few
from localpolicy.judge.checks.losses import coverage_check
from localpolicy.judge.claims import CHECKS, check
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate
from localpolicy.report.gate import gate_contents
from localpolicy.report.page import report_page


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
    told = {
        outcome: check("gain", outcome, "why", needed=400, plain="it gains").as_inconclusive("But", "who knows")
        for outcome in ("yes", "no", "cannot tell")
    }
    assert [each.outcome for each in told.values()] == ["cannot tell", "no", "cannot tell"]
    assert told["yes"].because == "why. But" and told["yes"].plain == "who knows", "not: cannot tell, since it gains"
    assert told["cannot tell"].needed is None and told["no"].plain == "it gains"


def test_too_few_sequences_say_how_many_positions_they_would_need():
    """3 sequences of 2 positions, 32 are needed: ⌈6 · 32 / 3⌉ positions."""
    clusters = np.repeat([0, 1, 2], 2)
    found = too_few(clusters, GateRules(min_sequences=32))
    assert found is not None and found[0] == 64 and "3 sequences are too few" in found[1]
    assert too_few(clusters, GateRules(min_sequences=3)) is None


def test_a_page_shows_every_check_and_which_were_not_asked():
    """Before: of nine checks three were on a page called "Every check"."""
    new, old = made("new", np.ones(4)), made("old", np.ones(4))
    asked = coverage_check(new, old, GateRules())
    gain = gain_check(new, old, "all.nDCG@20", GateRules()).as_fact("the value decides")
    page = report_page(gate_contents(Gate([asked, gain], new, old, GateRules(), "all.nDCG@20")))
    assert asked.because in unescape(page) and gain.because in unescape(page)
    assert page.count("</span> not asked</span>") == 1 and page.count('<li class="unasked">') == 1
    shown, folded = page.split("<summary>The reason of each check, and what was not asked</summary>")
    assert '<li class="unasked">' in folded.partition("</details>")[0]
    assert '<th scope="row">coverage</th>' in shown and '<th scope="row">gain</th>' not in shown
