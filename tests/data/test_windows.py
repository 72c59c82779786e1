"""Windows: which tokens a batch holds, what came before each, and which of them are positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import ITEMS, SEQUENCES, double, prepared, whole

from localpolicy.data.batches import WindowConfig, Windows, batch_of_histories
from localpolicy.types import START, Following


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data") / "prepared")


def tokens_by_hand(sequences, *, length, last=None):
    """(row, column, previous item, previous event, item, event, reward, propensity, history, scored) of each token."""
    tokens = []
    for row, sequence in enumerate(sequences):
        first = max(0, len(sequence) - length)
        for step in range(first, len(sequence)):
            before = sequence[step - 1][:2] if step else (START, 0)
            scored = (last is None or step >= len(sequence) - last) and sequence[step][1] != 2
            tokens.append((row, step - first, *before, *sequence[step], step, scored))
    return tokens


@pytest.mark.parametrize("length", [1, 2, 5, 20])
@pytest.mark.parametrize("last", [None, 1, 3])
def test_windows_by_hand(data, length, last):
    batch = whole(data, length=length, last=last)
    tokens = tokens_by_hand(SEQUENCES, length=length, last=last)
    *columns, scored = zip(*tokens, strict=True)
    names = ("row", "column", "previous_item", "previous_event", "item", "event", "reward", "propensity", "history")
    for name, values in zip(names, columns, strict=True):
        found = getattr(batch, name)
        torch.testing.assert_close(found.double(), torch.tensor(values, dtype=torch.float64), rtol=1e-6, atol=0)
    assert batch.scored.tolist() == [place for place, one in enumerate(scored) if one]
    assert batch.size == len(SEQUENCES)


def test_a_cut_window_begins_with_the_item_that_really_came_before(data):
    batch = whole(data, length=5)
    first = batch.column == 0
    assert batch.previous_item[first].tolist() == [START, START, SEQUENCES[2][1][0], START, SEQUENCES[4][0][0]]
    assert batch.history[first].tolist() == [0, 0, 2, 0, 1]


def test_any_choice_of_sequences_is_cut_equally(data):
    windows = Windows(data, "train", WindowConfig(length=3, last=2))
    order = torch.tensor([4, 0, 2, 0])
    batch = windows.cut(order)
    tokens = tokens_by_hand([SEQUENCES[place] for place in order], length=3, last=2)
    assert batch.item.tolist() == [token[4] for token in tokens]
    assert batch.previous_item.tolist() == [token[2] for token in tokens]
    assert batch.scored.tolist() == [place for place, token in enumerate(tokens) if token[-1]]
    assert torch.equal(batch.sequences, order)


def test_context_events_are_history_and_never_positions(tmp_path):
    sequences = [[(1, 2, 0.0, 1.0), (2, 2, 0.0, 1.0), (3, 0, 1.0, 0.5)], [(4, 2, 0.0, 1.0)]]
    batch = whole(prepared(tmp_path / "prepared", sequences))
    assert batch.scored.tolist() == [2]
    assert batch.item[batch.scored].tolist() == [3]
    assert batch.previous_item.tolist() == [START, 1, 2, START]


def test_the_next_token_is_the_next_of_the_same_sequence(data):
    batch = whole(data, length=5, last=2)
    after, exists = batch.next_token()
    assert len(after) == len(batch.scored)
    for position, following, there in zip(batch.scored.tolist(), after.tolist(), exists.tolist(), strict=True):
        row = batch.row[position]
        ends = batch.column[position] == batch.column[batch.row == row].max()
        assert there == (not ends)
        if there:
            assert following == position + 1
            assert batch.row[following] == row
            assert batch.previous_item[following] == batch.item[position]
    assert exists.any() and not exists.all()


def test_passes_hold_every_sequence_once(data):
    windows = Windows(data, "train", WindowConfig(length=5))
    assert windows.positions == sum(min(5, len(sequence)) for sequence in SEQUENCES)
    assert [batch.sequences.tolist() for batch in windows.in_order(2)] == [[0, 1], [2, 3], [4]]
    # All ranks have as many batches; the last one of the second has no positions.
    ranks = [list(windows.in_order(2, rank=rank, ranks=2)) for rank in (0, 1)]
    busy = [[batch.sequences.tolist() for batch in batches if len(batch.scored)] for batches in ranks]
    assert busy == [[[0, 1], [4]], [[2, 3]]]
    assert [len(batches) for batches in ranks] == [2, 2]
    orders = {
        epoch: [batch.sequences.tolist() for batch in windows.shuffled(2, seed=1, epoch=epoch)] for epoch in range(4)
    }
    for order in orders.values():
        assert sorted(place for places in order for place in places) == [0, 1, 2, 3, 4]
    assert len({str(order) for order in orders.values()}) > 1
    again = [batch.sequences.tolist() for batch in windows.shuffled(2, seed=1, epoch=2, skip=1)]
    assert again == orders[2][1:]


@pytest.mark.parametrize("length", [1, 3, 5, 20])
def test_a_history_is_what_a_window_would_be_one_step_later(data, length):
    """A history of items as a batch holds the tokens that Windows would cut were one more action logged."""
    events = [[action[1] for action in sequence] for sequence in SEQUENCES]
    made = batch_of_histories([[action[0] for action in sequence] for sequence in SEQUENCES], events, length=length)
    longer = [[*sequence, (0, 0, 0.0, 1.0)] for sequence in SEQUENCES]
    tokens = tokens_by_hand(longer, length=length, last=1)
    for place, name in ((0, "row"), (1, "column"), (2, "previous_item"), (3, "previous_event"), (8, "history")):
        assert getattr(made, name).tolist() == [token[place] for token in tokens], name
    assert made.scored.tolist() == [place for place, token in enumerate(tokens) if token[-1]]


def test_an_empty_history_is_the_start_token():
    made = batch_of_histories([[], [2, 3]], length=4)
    assert made.previous_item.tolist() == [START, START, 2, 3]
    assert made.scored.tolist() == [0, 3]
    assert made.history.tolist() == [0, 0, 1, 2]


def test_no_histories_are_an_empty_batch():
    made = batch_of_histories([], length=4)
    assert made.size == len(made.row) == len(made.scored) == 0


def test_a_batch_moves_whole(data):
    batch = double(whole(data))
    moved = batch.to("cpu")
    assert torch.equal(moved.item, batch.item) and torch.equal(moved.propensity, batch.propensity)
    assert batch.item.max() < ITEMS


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_what_follows_a_history_is_discounted_step_by_step(gamma):
    rewards = [[0.3], [], [1.0, 0.0, 0.2, 0.5, 0.0, 0.7, 0.1, 0.9, 0.4], [0.6, 0.8]]
    ends = np.cumsum([len(one) for one in rewards])
    stop = np.repeat(ends, [len(one) for one in rewards])
    first, expected = [], []
    for one, end in zip(rewards, ends, strict=True):
        for after in range(len(one) + 1):
            first.append(end - len(one) + after if after < len(one) else ends[-1])
            expected.append(sum(gamma**k * r for k, r in enumerate(one[after:])))
    following = Following(torch.tensor(np.concatenate(rewards)), torch.tensor(stop), torch.tensor(first))
    for _ in range(2):  # the second time as it was kept
        torch.testing.assert_close(following.discounted(gamma), torch.tensor(expected, dtype=torch.float64))
