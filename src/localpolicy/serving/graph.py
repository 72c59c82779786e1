"""A policy as an ONNX graph: padded histories in, one score per item out, any batch size and any length.

An encoder gives the hidden state of each history (see `encoder`); linear heads turn it into scores. A policy on one
backbone is one head, and its dial the sum of two. One of towers is `model.towers`' formula: log μ̂ over the first part
of the hidden state and the critics over the rest, each read once.

With int8, a head's rows are whole numbers from -127 to 127 and a scale for each row (for every 256 numbers of it).
onnxruntime rounds the hidden state likewise and sums whole numbers, so the rows are read in a quarter of the bytes. The
policy is then what that graph gives: lists are drawn from its scores, and their propensities are those of its scores.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir

from localpolicy.logits import AnyHead
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.serving.encoder import encode
from localpolicy.serving.nodes import IR_VERSION, Nodes

LARGE = 1 << 30  # bytes of weights above which they are stored in a file of their own: one message holds 2 GiB at most
WIDEST_BLOCK = 256  # numbers that share a scale at most, in onnxruntime's product


def write_graph(policy: Policy, path: Path, *, dial: bool = False, int8: bool = False) -> None:
    """Write the policy, or its dial, to `path`: (items [B, T], events [B, T], lengths [B]) -> logits [B, V].

    The dial's graph takes β, too: `beta` [1].
    """
    network = policy.network
    nodes, hidden = encode(network)
    scale, cap, values = 1.0, None, None
    if isinstance(network, Towers):
        base, values = network.parts()
        cap, scale = network.cap, network.slope / (1.0 if dial else network.beta)
        own = base.weight.shape[1]
        hidden, remaining = nodes.split(hidden, own, network.parts()[1].weight.shape[1])
    else:
        remaining = hidden
        if dial:
            assert policy.origin.estimates_logging is not None and policy.critic is not None
            base, values = network.head(policy.origin.estimates_logging), network.head(policy.critic)
        else:
            base = network.head("policy")
    logits = _linear(nodes, hidden, base, int8=int8)
    if values is not None:
        tilt = _linear(nodes, remaining, values, int8=int8)
        if isinstance(network, Towers) and network.ends:  # Â = log π_end - log μ̂
            tilt = nodes("Sub", tilt, logits)
        if cap is not None:  # Â = Q - Σ_a μ̂ Q; without a cap, what all items share cancels
            expected = nodes("Mul", nodes("Softmax", logits, axis=1), tilt)
            tilt = nodes("Sub", tilt, nodes("ReduceSum", expected, nodes.whole(1), keepdims=1))
        tilt = nodes("Mul", tilt, nodes.number(scale))
        if dial:
            tilt = nodes("Div", tilt, nodes.input("beta", ir.DataType.FLOAT, [1]))
        if cap is not None:
            tilt = nodes("Min", tilt, nodes.number(math.log(cap)))
        logits = nodes("Add", logits, tilt)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    external = f"{path.name}.data" if weights > LARGE else None
    ir.save(ir.Model(nodes.finished(logits, "logits"), ir_version=IR_VERSION), path, external_data=external)


def _linear(nodes: Nodes, hidden: ir.Value, head: AnyHead, *, int8: bool) -> ir.Value:
    """hidden · weight + bias [B, V], as a node of the graph."""
    head = head.detach()
    items, width = head.weight.shape
    bias = nodes.constant(np.zeros(items, np.float32)) if head.bias is None else nodes.parameter(head.bias)
    if not int8:
        return nodes("Gemm", hidden, nodes.parameter(head.weight), bias, transB=1)
    rows, scales = quantised(head.weight.float().numpy())
    return nodes(
        "MatMulNBits", hidden, nodes.constant(rows), nodes.constant(scales.ravel()), None, None, bias,
        domain="com.microsoft", K=width, N=items, bits=8, block_size=rows.shape[2], accuracy_level=4,
    )  # fmt: skip


def quantised(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """weight ≈ (rows - 128) · scale: rows [V, n, block] of bytes and a scale [V, n] for each block of numbers."""
    items, width = weight.shape
    block = min(max(16, 1 << (width - 1).bit_length()), WIDEST_BLOCK)
    blocks = -(-width // block)
    padded = np.zeros((items, blocks * block), np.float32)
    padded[:, :width] = weight
    padded = padded.reshape(items, blocks, block)
    largest = np.abs(padded).max(2)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    np.divide(padded, scale[:, :, None], out=padded)
    np.rint(padded, out=padded)
    padded += 128
    return padded.astype(np.uint8), scale
