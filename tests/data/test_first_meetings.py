"""First meetings: their rows, their rewards, and windows with only these as positions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from shop_logs import write_shop

from localpolicy.catalogue.open_items import OpenItems
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.first_meetings import earned_by_meeting, met_before
from localpolicy.model.readout import returns_to_go

VIEW, BUY = 0, 1
WORTH = {VIEW: 0.25, BUY: 1.0}  # exact in floats


def by_hand(rows):
    """Of rows (sequence, item, event): whether the item was met before, and what its first meeting earned."""
    again, earned = [], []
    for at, (sequence, item, _) in enumerate(rows):
        mine = [k for k, row in enumerate(rows) if row[:2] == (sequence, item)]
        met = [k for k in mine if rows[k][2] == rows[mine[0]][2]]
        again.append(at != mine[0])
        earned.append(sum(WORTH[rows[k][2]] for k in mine) / len(met))
    return again, earned


def columns(rows):
    sequence, item, event = (torch.tensor(column) for column in zip(*rows, strict=True))
    return sequence, item, event, torch.tensor([WORTH[int(each)] for each in event])


@pytest.mark.parametrize("items", list(product(range(3), repeat=3)), ids=str)
def test_every_sequence_of_three_actions_is_credited_as_by_hand(items):
    for events in product((VIEW, BUY), repeat=3):
        rows = [(0, item, event) for item, event in zip(items, events, strict=True)]
        rows += [(1, item, event) for _, item, event in reversed(rows)]  # another sequence, with the same items
        sequence, item, event, reward = columns(rows)
        again, earned = by_hand(rows)
        assert met_before(sequence, item).tolist() == again
        assert earned_by_meeting(sequence, item, event, reward).tolist() == earned


def test_a_purchase_after_a_second_view_is_credited_too():
    """Before it was credited to nobody: the first view had what came before the second, and repeats are no choices."""
    rows = [(0, 7, VIEW), (0, 3, VIEW), (0, 7, VIEW), (0, 7, BUY)]
    earned = earned_by_meeting(*columns(rows))
    assert (
        earned.tolist() == [(2 * WORTH[VIEW] + WORTH[BUY]) / 2, WORTH[VIEW]] + [(2 * WORTH[VIEW] + WORTH[BUY]) / 2] * 2
    )


def test_what_is_met_more_often_is_no_better_for_that():
    """A view is followed by a purchase in one of four cases; people meet item 0 once, and item 1 up to five times."""
    rng, rows = np.random.default_rng(0), []
    for sequence in range(8_000):
        for item, times in ((0, 1), (1, rng.integers(1, 6))):
            for _ in range(times):
                rows += [(sequence, item, VIEW)] + [(sequence, item, BUY)] * int(rng.random() < 0.25)
    sequence, item, event, reward = columns(rows)
    earned = earned_by_meeting(sequence, item, event, reward)
    first = ~met_before(sequence, item)
    for each in (0, 1):
        assert earned[first & (item == each)].mean() == pytest.approx(WORTH[VIEW] + 0.25 * WORTH[BUY], abs=0.02)


def test_an_empty_log_has_none():
    nothing = torch.zeros(0, dtype=torch.long)
    assert len(met_before(nothing, nothing)) == len(earned_by_meeting(nothing, nothing, nothing, nothing.float())) == 0


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return write_shop(tmp_path_factory.mktemp("meetings") / "shop", items=5)  # few items: many repeats


@pytest.mark.parametrize("settings", [{"length": 20}, {"length": 4}, {"length": 20, "last": 2}], ids=str)
def test_windows_of_first_meetings_ask_for_these_alone_and_read_histories_as_before(shop, settings):
    plain = Windows(shop, "train", WindowConfig(**settings))
    meetings = plain.of_first_meetings()
    before, after = plain.cut(torch.arange(len(plain))), meetings.cut(torch.arange(len(plain)))
    again = met_before(plain.history_of_rows, plain.arrays["item"])
    index = (plain.offsets[:-1][before.row] + before.history)[before.scored]
    assert after.scored.tolist() == before.scored[~again[index]].tolist()
    assert 0 < len(after.scored) < len(before.scored)
    for name in ("item", "previous_item", "previous_event", "row", "column", "history"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name
    earned = earned_by_meeting(
        plain.history_of_rows, plain.arrays["item"], plain.arrays["event"], plain.arrays["reward"]
    ).float()
    assert torch.equal(after.reward[after.scored], earned[index][~again[index]])
    assert torch.equal(returns_to_go(after, gamma=0.0)[after.scored], after.reward[after.scored])
    assert plain.cut(torch.arange(3)).positions == before.row.lt(3).sum() or "last" in settings  # untouched


def test_repeats_are_credited_with_the_mean_of_first_meetings_where_they_are_positions(shop):
    plain = Windows(shop, "train", WindowConfig(length=20))
    batch = plain.of_first_meetings(repeats=True).cut(torch.arange(len(plain)))
    alone = plain.of_first_meetings().cut(torch.arange(len(plain)))
    again = torch.ones(len(batch.row), dtype=torch.bool)
    again[alone.scored] = False
    assert torch.equal(batch.reward[~again], alone.reward[alone.scored])
    assert batch.reward[again].unique().tolist() == pytest.approx([alone.reward[alone.scored].mean().item()])
    assert len(batch.scored) == len(batch.row)


def test_what_was_met_before_is_not_open(shop):
    batch = Windows(shop, "train", WindowConfig(length=20)).of_first_meetings().cut(torch.arange(8))
    closed = OpenItems.of(batch).closed(0, shop.n_items)
    for place, at in enumerate(batch.scored.tolist()):
        here = (batch.row == batch.row[at]) & (batch.column < batch.column[at])
        assert set(np.flatnonzero(closed[place])) == set(batch.item[here].tolist())
