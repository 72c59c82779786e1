"""What counts as sure: intervals, not means, corrected for how many tests were made. By hand, on a few positions."""

from __future__ import annotations

import numpy as np
import pytest
from measured import scores
from scipy import stats

from localpolicy.judge.checks.gains import gain_check
from localpolicy.judge.checks.losses import segment_check
from localpolicy.judge.checks.value import value_check
from localpolicy.judge.claims import Claim
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.harness import Pair
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import OverlapRules, decisions
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import ranking
from localpolicy.measure.significance import column_leads
from localpolicy.measure.value import value_of

HIT, MISSED = 1.0, 9.0
EASY = OverlapRules(min_effective=1.0, min_rewarded=0)


def measured(name: str = "policy", **columns: object) -> Evaluation:
    """An evaluation of these positions, each a sequence of its own."""
    made = scores(**columns)
    log = decisions(made)
    return Evaluation(
        name=name, figures=ranking(made, ["HR@1"]), divergence=None, scores=made,
        counts=np.ones(3), settings={}, off_policy=None if log is None else value_of(log, rules=EASY),
    )  # fmt: skip


def hits(count: int, of: int) -> list[float]:
    return [HIT] * count + [MISSED] * (of - count)


def sure_of(wins: int, losses: int, of: int) -> float:
    """Two-sided p of a mean of `wins` +1, `losses` -1 and zeros for the rest."""
    gaps = [1.0] * wins + [-1.0] * losses + [0.0] * (of - wins - losses)
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def gain(better: list[float], worse: list[float], **rules: object) -> str:
    new, old = measured(rank=better), measured(rank=worse)
    return gain_check(new, old, "all.HR@1", GateRules(min_sequences=2, **rules)).outcome


def test_a_gain_that_could_be_chance_is_none():
    """4 won, 2 lost of 10: +0.2, and 95 % from -0.36 to +0.76."""
    better, worse = [HIT] * 4 + [MISSED] * 6, [MISSED] * 4 + [HIT] * 2 + [MISSED] * 4
    assert sure_of(4, 2, 10) > 0.05
    assert gain(better, worse) == "cannot tell"
    assert gain(better, worse, min_gain=-0.5) == "yes", "the lower end is above -0.5"
    assert gain(better, worse, min_gain=0.8) == "no", "the upper end is below 0.8"


def test_the_lower_end_of_the_gain_must_reach_what_is_asked():
    """5 won of 10: +0.5, and 95 % from +0.12 to +0.88."""
    assert gain(hits(5, 10), hits(0, 10), min_gain=0.1) == "yes"
    assert gain(hits(5, 10), hits(0, 10), min_gain=0.2) == "cannot tell"


def test_how_sure_a_gain_must_be_is_the_rules_to_say():
    """5 won of 10: p = 0.015."""
    assert 0.01 < sure_of(5, 0, 10) < 0.05
    assert gain(hits(5, 10), hits(0, 10), confidence=0.8) == "yes"
    assert gain(hits(5, 10), hits(0, 10), confidence=0.99) == "cannot tell"


def value(wins: int, losses: int, *, confidence: float = 0.95, decides: bool = True) -> str:
    """The check of a policy whose estimated gain is +1 at `wins` of 10 decisions and -1 at `losses`."""
    gaps = np.array([1.0] * wins + [-1.0] * losses + [0.0] * (10 - wins - losses))
    taken = np.full(10, 2.0)
    judged = measured(rank=[HIT] * 10, propensity=np.ones(10), value_taken=taken, value_expected=taken + gaps)
    rules = GateRules(confidence=confidence, overlap=EASY, estimator="dr")
    return value_check(judged, None, rules, decides=decides).outcome


@pytest.mark.parametrize(
    ("wins", "losses", "outcome"),
    [(6, 0, "yes"), (3, 1, "cannot tell"), (2, 2, "cannot tell"), (1, 3, "cannot tell"), (0, 6, "no")],
)
def test_a_value_that_could_be_lower_by_chance_is_inconclusive(wins, losses, outcome):
    """The log earned nothing here, so that the margin, a share of it, is 0 too."""
    assert value(wins, losses) == outcome
    assert value(wins, losses, decides=False) == outcome


def test_how_sure_a_loss_of_value_must_be_is_the_rules_to_say():
    """5 lost of 10: p = 0.015."""
    assert value(0, 5, confidence=0.95) == "no"
    assert value(0, 5, confidence=0.99) == "cannot tell"


def segment(lost: int) -> Claim:
    """The check where `lost` of 10 positions are lost: one history, one item, all new, so the same 3 times."""
    new, old = (measured(rank=hits(count, 10), history=np.zeros(10)) for count in (0, lost))
    return segment_check(new, old, "all.HR@1", GateRules(min_segment=10))


def test_a_loss_that_one_of_three_segments_would_show_by_chance_is_let_pass():
    assert 0.05 / 3 < sure_of(4, 0, 10) < 0.05
    assert segment(4).holds is True and "none of 3 loses significantly" in segment(4).because
    assert sure_of(6, 0, 10) < 0.05 / 3
    assert segment(6).holds is False


def two_columns(name: str, clicks: int, purchases: int) -> Evaluation:
    """Hits at `clicks` of 10 clicks and at `purchases` of 10 purchases."""
    return measured(name, rank=hits(clicks, 10) + hits(purchases, 10), event=[1] * 10 + [2] * 10)


COLUMNS = ["click.HR@1", "purchase.HR@1"]


def test_a_lead_is_corrected_for_the_columns():
    """Clicks: 4 won of 10, p = 0.037; purchases: 1 of 10."""
    found = column_leads([two_columns("a", 4, 1), two_columns("b", 0, 0)], COLUMNS)
    alone = sure_of(4, 0, 10)
    assert 0.05 / 2 < alone < 0.05
    assert found["click.HR@1"].test.p == pytest.approx(alone)
    assert found["click.HR@1"].test.holm_p == pytest.approx(2 * alone)
    assert found["purchase.HR@1"].test.holm_p == pytest.approx(sure_of(1, 0, 10))
    assert found["click.HR@1"].test.stars == "" and found["click.HR@1"].test.low < 0


def test_a_gain_over_the_baseline_is_corrected_for_every_policy_and_column():
    evaluations = [two_columns("base", 0, 0), two_columns("a", 6, 4), two_columns("b", 5, 1)]
    pairs = {each.name: Pair(each, evaluations[0]) for each in evaluations[1:]}
    found = Comparison(evaluations, COLUMNS, [], None, [], [], "base", pairs).gains
    corrected = {(name, figure): one.holm_p for name, gains in found.items() for figure, one in gains.items()}
    # Six tests: these, and in each column the lead of a over b.
    assert corrected == {
        ("a", "click.HR@1"): pytest.approx(6 * sure_of(6, 0, 10)),
        ("b", "click.HR@1"): pytest.approx(5 * sure_of(5, 0, 10)),
        ("a", "purchase.HR@1"): pytest.approx(4 * sure_of(4, 0, 10)),
        ("b", "purchase.HR@1"): pytest.approx(2 * sure_of(1, 0, 10)),
    }
