"""The hidden state of each history, as ONNX nodes.

SASRec and GRU are written node by node, from the formulas of `model.backbones`: of SASRec's last block only the last
token's state is formed, and an export takes none of the seconds that tracing takes. Other backbones, those of users
included, are traced by torch. Either way an export is compared with PyTorch before it is called whole.

Training runs on flat tokens without padding; a graph wants rectangles. Padding comes after a history's end, where
nothing causal sees it, so the rectangle's last real token has the same hidden state.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from localpolicy.model.backbones.gru import GRU
from localpolicy.model.backbones.layout import Layout
from localpolicy.model.backbones.sasrec import Block, SASRec
from localpolicy.model.network import Network
from localpolicy.model.towers import Towers
from localpolicy.serving.nodes import OPSET, Nodes
from localpolicy.types import Batch

NAMES = {"items": ["B", "T"], "events": ["B", "T"], "lengths": ["B"]}


def encode(network: Network | Towers) -> tuple[Nodes, ir.Value]:
    """Return a graph with the inputs `NAMES`, and the hidden state in it: [B, D], of towers [B, (1 + K) D]."""
    if not all(type(tower.backbone) in WRITTEN for tower in network.towers):
        return _traced(network)
    nodes = Nodes()
    items, events, lengths = (nodes.input(name, ir.DataType.INT64, shape) for name, shape in NAMES.items())
    nothing = nodes.constant(np.array(0, np.int64))
    steps = nodes("Squeeze", nodes("Shape", items, start=1, end=2))
    column = nodes("Range", nothing, steps, nodes.constant(np.array(1, np.int64)))  # [T]
    ends = nodes("Unsqueeze", nodes("Sub", lengths, nodes.whole(1)), nodes.whole(1))  # [B, 1]
    hidden = []
    for tower in network.towers:
        embedded = nodes("Gather", nodes.parameter(tower.table), nodes("Max", items, nothing))
        if tower.answer is not None:
            embedded = nodes("Add", embedded, nodes("Gather", nodes.parameter(tower.answer), events))
        begins = nodes("Unsqueeze", nodes("Less", items, nothing), nodes.whole(-1))
        embedded = nodes("Where", begins, nodes.parameter(tower.start), embedded)
        backbone: Any = tower.backbone
        last = WRITTEN[type(backbone)](nodes, backbone, embedded, column, ends)
        hidden.append(nodes("Squeeze", _norm(nodes, last, backbone.norm), nodes.whole(1)))
    return nodes, hidden[0] if len(hidden) == 1 else nodes("Concat", *hidden, axis=1)


def _gru(nodes: Nodes, backbone: GRU, embedded: ir.Value, column: ir.Value, ends: ir.Value) -> ir.Value:
    """Add a GRU's layers to the graph: [B, T, D] -> [B, 1, D]."""
    hidden = nodes("Transpose", embedded, perm=[1, 0, 2])
    for layer in zip(*[iter(backbone.recurrent.parameters())] * 4, strict=True):
        gates = [part.detach().float().chunk(3) for part in layer]  # torch's order is r, z, n; ONNX' is z, r, n
        weight, inner, *biases = (torch.cat([z, r, n]).numpy() for r, z, n in gates)
        own = (nodes.constant(part[None]) for part in (weight, inner, np.concatenate(biases)))
        made = nodes("GRU", hidden, *own, hidden_size=backbone.recurrent.hidden_size, linear_before_reset=1)
        hidden = nodes("Squeeze", made, nodes.whole(1))
    return _at(nodes, nodes("Transpose", hidden, perm=[1, 0, 2]), ends)


def _sasrec(nodes: Nodes, backbone: SASRec, embedded: ir.Value, column: ir.Value, ends: ir.Value) -> ir.Value:
    """Add SASRec's positions and blocks to the graph: [B, T, D] -> [B, 1, D]."""
    hidden = nodes("Add", embedded, nodes("Gather", nodes.parameter(backbone.position), column))
    causal = nodes("LessOrEqual", column, nodes("Unsqueeze", column, nodes.whole(1)))  # [T, T]
    real = nodes("LessOrEqual", column, nodes("Unsqueeze", ends, nodes.whole(1, 2)))  # [B, 1, 1, T]
    for number, block in enumerate(backbone.blocks, start=1):
        assert isinstance(block, Block)
        last = number == len(backbone.blocks)
        hidden = _block(nodes, block, hidden, real if last else causal, ends if last else None)
    return hidden


