"""The places of one list were chosen in one context: the places above in the list are no history."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from localpolicy.catalogue import chunked
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.quality import measure
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.logits import DenseLogits
from localpolicy.measure.score import score
from localpolicy.model.backbones import Layout
from localpolicy.model.baselines import recent
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.model.readout import NetworkReader, critic_targets, returns_to_go
from localpolicy.report.results import quality_tables
from localpolicy.types import Reads

#         one list of 3    alone  a list of 2
ITEMS = [[3, 1, 4,         2,     0, 4], [1, 2]]  # fmt: skip
ABOVE = [[0, 1, 2, 0, 0, 1], [0, 1]]


@pytest.fixture
def data(tmp_path) -> Prepared:
    events = ["none", "click"]
    with writing(tmp_path / "data", kind="impressions", events=events, optional=("place", "above")) as store:
        for name, split in store.splits.items():
            rows = (ITEMS, ABOVE) if name == "train" else ([[0]], [[0]])
            item, above = (np.concatenate(one) for one in rows)
            arrays = {"item": item, "event": item % 2, "reward": item * 0.1, "place": above, "above": above}
            split.append(np.array([len(one) for one in rows[0]]), arrays)
        store.write_items(np.arange(5), np.ones(5, np.int64))
    return Prepared(tmp_path / "data")


def batch(data: Prepared, length: int = 10):
    return Windows(data, "train", WindowConfig(length=length)).cut(torch.arange(2))


def network() -> Network:
    torch.manual_seed(0)
    return Network(
        ModelConfig(width=8, event_embeddings=True), items=5, events=2, length=10, heads=("policy", "q_a", "q_b")
    ).eval()


def test_every_place_has_the_context_of_the_first(data):
    given = batch(data)
    assert given.context.tolist() == [0, 0, 0, 3, 4, 4, 6, 6]
    hidden = network().hidden_without_dropout(given)
    for one, other in [(0, 1), (0, 2), (4, 5), (6, 7)]:
        assert torch.equal(hidden[one], hidden[other])
    assert not torch.allclose(hidden[0], hidden[3]) and not torch.allclose(hidden[3], hidden[4])
    plain = network().encode(given, Layout.of(given))
    assert torch.allclose(hidden[3], plain[3], atol=1e-6), "what was shown before, the whole list, is history"


def test_tokens_after_the_last_context_are_not_encoded(data):
    given = batch(data)
    read, context = given.read_alone()
    assert read.row.tolist() == [0, 0, 0, 0, 0, 1] and read.column.tolist() == [0, 1, 2, 3, 4, 0]
    assert context.tolist() == [0, 0, 0, 3, 4, 4, 5, 5]
    made = network()
    whole = made.encode(given, Layout.of(given))[given.context]
    assert torch.allclose(made.hidden(given), whole, atol=1e-6)
    fixed = replace(given, block=(2, 6))
    assert fixed.read_alone()[0] is fixed, "a captured step has one size"


def test_after_a_list_comes_the_next_list(data):
    after, exists = batch(data).next_token()
    assert exists.tolist() == [True, True, True, True, False, False, False, False]
    assert after[exists].tolist() == [3, 3, 3, 4]


def test_a_window_that_begins_amid_a_list_does_not_score_its_rest(data):
    given = batch(data, length=4)
    assert given.item.tolist() == [4, 2, 0, 4, 1, 2]
    assert given.scored.tolist() == [1, 2, 3, 4, 5]


def test_a_baseline_reads_the_same_context(data):
    given = batch(data)
    position, item, _ = recent(given, [1], depth=10)
    seen = {n: sorted(item[position == n].tolist()) for n in range(len(given.scored))}
    assert seen == {0: [], 1: [], 2: [], 3: [1, 3], 4: [1, 3], 5: [1, 3], 6: [], 7: []}


class Uniform:
    def logits(self, batch):
        return DenseLogits(torch.zeros(len(batch.scored), 5))


def test_scores_name_the_list_of_each_position(data):
    scores = score(Uniform(), Windows(data, "train", WindowConfig(length=10)), events=data.events, min_history=0)
    assert scores.above.tolist() == [above for one in ABOVE for above in one]
    assert scores.list_number.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(np.exp(-scores.logp_open), [5, 4, 3, 5, 5, 4, 5, 4], rtol=1e-6)


def test_places_above_do_not_count_as_history(data):
    """A list is measured whole or not at all: its second place has no more history than its first."""
    scores = score(Uniform(), Windows(data, "train", WindowConfig(length=10)), events=data.events, min_history=1)
    assert scores.list_number.tolist() == [0, 1, 1] and scores.history.tolist() == [3, 4, 5]


def test_returns_to_go_take_a_list_as_one_step(data):
    """A place earns its own reward, and every later list all of its places': lower places are no later step."""
    first, alone, last, other = [0.3, 0.1, 0.4], [0.2], [0.0, 0.4], [0.1, 0.2]
    after_first = sum(alone) + 0.5 * sum(last)
    expected = [*(r + 0.5 * after_first for r in first), alone[0] + 0.5 * sum(last), *last, *other]
    torch.testing.assert_close(returns_to_go(batch(data), gamma=0.5), torch.tensor(expected))


