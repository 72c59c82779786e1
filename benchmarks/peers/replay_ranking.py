"""RePlay's SasRec, fitted on the training split, and what it would show: replay_ranking.py FOLDER

Run by benchmarks/sequence_models.py with the Python of the environment that RePlay is installed in.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning
import torch
from clock import Settings
from ranking import Keeper, Split
from replay.nn.lightning import LightningModule
from replay.nn.lightning.optimizer import OptimizerFactory
from replay.nn.sequential import SasRec
from replay_sasrec import batches, schema
from torch import Tensor


class Judge(lightning.Callback):
    """Looks at the network after each epoch."""

    def __init__(self, keeper: Keeper, items: int) -> None:
        self.keeper, self.items = keeper, items

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Stop when it no longer learns."""
        trainer.should_stop = not self.keeper.judge(pl_module.model, logits(pl_module.model, self.items))


def logits(model: SasRec, items: int) -> Any:
    """Its scores; its numbering of the items is ours, and its padding is the number after the last."""

    def rows(inputs: Tensor, wanted: Tensor) -> Tensor:
        filled = torch.where(inputs >= 0, inputs, items)
        hidden = model.body({"item_id": filled}, inputs >= 0)
        return model.get_logits(hidden[wanted])

    return rows


def main(folder: Path) -> None:
    """Fit, and write its lists."""
    given = json.loads((folder / "settings.json").read_text())
    shape = Settings(
        items=given["items"], batch=given["batch"], length=given["length"], width=given["width"], rate=given["rate"]
    )
    train = Split.read(folder, "train")
    torch.manual_seed(given["seed"])
    model = SasRec.from_params(
        schema(shape), embedding_dim=given["width"], num_heads=given["heads"], num_blocks=given["blocks"],
        max_sequence_length=given["length"], dropout=given["dropout"],
    )  # fmt: skip
    judge = Judge(Keeper.of(folder, given, train), given["items"])
    trainer = lightning.Trainer(
        max_epochs=given["epochs"], accelerator=given["accelerator"], devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        callbacks=[judge],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        trainer.fit(
            LightningModule(model, optimizer_factory=OptimizerFactory(learning_rate=given["rate"])),
            datamodule=batches(shape, {"offsets": train.offsets, "item": train.item}, Path(scratch) / "train.parquet"),
        )
    model = model.to("cuda" if given["accelerator"] == "gpu" else "cpu")
    judge.keeper.write(folder, model, logits(model, given["items"]), peer="replay", version=version("replay-rec"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
