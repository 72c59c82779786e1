"""Lists on Spark: the exported policy answers every Arrow batch of a table, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from localpolicy.serving.recommender import Recommender

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def recommend_table(frame: DataFrame, export: Path | str, k: int, *, beta: float | None = None) -> DataFrame:
    """Add the columns `items` and `log_probability` to a table: the k best for each `history`.

    `history` is an array of item ids, most recent last, and `events`, if the table has it, an array of their names.
    The export must be at the same path on every machine.
    """
    from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

    number = isinstance(Recommender(export, verify=False).ids[0], int)
    items = StructField("items", ArrayType(LongType() if number else StringType()))
    schema = StructType([*frame.schema.fields, items, StructField("log_probability", ArrayType(DoubleType()))])
    folder = str(export)

    def answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = Recommender(folder)
        for batch in batches:
            if len(batch):
                yield with_lists(batch, made, k, beta=beta)

    return frame.mapInArrow(answer, schema)


def with_lists(batch: pa.RecordBatch, made: Recommender, k: int, *, beta: float | None = None) -> pa.RecordBatch:
    """Return a batch with the k best items of each of its histories, and their log-probabilities."""
    histories = [cell or [] for cell in batch.column("history").to_pylist()]
    events: list[Any] | None = None
    if "events" in batch.schema.names:
        events = [cell or [] for cell in batch.column("events").to_pylist()]
    lists = made.recommend(histories, k, events=events, beta=beta, sample=False)
    logp = made.log_probabilities(histories, lists.indices, events=events, beta=beta)
    kind = pa.list_(pa.int64() if isinstance(made.ids[0], int) else pa.string())
    columns = [*batch.columns, pa.array(lists.items, kind), pa.array(logp.tolist(), pa.list_(pa.float64()))]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "items", "log_probability"])
