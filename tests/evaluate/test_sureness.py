"""What counts as sure: intervals, not means, corrected for how many tests were made. By hand, on a few positions."""

from __future__ import annotations

import numpy as np
import pytest
from measured import scores
from scipy import stats

from localpolicy.evaluation.compare import Comparison, leads
from localpolicy.evaluation.evaluation import Evaluation
from localpolicy.evaluation.gate import Check, GateRules, gain_check, segment_check, value_check
from localpolicy.evaluation.off_policy import OverlapRules, decisions, off_policy
from localpolicy.evaluation.summary import ranking

HIT, MISSED = 1.0, 9.0
EASY = OverlapRules(min_effective=1.0)


def measured(name: str = "policy", **columns: object) -> Evaluation:
    """An evaluation of these positions, each a sequence of its own."""
    made = scores(**columns)
    log = decisions(made)
    return Evaluation(
        name=name, metrics=ranking(made, ["HR@1"]), rewards={}, policy={}, divergence=None, scores=made,
        counts=np.ones(3), settings={}, off_policy=None if log is None else off_policy(log, rules=EASY),
    )  # fmt: skip


def hits(count: int, of: int) -> list[float]:
    return [HIT] * count + [MISSED] * (of - count)


def sure_of(wins: int, losses: int, of: int) -> float:
    """Two-sided p of a mean of so many +1, so many -1 and zeros for the rest."""
    gaps = [1.0] * wins + [-1.0] * losses + [0.0] * (of - wins - losses)
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def gain(better: list[float], worse: list[float], **rules: object) -> bool | None:
    new, old = measured(rank=better), measured(rank=worse)
    return gain_check(new, old, "all.HR@1", GateRules(**rules)).passed


def test_a_gain_that_could_be_chance_is_none():
    """4 won, 2 lost of 10: +0.2, and 95 % from -0.36 to +0.76."""
    better, worse = [HIT] * 4 + [MISSED] * 6, [MISSED] * 4 + [HIT] * 2 + [MISSED] * 4
    assert sure_of(4, 2, 10) > 0.05
    assert gain(better, worse) is False
    assert gain(better, worse, min_gain=-0.5) is True, "the lower end is above -0.5"


def test_the_lower_end_of_the_gain_must_reach_what_is_asked():
    """5 won of 10: +0.5, and 95 % from +0.12 to +0.88."""
    assert gain(hits(5, 10), hits(0, 10), min_gain=0.1) is True
    assert gain(hits(5, 10), hits(0, 10), min_gain=0.2) is False


def test_how_sure_a_gain_must_be_is_the_rules_to_say():
    """5 won of 10: p = 0.015."""
    assert 0.01 < sure_of(5, 0, 10) < 0.05
    assert gain(hits(5, 10), hits(0, 10), confidence=0.8) is True
    assert gain(hits(5, 10), hits(0, 10), confidence=0.99) is False


def value(wins: int, losses: int, *, confidence: float = 0.95, require: bool = False) -> bool | None:
    """The check of a policy whose estimated gain is +1 at `wins` of 10 decisions and -1 at `losses`."""
    gaps = np.array([1.0] * wins + [-1.0] * losses + [0.0] * (10 - wins - losses))
    taken = np.full(10, 2.0)
    judged = measured(rank=[HIT] * 10, propensity=np.ones(10), value_taken=taken, value_expected=taken + gaps)
    rules = GateRules(confidence=confidence, require_value_gain=require, overlap=EASY)
    return value_check(judged, rules).passed


@pytest.mark.parametrize(
    ("wins", "losses", "no_loss", "a_gain"),
    [(6, 0, True, True), (3, 1, True, False), (2, 2, True, False), (1, 3, True, False), (0, 6, False, False)],
)
def test_only_a_sure_loss_of_value_says_no_unless_a_sure_gain_is_asked(wins, losses, no_loss, a_gain):
    assert value(wins, losses) is no_loss
    assert value(wins, losses, require=True) is a_gain


def test_how_sure_a_loss_of_value_must_be_is_the_rules_to_say():
    """5 lost of 10: p = 0.015."""
    assert value(0, 5, confidence=0.95) is False
    assert value(0, 5, confidence=0.99) is True


def segment(lost: int) -> Check:
    """The check where so many of 10 positions are lost: one history, one item, all new, so the same 3 times."""
    new, old = (measured(rank=hits(count, 10), history=np.zeros(10)) for count in (0, lost))
    return segment_check(new, old, "all.HR@1", GateRules(min_segment=10))


def test_a_loss_that_one_of_three_segments_would_show_by_chance_is_let_pass():
    assert 0.05 / 3 < sure_of(4, 0, 10) < 0.05
    assert segment(4).passed is True and "none of 3 segments" in segment(4).reason
    assert sure_of(6, 0, 10) < 0.05 / 3
    assert segment(6).passed is False


def two_columns(name: str, clicks: int, purchases: int) -> Evaluation:
    """Hits at so many of 10 clicks and of 10 purchases."""
    return measured(name, rank=hits(clicks, 10) + hits(purchases, 10), event=[1] * 10 + [2] * 10)


COLUMNS = ["click.HR@1", "purchase.HR@1"]


def test_a_lead_is_corrected_for_the_columns():
    """Clicks: 4 won of 10, p = 0.037; purchases: 1 of 10."""
    found = leads([two_columns("a", 4, 1), two_columns("b", 0, 0)], COLUMNS)
    alone = sure_of(4, 0, 10)
    assert 0.05 / 2 < alone < 0.05
    assert found["click.HR@1"].test.p == pytest.approx(alone)
    assert found["click.HR@1"].holm_p == pytest.approx(2 * alone)
    assert found["purchase.HR@1"].holm_p == pytest.approx(sure_of(1, 0, 10))
    assert found["click.HR@1"].stars == ""


def test_a_gain_over_the_baseline_is_corrected_for_every_policy_and_column():
    evaluations = [two_columns("base", 0, 0), two_columns("a", 6, 4), two_columns("b", 5, 1)]
    found = Comparison(evaluations, COLUMNS, [], data=None, candidates=[], references=[]).against("base")
    corrected = {(name, column): p for name, tests in found.items() for column, (_, p) in tests.items()}
    assert corrected == {
        ("a", "click.HR@1"): pytest.approx(4 * sure_of(6, 0, 10)),
        ("b", "click.HR@1"): pytest.approx(3 * sure_of(5, 0, 10)),
        ("a", "purchase.HR@1"): pytest.approx(2 * sure_of(4, 0, 10)),
        ("b", "purchase.HR@1"): pytest.approx(sure_of(1, 0, 10)),
    }