def test_a_critic_is_held_to_what_the_first_place_would_have_earned(data):
    """r/e + γ …, with the squared error weighted by e²: a reward at a place with few views weighs less."""
    place = batch(data)
    examined = torch.linspace(1.0, 0.3, len(place.item))
    returns = returns_to_go(place, gamma=0.5)
    targets, weight = critic_targets(replace(place, examined=examined), gamma=0.5)
    torch.testing.assert_close(targets, returns - place.reward + place.reward / examined)
    torch.testing.assert_close(weight, examined**2)
    assert (place.reward[1:] > 0).any() and (critic_targets(place, gamma=0.5)[0] == returns).all()


@pytest.mark.parametrize("target", ["max", "expected"])
def test_the_next_value_is_of_the_next_list(target, data):
    """Value of the list's first place, plus rewards of lower ones: E[R' + γ …] = E[Q(x', a'_1)] + E[Σ_{i>1} r'_i]."""
    made = network()
    torch.manual_seed(1)
    for name in ("q_a", "q_b"):
        torch.nn.init.normal_(made.heads[name].bias)
    reads = Reads(frozenset({"q_fit", "next_value"}), "q", 0.5, target, logging="head")
    reader = NetworkReader(made, reads, chunked)
    reader = reader if target == "max" else NetworkReader(with_logging(made), reads, chunked)
    found = reader.read(batch(data), step=0, coin=True).next_value
    hidden = made.hidden_without_dropout(batch(data))
    q_a, q_b = (made.head(name).logits(hidden).chunk(0, 5) for name in ("q_a", "q_b"))
    values = q_b.gather(1, q_a.argmax(1, keepdim=True)).squeeze(1) if target == "max" else q_b.mean(1)
    expected = [values[3]] * 3 + [values[4] + 0.4] + [torch.tensor(0.0)] * 4
    torch.testing.assert_close(found, torch.stack(expected))


def with_logging(made: Network) -> Network:
    """Network with a logging head that gives all items one probability."""
    heads = ("policy", "q_a", "q_b", "logging")
    other = Network(ModelConfig(width=8, event_embeddings=True), items=5, events=2, length=10, heads=heads).eval()
    other.load_state_dict(made.state_dict(), strict=False)
    torch.nn.init.zeros_(other.heads["logging"].projection)
    return other


def test_the_quality_report_counts_lists_and_says_what_places_tell(data):
    quality = measure(data)
    assert quality.lists == 3 and quality.examined is None, "no propensities"
    said = [str(row) for table in quality_tables(data, quality) for row in table.rows]
    assert any("position bias cannot be separated" in row for row in said)
