"""RecTools' SASRecModel, its nDCG@10 after each epoch and the seconds until then: rectools_quality.py FOLDER

Run by benchmarks/time_to_quality.py with the Python of the environment that RecTools is installed in.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer
from ranking import BATCH, Split
from rectools.models import SASRecModel
from rectools_ranking import KEPT, logits
from rectools_sasrec import dataset

SPENT = {"began": 0.0, "paused": 0.0}


@torch.no_grad()
def quality(network: Any, test: Split, length: int) -> float:
    """Mean of 1 / log2(rank + 1) within the first ten, of every sequence's last item among those it never held."""
    network.eval()
    device = next(network.parameters()).device
    gains = []
    for first in range(0, len(test.offsets) - 1, BATCH):
        ends = test.offsets[first : first + BATCH + 1]
        whole = [test.item[start:stop] for start, stop in pairwise(ends) if stop - start > 1]
        inputs = np.full((len(whole), length), -1)
        for row, items in enumerate(whole):
            known = items[:-1][-length:]
            inputs[row, -len(known) :] = known
        wanted = torch.zeros(inputs.shape, dtype=torch.bool, device=device)
        wanted[:, -1] = True
        rows = logits(network)(torch.from_numpy(inputs).to(device), wanted)
        target = torch.tensor([items[-1] for items in whole], device=device)
        own = rows.gather(1, target[:, None])
        for row, items in enumerate(whole):
            rows[row, torch.from_numpy(items[:-1].astype(np.int64)).to(device)] = -torch.inf
        rank = 1 + (rows > own).sum(1)
        gain = torch.where((rank <= 10) & own[:, 0].isfinite(), 1 / torch.log2(rank + 1.0), 0.0)
        gains.append(gain.cpu())
    network.train()
    return float(torch.cat(gains).mean())


class Watch(Callback):
    """Measures after each epoch, with the clock stopped."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """The clock starts."""
        SPENT["began"] = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Note the figure; stop at the bar."""
        paused, settings = time.perf_counter(), KEPT["settings"]
        seconds = paused - SPENT["began"] - SPENT["paused"]
        figure = quality(pl_module.torch_model, KEPT["test"], settings["length"])
        curve = KEPT["curve"]
        curve.append({"epoch": len(curve) + 1, "seconds": seconds, "nDCG@10": figure})
        (KEPT["folder"] / "rectools.json").write_text(json.dumps({"bar": settings["bar"], "curve": curve}))
        print(f"rectools: epoch {len(curve)}, {seconds:.1f} s, nDCG@10 {figure:.4f}", flush=True)
        trainer.should_stop = figure >= settings["bar"] or seconds > 60 * settings["minutes"]
        SPENT["paused"] += time.perf_counter() - paused


def trainer(epochs: int, accelerator: str) -> Trainer:
    """As SASRecModel makes it for itself, and the watch."""
    return Trainer(
        max_epochs=epochs, enable_progress_bar=False, enable_model_summary=False, logger=False,
        enable_checkpointing=False, devices=1, accelerator=accelerator, callbacks=[Watch()],
    )  # fmt: skip


def main(folder: Path) -> None:
    """Fit, and write the curve as it goes."""
    settings = json.loads((folder / "settings.json").read_text())
    KEPT.update(folder=folder, settings=settings, items=settings["items"], test=Split.read(folder, "test"), curve=[])
    train = Split.read(folder, "train")
    torch.manual_seed(settings["seed"])
    gpu = settings["device"] != "cpu" and torch.cuda.is_available()
    model = KEPT["model"] = SASRecModel(
        n_blocks=settings["blocks"], n_heads=settings["heads"], n_factors=settings["width"],
        dropout_rate=settings["dropout"], session_max_len=settings["length"], batch_size=settings["batch"],
        lr=settings["rate"], loss="softmax", verbose=0, get_trainer_func=trainer,
        get_trainer_func_kwargs={"epochs": settings["epochs"], "accelerator": "gpu" if gpu else "cpu"},
    )  # fmt: skip
    model.fit(dataset({"offsets": train.offsets, "item": train.item}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
