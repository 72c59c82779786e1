"""Which question a log is asked."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.data.reward_kind import reward_ranges
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure import metrics
from localpolicy.measure.metrics import question_of


def log(folder, events: list[str], rewards: list[float], *, spread: float = 0.0, propensity: float | None = None):
    """Every event ten times in each split, with its reward and so much more in every second row."""
    optional = () if propensity is None else ("propensity",)
    kind = "impressions" if "none" in events else "interactions"
    with writing(
        folder, kind=kind, events=events, rewards=dict(zip(events, rewards, strict=True)), optional=optional
    ) as store:
        for split in ("train", "validation", "test"):
            event = np.tile(np.arange(len(events)), 10)
            reward = np.array(rewards)[event]
            reward[: len(reward) // 2] += spread
            arrays = {"item": event % 2, "event": event, "reward": reward}
            if propensity is not None:
                arrays["propensity"] = np.full(len(event), propensity)
            store.splits[split].append(np.full(10, len(events)), arrays)
        store.write_items(np.arange(2), np.ones(2, np.int64))
    return Prepared(folder)


@pytest.mark.parametrize(
    ("kind", "events", "rewards", "more"),
    [
        ("value", ["none", "click"], [0.0, 1.0], {"propensity": 0.5}),
        ("rewards", ["none", "click"], [0.0, 1.0], {"propensity": np.nan}),
        ("rewards", ["click", "purchase"], [0.2, 1.0], {}),
        ("liking", ["1", "2", "5"], [0.0, 0.0, 1.0], {}),
        ("liking", ["watch"], [0.2], {"spread": 0.5}),
        ("nothing", ["click"], [1.0], {}),
        ("nothing", ["click", "purchase"], [0.2, 0.2], {}),
        ("nothing", ["none", "click"], [1.0, 1.0], {"propensity": 0.5}),
        ("value", ["1", "5"], [0.0, 1.0], {"propensity": 0.1}),
    ],
)
def test_each_log_is_asked_what_it_can_answer(tmp_path, kind, events, rewards, more):
    data = log(tmp_path / "data", events, rewards, **more)
    assert question_of(data).kind == kind
    assert reward_ranges(data)[events[0]] == pytest.approx((rewards[0], rewards[0] + more.get("spread", 0.0)))


def test_what_no_policy_chose_does_not_count(tmp_path):
    """History of another reward than the one event that was shown is no difference in reward."""
    assert question_of(log(tmp_path / "data", ["context", "click"], [0.0, 1.0])).kind == "nothing"


@pytest.mark.parametrize("event", ["nan", "inf", "1_0", "click"])
def test_what_python_reads_as_a_number_need_not_be_a_rating(event):
    """Two definitions disagreed on these: one hid such an event from every table."""
    assert not metrics.is_rating(event) and metrics.is_rating("4.5")
