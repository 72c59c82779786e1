"""Deferred gradients of tables, added at the end of the backward pass: of a few rows, or computed on a side stream.

Otherwise each gradient of rows that were taken from a table becomes a table of zeros with a few rows filled in, and the
backbone's gradient waits for those of the tables, which it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.runtime.graph_branch import GraphBranch


class _Waiting(NamedTuple):
    """A deferred gradient, to be added to its table's: of some rows, or of the whole table."""

    table: Tensor
    gradient: Tensor
    rows: Tensor | None = None  # rows of the table; None: all
    branch: GraphBranch | None = None  # side stream that computes it
    reads: tuple[Tensor | None, ...] = ()  # tensors that the branch reads: they must not be freed before


_later: list[_Waiting] | None = None
_side: GraphBranch | None = None  # computes the gradients of small tables, one after another


@contextmanager
def deferred_gradients() -> Iterator[None]:
    """Context manager: defer gradients of tables within the block, and add them up at its end."""
    global _later, _side
    waiting: list[_Waiting] = []
    _later, _side = waiting, None
    try:
        yield
    finally:
        _later = _side = None
    with torch.no_grad():
        for table, gradient, rows, branch, _ in waiting:
            if branch is not None:
                branch.join([gradient])
            if rows is None:
                table.grad = gradient if table.grad is None else table.grad.add_(gradient)
                continue
            table.grad = torch.zeros_like(table) if table.grad is None else table.grad
            table.grad.index_add_(0, rows, gradient)


def can_defer(*tables: Tensor | None) -> bool:
    """Whether the gradients of all these tables may be given to `defer` instead of being returned."""
    return _later is not None and all(
        table is None or (table.is_leaf and table.dtype == torch.float32) for table in tables
    )


def defer(table: Tensor, gradient: Tensor, branch: GraphBranch, *, reads: tuple[Tensor | None, ...]) -> None:
    """Defer the gradient of a whole table, which `branch` computes from `reads`, to the end of `deferred_gradients`."""
    assert _later is not None
    assert gradient.dtype == table.dtype, "a cast would not wait for the branch"
    _later.append(_Waiting(table, gradient, branch=branch, reads=reads))


def compute_on_branch(
    tables: tuple[Tensor, ...], form: Callable[[], tuple[Tensor, ...]], *, reads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients that `form` computes; None within `deferred_gradients`, where a side stream computes them."""
    global _side
    if not (can_defer(*tables) and all(table.requires_grad for table in tables)):
        return form()
    if _side is None:
        _side = GraphBranch(reads[0].device)
    _side.catch_up()
    with _side.on_side_stream():
        gradients = form()
    for table, gradient in zip(tables, gradients, strict=True):
        defer(table, gradient, _side, reads=reads)
    return (None,) * len(tables)


def rows_gradient(table: Tensor, index: Tensor, gradient: Tensor) -> Tensor | None:
    """Gradient of table[index] for the whole table; None if it is deferred."""
    gradient = gradient.to(table.dtype)
    if _later is not None and table.is_leaf:
        _later.append(_Waiting(table, gradient, index))
        return None
    return torch.zeros_like(table).index_add_(0, index, gradient)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.table = table
        ctx.save_for_backward(index)
        return table.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        (index,) = ctx.saved_tensors
        return rows_gradient(ctx.table, index, gradient), None


def take(table: Tensor, index: Tensor) -> Tensor:
    """table[index], with a gradient that is summed in a fixed order on a CPU, and without sorting on a GPU.

    Not table[index] itself: its gradient is summed in the order in which threads arrive.
    """
    if _later is not None and table.is_leaf and table.requires_grad and torch.is_grad_enabled():
        return _TakeRows.apply(table, index)  # type: ignore[no-untyped-call, no-any-return]
    return table.index_select(0, index) if table.is_cuda else functional.embedding(index, table)
