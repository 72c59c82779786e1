"""Log, rotation, preparation, window: the context of every list is the one it was drawn in, events included."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from test_log import HOUR, START, answer, listed, write

from localpolicy.catalogue import dense
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.score import score
from localpolicy.model.catalogue_mapping import remap
from localpolicy.model.network import ModelConfig, Network
from localpolicy.model.policy import Policy
from localpolicy.model.readout import NetworkReader, returns_to_go
from localpolicy.runs.config import Config
from localpolicy.serving.export import export
from localpolicy.serving.log import Log
from localpolicy.serving.rotate import rotate
from localpolicy.serving.sampling import conditional_propensities
from localpolicy.training.train import train
from localpolicy.types import Reads

LENGTH, K, PERSONS = 48, 3, 12
EVENTS = ("click", "purchase", "none")


def whole(shown, elsewhere, sent):
    """A history of everything shown, with its answers, and everything done elsewhere."""
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
    policy = remap(Policy.load(run.folder), data)
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


# ---------------------------------------------------------------------- returns continue in a person's next context

GAMMA, ITEMS, VISITS = 0.5, 3, 3
ANSWERED = (
    ("none", "purchase", "click"),
    ("click", "none", "none"),
    ("purchase", "click", "none"),
)  # by the list before
WORTH = {"none": 0.0, "click": 0.2, "purchase": 1.0}


def exact(above: int, item: int, visits: int) -> float:
    """Q_μ of an item when `above` was shown before and `left` visits remain: the next is drawn uniformly."""
    later = np.mean([exact(item, other, visits - 1) for other in range(ITEMS)]) if visits > 1 else 0.0
    return float(WORTH[ANSWERED[above][item]] + GAMMA * later)


@pytest.fixture(scope="module")
def enumerated(tmp_path_factory):
    """Every way that three visits can go, once by each kind of client; another is bought between two visits."""
    folder = tmp_path_factory.mktemp("enumerated")
    log = Log(folder / "log.db")
    for send in (whole, clicked, forgetful):
        for path in product(range(ITEMS), repeat=VISITS):
            history, before = [(0, "click")], 0
            for visit, item in enumerate(path):
                name = send.__name__ + "".join(map(str, path))
                request = listed(person=name, time=START + visit * HOUR, history=history, items=[item, item + ITEMS],
                                 propensities=[1 / ITEMS, 1.0])  # fmt: skip
                event = ANSWERED[before][item]
                write(log, request, *([] if event == "none" else [answer(request, item, event)]))
                seen = [(item, event), (item + ITEMS, "none")]
                history, before = send(seen, [(0, "purchase")] if visit == 1 else [], history), item
    rotate(log.address, out=folder / "events", upto=START + 10 * HOUR)
    log.close()
    return prepare("events", [folder / "events"], out=folder / "data", test=0.3)


def positions(data):
    """Of each position: its person, its visit, its place, its item, and its return."""
    for split in data.splits:
        windows, persons = Windows(data, split, WindowConfig(length=LENGTH)), data.sequence_ids(split).to_pylist()
        seen: dict[str, int] = {}
        for batch in windows.in_order(7):
            returns = returns_to_go(batch, gamma=GAMMA)
            for at in batch.scored.tolist():
                person = persons[batch.owners[batch.row[at]]]
                number = seen[person] = seen.get(person, -1) + 1
                item = int(data.catalogue["item_id"].to_pylist()[batch.item[at]])
                yield person, *divmod(number, 2), item, float(returns[at])


def test_returns_across_contexts_are_those_of_an_uncut_sequence(enumerated):
    found = {(person, visit, place): value for person, visit, place, _, value in positions(enumerated)}
    assert len(found) == 3 * ITEMS**VISITS * VISITS * 2
    uncut = {key: value for key, value in found.items() if key[0].startswith("whole")}
    assert {person for person, *_ in uncut} == {"whole" + "".join(map(str, path))
                                               for path in product(range(ITEMS), repeat=VISITS)}  # fmt: skip
    for (person, visit, place), value in uncut.items():
        for send in ("clicked", "forgetful"):
            assert found[person.replace("whole", send), visit, place] == pytest.approx(value, abs=1e-6)
    for split in enumerated.splits.values():
        cut = [name.as_py().startswith("whole") for name in enumerated.sequence_ids(split.name)]
        histories = np.bincount(split.histories[1], minlength=len(split))
        assert (histories[np.array(cut)] == 1).all() and histories[~np.array(cut)].max() == VISITS


def test_the_mean_return_of_an_item_is_what_it_earns_and_brings(enumerated):
    """Where every way occurs once, the mean over the ways is Q_μ: nothing is discounted by what was bought between."""
    for send in ("whole", "clicked", "forgetful"):
        for item in range(ITEMS):
            returns = [value for person, visit, place, shown, value in positions(enumerated)
                       if person.startswith(send) and (visit, place, shown) == (0, 0, item)]  # fmt: skip
            assert len(returns) == ITEMS ** (VISITS - 1)
            assert np.mean(returns) == pytest.approx(exact(0, item, VISITS), abs=1e-6)
    assert exact(0, 2, VISITS) > exact(0, 2, 1), "an item is worth more than it earns at once"


@pytest.mark.parametrize("target", ["max", "expected"])
def test_the_value_after_a_history_is_what_its_person_earned_then(target, enumerated):
    torch.manual_seed(0)
    network = Network(ModelConfig(width=4), items=enumerated.n_items, events=len(enumerated.events), length=LENGTH,
                      heads=("policy", "logging", "q_a", "q_b")).eval()  # fmt: skip
    reads = Reads(frozenset({"next_value", "logp_logging"}), "q", GAMMA, target)
    (batch,) = Windows(enumerated, "train", WindowConfig(length=LENGTH)).in_order(1000)
    found = NetworkReader(network, reads, dense).read(batch, step=0, coin=True).next_value
    _, exists = batch.next_token()
    own = batch.reward[batch.scored]
    beyond = (returns_to_go(batch, gamma=GAMMA)[batch.scored] - own) / GAMMA
    assert (beyond[~exists] > 0).any() and exists.any()
    torch.testing.assert_close(found[~exists], beyond[~exists])
    assert not torch.allclose(found[exists], beyond[exists])


def test_the_next_step_is_the_next_list_whatever_was_bought_between(enumerated):
    """Its context holds what was bought; the rows of that are nobody's choice."""
    (batch,) = Windows(enumerated, "train", WindowConfig(length=LENGTH)).in_order(1000)
    after, exists = batch.next_token()
    context = enumerated.events.index("context")
    behind = torch.arange(len(batch.row)) - 1
    assert (batch.event[after[exists]] != context).all()
    assert (batch.event[behind[after[exists]]] == context).any(), "something was bought between two lists"
