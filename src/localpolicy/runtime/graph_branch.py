"""Branch of a captured CUDA graph: work on a side stream, in parallel with work that does not need it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class GraphBranch:
    """A side stream that starts at the point where this object is made.

    While a CUDA graph is captured, work in `on_side_stream` becomes a branch of it; otherwise nothing changes, and work
    is done in the order of the code.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))

    def catch_up(self) -> None:
        """Let the side stream wait for all work that the current stream has got so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def on_side_stream(self) -> AbstractContextManager[object]:
        """Context manager: run the block's work on the side stream while a graph is captured."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def join(self, results: Iterable[Tensor]) -> None:
        """Make the current stream wait for the side stream, whose results are used from here on."""
        if self.stream is None:
            return
        here = torch.cuda.current_stream(self.stream.device)
        here.wait_stream(self.stream)
        for tensor in results:
            tensor.record_stream(here)  # else the branch could overwrite them while they are read here
