"""One training step on a GPU at the shape of YooChoose (256 sequences of at most 20, 48,255 items, width 64), our way
and as plain PyTorch would do the same mathematics.

    python benchmarks/gpu_step.py [--items 48255] [--objectives mle,critic,lpi_rl] [--ways …] [--batch 256] [--width 64]
    python benchmarks/gpu_step.py --features 8 --objectives mle,critic --ways fused,fused-bf16   items have 8 categories

Prints milliseconds per step (300 steps after a warm-up, again and again for two seconds), how many times the first way
takes as long, and the peak memory. `mle` and `critic` are the towers of the closed form (the default). The ways:

    padded     every sequence filled up to 20 positions, whole logits, step by step
    packed     real positions only, whole logits, step by step
    chunked    real positions only, chunks of the catalogue, step by step
    fused      fused tiles, captured, float32 (TF32 products)
    fused-bf16 the same with bf16 products
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from localpolicy.data.item_features import learnt_columns
from localpolicy.data.item_table import ItemTable, read_item_table
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.objectives.lpi import LPI
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training import train as training
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer
from localpolicy.types import START, Batch

WAYS: dict[str, dict[str, Any]] = {
    "padded": {"catalogue": "dense", "capture": False},
    "packed": {"catalogue": "dense", "capture": False},
    "chunked": {"catalogue": "chunked", "capture": False},
    "fused": {},
    "fused-bf16": {"precision": "bf16"},
}
WARM, STEPS, SECONDS = 60, 300, 2.0


def write_data(
    path: Path, *, items: int, mean_length: float, sequences: int = 40_000, tested: int = 100, features: int = 0
) -> Prepared:
    """Data set of random sequences with heavy-tailed items; with `features`, their categories are known."""
    rng = np.random.default_rng(0)
    share = 1 / (np.arange(items) + 20.0)
    rewards = {"click": 0.2, "purchase": 1.0}
    with writing(path, kind="interactions", events=["click", "purchase"], rewards=rewards) as store:
        for split, count in (("train", sequences), ("validation", max(100, sequences // 8)), ("test", tested)):
            lengths = np.minimum(1 + rng.geometric(1 / (mean_length - 1), count), 20)
            total = int(lengths.sum())
            event = (rng.random(total) < 0.05).astype(np.uint8)
            item = rng.choice(items, total, p=share / share.sum())
            store.splits[split].append(lengths, {"item": item, "event": event, "reward": np.where(event, 1.0, 0.2)})
        store.write_items(np.arange(items), np.ones(items, np.int64), categories(items, features))
    return Prepared(path)


def categories(items: int, columns: int) -> ItemTable | None:
    """Of 500 values each."""
    if not columns:
        return None
    values = np.random.default_rng(1).integers(500, size=(columns, items)).astype(str)
    table = pa.table({"item_id": np.arange(items), **{f"c{n}": list(column) for n, column in enumerate(values)}})
    return read_item_table(table, kinds={}, id_column="item_id", integer_ids=True)


def setting(name: str) -> dict[str, Any]:
    """The paper's form. The closed form's towers are steps of their own: `mle`, then `critic`."""
    return {"name": f"{name}_weighted" if name in ("lpi_cb", "lpi_rl") else name}


def settings_of(objective: str, train: dict[str, Any], data: Prepared, folder: Path, width: int) -> Config:
    """Config of one way. `critic` is the closed form's second tower, with a frozen μ̂ that is trained first."""
    # Features are uninformative here, and `auto` would leave them out; other defaults would follow the data's size.
    model = {"features": learnt_columns(data.catalogue), "width": width, "blocks": 1, "heads": 1, "tied": True}
    if objective != "critic":
        return Config.parse({"objective": setting(objective), "train": train, "model": model})
    logging = Run(folder.parent / "logging")
    if not logging.finished:
        first = Config.parse({"objective": {"name": "mle"}, "train": {"device": "cuda", "epochs": 1}, "model": model})
        logging = training.train(data, out=logging.folder, config=first)
    config = Config.parse({"objective": {"name": "lpi_rl"}, "train": train, "model": model})
    assert isinstance(config.objective, LPI)
    return config.model_copy(update={"objective": config.objective.critic_objective(str(logging.folder))})


