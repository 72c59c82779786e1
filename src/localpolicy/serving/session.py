"""Session of an ONNX graph, opened twice: once for single histories, once for batches.

By default onnxruntime packs weights for matrix products. That pays for several rows; for one row the product with the
item table is one read of it, which packed weights make nearly twice as slow. Both are opened at once, since an export
may be replaced on the disk while it is used; each holds its own copy of the weights. Rows of int8 are fast only packed,
for one row too: such a graph is opened once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.errors import RunError


class GraphSession:
    """Session that computes logits for any number of histories."""

    def __init__(self, path: Path, threads: int, *, int8: bool = False) -> None:
        try:
            self._many = _open(path, threads, packed=True)
        except Exception as error:
            if not int8:
                raise
            raise RunError(f"this onnxruntime does not read rounded rows ({str(error)[:200]}): install a newer one, or "
                           "export without int8.") from None  # fmt: skip
        self._one = self._many if int8 else _open(path, threads, packed=False)
        self._inputs = {given.name for given in self._one.get_inputs()}  # one that changes nothing is not in the graph

    def run(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        """Compute the logits [B, V]."""
        session = self._one if len(feed["lengths"]) == 1 else self._many
        logits: np.ndarray = session.run(["logits"], {name: feed[name] for name in feed if name in self._inputs})[0]
        return logits


def _open(path: Path, threads: int, *, packed: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Threads that spin between calls would take the cores from the draw and from other workers.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "0" if packed else "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
