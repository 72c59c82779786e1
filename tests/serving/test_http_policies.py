"""The service over HTTP: a new policy takes over, and persons keep their arm of a rollout."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from http_client import ask, rows

from localpolicy.errors import DataError
from localpolicy.model.histories import batch_from
from localpolicy.serving.deployment import Deployment, Slot
from localpolicy.serving.exports import write_description
from localpolicy.serving.recommender import Recommender


def test_a_new_export_is_swapped_in_and_a_broken_one_refused(exported, start, tmp_path):
    folder = shutil.copytree(exported.folder, tmp_path / "served")
    client = start(export=folder)
    service = client.app.state.service
    about = json.loads((folder / "export.json").read_text())
    write_description(folder, {**about, "version": "b" * 16})
    service.deployment.refresh()
    assert ask(client)["policy"] == "b" * 16
    content = (folder / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(content[:-10])
    write_description(folder, {**about, "version": "c" * 16})
    service.deployment.refresh()
    assert ask(client)["policy"] == "b" * 16
    assert "was altered" in client.get("/v1/policies").json()["refused"]
    assert "localpolicy_export_refused 1.0" in client.get("/metrics").text
    (folder / "policy.onnx").write_bytes(content)
    write_description(folder, {**about, "version": "d" * 16, "x": 1})
    service.deployment.refresh()
    assert ask(client)["policy"] == "d" * 16 and client.get("/v1/policies").json()["refused"] is None


@pytest.mark.parametrize(("more", "swapped"), [(["context", "none"], True), (["context", "wish"], False)])
def test_an_export_that_knows_fewer_events_is_swapped_in_only_if_clients_cannot_send_them(
    exported, tmp_path, more, swapped
):
    """Such a swap happens on the way back to a policy that learnt from what people did."""
    folder = shutil.copytree(exported.folder, tmp_path / "served")
    slot = Slot(folder, 1)
    assert slot.refresh()
    slot.loaded.events = [*{*slot.loaded.events, *more}]
    about = json.loads((folder / "export.json").read_text())
    write_description(folder, {**about, "version": "b" * 16, "x": 1})
    assert slot.refresh() == swapped and (slot.loaded.version == "b" * 16) == swapped
    if not swapped:
        assert "the event 'wish'" in slot.refused and "restart the server" in slot.refused
    assert Slot(folder, 1).refresh(), "a restart takes it"


def test_what_was_left_alone_is_no_history_to_a_policy_that_never_saw_such_events(exported, run):
    policy = Recommender(exported.folder)
    past, events = [100, 101, 102], ["click", "none", "purchase"]
    knows = policy.logits([past], [events])
    policy._codes.pop("none")
    without = policy.logits([past], [events])
    assert np.array_equal(without, policy.logits([[100, 102]], [["click", "purchase"]]))
    assert not np.array_equal(without, knows)
    index = {item: number for number, item in enumerate(policy.ids)}
    batch = batch_from([past], [events], index=index, names=["click", "purchase"])
    other = batch_from([[100, 102]], [["click", "purchase"]], index=index, names=["click", "purchase"])
    assert batch.item.tolist() == other.item.tolist() and batch.event.tolist() == other.event.tolist()
    with pytest.raises(DataError, match="no event 'wish'"):
        policy.logits([past], [["click", "wish", "purchase"]])


def test_a_rollout_gives_persons_their_arm(exported, start, tmp_path):
    folder = shutil.copytree(exported.folder, tmp_path / "candidate")
    about = json.loads((folder / "export.json").read_text())
    write_description(folder, {**about, "version": "b" * 16})
    plan = tmp_path / "rollout.json"
    client = start(rollout=plan)
    assert ask(client, person="p")["arm"] == "", "the rollout's file may come later"
    content = {"id": "r1", "candidate": {"export": str(folder), "version": "b" * 16}, "salt": "s"}
    plan.write_text(json.dumps({**content, "stage": "shadow", "share": 0.0}))
    client.app.state.service.deployment.refresh()
    assert ask(client, person="p")["policy"] == exported.version
    plan.write_text(json.dumps({**content, "stage": "50", "share": 0.5}))
    client.app.state.service.deployment.refresh()
    arms = {f"p{n}": ask(client, person=f"p{n}") for n in range(40)}
    assert {one["arm"] for one in arms.values()} == {"candidate", "current"}
    for person, one in arms.items():
        assert one["policy"] == ("b" * 16 if one["arm"] == "candidate" else exported.version)
        assert ask(client, person=person)["arm"] == one["arm"]
    assert set(rows(tmp_path, "SELECT DISTINCT arm, stage, rollout FROM requests WHERE stage = '50'")) == {
        ("candidate", "50", "r1"), ("current", "50", "r1")
    }  # fmt: skip
    assert rows(tmp_path, "SELECT DISTINCT rollout FROM shadow") == [("r1",)]
    other = {"export": str(folder), "version": "c" * 16}
    for odd in ("{", "[]", '"x"', json.dumps({**content, "candidate": other, "stage": "50", "share": 0.5}),
                json.dumps({**content, "stage": "rolled back", "share": 0.0})):  # fmt: skip
        plan.write_text(odd)
        client.app.state.service.deployment.refresh()
        assert {ask(client, person=person)["arm"] for person in arms} == {""}, odd
    text = client.get("/metrics").text
    assert 'localpolicy_shadow_total{outcome="answered"} 1.0' in text


@pytest.fixture
def changed(exported, tmp_path):
    """Makes a candidate out of the export, and a plan that gives it to half of all persons."""

    def make(change) -> Path:
        folder = shutil.copytree(exported.folder, tmp_path / "candidate")
        about = {**json.loads((folder / "export.json").read_text()), "version": "b" * 16}
        change(folder, about)
        write_description(folder, about)
        content = {"id": "r1", "candidate": {"export": str(folder), "version": "b" * 16}, "salt": "s"}
        (tmp_path / "rollout.json").write_text(json.dumps({**content, "stage": "50", "share": 0.5}))
        return tmp_path / "rollout.json"

    return make


def test_nobody_is_refused_for_the_arm_they_are_in(changed, start, tmp_path):
    """Clients turn the dial, and the candidate has none: its persons get a fallback, which the guardrail counts."""

    def without_dial(folder, about):
        about["graphs"] = ["policy"]
        about["files"].pop("dial.onnx")

    client = start(rollout=changed(without_dial))
    found = [ask(client, person=f"p{number}", beta=0.5, names=True) for number in range(40)]
    assert {(one["arm"], one["mode"]) for one in found} == {("current", "drawn"), ("candidate", "fallback")}
    assert set(rows(tmp_path, "SELECT DISTINCT arm, mode, beta FROM requests")) == {
        ("current", "drawn", 0.5), ("candidate", "fallback", None)
    }  # fmt: skip
    for number in range(10):
        ask(client, person=f"p{number}", k=10_000, expect=422)
    assert ask(client, person=next(f"p{n}" for n, one in enumerate(found) if one["arm"] == "candidate"))["policy"] == (
        "b" * 16
    ), "what it can answer, it answers"


def test_a_candidate_of_another_shop_gets_nobody(changed, start):
    def other_items(folder, about):
        ids = json.loads((folder / "items.json").read_text())
        content = json.dumps([item + 1000 for item in ids])
        (folder / "items.json").write_text(content)
        about["files"]["items.json"] = sha256(content.encode()).hexdigest()
        about["samples"] = []

    client = start(rollout=changed(other_items))
    assert {ask(client, person=f"p{number}")["arm"] for number in range(20)} == {""}
    assert "another catalogue: it knows 0 of" in client.get("/v1/policies").json()["refused"]


@pytest.mark.parametrize("replaces", [["a" * 16], []])
def test_what_is_put_in_place_after_a_rollout_is_done_serves(exported, start, tmp_path, replaces):
    """The candidate itself, or an extended export, or the next one: a plan that is done does not hold it back."""
    served, candidate = (shutil.copytree(exported.folder, tmp_path / name) for name in ("served", "candidate"))
    about = json.loads((served / "export.json").read_text())
    for folder, version in ((served, "a" * 16), (candidate, "b" * 16)):
        write_description(folder, {**about, "version": version})
    plan = tmp_path / "rollout.json"
    content = {"id": "r1", "candidate": {"export": str(candidate), "version": "b" * 16}, "salt": "s", "stage": "100",
               "share": 1.0, "done": True, "replaces": replaces}  # fmt: skip
    plan.write_text(json.dumps(content))
    deployment = Deployment(served, rollout=plan)
    assert deployment.route("p").arm == "candidate", "until the swap everyone keeps it"
    write_description(served, {**about, "version": "c" * 16, "x": 1})
    deployment.refresh()
    known = bool(replaces)  # a plan of stage 100 alone has seen no other policy, and does not know what it replaces
    assert deployment.route("p").recommender.version == ("c" if known else "b") * 16
    assert deployment.route("p").arm == ("" if known else "candidate")
    assert Deployment(served, rollout=plan).route("p").arm == ("" if known else "candidate"), "after a restart too"
    (told, *_) = start(export=served, rollout=plan).get("/v1/policies").json()["policies"]
    assert (told["version"], told["share"]) == ("c" * 16, 1.0 if known else 0.0)


def test_counts_begin_at_0(client, exported):
    """A share of fallbacks needs both of its counts, and a rate its first value, before anything goes wrong."""
    text = client.get("/metrics").text
    for line in (
        f'localpolicy_lists_total{{arm="",mode="drawn",policy="{exported.version}"}} 0.0',
        'localpolicy_lists_total{arm="",mode="fallback",policy="fallback"} 0.0',
        'localpolicy_feedback_total{late="true"} 0.0', 'localpolicy_shadow_total{outcome="failed"} 0.0',
        'localpolicy_responses_total{method="POST",path="/v1/recommend",status="503"} 0.0',
        'localpolicy_responses_total{method="POST",path="/v1/feedback",status="429"} 0.0',
        'localpolicy_responses_total{method="GET",path="/v1/policies",status="200"} 0.0',
        "localpolicy_withdrawn_total 0.0",
    ):  # fmt: skip
        assert line in text, line
