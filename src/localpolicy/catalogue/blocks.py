"""Blocks of positions, small enough to form all their logits at once: memory does not grow with N x V."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from localpolicy.logits import DenseLogits, LinearLogits, Logits

CELLS = {"cpu": 1 << 22, "cuda": 1 << 26}  # numbers in one block: 16 MiB of a CPU's cache, 256 MiB of a GPU's memory


@runtime_checkable
class Divisible(Protocol):
    """Logits that can be read a few positions at a time."""

    def part(self, start: int, stop: int) -> Logits:
        """Logits of positions start:stop, over the whole catalogue."""
        ...


def part_of(rows: Logits, start: int, stop: int) -> Logits:
    """Logits of positions start:stop, formed lazily if the given ones are lazy."""
    if isinstance(rows, LinearLogits):
        return LinearLogits(rows.hidden[start:stop], rows.head)
    if isinstance(rows, DenseLogits):
        return DenseLogits(rows.values[start:stop])
    if isinstance(rows, Divisible):
        return rows.part(start, stop)
    return DenseLogits(rows.chunk(0, rows.shape[1])[start:stop])


def blocks_of(shape: tuple[int, int], device: str) -> Iterator[tuple[int, int]]:
    """(start, stop) of each block of positions; a single empty one if there are no positions."""
    positions, catalogue = shape
    height = max(1, CELLS.get(device, CELLS["cpu"]) // catalogue)
    return ((start, min(positions, start + height)) for start in range(0, max(positions, 1), height))
