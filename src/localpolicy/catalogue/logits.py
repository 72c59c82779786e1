"""Logits over the catalogue that are never formed as a whole.

A row is one position's numbers for all V items. Everything this library scores with is linear in a hidden state,
so N rows are `hidden @ weight.T + bias`; a policy of another kind (neighbours, say) gives its own `chunk`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_copies: dict[tuple[int, torch.dtype], Tensor] = {}  # by the address of the table


@contextmanager
def copies_in(dtype: torch.dtype | None, *tables: Tensor) -> Iterator[None]:
    """Within the block these tables are there in another type already: several heads read them, and none casts again.

    The tables must not change within the block.
    """
    made = {} if dtype is None else {(table.data_ptr(), dtype): table.detach().to(dtype) for table in tables}
    _copies.update(made)
    try:
        yield
    finally:
        for key in made:
            del _copies[key]


def as_type(table: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers in another type; as a constant where no gradient is asked for."""
    if not (torch.is_grad_enabled() and table.requires_grad):
        copy = _copies.get((table.data_ptr(), dtype))
        if copy is not None and copy.shape == table.shape:
            return copy
    return table.to(dtype)


_later: list[tuple[Tensor, Tensor, Tensor]] | None = None  # table, index, gradient of the rows


@contextmanager
def rows_added_last() -> Iterator[None]:
    """Within the block gradients of rows that were taken from a table wait; at its end they are added to the table's.

    Else each of them becomes a table of zeros with a few rows filled in, and is added to the others whole.
    """
    global _later
    waiting: list[tuple[Tensor, Tensor, Tensor]] = []
    _later = waiting
    try:
        yield
    finally:
        _later = None
    with torch.no_grad():
        for table, index, gradient in waiting:
            table.grad = torch.zeros_like(table) if table.grad is None else table.grad
            table.grad.index_add_(0, index, gradient)


def rows_gradient(table: Tensor, index: Tensor, gradient: Tensor) -> Tensor | None:
    """The gradient of a table of which rows were taken; None where it waits for the end of `rows_added_last`."""
    gradient = gradient.to(table.dtype)
    if _later is not None and table.is_leaf:
        _later.append((table, index, gradient))
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


class Logits(Protocol):
    """N rows over V items, readable in chunks."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        ...

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Columns start:stop [N, stop-start], written to `out` where it is given and can be."""
        ...

    def at(self, items: Tensor) -> Tensor:
        """Row n at item items[n]: [N]."""
        ...


class AnyHead(Protocol):
    """A linear map from hidden states to one number per item, wherever its rows lie."""

    @property
    def weight(self) -> Tensor:
        """[V, D], or this rank's rows of it."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """[V]."""
        ...

    def detach(self) -> AnyHead:
        """The same numbers as constants."""
        ...

    def to(self, dtype: torch.dtype) -> AnyHead:
        """The same numbers in another type, with gradients."""
        ...

    def logits(self, hidden: Tensor) -> Logits:
        """One row for each hidden state [N, D]."""
        ...

    def replaced(self, weight: Tensor, bias: Tensor | None) -> AnyHead:
        """Other numbers in the same place."""
        ...


class Head(NamedTuple):
    """A linear map from hidden states to one number per item."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]

    def detach(self) -> Head:
        """The same numbers as constants."""
        return Head(self.weight.detach(), None if self.bias is None else self.bias.detach())

    def logits(self, hidden: Tensor) -> LinearLogits:
        """One row for each hidden state [N, D]."""
        return LinearLogits(hidden, self)

    def replaced(self, weight: Tensor, bias: Tensor | None) -> Head:
        """Other numbers in the same place."""
        return Head(weight, bias)

    def to(self, dtype: torch.dtype) -> Head:
        """The same numbers in another type, with gradients."""
        return Head(as_type(self.weight, dtype), None if self.bias is None else self.bias.to(dtype))


class LinearLogits(NamedTuple):
    """hidden @ weight.T + bias."""

    hidden: Tensor  # [N, D]
    head: Head

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        return self.hidden.shape[0], self.head.weight.shape[0]

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Columns start:stop."""
        weight, bias = self.head
        part = Head(weight[start:stop], None if bias is None else bias[start:stop]).to(self.hidden.dtype)
        if part.bias is None:
            return torch.mm(self.hidden, part.weight.T, out=out)
        return torch.addmm(part.bias, self.hidden, part.weight.T, out=out)

    def at(self, items: Tensor) -> Tensor:
        """Row n at item items[n]. With gradients; touches N rows of the head, not V."""
        hidden, rows = self.hidden, take(self.head.weight, items)
        if hidden.dtype.itemsize < 4:  # half precision is for the products with V rows; these are N
            hidden, rows = hidden.float(), rows.to(torch.float32)
        scores: Tensor = torch.linalg.vecdot(hidden, rows)
        if self.head.bias is None:
            return scores
        return scores + take(self.head.bias[:, None], items).squeeze(1)

    def detach(self) -> LinearLogits:
        """The same rows as constants."""
        return LinearLogits(self.hidden.detach(), self.head.detach())


def tilted(hidden: Tensor, base: AnyHead, values: AnyHead, *, beta: float) -> Logits:
    """log μ(a|x) + Q(x,a)/β + const: a tilt of one head by another is again a head.

    Whence the dial: one trained model serves every β at the cost of one head.
    """
    weight = base.weight + values.weight / beta
    bias = base.bias if values.bias is None else values.bias / beta
    if base.bias is not None and values.bias is not None:
        bias = base.bias + values.bias / beta
    return base.replaced(weight, bias).logits(hidden)


class DenseLogits(NamedTuple):
    """Logits that were formed already: small catalogues, and policies that are not linear."""

    values: Tensor  # [N, V]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        return self.values.shape[0], self.values.shape[1]

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Columns start:stop."""
        chunk = self.values[:, start:stop]
        return chunk if out is None else out.copy_(chunk)

    def at(self, items: Tensor) -> Tensor:
        """Row n at item items[n]."""
        return self.values.gather(1, items[:, None]).squeeze(1)
