"""Batches of a fixed size hold what plain batches hold, and fillers that do not count."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.buckets import SMALLEST, STEPS, Planner, rounded
from localpolicy.types import START, Batch

SETTINGS = [{"length": 5}, {"length": 5, "last": 2}, {"length": 20}]


def plans(data, settings, context=None):
    windows = Windows(data, "train", WindowConfig(**settings))
    windows.context = context
    planner = Planner(windows, 16)
    for epoch in range(2):
        plain = windows.shuffled(16, seed=3, epoch=epoch)
        for planned, batch in zip(planner.epoch(seed=3, epoch=epoch), plain, strict=True):
            yield planned, planner.cut(planned.sequences, planned.bucket), batch


@pytest.mark.parametrize("context", [None, 0], ids=["all", "context"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_is_real_is_what_a_plain_batch_holds(small, settings, context):
    for planned, cut, batch in plans(small, settings, context):
        tokens, positions = len(batch.row), len(batch.scored)
        assert planned.positions == positions == int(cut.counted.sum())
        assert cut.counted[:positions].all()
        assert torch.equal(cut.scored[:positions], batch.scored)
        for name in (one.name for one in fields(Batch)):
            value = getattr(batch, name)
            if isinstance(value, torch.Tensor) and len(value) == tokens and name != "scored":
                assert torch.equal(getattr(cut, name)[:tokens], value), name


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_fillers_have_places_of_their_own_and_nothing_that_is_not_finite(small, settings):
    for _, cut, batch in plans(small, settings):
        rows, columns = cut.block
        cell = cut.row * columns + cut.column
        assert len(cell.unique()) == len(cell), "two tokens in one place"
        assert cell.min() >= 0
        assert cell.max() < rows * columns
        filler = slice(len(batch.row), None)
        assert (cut.previous_item[filler] == START).all()
        assert (cut.row[filler] >= cut.size).all()
        assert cut.reward.isfinite().all()
        assert cut.propensity[filler].isfinite().all()


def test_a_resumed_epoch_starts_where_it_stopped(small):
    planner = Planner(Windows(small, "train", WindowConfig()), 16)
    whole, rest = (list(planner.epoch(seed=0, epoch=1, skip=skip)) for skip in (0, 2))
    assert len(whole) > 2
    for one, two in zip(whole[2:], rest, strict=True):
        assert torch.equal(one.sequences, two.sequences)
        assert one.bucket == two.bucket


def test_buckets_waste_little():
    sizes = [rounded(count) for count in range(1, 5000)]
    for count, size in enumerate(sizes, start=1):
        assert 0 <= size - count < max(SMALLEST, size / STEPS)
    assert len(set(sizes)) < 48, "each size is a graph"