def _block(nodes: Nodes, block: Block, hidden: ir.Value, seen: ir.Value, ends: ir.Value | None) -> ir.Value:
    """h + attention(norm(h)), then h + mlp(norm(h)): [B, T, D], or [B, 1, D] if only the tokens at `ends` matter."""
    normed = _norm(nodes, hidden, block.norm_attention)
    asked = normed
    if ends is not None:
        hidden, asked = (_at(nodes, value, ends) for value in (hidden, normed))
    width = block.project_out.in_features
    weights, biases = block.project_in.weight.split(width), block.project_in.bias.split(width)
    query, key, value = (
        _heads(nodes, _linear(nodes, of, weight, bias), block.heads, width)
        for of, weight, bias in zip((asked, normed, normed), weights, biases, strict=True)
    )
    scores = nodes("MatMul", query, nodes("Transpose", key, perm=[0, 1, 3, 2]))
    scores = nodes("Mul", scores, nodes.number((width // block.heads) ** -0.5))
    scores = nodes("Where", seen, scores, nodes.number(-np.inf))
    mixed = nodes("MatMul", nodes("Softmax", scores, axis=-1), value)  # [B, heads, T, d]
    mixed = nodes("Reshape", nodes("Transpose", mixed, perm=[0, 2, 1, 3]), nodes.whole(0, 0, width))
    hidden = nodes("Add", hidden, _linear(nodes, mixed, block.project_out.weight, block.project_out.bias))
    wide, _, narrow = block.mlp
    assert isinstance(wide, nn.Linear) and isinstance(narrow, nn.Linear)
    inner = nodes("Gelu", _linear(nodes, _norm(nodes, hidden, block.norm_mlp), wide.weight, wide.bias))
    return nodes("Add", hidden, _linear(nodes, inner, narrow.weight, narrow.bias))


def _linear(nodes: Nodes, value: ir.Value, weight: Tensor, bias: Tensor) -> ir.Value:
    return nodes(
        "Add", nodes("MatMul", value, nodes.constant(weight.detach().float().numpy().T)), nodes.parameter(bias)
    )


def _norm(nodes: Nodes, value: ir.Value, norm: nn.LayerNorm) -> ir.Value:
    return nodes(
        "LayerNormalization", value, nodes.parameter(norm.weight), nodes.parameter(norm.bias), axis=-1, epsilon=norm.eps
    )


def _heads(nodes: Nodes, value: ir.Value, heads: int, width: int) -> ir.Value:
    """Split the width into attention heads: [B, T, D] -> [B, heads, T, d]."""
    return nodes("Transpose", nodes("Reshape", value, nodes.whole(0, 0, heads, width // heads)), perm=[0, 2, 1, 3])


def _at(nodes: Nodes, value: ir.Value, ends: ir.Value) -> ir.Value:
    """Gather the states [B, 1, D] of the tokens `ends` [B, 1]."""
    return nodes("Unsqueeze", nodes("GatherND", value, ends, batch_dims=1), nodes.whole(1))


WRITTEN: dict[type[nn.Module], Callable[..., ir.Value]] = {SASRec: _sasrec, GRU: _gru}


# ---------------------------------------------------------------------- any other backbone


class Rectangle(Layout):
    """B rows of T tokens each: padding and flattening are views."""

    def pad(self, flat: Tensor) -> Tensor:
        """[B·T, ...] -> [B, T, ...]."""
        return flat.view(self.rows, self.columns, *flat.shape[1:])

    def flatten(self, block: Tensor) -> Tensor:
        """[B, T, ...] -> [B·T, ...]."""
        return block.reshape(self.rows * self.columns, *block.shape[2:])


class _Encoder(nn.Module):
    """(items [B, T], events [B, T], lengths [B]) -> the last real token's hidden state [B, D]."""

    def __init__(self, network: Network | Towers) -> None:
        super().__init__()
        self.network = network

    def forward(self, items: Tensor, events: Tensor, lengths: Tensor) -> Tensor:
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
        return hidden.view(rows, columns, -1)[torch.arange(rows), lengths - 1]


def _traced(network: Network | Towers) -> tuple[Nodes, ir.Value]:
    """Trace any other network by `torch.onnx`: the graph and the hidden state in it."""
    columns = min(3, network.length)
    items = torch.zeros((2, columns), dtype=torch.long)
    free = torch.export.Dim.DYNAMIC
    rectangle = {0: free, 1: free} if columns > 1 else {0: free}
    with _quiet():
        program = torch.onnx.export(
            _Encoder(network).eval(), (items, torch.zeros_like(items), torch.full((2,), columns)), dynamo=True,
            input_names=list(NAMES), output_names=["hidden"], dynamic_shapes=(rectangle, rectangle, {0: free}),
            opset_version=OPSET, verbose=False, optimize=True,
        )  # fmt: skip
    assert program is not None
    graph: ir.Graph = program.model.graph
    for node in graph.all_nodes():
        node.metadata_props.clear()  # lines of our source: the same policy gives the same bytes without them
    return Nodes(graph), graph.outputs[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager: silence torch's warnings about its internals and about packages that no export needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
