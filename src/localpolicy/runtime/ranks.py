"""Ranks: processes on one machine or many, through torch.distributed under torchrun; one process is the plain case.

Losses are summed per rank and divided by the count of all ranks, so that one process and eight agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = timedelta(minutes=10)  # long, since a rank may validate or save; torchrun ends ranks whose peer died at once


@dataclass(frozen=True)
class Ranks:
    """Number of this process, and of all processes, with their collective operations."""

    rank: int = 0
    total: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and the log."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.total == 1

    def summed(self, *numbers: float) -> list[float]:
        """Sum of each number over all ranks."""
        if self.alone:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        return [float(number) for number in tensor]

    def reduced(self, tensor: Tensor, *, largest: bool = False) -> Tensor:
        """Sum (or maximum) of a tensor over ranks, as a new tensor."""
        if self.alone:
            return tensor
        tensor = tensor.detach().cpu().clone()
        dist.all_reduce(tensor, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        return tensor

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over ranks, in place."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def extreme_(self, tensor: Tensor, *, largest: bool) -> Tensor:
        """Replace each element of `tensor` by its largest or smallest over ranks, in place."""
        if not self.alone:
            dist.all_reduce(tensor, dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN)
        return tensor

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, slice]:
        """Rows of all ranks in rank order, on every rank, on the same device; and the slice of this rank's own."""
        if self.alone:
            return tensor, slice(0, len(tensor))
        lengths = self._lengths(len(tensor))
        longest = max(lengths)
        padded = tensor.new_zeros(longest, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.total)]
        dist.all_gather(parts, padded)
        first = sum(lengths[: self.rank])
        whole = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
        return whole, slice(first, first + len(tensor))

    def gather(self, tensor: Tensor) -> Tensor | None:
        """Rows of all ranks in rank order, in the main memory of rank 0; None on the others."""
        if self.alone:
            return tensor.detach().cpu()
        lengths = self._lengths(len(tensor))
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:], device="cpu")
        padded[: len(tensor)] = tensor.detach()
        parts = [torch.empty_like(padded) for _ in range(self.total)] if self.leads else None
        dist.gather(padded, parts)
        if parts is None:
            return None
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def _lengths(self, mine: int) -> list[int]:
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.total)]
        dist.all_gather(lengths, torch.tensor([mine]))
        return [int(length) for length in lengths]

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """Arrays of all ranks in rank order, on every rank. Lengths may differ."""
        if self.alone:
            return array
        # gloo carries bytes, but not every type that numpy has.
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1) if array.size else None
        width = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        rows = torch.zeros(0, width, dtype=torch.uint8) if flat is None else torch.from_numpy(flat.copy())
        whole, _ = self.all_gather(rows)
        return whole.numpy().reshape(-1).view(array.dtype).reshape(len(whole), *array.shape[1:])

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if not self.alone:
            dist.barrier()


ALONE = Ranks()


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Ranks]:
    """Context manager: the group of processes that torchrun started, or this process alone."""
    if not under_torchrun() or dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE
        return
    # torch.optim imports these in any case. The default arguments of the second keep the group there is at that moment:
    # imported later, it would keep ours and its threads until the interpreter's exit, which they abort.
    import torch._dynamo
    import torch.distributed.nn.functional

    if torch.cuda.is_available():  # `cuda` means this process's own device from now on
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # Counts and metrics travel over gloo on the CPU; gradients over NCCL if the network is on a GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
