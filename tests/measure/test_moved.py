"""What moved most, by name and by hand; and what a gain comes to in the reward's unit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from test_returns import scored

from localpolicy.data.item_features import KIND
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.judge.claims import check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.effects import DAY, first_shares, gain_per_day, most_moved, per_day, taken_shares
from localpolicy.report.go import gain_text, money_numbers, moved_table
from localpolicy.study.go import GoResult

IDS = pa.table({"item_id": [11, 12, 13, 14]})
NAMED = IDS.append_column(
    pa.field("name", pa.string(), metadata={KIND: "name"}), pa.array(["milk", "bread", "fuel", None])
)


def test_shares_are_those_of_all_positions():
    scores = scored(top=np.array([2, 2, 2, 0, 2]), item=np.array([0, 1, 0, 1, 1]))
    np.testing.assert_allclose(first_shares(scores, n_items=4), [0.2, 0, 0.8, 0])
    np.testing.assert_allclose(taken_shares(scores, n_items=4), [0.4, 0.6, 0, 0])


def test_what_moved_most_comes_first_and_what_did_not_move_is_left_out():
    before, after = np.array([0.4, 0.3, 0.1, 0.2]), np.array([0.05, 0.2, 0.55, 0.2])
    found = most_moved(before, after, NAMED)
    assert [(row.name, row.before, row.after) for row in found.more] == [("fuel", 0.1, 0.55)]
    assert [row.name for row in found.less] == ["milk", "bread"]
    assert found.moved == pytest.approx(0.45)
    two = most_moved(before, after, NAMED, most=2)
    assert [row.name for row in (*two.more, *two.less)] == ["fuel", "milk"]
    assert two.moved == found.moved, "of all items, whether they are listed or not"
    ids = most_moved(before, after, IDS)
    assert [row.name for row in (*ids.more, *ids.less)] == ["13", "11", "12"]
    still = most_moved(before, before, NAMED)
    assert (still.more, still.less, still.moved) == ((), (), 0)


def log(folder, *, days: float, settings=None, time=True):
    """Ten visits of two lists, of two places and of one, evenly over `days` days; one row of each is context."""
    optional = ("above", "time") if time else ("above",)
    events = ["context", "none", "sale"]
    with writing(folder, kind="impressions", events=events, optional=optional, settings=settings or {}) as store:
        for number, split in enumerate(("train", "validation", "test")):
            visits = 5 if number == 0 else 3
            event, above = np.tile([0, 1, 2, 2], visits), np.tile([0, 0, 1, 0], visits)
            at = np.linspace(0, days * DAY, 4 * visits).astype(np.int64)
            at[np.arange(4 * visits) % 4 == 0] = -(10**12)  # a context row's time is no decision's
            if number:
                at = np.where(at < 0, at, at.max() // 2)
            arrays = {"item": np.arange(4 * visits) % 4, "event": event, "above": above, "time": at,
                      "reward": np.where(event == 2, 1.0 + np.arange(4 * visits), 0.0)}  # fmt: skip
            store.splits[split].append(np.full(visits, 4), {name: arrays[name] for name in
                                       ("item", "event", "reward", *optional)})  # fmt: skip
        store.write_items(np.arange(4), np.ones(4, np.int64))
    return Prepared(folder)


def test_a_day_of_the_log_is_counted_in_its_own_units(tmp_path):
    data = log(tmp_path / "data", days=4.0)
    spans = [np.asarray(data[split].arrays["time"]) for split in ("train", "validation", "test")]
    at = np.concatenate(spans)
    days = (at.max() - at[at >= 0].min()) / DAY
    for counted, number in (("decisions", 33), ("lists", 22), ("visits", 11)):
        assert per_day(data, counted=counted) == pytest.approx(number / days)
    assert per_day(log(tmp_path / "short", days=0.9)) is None
    assert per_day(log(tmp_path / "timeless", days=4.0, time=False)) is None


def test_a_gain_is_given_per_thousand_and_per_day_in_the_columns_unit(tmp_path):
    data = log(tmp_path / "data", days=4.0, settings={"columns": {"reward": "sales_value"}})
    found = gain_per_day(data, 0.02, -0.01, 0.05, counted="lists")
    assert (found.gain, found.low, found.high) == pytest.approx((20, -10, 50))
    assert (found.per, found.counted, found.unit) == (1000, "lists", "sales_value")
    a_day = per_day(data, counted="lists")
    assert found.daily == pytest.approx((0.02 * a_day, -0.01 * a_day, 0.05 * a_day))
    timeless = gain_per_day(log(tmp_path / "timeless", days=4.0, time=False), 0.02, -0.01, 0.05)
    assert timeless.daily is None


@pytest.mark.parametrize("deployed", [None, "mle"])
def test_a_first_hour_names_what_moves_and_what_it_earns(tmp_path, deployed):
    """Against what is deployed, or else against the log; titles of the user's before names of the catalogue."""
    data = log(tmp_path / "data", days=4.0, settings={"columns": {"reward": "sales_value"}})
    new = SimpleNamespace(name="improved", scores=scored(top=np.array([3, 3, 3, 3, 0]), item=np.array([0, 0, 1, 2, 2])))
    old = deployed and SimpleNamespace(name="mle", scores=scored(top=np.array([1, 1, 0, 0, 0]), item=np.zeros(5)))
    gain = check("value", "yes", "", 0.02, -0.01, 0.05, 300, unit="lists")
    verdict = SimpleNamespace(evaluation=new, deployed=old, better=gain, rules=GateRules(), against=deployed)
    result = GoResult(None, data, None, None, verdict, None, titles={"3": "fuel"})
    moves = {(row.name, row.before, row.after) for row in (*result.moved.more, *result.moved.less)}
    gone = {("0", 0.6, 0.2), ("1", 0.4, 0.0)} if deployed else {("0", 0.4, 0.2), ("1", 0.2, 0.0), ("2", 0.4, 0.0)}
    assert moves == {("fuel", 0.0, 0.8)} | gone
    table = moved_table(result)
    first = ("fuel", "more", "0.0 %", "80.0 %")
    assert tuple(table.rows[0]) == first and {row[1] for row in table.rows[1:]} == {"less"}
    assert table.columns[2] == ("first, by mle" if deployed else "taken, in the log")
    daily = 20 / 1000 * per_day(data, counted="lists")
    assert "Gain per 1,000 lists, in sales_value: +20 (-10 to +50 with" in table.note
    assert f"a day like those of the log: {daily:+,.4g}" in table.note and "move by 80.0 % in all" in table.note
    (money,) = money_numbers(result)
    assert (money.value, money.name) == (
        "+20",
        "sales_value per 1,000 lists",
    ) and "-10 to +50 with 95%" in money.meaning
    unknown = replace(result, verdict=SimpleNamespace(**{**vars(verdict), "better": replace(gain, low=None)}))
    assert gain_text(unknown) == "" and money_numbers(unknown) == []
    plain = replace(result, data=log(tmp_path / "plain", days=4.0))
    assert plain.gain.gain == pytest.approx(20) and money_numbers(plain) == [], "the log has no name for it"


def test_answers_have_no_figure_per_day(tmp_path):
    assert gain_per_day(log(tmp_path / "data", days=4.0), 0.02, 0.01, 0.03, counted="answers").daily is None
