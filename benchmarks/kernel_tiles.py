"""Time every tile shape of the fused kernels, to choose those in `kernels/tiles.py`.

    python benchmarks/kernel_tiles.py [--width 64] [--shapes 1472x48255,4096x1000000] [--types bf16,fp32]
        [--kinds pulled,summed,valued,both,gradient,largest] [--stages 3] [--waves 2,4,8]

Kernels are compiled by several processes first; then each is timed alone (median of repeated launches).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator

import torch
import triton

from localpolicy.kernels import tiles
from localpolicy.kernels.argmax import argmax
from localpolicy.kernels.gradient import head_gradient
from localpolicy.kernels.softmax import softmax_sums
from localpolicy.kernels.tiles import Tile
from localpolicy.logits import Head, LinearLogits

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TABLES = {"pulled": tiles.PULLED, "summed": tiles.SUMMED, "valued": tiles.VALUED, "both": tiles.BOTH,
          "gradient": tiles.GRADIENT, "largest": tiles.LARGEST}  # fmt: skip
SHAPES = [(64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 64, 8), (128, 128, 4), (128, 128, 8), (64, 128, 8),
          (64, 256, 8), (128, 256, 8), (256, 64, 8), (32, 128, 4), (64, 32, 4)]  # fmt: skip


def inputs(n: int, v: int, d: int, dtype: torch.dtype) -> tuple[LinearLogits, LinearLogits, torch.Tensor]:
    torch.manual_seed(0)
    device = "cuda"

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.float32)

    hidden = draw(n, d).to(dtype)
    heads = [Head((draw(v, d) / 8).to(dtype), draw(v).to(dtype)) for _ in range(2)]
    return LinearLogits(hidden, heads[0]), LinearLogits(hidden, heads[1]), torch.randint(v, (n,), device=device)


def work(kind: str, rows: LinearLogits, values: LinearLogits, items: torch.Tensor) -> Callable[[], object]:
    normal = softmax_sums(rows).normaliser
    upstream = torch.rand(len(items), device="cuda")
    return {
        "pulled": lambda: softmax_sums(rows, pull=True, items=items),
        "summed": lambda: softmax_sums(rows, items=items),
        "valued": lambda: softmax_sums(rows, values=values, items=items),
        "both": lambda: softmax_sums(rows, values=values, pull=True, items=items),
        "gradient": lambda: head_gradient(rows, normal, upstream),
        "largest": lambda: argmax(rows),
    }[kind]


def cases(kinds: list[str], types: list[str], stages: list[int], waves: list[int]) -> Iterator[tuple[str, str, Tile]]:
    for kind in kinds:
        for type_name in types:
            for positions, items, warps in SHAPES:
                if type_name == "fp32" and positions * items > 128 * 128:
                    continue
                for stage in stages:
                    for wave in waves:
                        yield kind, type_name, Tile(positions, items, warps, stage, waves=wave, most=wave)


def use(kind: str, type_name: str, shape: Tile, width: int) -> None:
    TABLES[kind][16 if type_name == "bf16" else 32][max(32, tiles.padded(width))] = shape


def compile_one(job: tuple[str, str, Tile, int, tuple[int, int]]) -> str | None:
    kind, type_name, shape, width, (n, v) = job
    try:
        rows, values, items = inputs(n % 1024 + 1024, v % 4096 + 4096, width, TYPES[type_name])
        run = work(kind, rows, values, items)
        use(kind, type_name, shape, width)
        run()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{kind} {type_name} {tuple(shape)}: {str(error)[:80]}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--shapes", default="1472x48255,4096x1000000")
    parser.add_argument("--types", default="bf16,fp32")
    parser.add_argument("--stages", default="3")
    parser.add_argument("--waves", default="2,4,8", help="programs for a processor")
    parser.add_argument("--kinds", default=",".join(TABLES))
    given = parser.parse_args()
    sizes = [one.split("x") for one in given.shapes.split(",")]
    shapes = [(int(n), int(v)) for n, v in sizes]
    types, stages = given.types.split(","), list(map(int, given.stages.split(",")))
    kinds = given.kinds.split(",")
    waves = list(map(int, given.waves.split(",")))
    every = list(cases(kinds, types, stages, waves))
    jobs = [(*case, given.width, shapes[0]) for case in every if case[2].waves == waves[0]]
    with multiprocessing.get_context("spawn").Pool(min(12, os.cpu_count() or 1)) as pool:
        failed = [message for message in pool.map(compile_one, jobs, chunksize=4) if message]
    print("\n".join(failed))
    for type_name in types:
        for n, v in shapes:
            rows, values, items = inputs(n, v, given.width, TYPES[type_name])
            for kind in kinds:
                run = work(kind, rows, values, items)
                timed = []
                for one_kind, one_type, shape in every:
                    if (one_kind, one_type) != (kind, type_name):
                        continue
                    use(kind, type_name, shape, given.width)
                    try:
                        timed.append((triton.testing.do_bench_cudagraph(run, rep=20, return_mode="median"), shape))
                    except Exception:
                        continue
                timed.sort()
                best = "  ".join(f"{ms:.4f} {tuple(shape)}" for ms, shape in timed[:5])
                print(f"{type_name} {n}x{v} {kind:9} {best}", flush=True)
                use(kind, type_name, timed[0][1], given.width)


if __name__ == "__main__":
    main()
