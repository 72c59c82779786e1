"""The fused kernels on a GPU, against the float64 definition. Needs a CUDA device: run by hand with `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch
from fused_checks import (
    check_equal_rows,
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
from several_processes import in_processes

from localpolicy.catalogue import dense, fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# One tolerance per type, as ‖error‖ / ‖number‖: TF32 has 10 bits of mantissa, bf16 has 7.
TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 1e-2}
SHAPES = [(1, 1), (5, 2), (64, 63), (65, 64), (1, 65), (333, 1271), (1472, 48_255), (5000, 3416)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [16, 50, 64, 128, 200, 256])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_equal_the_definition(shape, width, dtype):
    check_values(*shape, width, dtype, tolerance=TOLERANCE[dtype], device="cuda", bias=shape[0] != 65)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [16, 50, 64, 128, 200, 256])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_equal_the_definition(shape, width, dtype):
    check_gradients(*shape, width, dtype, tolerance=TOLERANCE[dtype], device="cuda", bias=shape[0] != 65)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] > 5], ids=str)  # one place closes nothing
def test_closed_items_are_left_out(shape, dtype):
    check_open(*shape, 64, dtype, tolerance=TOLERANCE[dtype], device="cuda")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_extreme_scores_stay_finite(dtype):
    check_values(200, 1271, 64, dtype, tolerance=10 * TOLERANCE[dtype], device="cuda", scale=80.0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shift", [-128.0, 128.0])
def test_sums_beyond_the_range_of_plain_exponentials_stay_exact(shift, dtype):
    check_range(300, 5000, 64, dtype, shift, tolerance=10 * TOLERANCE[dtype], device="cuda")


def test_evaluation_is_nearly_float32():
    rows = draw_rows(500, 48_255, 64, device="cuda")
    items = draw_items(500, 48_255, "cuda")
    torch.testing.assert_close(fused.logsumexp(rows).double(), dense.logsumexp(exact(rows)), rtol=1e-5, atol=1e-4)
    off = (fused.rank(rows, items) - dense.rank(exact(rows), items)).abs()
    assert off.max() <= 1


def test_the_first_tied_item_is_the_maximum_and_ties_halve_ranks():
    rows = draw_rows(100, 5000, 64, device="cuda")
    rows.head.weight.zero_()
    rows.head.bias.zero_()
    assert fused.maximum(rows)[1].tolist() == [0] * 100
    assert fused.rank(rows, draw_items(100, 5000, "cuda")).tolist() == [1 + 4999 / 2] * 100


@pytest.mark.parametrize("shape", [(17, 300, 33), (130, 5000, 64), (500, 20_000, 128)], ids=str)
def test_items_with_one_row_tie_in_every_tile(shape):
    check_equal_rows(fused, *shape, device="cuda")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_deterministic_mode_gives_the_same_bits_twice(dtype):
    def once():
        rows = draw_rows(700, 20_000, 64, dtype, device="cuda")
        leaves = [part.requires_grad_() for part in (rows.hidden, *rows.head)]
        items = draw_items(700, 20_000, "cuda") // 400  # popular items meet many positions
        fused.log_prob(rows, items).sum().backward()
        return [leaf.grad for leaf in leaves]

    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(one, two) for one, two in zip(once(), once(), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("lists", [1, 20])
@pytest.mark.parametrize("exclude", [False, True], ids=["all", "excluded"])
@pytest.mark.parametrize("width", [64, 100, 200])
def test_fused_statistics_equal_the_definition(width, exclude, lists):
    check_statistics(700, 8000, width, torch.float32, tolerance=1e-5, device="cuda", lists=lists, exclude=exclude)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [16, 64, 128, 200, 256])
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 1), 1), ((64, 63), 20), ((333, 1271), 300), ((1472, 48_255), 20)], ids=str
)
def test_top_k_equals_the_definition(shape, k, width, dtype):
    check_top(*shape, width, k, dtype, tolerance=1e-5, device="cuda", bias=shape[0] != 64)


def test_top_k_over_many_groups_equals_the_definition():
    check_top(60, 400_001, 64, 500, torch.bfloat16, tolerance=1e-5, device="cuda")
    check_ties(400_001, 500, "cuda")


def test_forbidden_items_enter_no_list():
    check_top_without(200, 20_000, 64, 20, "cuda")


def test_sums_over_shards_equal_those_over_the_whole():
    in_processes(2, check_sharded, "cuda", 700, 5001, 64, TOLERANCE[torch.float32])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_at_items_and_their_gradients(dtype, bias):
    check_taken(
        1472, 5000, 12, dtype, tolerance={torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype], bias=bias, device="cuda"
    )
