"""Builder of ONNX graphs, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir
from torch import Tensor

OPSET, IR_VERSION = 20, 10


class Nodes:
    """Builder of a graph: `nodes("Add", a, b)` adds a node and returns the value a + b."""

    def __init__(self, graph: ir.Graph | None = None) -> None:
        """Start with an empty graph, or extend an existing one."""
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="policy") if graph is None else graph
        self.graph.opset_imports["com.microsoft"] = 1
        self._count = 0
        self._parameters: dict[tuple[int, tuple[int, ...]], ir.Value] = {}

    def __call__(self, op: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Add a node and return its one output."""
        node = ir.node(op, list(inputs), attributes, domain=domain, num_outputs=1)
        node.outputs[0].name = self._name(op)
        self.graph.append(node)
        return node.outputs[0]

    def _name(self, of: str) -> str:
        self._count += 1
        return f"{of}_{self._count}_"  # none of torch's names ends so

    def input(self, name: str, kind: ir.DataType, shape: Sequence[str | int]) -> ir.Value:
        """Add an input of the graph."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind))
        self.graph.inputs.append(value)
        return value

    def constant(self, array: np.ndarray) -> ir.Value:
        """Add a constant, stored in the graph."""
        name = self._name("constant")
        value = ir.Value(name=name, const_value=ir.tensor(np.ascontiguousarray(array), name=name))
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.graph.register_initializer(value)
        return value

    def parameter(self, tensor: Tensor) -> ir.Value:
        """Add a network's parameter in float32; once, even if several nodes read it."""
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in self._parameters:
            self._parameters[key] = self.constant(tensor.detach().float().numpy())
        return self._parameters[key]

    def number(self, value: float) -> ir.Value:
        """Add a scalar constant in float32."""
        return self.constant(np.array(value, np.float32))

    def whole(self, *values: int) -> ir.Value:
        """Add a constant [n] of int64: axes and shapes."""
        return self.constant(np.array(values, np.int64))

    def split(self, value: ir.Value, *widths: int) -> list[ir.Value]:
        """Split the last axis into parts of these widths."""
        ends = np.cumsum([0, *widths]).tolist()
        return [
            self("Slice", value, self.whole(start), self.whole(end), self.whole(-1)) for start, end in pairwise(ends)
        ]

    def finished(self, output: ir.Value, name: str) -> ir.Graph:
        """Return the graph with this value as its one output."""
        output.name = name
        output.type = ir.TensorType(ir.DataType.FLOAT)
        self.graph.outputs.clear()
        self.graph.outputs.append(output)
        return self.graph
