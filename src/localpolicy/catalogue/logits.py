"""Logits over the catalogue that are never formed as a whole.

A row is one position's numbers for all V items. Everything this library scores with is linear in a hidden state,
so N rows are `hidden @ weight.T + bias`; a policy of another kind (neighbours, say) gives its own `chunk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.runtime.branch import Branch

_copies: dict[tuple[int, torch.dtype], tuple[Tensor, Branch]] = {}  # by the address of the table


@contextmanager
def copies_in(dtype: torch.dtype | None, *tables: Tensor) -> Iterator[None]:
    """Within the block these tables are there in another type already: several heads read them, and none casts again.

    The tables must not change within the block. Copies are made beside what comes first, and waited for where read.
    """
    made = {} if dtype is None else {(table.data_ptr(), dtype): _copy(table, dtype) for table in tables}
    _copies.update(made)
    try:
        yield
    finally:
        for key, (_, branch) in made.items():
            branch.join([])  # also where nobody read the copy: a branch of a graph must end
            del _copies[key]


def _copy(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Branch]:
    branch = Branch(table.device)
    with branch.beside():
        return table.detach().to(dtype), branch


def as_type(table: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers in another type; as a constant where no gradient is asked for."""
    if not (torch.is_grad_enabled() and table.requires_grad):
        copy, branch = _copies.get((table.data_ptr(), dtype), (None, None))
        if copy is not None and branch is not None and copy.shape == table.shape:
            branch.join([copy])
            return copy
    return table.to(dtype)


class _Waiting(NamedTuple):
    """A gradient that is added to its table's last: of these rows, or of all of them."""

    table: Tensor
    gradient: Tensor
    rows: Tensor | None = None
    branch: Branch | None = None  # that forms it
    reads: tuple[Tensor | None, ...] = ()  # what the branch reads: it must not be freed, and written over, before


_later: list[_Waiting] | None = None
_side: Branch | None = None  # forms the gradients of small tables, one after another


@contextmanager
def rows_added_last() -> Iterator[None]:
    """Within the block gradients of tables wait, and are added up at its end.

    Else each gradient of rows that were taken from a table becomes a table of zeros with a few rows filled in, and is
    added to the others whole; and the backbone's gradient waits for those of the tables, which need none of it.
    """
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


def gradients_wait(*tables: Tensor | None) -> bool:
    """Whether the gradients of all of these may be given to `add_last` instead of being returned."""
    return _later is not None and all(
        table is None or (table.is_leaf and table.dtype == torch.float32) for table in tables
    )


def add_last(table: Tensor, gradient: Tensor, branch: Branch, *, reads: tuple[Tensor | None, ...]) -> None:
    """Add the gradient of a whole table, which `branch` forms from `reads`, at the end of `rows_added_last`."""
    assert _later is not None
    assert gradient.dtype == table.dtype, "a cast would not wait for the branch"
    _later.append(_Waiting(table, gradient, branch=branch, reads=reads))


def formed_beside(
    tables: tuple[Tensor, ...], form: Callable[[], tuple[Tensor, ...]], *, reads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients that `form` gives; within `rows_added_last` they are formed beside what comes next, and wait."""
    global _side
    if not (gradients_wait(*tables) and all(table.requires_grad for table in tables)):
        return form()
    if _side is None:
        _side = Branch(reads[0].device)
    _side.catch_up()
    with _side.beside():
        gradients = form()
    for table, gradient in zip(tables, gradients, strict=True):
        add_last(table, gradient, _side, reads=reads)
    return (None,) * len(tables)


def rows_gradient(table: Tensor, index: Tensor, gradient: Tensor) -> Tensor | None:
    """The gradient of a table of which rows were taken; None where it waits for the end of `rows_added_last`."""
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
