"""RePlay's SasRec through Lightning's predict: replay_lists.py FOLDER. Run by benchmarks/lists.py."""

import json
import sys
import time
from pathlib import Path

import lightning
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from replay.data import FeatureHint, FeatureSource, FeatureType
from replay.data.nn import ParquetModule, TensorFeatureInfo, TensorFeatureSource, TensorSchema
from replay.nn.lightning import LightningModule
from replay.nn.lightning.callback import PandasTopItemsCallback
from replay.nn.sequential import SasRec
from replay.nn.transform.template import make_default_sasrec_transforms


def predict(model: LightningModule, schema: TensorSchema, path: Path, settings: dict) -> int:
    """Rows of the frame of lists."""
    best = PandasTopItemsCallback(top_k=settings["k"], query_column="query_id", item_column="item_id")
    shape = {"shape": settings["length"], "padding": settings["items"]}
    data = ParquetModule(
        batch_size=settings["batch"], metadata={"predict": {"item_id": shape, "query_id": {}}},
        transforms={"predict": make_default_sasrec_transforms(schema)["predict"]}, predict_path=str(path),
    )  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[best],
    )  # fmt: skip
    trainer.predict(model, datamodule=data, return_predictions=False)
    return len(best.get_result())


folder = Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
torch.set_num_threads(settings["threads"])
table = pq.read_table(folder / "histories.parquet")
people = len(np.unique(table["sequence_id"].to_numpy()))
lists = pa.ListArray.from_arrays(np.arange(0, 10 * people + 1, 10, dtype=np.int32), table["item_id"].to_numpy())
nested = pa.table({"query_id": np.arange(people), "item_id": lists})
pq.write_table(nested, folder / "replay.parquet")
pq.write_table(nested.slice(0, 2000), folder / "replay-warm.parquet")
feature = TensorFeatureInfo(
    "item_id", is_seq=True, feature_type=FeatureType.CATEGORICAL, embedding_dim=settings["width"],
    padding_value=settings["items"], cardinality=settings["items"], feature_hint=FeatureHint.ITEM_ID,
    feature_sources=[TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")],
)  # fmt: skip
schema = TensorSchema([feature])
network = SasRec.from_params(
    schema, embedding_dim=settings["width"], num_heads=1, num_blocks=1, max_sequence_length=settings["length"],
)  # fmt: skip
model = LightningModule(network)
predict(model, schema, folder / "replay-warm.parquet", settings)
begin, spent = time.perf_counter(), time.process_time()
rows = predict(model, schema, folder / "replay.parquet", settings)
seconds = time.perf_counter() - begin, time.process_time() - spent
assert rows == people * settings["k"], rows
print(*seconds)
