"""What this GPU can do at most: bytes, products and exponentials per second, measured. The roofline's three sides.

python benchmarks/ceilings.py
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Ceilings(NamedTuple):
    """Highest rates of a device: bytes and operations per second."""

    bytes: float
    bf16: float  # floating-point operations of a large product
    tf32: float
    exp2: float  # exponentials


@triton.jit
def _exponentials(out, ROUNDS: tl.constexpr, SIZE: tl.constexpr):
    x = tl.arange(0, SIZE).to(tl.float32) * 1e-6 + tl.program_id(0) * 1e-7
    for _ in range(ROUNDS):
        x = tl.exp2(x * -0.5)
    tl.store(out + tl.program_id(0) * SIZE + tl.arange(0, SIZE), x)


def _seconds(work: object) -> float:
    return float(triton.testing.do_bench(work, warmup=50, rep=200, return_mode="median")) / 1e3


def measure(size: int = 8192) -> Ceilings:
    """On the current device, with random data."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / _seconds(lambda: target.copy_(source))
    rates = []
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        rates.append(2 * size**3 / _seconds(lambda a=a, b=b: a @ b))
        torch.backends.cuda.matmul.allow_tf32 = before
    programs, rounds, lanes = 132 * 64, 512, 1024
    out = torch.empty(programs * lanes, device="cuda")
    taken = _seconds(lambda: _exponentials[(programs,)](out, ROUNDS=rounds, SIZE=lanes, num_warps=8))
    return Ceilings(copied, rates[0], rates[1], programs * rounds * lanes / taken)


def main() -> None:
    """Print them."""
    found = measure()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"copy {found.bytes / 1e12:.2f} TB/s, bf16 {found.bf16 / 1e12:.0f} TFLOP/s, tf32 {found.tf32 / 1e12:.0f} "
          f"TFLOP/s, exp2 {found.exp2 / 1e12:.2f} T/s")  # fmt: skip


if __name__ == "__main__":
    main()
