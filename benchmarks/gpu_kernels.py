"""The fused kernels against the roofline: what the products, exponentials and bytes alone would take.

    python benchmarks/gpu_kernels.py [--shapes 1472x48255,4096x1000000] [--width 64]

The ceilings are measured in the same run (`ceilings.py`); the roof is the largest of the three times, since a perfect
kernel does all three at once.
"""

from __future__ import annotations

import argparse

import torch
import triton
from ceilings import measure
from kernel_tiles import TYPES, inputs, work

# Products over [N, V] and exponentials of each element.
COSTS = {"summed": (1, 1), "pulled": (2, 1), "valued": (2, 1), "both": (3, 1), "gradient": (2, 1), "largest": (1, 0)}


def main() -> None:
    """A table of times and shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1472x48255,4096x1000000")
    parser.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    ceilings = measure()
    print(f"{torch.cuda.get_device_name()}: copy {ceilings.bytes / 1e12:.2f} TB/s, bf16 {ceilings.bf16 / 1e12:.0f} and "
          f"tf32 {ceilings.tf32 / 1e12:.0f} TFLOP/s, exp2 {ceilings.exp2 / 1e12:.2f} T/s")  # fmt: skip
    print(f"{'kernel':9} {'type':5} {'N x V':>16} {'ms':>8} {'products':>9} {'exp2':>7} {'bytes':>7} {'share':>6}")
    for type_name, dtype in TYPES.items():
        for n, v in (tuple(map(int, one.split("x"))) for one in given.shapes.split(",")):
            rows, values, items = inputs(n, v, given.width, dtype)
            for kind, (products, exponentials) in COSTS.items():
                run = work(kind, rows, values, items)
                run()
                taken = triton.testing.do_bench_cudagraph(run, rep=50, return_mode="median")
                rate = ceilings.bf16 if type_name == "bf16" else ceilings.tf32
                table = v * given.width * (dtype.itemsize * (2 if kind in ("valued", "both") else 1))
                written = v * given.width * 4 if kind == "gradient" else 0
                floors = (
                    2 * n * v * given.width * products / rate * 1e3,
                    n * v * exponentials / ceilings.exp2 * 1e3,
                    (table + written) / ceilings.bytes * 1e3,
                )
                print(f"{kind:9} {type_name:5} {f'{n} x {v}':>16} {taken:8.4f} {floors[0]:9.4f} {floors[1]:7.4f} "
                      f"{floors[2]:7.4f} {max(floors) / taken:6.0%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
