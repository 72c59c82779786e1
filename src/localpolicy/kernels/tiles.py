"""Shapes of tiles, and numbers of programs that share a catalogue, chosen by measurement (docs/results/speed.md)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from localpolicy.logits import LinearLogits, as_type

# Arguments that differ from batch to batch. Triton would compile a kernel for multiples of 16 and another for the rest.
VARYING = ("n_rows", "cuts")
WIDEST = 256  # the largest D whose tiles fit into registers and shared memory


class Tile(NamedTuple):
    """The shape of a tile and the resources of the program that works on it."""

    positions: int
    items: int
    warps: int
    stages: int
    waves: int = 2  # programs for a processor
    most: int = 2  # and where each of them still has a long way
    smaller: Tile | None = None  # for a processor with less shared memory than this one needs

    @property
    def launch(self) -> dict[str, int]:
        """Options of a launch: warps and pipeline stages."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def _wide(narrow: Tile, half: Tile, widest: Tile) -> dict[int, Tile]:
    return {32: narrow, 64: narrow, 128: half, 256: widest}


ROOMY = 200 << 10  # bytes of shared memory; a processor of an H100 or H200 has 227 KiB, of an A100 163, of others 99

# By type (16: half precision, 32: float32) and padded width; measured on an H200 at 64, and at 128 where a smaller
# one is named; the others are scaled to fit.
PULLED = {
    16: _wide(Tile(64, 128, 4, 3, waves=4, most=6), Tile(128, 64, 8, 3), Tile(64, 64, 8, 2)),
    32: _wide(Tile(256, 64, 8, 3), Tile(256, 64, 8, 2, smaller=Tile(64, 64, 8, 2)), Tile(64, 32, 8, 2)),
}
SUMMED = {
    16: _wide(Tile(128, 128, 4, 3, most=8), Tile(128, 64, 8, 3), Tile(64, 64, 8, 2)),
    32: _wide(Tile(256, 64, 8, 3), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
}
VALUED = {
    16: _wide(Tile(128, 64, 8, 3, most=8), Tile(256, 64, 8, 3, smaller=Tile(128, 64, 8, 2)), Tile(64, 64, 8, 2)),
    32: _wide(Tile(256, 64, 8, 3), Tile(64, 64, 4, 2, smaller=Tile(64, 64, 8, 2)), Tile(64, 32, 8, 1)),
}
BOTH = {  # Σ p·value and Σ p·weight in one pass
    16: _wide(Tile(128, 64, 4, 3), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
    32: _wide(Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 32, 8, 1)),
}
GRADIENT = {
    16: _wide(Tile(128, 64, 4, 3), Tile(64, 64, 4, 2), Tile(32, 64, 8, 2)),
    32: _wide(Tile(64, 128, 4, 3), Tile(64, 128, 8, 2, smaller=Tile(32, 64, 8, 2)), Tile(32, 64, 8, 2)),
}
LARGEST = {
    16: _wide(Tile(128, 128, 4, 3, most=8), Tile(64, 64, 4, 3), Tile(64, 64, 8, 2)),
    32: _wide(Tile(128, 64, 4, 3), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
}

LONG = 64  # steps of a program that are a long way

# Three TF32 products instead of one: evaluation.
EXACT = Tile(64, 32, 4, 2)


def operands(rows: LinearLogits) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weights in their type, and biases (a placeholder if the head has none)."""
    hidden = rows.hidden.contiguous()
    weight = as_type(rows.head.weight, hidden.dtype).contiguous()
    return hidden, weight, hidden if rows.head.bias is None else rows.head.bias.contiguous()


def padded(width: int) -> int:
    """Smallest power of two that holds `width`, and that a tile can have."""
    return int(max(16, triton.next_power_of_2(width)))


def tile(table: dict[int, dict[int, Tile]], width: int, like: Tensor, precision: str) -> Tile:
    """Tile for inputs of this width and type."""
    if precision == "tf32x3" and like.dtype == torch.float32:
        return EXACT  # both halves of every number lie in shared memory
    shape = table[16 if like.dtype.itemsize == 2 else 32][max(32, padded(width))]
    return shape if shape.smaller is None or shared_memory(like.device) >= ROOMY else shape.smaller


@cache
def shared_memory(device: torch.device) -> int:
    """Shared memory of one program, in bytes; unlimited in the interpreter."""
    if device.type != "cuda":
        return ROOMY
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


@cache
def processors(device: torch.device) -> int:
    """Number of streaming multiprocessors; a few in the interpreter, so that splits are tested."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 6


def splits(work: int, other: int, step: int, device: torch.device, *, waves: int = 2, most: int = 0) -> tuple[int, int]:
    """Number and size of the parts of `work` that fill the device, if `other` programs work on each part.

    A part is a whole number of steps. If parts stay long, a processor has up to `most` programs instead of `waves`:
    they wait for different things.
    """
    steps = triton.cdiv(work, step)
    few, many = (number * processors(device) // max(other, 1) for number in (waves, most))
    wanted = max(1, min(steps, max(few, min(many, steps // LONG))))
    part = triton.cdiv(steps, wanted) * step
    return max(1, triton.cdiv(work, part)), part
