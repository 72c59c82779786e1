"""Logs of Vowpal Wabbit's decision service and of Open Bandit Pipeline: law, rewards, weights, what was not shown."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from localpolicy.errors import DataError
from localpolicy.ranker.law import Law, law_of
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import ListValues

# As `vw --cb_explore_adf --dsjson` reads it.
CB = {
    "_label_cost": -1.0, "_label_probability": 0.7, "_label_Action": 2, "_labelIndex": 1, "o": [],
    "Timestamp": "2026-01-01T00:00:00.0000000Z", "Version": "1", "EventId": "e1", "a": [2, 1, 3], "p": [0.7, 0.2, 0.1],
    "c": {"GUser": {"id": "ann", "age": 31}, "_multi": [
        {"TAction": {"topic": "sport"}}, {"TAction": {"topic": "art"}}, {"TAction": {"topic": "food"}}]},
    "VWState": {"m": "x"},
}  # fmt: skip
CCB = {
    "Timestamp": "2026-01-01T00:00:00.0000000Z", "Version": "1", "EventId": "c1",
    "c": {"GUser": {"id": "ann"}, "_multi": [{"T": {"price": 1}}, {"T": {"price": 2}}, {"T": {"price": 3}}],
          "_slots": [{"_id": "s1", "Slot": {"top": 1}}, {"_id": "s2", "Slot": {"top": 0}}]},
    "_outcomes": [{"_label_cost": 0.0, "_id": "s1", "_a": [1, 0, 2], "_p": [0.6, 0.3, 0.1]},
                  {"_label_cost": -2.0, "_id": "s2", "_a": [2, 0], "_p": [0.75, 0.25]}],
    "VWState": {"m": "x"},
}  # fmt: skip


def written(path, *events):
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    return path


@pytest.mark.parametrize("name", ["log.json", "log.dsjson", "log.json.gz"])
def test_a_contextual_bandit_event_becomes_a_request(name, tmp_path):
    log = read_requests(written(tmp_path / name, CB, {**CB, "EventId": "e2", "_label_cost": 0.0, "pdrop": 0.75}))
    assert log.ids.tolist() == ["e1", "e2"]
    assert log.items[log.item].tolist() == ["2", "1", "3"] * 2
    assert log.probability.tolist() == [0.7, 0.2, 0.1] * 2
    assert log.place.tolist() == [1, 0, 0] * 2
    assert log.reward().tolist() == [1, 0, 0, 0, 0, 0]
    assert log.weight.tolist() == [1, 4]
    topic = log.columns["TAction.topic"]
    assert [topic.names[code] for code in topic.values] == ["art", "sport", "food"] * 2
    assert log.context["GUser.age"].values.tolist() == [31, 31]


def test_deferred_events_count_once_they_are_activated(tmp_path):
    deferred = {**CB, "EventId": "d1", "DeferredAction": True}
    activated = {**CB, "EventId": "d2", "DeferredAction": True, "o": [{"EventId": "d2", "ActionTaken": True}]}
    skipped = {**CB, "EventId": "d3", "_skipLearn": True}
    log = read_requests(written(tmp_path / "log.json", CB, deferred, activated, skipped))
    assert log.ids.tolist() == ["e1", "d2"]


def test_each_slot_of_a_conditional_bandit_is_a_decision(tmp_path):
    log = read_requests(written(tmp_path / "log.json", CCB, {**CCB, "EventId": "c2", "_outcomes": [
        {**one, "_id": f"{one['_id']}b"} for one in CCB["_outcomes"]]}))  # fmt: skip
    assert len(log) == 4
    assert np.diff(log.start).tolist() == [3, 2, 3, 2]
    assert log.items[log.item][:5].tolist() == ["2", "1", "3", "3", "1"]
    assert log.probability[:5].tolist() == [0.6, 0.3, 0.1, 0.75, 0.25]
    assert log.reward()[:5].tolist() == [0, 0, 0, 2, 0]
    assert log.columns["T.price"].values[:5].tolist() == [2, 1, 3, 3, 1]
    assert log.context["slot"].names == ("0", "1")
    assert log.context["slot.Slot.top"].values.tolist() == [1, 0, 1, 0]
    assert log.clusters[0] == log.clusters[1] != log.clusters[2]


def simulated(count=3000, seed=0):
    """Events of a world whose policy and rewards are known."""
    rng = np.random.default_rng(seed)
    worth = np.array([0.1, 0.3, 0.6])
    for number in range(count):
        law = rng.dirichlet([2, 2, 2])
        action = rng.choice(3, p=law)
        order = [action, *(one for one in range(3) if one != action)]
        yield {**CB, "EventId": f"e{number}", "a": [one + 1 for one in order], "p": law[order].tolist(),
               "_label_cost": -float(rng.random() < worth[action])}  # fmt: skip


def test_the_law_passes_and_values_are_importance_sampling(tmp_path):
    """Of one place the estimate by places is IPS: mean of π/p · reward, as Vowpal Wabbit's own."""
    events = list(simulated())
    log = read_requests(written(tmp_path / "log.json", *events))
    law = law_of(log)
    assert (law.kind, law.p > 1e-3) == ("probabilities", True)
    values = ListValues(log, Law("probabilities"), np.arange(len(log)), np.ones(1), log.reward())
    toward = np.array([0.0, 0.0, 1.5])
    tilt = toward[np.searchsorted(["1", "2", "3"], log.items[log.item])]
    weight = values.weights(lambda block: block.of(tilt, 0.0))
    ips = 0.0
    for event in events:
        shares = np.array(event["p"]) * np.exp(toward[np.array(event["a"]) - 1])
        ips += shares[0] / shares.sum() / event["p"][0] * -event["_label_cost"]
    number = np.argsort(values.shown.request)
    assert (weight * values.shown.reward)[number].mean() == pytest.approx(ips / len(events), rel=1e-6)


