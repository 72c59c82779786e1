"""Writing a prepared data set: sequences are appended to the splits' files as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.growing_files import ArrayFile, ParquetFile
from localpolicy.data.item_table import ItemTable, join_items
from localpolicy.data.manifest import FORMAT
from localpolicy.data.store import DTYPES, QUALITY_PAGE, SPLITS, digest_of, whole_splits
from localpolicy.runtime.files import sealed, sha256, write_json
from localpolicy.runtime.folders import whole_folder


class SplitWriter:
    """Writer that appends sequences to one split, and counts events as they pass."""

    def __init__(self, folder: Path, columns: tuple[str, ...], events: list[str]) -> None:
        folder.mkdir()
        self.folder = folder
        self.columns = columns
        self.events = events
        self.counts = np.zeros(len(events), dtype=np.int64)
        self._offsets = ArrayFile(folder / "offsets.npy", np.int64)
        self._offsets.append(np.zeros(1))
        self._arrays = {name: ArrayFile(folder / f"{name}.npy", DTYPES[name]) for name in columns}
        self._ids = ParquetFile(folder / "sequences.parquet")

    def append(self, lengths: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Add len(lengths) sequences whose events lie one after another in `arrays`."""
        ends = np.cumsum(lengths, dtype=np.int64)
        assert set(arrays) == set(self.columns), (set(arrays), self.columns)
        assert all(len(array) == (ends[-1] if len(ends) else 0) for array in arrays.values())
        self._offsets.append(self._arrays["item"].length + ends)
        for name, array in arrays.items():
            self._arrays[name].append(array)
        self.counts += np.bincount(arrays["event"], minlength=len(self.counts))

    def append_ids(self, sequence_id: pa.Array) -> None:
        """Add the ids of sequences, in order; where any are kept, all must be."""
        self._ids.append(pa.table({"sequence_id": sequence_id}))

    def close(self) -> dict[str, Any]:
        """Finish the files; return this split's counts."""
        for file in (self._offsets, *self._arrays.values()):
            file.close()
        self._ids.close()
        events = {name: int(count) for name, count in zip(self.events, self.counts, strict=True)}
        return {"sequences": self._offsets.length - 1, "events": events}


class StoreWriter:
    """Writer of a data set: a `SplitWriter` per split, and the catalogue."""

    def __init__(self, folder: Path, columns: tuple[str, ...], events: list[str]) -> None:
        self.folder = folder
        self.splits = {name: SplitWriter(folder / name, columns, events) for name in SPLITS}

    def write_items(self, item_id: Any, count: np.ndarray, items: ItemTable | None = None) -> None:
        """Write the catalogue: row i describes item index i, with the item table's columns."""
        table = pa.table({"index": np.arange(len(count), dtype=np.int32), "item_id": item_id, "count": count})
        pq.write_table(join_items(table, items), self.folder / "items.parquet")


@contextmanager
def writing(
    path: Path | str,
    *,
    kind: str,
    events: list[str],
    rewards: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    optional: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Iterator[StoreWriter]:
    """Context manager: write a prepared data set, which appears under `path` if the block succeeds.

    `optional` names the optional arrays it has; `extra` adds entries to the manifest.
    """
    assert kind in ("interactions", "impressions"), kind
    assert len(events) <= 256, "event codes are one byte"
    with whole_folder(Path(path), force=force, later=(QUALITY_PAGE,)) as folder:
        store = StoreWriter(folder, ("item", "event", "reward", *optional), events)
        try:
            yield store
        finally:  # after an error too: the files are thrown away, but must not stay open
            splits = {name: writer.close() for name, writer in store.splits.items()}
        whole = [splits[name] for name in whole_splits(settings or {})]
        catalogue = pq.read_metadata(folder / "items.parquet").num_rows
        files = {
            str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        manifest = {
            "format": FORMAT.current,
            "kind": kind,
            "counts": {
                "sequences": sum(split["sequences"] for split in whole),
                "items": catalogue,
                "events": {name: sum(split["events"][name] for split in whole) for name in events},
            },
            "splits": splits,
            "events": events,
            "rewards": dict(rewards or {}),
            "settings": dict(settings or {}),
            **dict(extra or {}),
            "files": files,
            "digest": digest_of(files),
        }
        write_json(folder / "manifest.json", sealed(manifest))
