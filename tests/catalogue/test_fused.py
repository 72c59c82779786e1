"""The fused kernels' logic on a CPU, through Triton's interpreter. On a GPU: tests/gpu/test_fused_cuda.py."""

from __future__ import annotations

import pytest
import torch
from fused_checks import (
    check_equal_rows,
    check_freed,
    check_gradients,
    check_open,
    check_range,
    check_sharded,
    check_statistics,
    check_taken,
    check_ties,
    check_top,
    check_top_without,
    check_values,
    draw_items,
    draw_rows,
    exact,
)
from interpreter import interpreted
from several_processes import in_processes

from localpolicy.catalogue import chunked, dense, fused
from localpolicy.logits import DenseLogits, Head, LinearLogits

pytestmark = interpreted

SHAPES = [(1, 1, 6), (7, 2, 16), (3, 63, 5), (17, 65, 33), (130, 200, 64)]  # the last: whole tiles, and parts of one


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_values_equal_the_definition(shape, bias):
    check_values(*shape, torch.float32, tolerance=1e-5, bias=bias)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_gradients_equal_the_definition(shape, bias):
    check_gradients(*shape, torch.float32, tolerance=1e-5, bias=bias)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_closed_items_are_left_out_of_values_and_gradients(shape, scale):
    """At scale 40 many positions stake nearly all on an item above them in the list."""
    check_open(*shape, torch.float32, tolerance=1e-5 * scale, scale=scale)


def test_extreme_scores_stay_finite():
    rows = draw_rows(5, 200, 8, scale=80.0)
    assert dense.logsumexp(exact(rows)).max() > 80, "the case must be extreme to prove anything"
    check_values(5, 200, 8, torch.float32, tolerance=1e-4, scale=80.0)


@pytest.mark.parametrize("shift", [-128.0, 128.0])
def test_sums_beyond_the_range_of_plain_exponentials_stay_exact(shift):
    check_range(5, 200, 8, torch.float32, shift, tolerance=1e-4)


def test_an_item_that_cannot_be_shown_has_no_share():
    rows = draw_rows(4, 70, 8)
    rows.head.bias[3:69] = -torch.inf  # whole tiles of nothing, too
    items = torch.tensor([0, 1, 2, 69])
    expected = dense.log_prob(exact(rows), items)
    torch.testing.assert_close(fused.log_prob(rows, items).double(), expected, rtol=1e-5, atol=1e-5)
    assert fused.maximum(rows)[1].tolist() == dense.maximum(rows)[1].tolist()


def test_the_first_tied_item_is_the_maximum_and_ties_halve_ranks():
    v = 2000  # several tiles for each program
    head = Head(torch.zeros(v, 4), torch.zeros(v))
    rows = LinearLogits(torch.randn(3, 4), head)
    assert fused.maximum(rows)[1].tolist() == [0, 0, 0]
    assert fused.rank(rows, torch.tensor([0, 70, v - 1])).tolist() == [1 + (v - 1) / 2] * 3
    head.bias[[20, 20 + 64, 20 + 128, v - 1]] = 1.0  # the same place in different tiles, and the last
    assert fused.maximum(rows)[1].tolist() == [20, 20, 20]


@pytest.mark.parametrize("shape", [(7, 150, 16), (17, 300, 33), (130, 1000, 64)], ids=str)
@pytest.mark.parametrize("module", [dense, chunked, fused], ids=["dense", "chunked", "fused"])
def test_items_with_one_row_tie_in_every_tile(module, shape):
    check_equal_rows(module, *shape)


def test_no_positions_give_no_numbers():
    rows = draw_rows(0, 9, 4)
    assert fused.log_prob(rows, draw_items(0, 9)).shape == (0,)
    assert fused.maximum(rows)[0].shape == fused.logsumexp(rows).shape == (0,)


@pytest.mark.parametrize(
    "rows", [draw_rows(3, 9, 4, torch.float64), draw_rows(3, 9, 300), DenseLogits(torch.randn(3, 9))], ids=type
)
def test_unsupported_logits_are_computed_by_chunked(rows):
    assert not fused.serves(rows)
    items = draw_items(3, 9)
    torch.testing.assert_close(fused.log_prob(rows, items), chunked.log_prob(rows, items))
    torch.testing.assert_close(fused.entropy(rows), chunked.entropy(rows))


@pytest.mark.parametrize("lists", [1, 3])
@pytest.mark.parametrize("exclude", [False, True], ids=["all", "excluded"])
def test_fused_statistics_equal_the_definition(lists, exclude):
    items = 700 if lists == 1 else 1800  # below that the kernels leave lists to chunks
    check_statistics(20, items, 8, torch.float32, tolerance=1e-5, lists=lists, exclude=exclude)


@pytest.mark.parametrize(
    "shape", [(1, 1, 6, 1), (7, 2, 16, 2), (3, 63, 5, 20), (17, 300, 33, 20), (3, 400, 200, 5)], ids=str
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_top_k_equals_the_definition(shape, bias):
    check_top(*shape, torch.float32, tolerance=1e-5, bias=bias)


def test_top_k_over_many_groups_equals_the_definition(monkeypatch):
    # Levels of groups, and blocks of positions.
    for name, value in {"CANDIDATES": 32, "FOLD": 4, "ROOM": 300}.items():
        monkeypatch.setattr(f"localpolicy.kernels.top_k.{name}", value)
    check_top(5, 1303, 8, 8, torch.float32, tolerance=1e-5)
    check_top(5, 1024, 8, 7, torch.float32, tolerance=1e-5, scale=80.0)
    check_ties(1303, 8)


def test_top_k_lists_the_first_of_tied_items():
    check_ties(300, 7)


def test_forbidden_items_enter_no_list():
    check_top_without(6, 2000, 8, 4)


@pytest.mark.cluster
def test_sums_over_shards_equal_those_over_the_whole():
    in_processes(2, check_sharded, "cpu", 9, 141, 6, 1e-5)


def test_a_result_without_references_is_freed():
    check_freed(fused, draw_rows(5, 30, 8), draw_items(5, 30))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_at_items_and_their_gradients(dtype, bias):
    check_taken(40, 150, 12, dtype, tolerance={torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype], bias=bias)
