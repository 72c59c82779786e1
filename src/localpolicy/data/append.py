"""Yesterday's data set plus today's log: the earlier one is read back as events, and both are prepared together.

Items keep their indices, events and policies their codes, and (in a random split) sequences their split; what is
new comes after. What yesterday's filters dropped is gone: a filter sees what was kept, and today's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from localpolicy.data.config import PrepareConfig
from localpolicy.data.reading import ROW, Reading
from localpolicy.data.sources import Table
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError

# How today's file is read may differ from yesterday's; what is done with its rows may not.
READING = {"columns", "names", "delimiter", "event", "rename", "drop_events", "time_unit", "ids"}
SESSION_SUFFIX = r"#-?\d+$"  # see `sql.sessions`


def continued(data: Prepared, changes: Mapping[str, Any]) -> PrepareConfig:
    """The earlier settings, with those changes that append allows."""
    earlier = PrepareConfig.parse(data.manifest["settings"])
    asked = PrepareConfig.parse({**data.manifest["settings"], **changes})
    for name in changes:
        if name not in READING and getattr(asked, name) != getattr(earlier, name):
            raise ConfigError(
                f"append keeps the earlier settings: {name} is {getattr(earlier, name)!r} in {data.path}, "
                f"not {getattr(asked, name)!r}. Leave it out, or prepare both logs anew."
            )
    if twice := set(asked.rename) & set(data.events):
        raise ConfigError(f"append cannot rename '{min(twice)}': the earlier data set has such events already.")
    return asked


def earlier_table(data: Prepared, scratch: Path) -> Table:
    """The data set's events as a Parquet table in the scratch folder."""
    path = scratch / "earlier.parquet"
    writer = None
    for part in _events(data):
        writer = writer or pq.ParquetWriter(path, part.schema, compression="lz4")
        writer.write_table(part)
    assert writer is not None, "a data set has sequences"
    writer.close()
    names = tuple(writer.schema.names)
    return Table((path,), "parquet", {name: name for name in names}, names, originals=(data.path / "manifest.json",))


def _events(data: Prepared) -> Iterator[pa.Table]:
    item_id = data.catalogue.column("item_id").combine_chunks()
    event_names = pa.array(data.events, pa.string())
    policies = pa.array(data.manifest.get("policies", []), pa.string())
    for name, split in data.splits.items():
        ids = data.sequence_ids(name)
        if data.manifest["settings"]["session_gap"] is not None:
            ids = pc.replace_substring_regex(ids, SESSION_SUFFIX, "")
        for first, stop in split.pieces():
            bounds = split.offsets[first : stop + 1]
            arrays = {key: np.asarray(array[bounds[0] : bounds[-1]]) for key, array in split.arrays.items()}
            sequence = np.repeat(np.arange(first, stop), np.diff(bounds))
            columns: dict[str, Any] = {
                "sequence_id": ids.take(pa.array(sequence)),
                "item_id": item_id.take(pa.array(arrays["item"])),
                "event": event_names.take(pa.array(arrays["event"])),
            }
            if not data.manifest["rewards"]:  # else the reward map gives them again
                columns["reward"] = arrays["reward"].astype(np.float64)
            if "time" in arrays:
                columns["timestamp"] = arrays["time"]
            if "propensity" in arrays:
                columns["propensity"] = arrays["propensity"].astype(np.float64)
            if "policy" in arrays:
                known = pa.array(arrays["policy"], mask=arrays["policy"] < 0)
                columns["policy"] = policies.take(known)
            if "above" in arrays:
                first_of_list = np.arange(bounds[0], bounds[-1]) - arrays["above"]
                columns["request"] = pa.array([f"{name}:{number:016d}" for number in first_of_list])
                columns["place"] = arrays["place"]
            yield pa.table(columns)


def check_fits(data: Prepared, tables: Sequence[Table], reading: Reading) -> None:
    """Raise unless today's log has the ids and propensities of yesterday's."""
    item_type = data.catalogue.schema.field("item_id").type
    if (reading.item_id == "integer") != pa.types.is_integer(item_type):
        raise DataError(
            f"item ids are {item_type} in {data.path} and {reading.item_id} in the new log: they cannot be matched."
        )
    logged = "propensity" in data["train"].arrays
    for table in tables:
        if ROW in table.columns.values():
            raise ConfigError("a log whose rows are its sequences cannot be appended: prepare all its files at once.")
        if data.kind == "impressions" and logged != ("propensity" in table.columns):
            has, lacks = (data.path, table.files[0]) if logged else (table.files[0], data.path)
            raise DataError(f"{has} has propensities and {lacks} has none: one data set cannot hold both.")
