"""RecTools' SASRecModel, fitted on the training split, and what it would show: rectools_ranking.py FOLDER

Run by benchmarks/sequence_models.py with the Python of the environment that RecTools is installed in.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer
from ranking import Keeper, Split
from rectools.models import SASRecModel
from rectools_sasrec import dataset
from torch import Tensor

KEPT: dict[str, Any] = {}  # `fit` copies its trainer, callbacks included: what they share lives here


class Judge(Callback):
    """Looks at the network after each epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop when it no longer learns."""
        trainer.should_stop = not KEPT["keeper"].judge(pl_module.torch_model, logits(pl_module.torch_model))


def trainer(epochs: int, accelerator: str) -> Trainer:
    """As SASRecModel makes it for itself, and the judge."""
    return Trainer(
        max_epochs=epochs, enable_progress_bar=False, enable_model_summary=False, logger=False,
        enable_checkpointing=False, devices=1, accelerator=accelerator, callbacks=[Judge()],
    )  # fmt: skip


def logits(network: torch.nn.Module) -> Any:
    """Its scores in our numbering of the items; those it never saw are out."""

    def rows(inputs: Tensor, wanted: Tensor) -> Tensor:
        theirs, ours = numbering(inputs.device)
        known = torch.where(inputs >= 0, theirs[inputs.clamp(min=0)], 0)
        items = network.item_model.get_all_embeddings()
        scores = network.encode_sessions({"x": known}, items)[wanted] @ items.T
        spread = torch.full((len(scores), len(theirs)), -torch.inf, device=scores.device)
        spread[:, ours[ours >= 0]] = scores[:, ours >= 0]
        return spread

    return rows


def numbering(device: torch.device) -> tuple[Tensor, Tensor]:
    """Their number of each of our items (0, their padding, where they have none), and ours of theirs (or -1)."""
    if "numbering" not in KEPT:
        ids = KEPT["model"].data_preparator.item_id_map.external_ids
        ours = np.array([identity if isinstance(identity, (int, np.integer)) else -1 for identity in ids])
        theirs = np.zeros(KEPT["items"], np.int64)
        theirs[ours[ours >= 0]] = np.flatnonzero(ours >= 0)
        KEPT["numbering"] = tuple(torch.from_numpy(array.astype(np.int64)).to(device) for array in (theirs, ours))
    return KEPT["numbering"]


def main(folder: Path) -> None:
    """Fit, and write its lists."""
    settings = json.loads((folder / "settings.json").read_text())
    train = Split.read(folder, "train")
    KEPT["items"] = settings["items"]
    KEPT["keeper"] = Keeper.of(folder, settings, train)
    torch.manual_seed(settings["seed"])
    model = KEPT["model"] = SASRecModel(
        n_blocks=settings["blocks"], n_heads=settings["heads"], n_factors=settings["width"],
        dropout_rate=settings["dropout"], session_max_len=settings["length"], batch_size=settings["batch"],
        lr=settings["rate"], loss="softmax", verbose=0, get_trainer_func=trainer,
        get_trainer_func_kwargs={"epochs": settings["epochs"], "accelerator": settings["accelerator"]},
    )  # fmt: skip
    model.fit(dataset({"offsets": train.offsets, "item": train.item}))
    network = model.torch_model.to("cuda" if settings["accelerator"] == "gpu" else "cpu")
    KEPT.pop("numbering", None)
    KEPT["keeper"].write(folder, network, logits(network), peer="rectools", version=version("rectools"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
