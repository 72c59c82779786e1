"""A policy as an ONNX graph: padded histories in, one score per item out, any batch size and any length.

Training runs on flat tokens without padding; a graph wants rectangles. Padding comes after a history's end, where
nothing causal sees it, so the rectangle's last real token has the same hidden state.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from localpolicy.model.backbones.layout import Layout
from localpolicy.model.policy import Policy
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
    """(items [B, T], events [B, T], lengths [B]) -> logits [B, V]; with `dial`, also beta [1]."""

    def __init__(self, policy: Policy, *, dial: bool) -> None:
        super().__init__()
        self.network, self.dial = policy.network, dial
        self.base = (policy.origin.estimates_logging or "") if dial else "policy"
        self.critic = policy.critic or ""

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
        hidden = self.network.backbone(self.network.embed(tokens), Rectangle(row, column, rows, columns))
        last = hidden.view(rows, columns, -1)[torch.arange(rows), lengths - 1]
        logits = _scores(self.network.head(self.base), last)
        if beta is not None:
            logits = logits + _scores(self.network.head(self.critic), last) / beta
        return logits


def _scores(head: object, hidden: Tensor) -> Tensor:
    weight, bias = head.weight.detach(), head.bias  # type: ignore[attr-defined]
    scores: Tensor = hidden @ weight.T
    return scores if bias is None else scores + bias.detach()


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
        weights = sum(one.numel() * one.element_size() for one in policy.network.parameters())
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
