"""How many positions are enough: the least number, what would tell, and which events a selection hears."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from gate_examples import made, valued
from small_logs import write_small

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.judge.checks import gains, value
from localpolicy.judge.checks.gains import gain_check
from localpolicy.judge.checks.losses import no_loss
from localpolicy.judge.checks.value import value_check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.estimate import ENOUGH, LEAST, mean_estimate, more_needed, sample_needed, wilson
from localpolicy.measure.number_text import interval_text
from localpolicy.measure.significance import Paired, paired
from localpolicy.objectives import objective_of
from localpolicy.training.selection import events_left_out, rule


def test_the_least_number_of_sequences_is_a_power_calculation():
    """By simulation: with that many a difference of 0.2 standard deviations is found four times in five."""
    assert sample_needed() == ENOUGH == math.ceil(((1.959964 + 0.841621) / 0.2) ** 2)
    assert LEAST == math.ceil(((1.959964 + 0.841621) / 0.5) ** 2) == 32
    draws = np.random.default_rng(0).normal(0.2, 1.0, (4000, ENOUGH))
    reach = 1.972 * draws.std(1, ddof=1) / math.sqrt(ENOUGH)
    assert (draws.mean(1) - reach > 0).mean() == pytest.approx(0.8, abs=0.025)


def test_what_would_tell_is_computed_from_the_spread_seen():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.1, 1, 400), np.zeros(400)
    test = paired(first, second, np.arange(400))
    assert more_needed(test, 0.1, confidence=0.95) == pytest.approx(sample_needed(0.1), rel=0.2)
    assert more_needed(test, 0.0, confidence=0.95) is None


def test_a_stricter_gate_asks_for_more_rows():
    """(z_{.995} + z_{.8})² / (z_{.975} + z_{.8})² = 1.49 times as many at 99 % as at 95 %."""
    new, old = made("new", np.tile([2.0, 6.0], 20)), made("old", np.tile([3.0, 4.0], 20))
    needed = {level: gain_check(new, old, "all.nDCG@20", GateRules(confidence=level)).needed for level in (0.95, 0.99)}
    assert needed[0.99] == pytest.approx(1.49 * needed[0.95], rel=0.01)


@pytest.mark.parametrize("shift", [0.13, 0.4])
def test_the_interval_of_a_loss_that_is_none_holds_0(shift):
    """Of several comparisons one falls by chance: the interval that is shown is one of several, as the verdict is."""
    rng = np.random.default_rng(3)
    clusters = np.arange(300)
    values = {f"segment {n}": (rng.normal(0, 1, 300), np.zeros(300), clusters) for n in range(40)}
    values["worst"] = (rng.normal(0, 1, 300) - shift, np.zeros(300), clusters)
    check = no_loss("segments", values, 0.0, GateRules(), nothing="")
    assert (check.outcome == "yes") == (shift == 0.13) == (check.high > 0)
    generous = no_loss("segments", values, 0.5, GateRules(), nothing="")
    assert generous.outcome == "yes" and generous.value == pytest.approx(check.value), "what is lost, not what is left"
    assert generous.low < generous.value < generous.high < 0.5


def test_no_more_is_asked_for_than_there_is(monkeypatch):
    """Where as many positions as there are should have sufficed, no number is named."""
    rank = np.concatenate([np.full(200, 3.0), np.full(200, 5.0)])
    new, old = made("new", rank[::-1].copy()), made("old", rank)
    monkeypatch.setattr(gains, "more_needed", lambda test, gain, confidence: test.n - 1)
    check = gain_check(new, old, "all.nDCG@20", GateRules())
    assert check.outcome == "cannot tell" and check.needed is None and "would tell" not in check.because
    monkeypatch.setattr(gains, "more_needed", lambda test, gain, confidence: test.n + 1)
    assert gain_check(new, old, "all.nDCG@20", GateRules()).needed == 401


def test_no_more_decisions_are_asked_for_than_there_are(monkeypatch):
    """The interval that decides allows for skewness, the count does not: it once named fewer than there were."""
    rng = np.random.default_rng(0)
    reward, weight = (rng.random(400) < 0.3).astype(float), np.where(np.arange(400) % 2, 0.8, 1.2)
    new = valued("new", weight / weight.mean(), reward)
    for more, needed in ((-1, None), (1, 401)):
        monkeypatch.setattr(gains, "more_needed", lambda found, gain, confidence, more=more: found.n + more)
        found = value_check(new, None, GateRules(smallest_gain=0.0))
        assert (found.outcome, found.needed) == ("cannot tell", needed)
        assert ("401 decisions would tell" in found.because) == (more == 1)
    asked = []
    monkeypatch.setattr(gains, "more_needed", lambda found, gain, confidence: asked.append(gain))
    beside = value_check(new, None, GateRules(value_margin=0.01), decides=False)
    assert beside.outcome == "cannot tell" and asked == [pytest.approx(beside.value + 0.01 * reward.mean())]


@pytest.mark.parametrize(("difference", "beyond"), [(0.02, 0.02), (-0.01, 0.1 * 0.5)])
def test_what_would_tell_is_beyond_what_is_asked_and_what_is_unknown(monkeypatch, difference, beyond):
    """The gain seen, or the smallest worth having where that is more: less `min_gain`, less what no log can know."""
    asked = []
    monkeypatch.setattr(gains, "more_needed", lambda found, gain, confidence: asked.append(gain))
    test = Paired(difference, 0.03, -0.07, 0.08, p=0.5, plain_p=0.5, n=100, holm_p=0.5)
    rules = GateRules(min_gain=0.005, smallest_gain=0.1 if difference < 0 else 0.0)
    found = gains.gain_claim("value", test, -0.5, "why", value.HIGHER, rules, unit="lists", unknown=0.002)
    assert asked == [pytest.approx(beyond - 0.005 - 0.002)]
    assert (found.outcome, found.plain) == ("cannot tell", "its estimated reward is not significantly higher")
    assert (found.needed, found.because, found.unit) == (None, "why", "lists")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.2, "higher"), (-0.2, -0.1, "lower"), (-0.2, 0.01, "no higher"),
        (0.01, 0.02, "no higher by as much as is worth having"),
    ],
)  # fmt: skip
def test_a_gain_has_a_word_for_each_side_of_what_is_worth_having(low, high, said):
    """Of 0.5 a tenth is worth having; where sequences are too few there is no answer, however clear it looks."""
    test = Paired((low + high) / 2, 0.03, low, high, p=0.5, plain_p=0.5, n=100, holm_p=0.5)
    asked = partial(gains.gain_claim, "value", test, 0.5, "why", value.HIGHER, GateRules(smallest_gain=0.1))
    assert asked().plain == f"its estimated reward is {said}" and asked().outcome == ("yes" if low == 0.1 else "no")
    few = asked(few=(640, ". Too few"))
    assert (few.outcome, few.needed, few.because) == ("cannot tell", 640, "why. Too few")
    assert asked().because.endswith("0.0500, the smallest gain worth having") == (low != 0.1)


def test_a_zero_of_seven_is_no_certainty():
    """Wilson 1927: 0 of 7 is 0 to 0.354, where mean ± 1.96 se says exactly 0."""
    found = mean_estimate(np.zeros(7), np.arange(7))
    z = 1.959964
    assert found.se == 0 and found.within_unit().high == pytest.approx(z**2 / (7 + z**2), abs=1e-6)
    assert found.within_unit().low == 0.0
    assert wilson(7, 7)[1] == 1.0 and wilson(7, 7)[0] == pytest.approx(1 - z**2 / (7 + z**2), abs=1e-6)
    assert interval_text(found.within_unit(), 2) == "0.00 [0.00, 0.35]"
    gap = paired(np.zeros(7), np.zeros(7), np.arange(7))
    assert gap.low < -0.3 and gap.high > 0.3, "two policies that both missed seven times may still differ"


def few_purchases(folder, purchases: int) -> Prepared:
    """400 clicks, and `purchases`, in validation and in test."""
    rng = np.random.default_rng(0)
    rewards = {"click": 0.2, "purchase": 1.0}
    with writing(folder, kind="interactions", events=["click", "purchase"], rewards=rewards) as store:
        for split in ("train", "validation", "test"):
            event = np.zeros(400 + purchases, np.int64)
            event[:purchases] = 1
            item = rng.integers(0, 9, len(event))
            lengths = np.full(len(event) // 2, 2)
            arrays = {"item": item[: 2 * len(lengths)], "event": event[: 2 * len(lengths)]}
            reward = np.where(arrays["event"] == 1, 1.0, 0.2)
            store.splits[split].append(lengths, {**arrays, "reward": reward})
        store.write_items(np.arange(9), np.ones(9, np.int64))
    return Prepared(folder)


def test_a_rule_of_selection_hears_no_event_with_too_few_positions(tmp_path):
    few, many = few_purchases(tmp_path / "few", 4), few_purchases(tmp_path / "many", ENOUGH)
    assert rule("auto", few, objective_of("lpi_rl")) == "0.2*click.nDCG@20"
    assert rule("auto", many, objective_of("lpi_rl")) == "0.2*click.nDCG@20 + 1*purchase.nDCG@20"
    assert rule("purchase.nDCG@20", few, objective_of("lpi_rl")) == "purchase.nDCG@20", "what was asked for is done"
    said = events_left_out("auto", few, objective_of("lpi_rl"))
    assert said and "purchase 4" in said and f"{ENOUGH} are needed" in said and "0.2*click.nDCG@20" in said
    assert "depends on them" in (events_left_out("purchase.nDCG@20", few, objective_of("lpi_rl")) or "")
    assert (
        events_left_out("auto", many, objective_of("lpi_rl")) is None
        and events_left_out("auto", few, objective_of("mle")) is None
    )
    tiny = write_small(tmp_path / "tiny", propensity=False)
    assert rule("auto", tiny, objective_of("lpi_rl")) == "logp", "where nothing is enough, likelihood decides"
