"""RecTools' SASRecModel.recommend: rectools_lists.py FOLDER. Run by benchmarks/lists.py."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


def trainer() -> Trainer:
    """Trainer of a single step."""
    return Trainer(
        max_steps=1, limit_train_batches=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


folder = Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
torch.set_num_threads(settings["threads"])
table = np.load(folder / "histories.npz")
frame = pd.DataFrame(
    {
        Columns.User: table["person"],
        Columns.Item: table["item"],
        Columns.Weight: 1.0,
        Columns.Datetime: pd.Timestamp("2025-01-01") + pd.to_timedelta(np.arange(len(table["item"])), unit="s"),
    }
)
data = Dataset.construct(frame)
model = SASRecModel(
    n_blocks=1, n_heads=1, n_factors=settings["width"], session_max_len=settings["length"], loss="softmax",
    batch_size=64, recommend_batch_size=settings["batch"], recommend_torch_device="cpu", get_trainer_func=trainer,
)  # fmt: skip
model.fit(data)
people = frame[Columns.User].unique()
model.recommend(people[:2000], data, k=settings["k"], filter_viewed=False)
begin, spent = time.perf_counter(), time.process_time()
lists = model.recommend(people, data, k=settings["k"], filter_viewed=False)
seconds = time.perf_counter() - begin, time.process_time() - spent
assert len(lists) == len(people) * settings["k"]
print(*seconds)