def filled(batch: Batch, length: int) -> Batch:
    """The batch as a full block: every sequence has `length` tokens, of which only the real ones count."""
    rows = batch.size
    cell = batch.row * length + batch.column
    every = torch.arange(rows * length, device=cell.device)

    def spread(values: torch.Tensor, fill: float) -> torch.Tensor:
        return values.new_full((rows * length,), fill).index_copy(0, cell, values)

    return Batch(
        sequences=batch.sequences,
        row=every // length,
        column=every % length,
        previous_item=spread(batch.previous_item, START),
        previous_event=spread(batch.previous_event, 0),
        item=spread(batch.item, 0),
        event=spread(batch.event, 0),
        reward=spread(batch.reward, 0.0),
        history=spread(batch.history, 0),
        scored=every,
        counted=torch.zeros_like(every, dtype=torch.bool).index_fill(0, cell, True),
        whole=True,
        block=(rows, length),
    )


def batches(trainer: Trainer, way: str, size: int) -> Iterator[Any]:
    """Epoch after epoch."""
    for epoch in chain(range(1000)):
        if trainer.captured is not None:
            yield from trainer.captured.planner.epoch(seed=0, epoch=epoch)
            continue
        plain = trainer.windows.shuffled(size, seed=0, epoch=epoch)
        yield from (filled(batch, trainer.config.data.length) for batch in plain) if way == "padded" else plain


def measure(
    data: Prepared, objective: str, way: str, folder: Path, size: int, *, width: int, profile: bool
) -> tuple[float, float]:
    """Milliseconds per step, and peak GiB."""
    settings = {"device": "cuda", "batch_size": size, **WAYS[way]}
    trainer = Trainer.start(data, Run(folder), resolve(settings_of(objective, settings, data, folder, width), data))
    trainer.network.train()
    torch.cuda.reset_peak_memory_stats()
    steps = STEPS if trainer.captured is not None else STEPS // 10
    coming = batches(trainer, way, size)
    for number in range(WARM if trainer.captured is not None else WARM // 10):
        trainer.step(next(coming), number)
    if trainer.captured is not None:
        assert trainer.captured.refused is None, trainer.captured.refused
    ready = [next(coming) for _ in range(steps)]
    for number, batch in enumerate(ready):  # sizes that did not come before are captured now
        trainer.step(batch, number)
    torch.cuda.synchronize()
    began, done = time.perf_counter(), 0
    while done == 0 or time.perf_counter() - began < SECONDS:
        for number, batch in enumerate(ready):
            trainer.step(batch, number)
        torch.cuda.synchronize()
        done += steps
    taken = (time.perf_counter() - began) / done * 1e3
    if profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for number, batch in zip(range(20), chain(ready, repeat(ready[0]))):  # noqa: B905
                trainer.step(batch, number)
            torch.cuda.synchronize()
        table = found.key_averages().table(sort_by="cuda_time_total", row_limit=32, max_name_column_width=70)
        print("\n".join(line[:72] + line[-60:] for line in table.splitlines()))
    return taken, torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    """Measure every objective, every way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=48_255)
    parser.add_argument("--mean-length", type=float, default=5.8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--objectives", default="mle,critic,lpi_rl")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--features", type=int, default=0, help="columns of the item table, a category each")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.items:,} items, {given.batch} sequences, "
          f"width {given.width}")  # fmt: skip
    print(f"{'objective':10} {'way':11} {'ms/step':>8} {'times':>6} {'GiB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(
            Path(folder) / "data", items=given.items, mean_length=given.mean_length, features=given.features
        )
        for objective in given.objectives.split(","):
            slowest = None
            for way in given.ways.split(","):
                torch.cuda.empty_cache()
                try:
                    taken, memory = measure(
                        data,
                        objective,
                        way,
                        Path(folder) / "run",
                        given.batch,
                        width=given.width,
                        profile=given.profile,
                    )
                except torch.cuda.OutOfMemoryError:
                    print(f"{objective:10} {way:11} out of memory")
                    continue
                slowest = slowest or taken
                print(f"{objective:10} {way:11} {taken:8.3f} {slowest / taken:6.1f} {memory:6.2f}", flush=True)


if __name__ == "__main__":
    main()