def test_wrong_probabilities_are_accused(tmp_path):
    events = [{**event, "p": sorted(event["p"])} for event in simulated(800)]
    assert law_of(read_requests(written(tmp_path / "log.json", *events))).kind == "unknown"


@pytest.mark.parametrize(("event", "says"), [
    ({**CB, "p": [0.7, 0.3]}, "'e1' has 2 probabilities for 3 of its 3 actions"),
    ({**CB, "a": [2, 1, 9]}, "'e1' has 3 probabilities for 3 of its 3 actions"),
    ({**CB, "p": [0.7, 0.7, 0.1]}, "'e1'.*do not sum to 1"),
    ({**CB, "c": {"_multi": 3}}, "line 1 is no decision-service event"),
])  # fmt: skip
def test_damaged_events_are_named(event, says, tmp_path):
    with pytest.raises(DataError, match=says):
        read_requests(written(tmp_path / "log.json", event))


def feedback(count=2000, *, law=True):
    rng = np.random.default_rng(0)
    pi = rng.dirichlet([1, 1, 1, 1], count)
    action = np.array([rng.choice(4, p=one) for one in pi])
    return {"n_rounds": count, "n_actions": 4, "context": rng.normal(size=(count, 2)), "action": action,
            "action_context": np.eye(4), "position": None, "reward": (rng.random(count) < 0.2 + 0.1 * action) * 1.0,
            "pscore": pi[np.arange(count), action], "pi_b": pi[:, :, None] if law else None}  # fmt: skip


def test_open_bandit_feedback_becomes_requests():
    given = feedback()
    log = read_requests(given)
    assert log.probability.reshape(-1, 4) == pytest.approx(given["pi_b"][:, :, 0])
    assert log.reward().sum() == given["reward"].sum()
    assert set(log.context) == {"x0", "x1"}
    assert log.columns["a2"].values[:4].tolist() == [0, 0, 1, 0]
    assert law_of(log).kind == "probabilities"


def test_propensities_of_shown_actions_alone_are_no_law():
    assert law_of(read_requests(feedback(law=False))).kind == "unknown"


def test_feedback_of_other_shapes_is_refused():
    with pytest.raises(DataError, match="actions go from 0 to 2"):
        read_requests({**feedback(), "n_actions": 3})
    with pytest.raises(DataError, match="pi_b has the shape"):
        read_requests({**feedback(), "pi_b": np.ones((3, 4, 1))})
