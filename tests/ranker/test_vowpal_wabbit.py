"""A CCB log that Vowpal Wabbit made: our law, rewards and values against those it reported (tools/vowpal_log.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from localpolicy.ranker.law import law_of
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import ListValues

FOLDER = Path(__file__).parent / "vowpal"
TOLD = json.loads((FOLDER / "vowpal.json").read_text())
SLOTS = 2


@pytest.fixture(scope="module")
def log():
    return read_requests(FOLDER / "log.json.gz")


def test_the_law_and_the_rewards_are_vowpal_wabbits(log):
    labels = [slot for event in TOLD["labels"] for slot in event]
    assert len(log) == len(labels) == SLOTS * len(TOLD["labels"])
    assert np.diff(log.start).tolist() == [len(slot["actions"]) for slot in labels]
    actions = [str(action + 1) for slot in labels for action in slot["actions"]]
    assert log.items[log.item].tolist() == actions
    assert log.probability == pytest.approx([chance for slot in labels for chance in slot["chances"]], rel=1e-6)
    reward = log.reward()[log.place == 1]
    assert reward.tolist() == [-slot["cost"] for slot in labels] and 0 < reward.mean() < 1
    assert not log.reward()[log.place == 0].any()
    assert len(np.unique(log.clusters)) == len(TOLD["labels"])


def test_vowpal_wabbits_draws_pass_as_draws_by_its_probabilities(log):
    law = law_of(log)
    assert (law.kind, law.p > 1e-3) == ("probabilities", True)


def test_the_value_of_a_greedy_policy_is_vowpal_wabbits_estimate(log):
    """Of the first slots, uncapped: mean of π/p · reward, as `--cb_type ips` says."""
    first = np.arange(0, len(log), SLOTS)
    taken = np.repeat(TOLD["best"], np.diff(log.start)[first])
    rows = np.concatenate([np.arange(log.start[one], log.start[one + 1]) for one in first])
    toward = np.zeros(len(log.item))
    toward[rows] = np.where(log.items[log.item[rows]].astype(int) - 1 == taken, 0.0, -np.inf)
    values = ListValues(log, law_of(log), first, np.ones(1), log.reward())
    weight = values.weights(lambda block: block.of(toward, 0.0))
    found = (weight * values.shown.reward).mean()
    assert found == pytest.approx(-TOLD["cost"], rel=1e-5)
    assert abs(found - values.shown.reward.mean()) > 0.02
