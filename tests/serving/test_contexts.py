"""Log, rotation, preparation, window: the context of every list is the one it was drawn in, events included."""

from __future__ import annotations

import numpy as np
import pytest
from test_log import HOUR, START, answer, listed, write

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.opening import on_data
from localpolicy.measure.score import score
from localpolicy.model.policy import Policy
from localpolicy.runs.config import Config
from localpolicy.serving.draw import conditional_propensities
from localpolicy.serving.export import export
from localpolicy.serving.log import Log
from localpolicy.serving.rotate import rotate
from localpolicy.training.train import train

LENGTH, K, PERSONS = 48, 3, 12
EVENTS = ("click", "purchase", "none")


def whole(shown, elsewhere, sent):
    """All that was shown, with what came of it, and what was done elsewhere."""
    return [*sent, *shown, *elsewhere]


def clicked(shown, elsewhere, sent):
    """Only what was answered."""
    return [*sent, *(one for one in shown if one[1] != "none"), *elsewhere]


def latest(shown, elsewhere, sent):
    """The last five of it."""
    return clicked(shown, elsewhere, sent)[-5:]


def forgetful(shown, elsewhere, sent):
    """Now and then nothing at all."""
    return [] if len(sent) > 4 else clicked(shown, elsewhere, sent)


@pytest.fixture(scope="module")
def served(small, tmp_path_factory):
    """A policy that tells past events apart, as it answers."""
    settings = {
        "model": {"width": 8, "blocks": 1, "event_embeddings": True}, "objective": {"name": "mle"},
        "data": {"length": LENGTH}, "train": {"epochs": 2, "device": "cpu", "learning_rate": 0.05},
    }  # fmt: skip
    run = train(small, out=tmp_path_factory.mktemp("contexts") / "run", config=Config.parse(settings))
    return run, export(run.folder, out=run.folder.parent / "export")


@pytest.fixture(scope="module")
def folder(served, small, tmp_path_factory):
    """Persons with every kind of client, rotated and prepared in four parts; one clock steps back."""
    _, recommender = served
    tmp_path = tmp_path_factory.mktemp("contexts")
    rng, log, parts = np.random.default_rng(0), Log(tmp_path / "log.db"), []
    ids = recommender.ids
    sent = {(send, number): [] for send in (whole, clicked, latest, forgetful) for number in range(PERSONS)}
    for visit in range(4):
        for (send, number), history in sent.items():
            at = START + visit * HOUR - (3 * HOUR if number == 5 and visit == 2 else 0)
            items, events = [one for one, _ in history], [one for _, one in history]
            logits = recommender.logits([items], [events])
            indices = rng.choice(len(ids), K, replace=False)
            propensity = conditional_propensities(logits.astype(np.float64), indices[None], forbidden=None)[0]
            shown = [ids[index] for index in indices]
            request = listed(person=f"{send.__name__}{number}", time=at, history=history, items=shown,
                             propensities=propensity.tolist())  # fmt: skip
            answers = {item: event for item in shown if (event := EVENTS[rng.integers(3)]) != "none"}
            write(log, request, *(answer(request, item, event) for item, event in answers.items()))
            elsewhere = [(ids[rng.integers(len(ids))], EVENTS[rng.integers(2)]) for _ in range(rng.integers(3))]
            seen = [(item, answers.get(item, "none")) for item in shown]
            sent[send, number] = send(seen, elsewhere, history)
        rotate(log.address, out=tmp_path / f"events{visit}", upto=START + (visit + 1) * HOUR)
        like = {"like": small.path} if visit == 0 else {"append": tmp_path / f"data{visit - 1}"}
        prepare("events", [tmp_path / f"events{visit}"], out=tmp_path / f"data{visit}", **like)
        parts.append(tmp_path / f"events{visit}")
    log.close()
    prepare("events", parts, out=tmp_path / "data", like=small.path)
    return tmp_path


@pytest.fixture
def data(folder):
    return Prepared(folder / "data")


def recomputed(served, data):
    run, _ = served
    policy = on_data(Policy.load(run.folder), data)
    for split in data.splits:
        windows = Windows(data, split, WindowConfig(length=LENGTH))
        yield split, score(policy, windows, events=data.events, min_history=0)


def test_propensities_of_the_rebuilt_contexts_are_the_logged_ones(served, data, folder):
    compared = 0
    for made in (data, Prepared(folder / "data3")):
        for _, scores in recomputed(served, made):
            np.testing.assert_allclose(np.exp(scores.logp_open), scores.propensity, rtol=2e-5)
            compared += len(scores)
    assert compared == 2 * 4 * 4 * PERSONS * K, "every place of every list, prepared at once or appended"


@pytest.mark.parametrize("forgotten", ["past_event", "anew"])
def test_neither_events_nor_borders_may_be_forgotten(forgotten, served, data):
    """What was done before: the items without their events; all that was shown as one history."""
    for split in data.splits.values():
        split.arrays.pop(forgotten)
    worst = max(
        np.abs(np.exp(scores.logp_open) / scores.propensity - 1).max() for _, scores in recomputed(served, data)
    )
    assert worst > 1e-3


def test_a_person_stays_whole_in_splits_parts_and_clusters(served, data):
    persons = [one.as_py() for split in data.splits for one in data.sequence_ids(split)]
    assert sorted(persons) == sorted({f"{kind}{number}" for kind in ("whole", "clicked", "latest", "forgetful")
                                      for number in range(PERSONS)})  # fmt: skip
    windows = Windows(data, "train", WindowConfig(length=LENGTH))
    assert len(windows) > len(data["train"]), "some send another history every time"
    halves = [windows.part(number, 2) for number in (0, 1)]
    owners = [{owner for batch in half.in_order(4) for owner in batch.owners.tolist()} for half in halves]
    assert not owners[0] & owners[1] and owners[0] | owners[1] == set(range(len(data["train"])))
    for split, scores in recomputed(served, data):
        assert set(scores.sequence) == set(range(len(data[split])))
        assert len(np.unique(scores.list_number)) == len(scores) // K
