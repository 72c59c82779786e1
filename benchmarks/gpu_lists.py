"""The k best items of every position on a GPU: fused, over chunks of logits, and from whole logits.

    python benchmarks/gpu_lists.py [--shapes 1472x48255,4096x1000000] [--lengths 20,100,300] [--width 64]

Prints milliseconds (median of repeated calls as they are launched), how many times as long as fused each takes, and
the memory beyond inputs. float32 is three TF32 products in `fused`, as in evaluation, and plain float32 in the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import triton
from kernel_tiles import TYPES, inputs

from localpolicy.catalogue import chunked, dense
from localpolicy.kernels.top_k import top_k
from localpolicy.logits import LinearLogits

WAYS: dict[str, Callable[[LinearLogits, int], object]] = {"fused": top_k, "chunked": chunked.top, "whole": dense.top}


def main() -> None:
    """Every type, shape and length of list, each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1472x48255,4096x1000000")
    parser.add_argument("--lengths", default="20,100,300")
    parser.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}: the k best items, ms")
    print(f"{'type':5} {'N x V':>16} {'k':>4} {'way':8} {'ms':>9} {'times':>6} {'GiB':>6}")
    for n, v in (tuple(map(int, one.split("x"))) for one in given.shapes.split(",")):
        for type_name, dtype in TYPES.items():
            rows = inputs(n, v, given.width, dtype)[0]
            for k in map(int, given.lengths.split(",")):
                first = None
                for way, top in WAYS.items():
                    torch.cuda.empty_cache()
                    before = torch.cuda.memory_allocated()
                    work = partial(top, rows, k)
                    work()
                    torch.cuda.reset_peak_memory_stats()
                    taken = triton.testing.do_bench(work, rep=60, return_mode="median")
                    memory = (torch.cuda.max_memory_allocated() - before) / 2**30
                    first = first or taken
                    shape = f"{type_name:5} {f'{n} x {v}':>16} {k:4} {way:8}"
                    print(f"{shape} {taken:9.3f} {taken / first:6.1f} {memory:6.2f}", flush=True)


if __name__ == "__main__":
    main()
