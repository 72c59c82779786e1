"""RePlay's SasRec with full cross-entropy, through its Lightning modules: replay_sasrec.py DATA OUT.json

Run by benchmarks/training.py with the Python of the environment that RePlay is installed in. RePlay has an older
`replay.models.nn.sequential.SasRec`, which it deprecates; this is the one it points to.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from clock import Clock, Settings, accelerator, read, report, two_cores
from replay.data import FeatureHint, FeatureSource, FeatureType
from replay.data.nn import ParquetModule, TensorFeatureInfo, TensorFeatureSource, TensorSchema
from replay.nn.lightning import LightningModule
from replay.nn.lightning.optimizer import OptimizerFactory
from replay.nn.sequential import SasRec
from replay.nn.transform.template import make_default_sasrec_transforms


class Timer(lightning.Callback):
    """Ticks after each optimiser step."""

    def __init__(self, warm: int) -> None:
        self.clock = Clock(warm)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Watch the scores [batch, length, items] of the first step."""
        pl_module.model.head.register_forward_hook(self.clock.look)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One step more. A sequence's first item is a target too, predicted from padding."""
        self.clock.tick(len(batch["positive_labels"]), int(batch["target_padding_mask"].sum()))


def schema(settings: Settings) -> TensorSchema:
    """One feature: the sequence of items, padded with the index after the last item."""
    return TensorSchema(
        [
            TensorFeatureInfo(
                "item_id",
                is_seq=True,
                feature_type=FeatureType.CATEGORICAL,
                embedding_dim=settings.width,
                padding_value=settings.items,
                cardinality=settings.items,
                feature_hint=FeatureHint.ITEM_ID,
                feature_sources=[TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")],
            )
        ]
    )


def batches(settings: Settings, arrays: dict[str, np.ndarray], parquet: Path) -> ParquetModule:
    """The sequences from a Parquet file, shuffled; one column more than the context, as the shift needs."""
    lists = pa.ListArray.from_arrays(arrays["offsets"].astype(np.int32), arrays["item"].astype(np.int64))
    pq.write_table(pa.table({"item_id": lists}), parquet)
    return ParquetModule(
        batch_size=settings.batch,
        metadata={"train": {"item_id": {"shape": settings.length + 1, "padding": settings.items}}},
        transforms={"train": make_default_sasrec_transforms(schema(settings))["train"]},
        train_path=str(parquet),
    )


def main(folder: Path, out: Path) -> None:
    """Train, and write what was measured."""
    settings, arrays = read(folder)
    if settings.device == "cpu":
        two_cores(settings.threads)
    torch.manual_seed(settings.seed)
    model = SasRec.from_params(
        schema(settings),
        embedding_dim=settings.width,
        num_heads=settings.heads,
        num_blocks=settings.blocks,
        max_sequence_length=settings.length,
        dropout=settings.dropout,
    )
    timer = Timer(settings.warm)
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        accelerator=accelerator(settings),
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[timer],
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer.fit(
            LightningModule(model, optimizer_factory=OptimizerFactory(learning_rate=settings.rate)),
            datamodule=batches(settings, arrays, Path(scratch) / "train.parquet"),
        )
    report(
        timer.clock,
        out,
        version=version("replay-rec"),
        catalogue=timer.clock.scores[-1],
        loss=type(model.loss).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
