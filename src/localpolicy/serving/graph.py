"""A policy as an ONNX graph: padded histories in, one score per item out, any batch size and any length.

Training runs on flat tokens without padding; a graph wants rectangles. Padding comes after a history's end, where
nothing causal sees it, so the rectangle's last real token has the same hidden state.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from localpolicy.catalogue.logits import AnyHead
from localpolicy.model.backbones.layout import Layout
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.types import Batch

LARGE = 1 << 30  # bytes of weights from which they lie in a file of their own: one message holds 2 GiB at most
OPSET = 20


class Rectangle(Layout):
    """B rows of T tokens each: padding and flattening are views."""

    def pad(self, flat: Tensor) -> Tensor:
        """[B·T, ...] -> [B, T, ...]."""
        return flat.view(self.rows, self.columns, *flat.shape[1:])

    def flatten(self, block: Tensor) -> Tensor:
        """[B, T, ...] -> [B·T, ...]."""
        return block.reshape(self.rows * self.columns, *block.shape[2:])


class Graph(nn.Module):
    """(items [B, T], events [B, T], lengths [B]) -> logits [B, V]; with `dial`, also beta [1].

    A policy on one backbone is a linear head, and its dial the sum of two. One of towers is `model.towers`' formula:
    log μ̂ over the first part of the hidden state and the critics over the rest, each read once. Heads are put together
    once, here.
    """

    def __init__(self, policy: Policy, *, dial: bool) -> None:
        super().__init__()
        network, origin = policy.network, policy.origin
        self.network, self.scale, self.cap, self.own = network, 1.0, None, 0
        base: AnyHead
        values: AnyHead | None = None
        if isinstance(network, Towers):
            base, values = network.parts()
            self.own, self.cap = base.weight.shape[1], network.cap
            self.scale = network.slope / (1.0 if dial else network.beta)
        elif dial:
            assert origin.estimates_logging is not None and policy.critic is not None
            base, values = network.head(origin.estimates_logging), network.head(policy.critic)
        else:
            base = network.head("policy")
        self.base = _Linear(base)
        self.values = None if values is None else _Linear(values)

    def forward(self, items: Tensor, events: Tensor, lengths: Tensor, beta: Tensor | None = None) -> Tensor:
        """One row of scores for each history."""
        rows, columns = items.shape
        row = torch.arange(rows).repeat_interleave(columns)
        column = torch.arange(columns).repeat(rows)
        flat = items.reshape(-1)
        nothing = torch.zeros_like(flat)
        tokens = Batch(
            sequences=torch.arange(rows), row=row, column=column, previous_item=flat, previous_event=events.reshape(-1),
            item=nothing, event=nothing, reward=nothing, history=column, scored=lengths,
        )  # fmt: skip
        hidden = self.network.encode(tokens, Rectangle(row, column, rows, columns))
        last = hidden.view(rows, columns, -1)[torch.arange(rows), lengths - 1]
        logits: Tensor = self.base(last[:, : self.own] if self.own else last)
        if self.values is None:
            return logits
        values: Tensor = self.values(last[:, self.own :])
        if self.cap is not None:  # Â = Q - Σ_a μ̂ Q; without a cap, what all items share cancels
            values = values - (torch.softmax(logits, dim=1) * values).sum(1, keepdim=True)
        tilt = self.scale * values if beta is None else self.scale * values / beta
        return logits + (tilt if self.cap is None else tilt.clamp(max=math.log(self.cap)))


class _Linear(nn.Module):
    """A head's weights [V, D] and biases [V], as constants."""

    def __init__(self, head: AnyHead) -> None:
        super().__init__()
        head = head.detach()
        self.weight = nn.Buffer(head.weight)
        self.bias = nn.Buffer(torch.zeros(len(head.weight)) if head.bias is None else head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weight.T + self.bias


def write_graph(policy: Policy, path: Path, *, dial: bool = False) -> None:
    """Write the policy, or its dial, to `path`."""
    graph = Graph(policy, dial=dial).eval()
    columns = min(3, policy.network.length)
    items = torch.zeros((2, columns), dtype=torch.long)
    given: tuple[Tensor, ...] = (items, torch.zeros_like(items), torch.full((2,), columns))
    names = ["items", "events", "lengths"]
    free = torch.export.Dim.DYNAMIC
    rectangle = {0: free, 1: free} if columns > 1 else {0: free}
    shapes: list[dict[int, object]] = [rectangle, rectangle, {0: free}]
    if dial:
        given, names, shapes = (*given, torch.ones(1)), [*names, "beta"], [*shapes, {}]
    with _quiet():
        program = torch.onnx.export(
            graph, given, dynamo=True, input_names=names, output_names=["logits"], dynamic_shapes=tuple(shapes),
            opset_version=OPSET, verbose=False, optimize=True,
        )  # fmt: skip
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # lines of our source: the same policy gives the same bytes without them
        weights = sum(tensor.numel() * tensor.element_size() for tensor in policy.network.parameters())
        program.save(path, external_data=weights > LARGE)


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither torch's warnings about its own inside, nor its talk of packages that this export does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
