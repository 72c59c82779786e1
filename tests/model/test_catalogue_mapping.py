"""An older policy over a newer catalogue, against its own probabilities item by item."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from localpolicy.catalogue import backend
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import RunError
from localpolicy.logits import Head, LinearLogits
from localpolicy.model.catalogue_mapping import RemappedLoggingPolicy, match_items
from localpolicy.model.config import ModelConfig
from localpolicy.model.deployable import Origin
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy

EVENTS = ["none", "click"]
OLD = ["a", "b", "c", "d"]
NEW = ["x", "d", "a", "y", "c", "b"]  # another order, and two the policy never saw
SEQUENCES = ["a", "x", "xa", "ax", "abxcd", "xxyab", "ydyxc", "bcd", "xyxyx"]
LENGTH = 6


def table(ids):
    return pa.table({"index": np.arange(len(ids), dtype=np.int32), "item_id": ids, "count": np.ones(len(ids))})


def older(backbone="sasrec"):
    torch.manual_seed(0)
    config = ModelConfig(width=8, blocks=2, heads=2, event_embeddings=True, backbone=backbone)
    network = Network(config, items=len(OLD), events=len(EVENTS), length=LENGTH).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return Policy(network, Origin("mle", "impressions", EVENTS, "policy"), table(OLD))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    item = np.array([NEW.index(letter) for letter in "".join(SEQUENCES)])
    path = tmp_path_factory.mktemp("newer") / "data"
    with writing(path, kind="impressions", events=EVENTS) as store:
        arrays = {"item": item, "event": rng.integers(0, 2, len(item)), "reward": rng.uniform(size=len(item))}
        store.splits["train"].append(np.array([len(sequence) for sequence in SEQUENCES]), arrays)
        store.write_items(pa.array(NEW), np.ones(len(NEW), np.int64))
    return Prepared(path)


def asked_one_by_one(policy, data):
    """log μ̂ at every context of the data [N, V], -inf at items it never saw: computed from plain histories."""
    histories, answers = [], []
    for number, sequence in enumerate(SEQUENCES):
        events = data["train"][number]["event"]
        for place in range(len(sequence)):
            histories.append(list(sequence[:place]))
            answers.append([EVENTS[code] for code in events[:place]])
    known = policy.log_probabilities(histories, answers)
    rows = torch.full((len(histories), len(NEW)), -torch.inf, dtype=known.dtype)
    for place, item in enumerate(OLD):
        rows[:, NEW.index(item)] = known[:, place]
    return rows


@pytest.mark.parametrize("backbone", ["sasrec", "gru", "convolution"])
@pytest.mark.parametrize("catalogue", ["dense", "chunked"])
def test_a_remapped_policy_equals_the_older_one_on_known_items(backbone, catalogue, data):
    policy = older(backbone)
    batch = Windows(data, "train", WindowConfig(length=LENGTH)).cut(torch.arange(len(SEQUENCES)))
    rows = RemappedLoggingPolicy(policy, data.catalogue).rows_at(batch, batch.scored)
    expected = asked_one_by_one(policy, data)
    assert rows.shape == expected.shape
    for item in range(len(NEW)):
        taken = torch.full((len(expected),), item)
        found = backend(catalogue).log_prob(rows, taken)
        torch.testing.assert_close(found, expected[:, item], rtol=1e-9, atol=1e-9)
    # Σ_a μ̂(a|x) Q(x,a) over the newer catalogue, by enumeration: unseen items weigh nothing, whatever their Q.
    values = torch.randn(len(NEW), 3, dtype=torch.float64)
    hidden = torch.randn(len(expected), 3, dtype=torch.float64)
    q = LinearLogits(hidden, Head(values, None))
    mean = sum(expected[:, item].exp() * (hidden @ values[item]) for item in range(len(NEW)))
    torch.testing.assert_close(backend(catalogue).mean(rows, q), mean)
    logp, again = backend(catalogue).log_prob_and_mean(rows, batch.item[batch.scored], q)
    torch.testing.assert_close(again, mean)
    unseen = torch.tensor([NEW[item] in "xy" for item in batch.item[batch.scored]])
    assert torch.equal(logp == -torch.inf, unseen)
    assert unseen.any() and not unseen.all()


def test_logits_at_some_tokens_equal_those_at_all(data):
    policy = RemappedLoggingPolicy(older(), data.catalogue)
    batch = Windows(data, "train", WindowConfig(length=LENGTH)).cut(torch.arange(len(SEQUENCES)))
    every = policy.rows_at(batch, torch.arange(len(batch.row)))
    some = torch.tensor([1, 7, 8, 20])
    torch.testing.assert_close(policy.rows_at(batch, some).hidden, every.hidden[some])


def test_ids_are_matched_across_types():
    assert match_items(table(NEW), table(OLD)).tolist() == [-1, 3, 0, -1, 2, 1]
    assert match_items(table([3, 1, 7]), table(["1", "3"])).tolist() == [1, 0, -1]
    with pytest.raises(RunError, match="cannot be matched"):
        match_items(table([3, 1]), table(["one"]))
