"""The arithmetic behind docs/results/speed.md: what a step and an epoch cost at sizes that no machine here can run.

    python benchmarks/scale_model.py

Coefficients marked measured come from benchmarks/README.md; the rest is computed from shapes. Change them and run it.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 1e9


@dataclass(frozen=True)
class Objective:
    """Use of the catalogue by one objective: tables, passes and time."""

    name: str
    tables: int  # [V, D] tables: embeddings and item heads
    cell: float  # seconds per position and item on one H200, eager (measured at 1,000,000 items)
    host: float  # seconds per step below which the host sets the pace (measured at 48,255 items)
    fused: float | None  # the same cell in fused tiles (measured once, a first untuned try, 1,000,000 items)
    gathers: int  # how often hidden states [N_r, D] travel to all ranks in a sharded step (counted)
    sums: int  # how often [N, D] is summed over ranks in a sharded step (counted)
    calls: int  # collectives of a sharded step (counted)


MLE = Objective("mle", 2, 56e-3 / (1472 * 1e6), 7.2e-3, None, 2, 2, 16)
LPI = Objective("lpi_rl", 5, 123e-3 / (1472 * 1e6), 14.5e-3, 10.9e-3 / (4096 * 1e6), 8, 4, 52)

WIDTH, BATCH, PER_SEQUENCE = 64, 256, 5.8  # of each GPU; mean positions of a sequence
DEVICE = 141 * GB  # memory of an H200
WORK = 8 * GB  # pieces, activations, the data set's arrays: assumed
IN_MACHINE, BETWEEN, MACHINE = 400 * GB, 50 * GB, 8  # bytes/s a rank sends, by where the others are: assumed
CALL = 25e-6  # latency of a collective: assumed


def link(ranks: int) -> float:
    """Bytes/s: the slowest link that a collective crosses."""
    return IN_MACHINE if ranks <= MACHINE else BETWEEN


def held(objective: Objective, items: float, shards: int) -> float:
    """Bytes on a rank: weights, gradients and Adam's two moments of its rows."""
    return 4 * 4 * objective.tables * items * WIDTH / shards


def copied(objective: Objective, items: float, ranks: int) -> float:
    """Seconds to all-reduce the gradients of all tables (ring)."""
    return 4 * objective.tables * items * WIDTH * 2 * (ranks - 1) / ranks / link(ranks)


def split(objective: Objective, ranks: int) -> float:
    """Seconds of a sharded step's collectives: hidden states and numbers per position."""
    own = BATCH * PER_SEQUENCE * WIDTH * 4
    moved = own * (ranks - 1) * (objective.gathers + 2 * objective.sums)
    return moved / link(ranks) + (objective.calls * CALL if ranks > 1 else 0.0)


def step(objective: Objective, items: float, *, fused: bool = False) -> float:
    """Seconds of arithmetic on a rank: as much with shards (all positions, its items) as with copies."""
    cell = objective.fused if fused and objective.fused is not None else objective.cell
    return max(0.0 if fused else objective.host, cell * BATCH * PER_SEQUENCE * items)


def line(objective: Objective, items: float, ranks: int) -> list[str]:
    """One row of the table."""
    sizes = [held(objective, items, shards) + WORK for shards in (1, ranks)]
    work, travel = step(objective, items), [copied(objective, items, ranks), split(objective, ranks)]
    steps = 1e9 / (BATCH * PER_SEQUENCE * ranks)
    hours = [
        f"{steps * (work + one) / 3600:,.2f}" if size <= DEVICE else "does not fit"
        for one, size in zip(travel, sizes, strict=True)
    ]
    return [
        f"{items:,.0f}",
        f"{ranks}",
        *(f"{size / GB:,.0f}" for size in sizes),
        f"{1000 * work:,.1f}",
        *(f"{1000 * one:,.1f}" for one in travel),
        *hours,
    ]


HEADS = (
    "items", "GPUs", "GB a rank: copies", "shards", "arithmetic, ms", "travel, ms: copies", "shards",
    "10⁹ events, hours: copies", "shards",
)  # fmt: skip


def main() -> None:
    """Markdown tables."""
    for objective in (MLE, LPI):
        print(f"\n`{objective.name}`:\n")
        print(f"| {' | '.join(HEADS)} |\n|{'--:|' * len(HEADS)}")
        for items in (1e5, 1e6, 1e7, 5e7):
            for ranks in (1, 8, 64):
                print(f"| {' | '.join(line(objective, items, ranks))} |")
    print()
    for objective in (MLE, LPI):
        largest = (DEVICE - WORK) / held(objective, 1, 1) / 1e6
        print(f"{objective.name}: the tables of at most {largest:.0f} M items fit on one device")
        for ranks in (8, 64):
            even = next(v for v in range(1_000, 10**7, 1_000) if copied(objective, v, ranks) > split(objective, ranks))
            print(f"{objective.name}, {ranks} GPUs: less travels with shards from {even:,} items on")
    fused = step(LPI, 1e7, fused=True)
    hours = 1e9 / (BATCH * PER_SEQUENCE * 64) * (fused + split(LPI, 64)) / 3600
    print(f"lpi_rl in fused tiles, 10⁷ items, 64 GPUs: {1000 * fused:.0f} ms of arithmetic; 10⁹ events: {hours:.2f} h")


if __name__ == "__main__":
    main()
