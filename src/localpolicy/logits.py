"""Logits over the catalogue that are never formed as a whole.

A row is one position's numbers for all V items. Everything this library scores with is linear in a hidden state,
so N rows are `hidden @ weight.T + bias`; a policy of another kind (neighbours, say) gives its own `chunk`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from localpolicy.runtime.deferred_gradients import take
from localpolicy.runtime.graph_branch import GraphBranch

_copies: dict[tuple[int, torch.dtype], tuple[Tensor, GraphBranch]] = {}  # by the address of the table


@contextmanager
def copies_in(dtype: torch.dtype | None, *tables: Tensor) -> Iterator[None]:
    """Context manager: these tables are cast once, and every head within the block reads that copy.

    The tables must not change within the block. Copies are made on a side stream, and waited for where they are read.
    """
    made = {} if dtype is None else {(table.data_ptr(), dtype): _copy(table, dtype) for table in tables}
    _copies.update(made)
    try:
        yield
    finally:
        for key, (_, branch) in made.items():
            branch.join([])  # also where nobody read the copy: a branch of a graph must end
            del _copies[key]


def _copy(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, GraphBranch]:
    branch = GraphBranch(table.device)
    with branch.on_side_stream():
        return table.detach().to(dtype), branch


def as_type(table: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers in another type; as a constant where no gradient is asked for."""
    if not (torch.is_grad_enabled() and table.requires_grad):
        copy, branch = _copies.get((table.data_ptr(), dtype), (None, None))
        if copy is not None and branch is not None and copy.shape == table.shape:
            branch.join([copy])
            return copy
    return table.to(dtype)


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


class SoftmaxSums(NamedTuple):
    """Sums over the catalogue from one pass: [N] each, `pulled` [N, D]. None if not asked for."""

    normaliser: Tensor  # log Σ_a e^{row_a}
    mean: Tensor | None = None  # Σ_a p_a value_a
    log_p: Tensor | None = None  # log p of the taken item
    pulled: Tensor | None = None  # Σ_a p_a weight_a
