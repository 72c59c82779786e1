"""Logits over the catalogue that are never formed as a whole.

A row holds one position's numbers for all V items. All networks here are linear in a hidden state, so N rows are
`hidden @ weight.T + bias`; a policy of another kind (neighbours, say) gives its own `chunk`.
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
    """Context manager: cast these tables once, so that every head within the block reads the copy.

    The tables must not change within the block. Copies are made on a side stream; the first reader waits for them.
    """
    made = {} if dtype is None else {(table.data_ptr(), dtype): _copy(table, dtype) for table in tables}
    _copies.update(made)
    try:
        yield
    finally:
        for key, (_, branch) in made.items():
            branch.join([])  # even if nobody read the copy: a branch of a graph must end
            del _copies[key]


def _copy(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, GraphBranch]:
    branch = GraphBranch(table.device)
    with branch.on_side_stream():
        return table.detach().to(dtype), branch


def as_type(table: Tensor, dtype: torch.dtype) -> Tensor:
    """The table in another type; a constant if gradients are off."""
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
        """(N, V): numbers of positions and items."""
        ...

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop [N, stop-start], written to `out` if it is given and if that is possible."""
        ...

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]."""
        ...


class AnyHead(Protocol):
    """Linear map from hidden states to one number per item, on one process or split over ranks."""

    @property
    def weight(self) -> Tensor:
        """Weights [V, D], or this rank's rows of them."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """Biases [V], or this rank's part of them."""
        ...

    def detach(self) -> AnyHead:
        """Copy of the head without gradients."""
        ...

    def to(self, dtype: torch.dtype) -> AnyHead:
        """The head in another type, with gradients."""
        ...

    def logits(self, hidden: Tensor) -> Logits:
        """Logits of hidden states [N, D]."""
        ...

    def replaced(self, weight: Tensor, bias: Tensor | None) -> AnyHead:
        """Head with another weight and bias, split over ranks in the same way."""
        ...


class Head(NamedTuple):
    """Linear map from hidden states to one number per item."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]

    def detach(self) -> Head:
        """Copy of the head without gradients."""
        return Head(self.weight.detach(), None if self.bias is None else self.bias.detach())

    def logits(self, hidden: Tensor) -> LinearLogits:
        """Logits of hidden states [N, D]."""
        return LinearLogits(hidden, self)

    def replaced(self, weight: Tensor, bias: Tensor | None) -> Head:
        """Head with this weight and bias."""
        return Head(weight, bias)

    def to(self, dtype: torch.dtype) -> Head:
        """The head in another type, with gradients."""
        return Head(as_type(self.weight, dtype), None if self.bias is None else self.bias.to(dtype))


class LinearLogits(NamedTuple):
    """hidden @ weight.T + bias: [N, V], not formed."""

    hidden: Tensor  # [N, D]
    head: Head

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.hidden.shape[0], self.head.weight.shape[0]

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        weight, bias = self.head
        part = Head(weight[start:stop], None if bias is None else bias[start:stop]).to(self.hidden.dtype)
        if part.bias is None:
            return torch.mm(self.hidden, part.weight.T, out=out)
        return torch.addmm(part.bias, self.hidden, part.weight.T, out=out)

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n [N], with gradients; reads N rows of the head, not V."""
        hidden, rows = self.hidden, take(self.head.weight, items)
        if hidden.dtype.itemsize < 4:  # half precision is for the products with V rows; these are N
            hidden, rows = hidden.float(), rows.to(torch.float32)
        scores: Tensor = torch.linalg.vecdot(hidden, rows)
        if self.head.bias is None:
            return scores
        return scores + take(self.head.bias[:, None], items).squeeze(1)

    def detach(self) -> LinearLogits:
        """Copy of the logits without gradients."""
        return LinearLogits(self.hidden.detach(), self.head.detach())


def tilted(hidden: Tensor, base: AnyHead, values: AnyHead, *, beta: float) -> Logits:
    """log μ(a|x) + Q(x,a)/β + const: a tilt of one head by another is again a head.

    Therefore one trained model serves every β at the cost of one head.
    """
    weight = base.weight + values.weight / beta
    bias = base.bias if values.bias is None else values.bias / beta
    if base.bias is not None and values.bias is not None:
        bias = base.bias + values.bias / beta
    return base.replaced(weight, bias).logits(hidden)


class DenseLogits(NamedTuple):
    """Logits that are formed already: small catalogues, and policies that are not linear."""

    values: Tensor  # [N, V]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.values.shape[0], self.values.shape[1]

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        chunk = self.values[:, start:stop]
        return chunk if out is None else out.copy_(chunk)

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]."""
        return self.values.gather(1, items[:, None]).squeeze(1)


class SoftmaxSums(NamedTuple):
    """Sums over the catalogue from one pass: [N] each, `pulled` [N, D]. None if not requested."""

    normaliser: Tensor  # log Σ_a e^{row_a}
    mean: Tensor | None = None  # Σ_a p_a value_a
    log_p: Tensor | None = None  # log p of the taken item
    pulled: Tensor | None = None  # Σ_a p_a weight_a
