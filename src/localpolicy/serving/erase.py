"""`erase`: one person out of the log, its files and the data sets prepared from them.

What is erased changes digests. The erasure is therefore recorded, without the person, beside what it changed: old and
new digest of each file; a reader that knows the old one can see why it is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from localpolicy.data.item_filters import subset
from localpolicy.data.store import LOG, SPLITS, Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import DataError
from localpolicy.runtime.files import read_json, sha256, whole_file, write_json
from localpolicy.serving.database import Database
from localpolicy.serving.log import dumps
from localpolicy.serving.records import new_id, now

RECORD = "erasures.json"  # beside Parquet files and in data sets: what was erased from them, without whom


def erase(
    person: str,
    *,
    log: Path | str | None = None,
    files: Iterable[Path | str] = (),
    data: Iterable[Path | str] = (),
) -> dict[str, Any]:
    """Remove all rows of a person; what was removed where."""
    moment = now()
    record: dict[str, Any] = {"id": new_id(moment), "time": moment, "log": {}, "files": {}, "data": {}}
    for path in _parquet(files):
        if changed := _erase_file(path, person):
            record["files"][str(path)] = changed
            _record(
                Path(path).parent / RECORD, {"id": record["id"], "time": moment, "file": Path(path).name, **changed}
            )
    for folder in data:
        if changed := _erase_prepared(Path(folder), person, {"id": record["id"], "time": moment}):
            record["data"][str(folder)] = changed
    if log is not None:
        record["log"] = _erase_log(log, person, record)
    return record


def _parquet(files: Iterable[Path | str]) -> list[Path]:
    paths: list[Path] = []
    for path in map(Path, files):
        if not path.exists():
            raise DataError(f"{path} does not exist.")
        paths += sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    return paths


def _erase_log(log: Path | str, person: str, record: dict[str, Any]) -> dict[str, int]:
    database = Database(log)
    mine = "(SELECT id FROM requests WHERE person = ?)"
    try:
        with database.transaction():
            gone = {
                "feedback": f"DELETE FROM feedback WHERE request IN {mine}",
                "shown": f"DELETE FROM shown WHERE request IN {mine}",
                "requests": "DELETE FROM requests WHERE person = ?",
                "persons": "DELETE FROM persons WHERE person = ?",
            }
            counts = {name: int(database.execute(sql, (person,)).rowcount) for name, sql in gone.items()}
            database.drop_unused_filters()
            for path, changed in record["files"].items():
                database.execute("UPDATE rotations SET sha256 = ?, rows = ? WHERE file = ? AND sha256 = ?",
                                 (changed["after"], changed["rows"], Path(path).name, changed["before"]))  # fmt: skip
            content = {**record, "log": counts}
            database.execute("INSERT INTO erasures VALUES (?, ?, ?)", (record["id"], record["time"], dumps(content)))
        if not database.postgres:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # deleted rows would stay readable there
            database.execute("VACUUM")
    finally:
        database.close()
    return counts


def _erase_file(path: Path, person: str) -> dict[str, Any] | None:
    """Rewrite one Parquet file without the person's rows."""
    table = pq.read_table(path)
    column = table["sequence_id" if "sequence_id" in table.column_names else "person"]
    kept = table.filter(_others(column, person))
    if len(kept) == len(table):
        return None
    before = sha256(path)
    with whole_file(path) as partial:
        pq.write_table(kept, partial)
    return {"before": before, "after": sha256(path), "erased": len(table) - len(kept), "rows": len(kept)}


def _others(column: Any, person: str) -> Any:
    """Which rows are not the person's."""
    return pc.fill_null(pc.not_equal(column.cast("string"), person), True)


def _erase_prepared(folder: Path, person: str, about: dict[str, Any]) -> dict[str, Any] | None:
    """Write a data set anew without the person's sequences; its catalogue stays, so that runs still fit it."""
    data = Prepared(folder)
    keep = {}
    for name in SPLITS:
        ids = pc.replace_substring_regex(data.sequence_ids(name).cast("string"), r"#-?\d+$", "")
        keep[name] = pc.not_equal(ids, person).to_numpy(zero_copy_only=False)
    if all(kept.all() for kept in keep.values()):
        return None
    manifest = data.manifest
    fixed = {"format", "kind", "counts", "splits", "events", "rewards", "settings", "files", "digest"}
    extra = {key: value for key, value in manifest.items() if key not in fixed}
    erased = int(sum((~kept).sum() for kept in keep.values()))
    extra["erasures"] = [*extra.get("erasures", []), {**about, "before": data.digest, "sequences": erased}]
    columns = tuple(name for name in data["train"].arrays if name not in ("item", "event", "reward"))
    ids = {name: data.sequence_ids(name) for name in SPLITS}
    numbers = _used_filters(data, keep)
    with writing(
        folder, kind=data.kind, events=data.events, rewards=manifest["rewards"], settings=manifest["settings"],
        optional=columns, extra=extra, force=True,
    ) as store:  # fmt: skip
        for name in SPLITS:
            split, wanted = data[name], keep[name]
            lengths = np.diff(split.offsets)
            rows = np.repeat(wanted, lengths)
            arrays = {key: np.asarray(array)[rows] for key, array in split.arrays.items()}
            if "filter" in arrays:
                arrays["filter"] = _renumbered(arrays["filter"], numbers)
            store.splits[name].append(lengths[wanted], arrays)
            store.splits[name].append_ids(ids[name].filter(wanted))
        shutil.copyfile(folder / "items.parquet", store.folder / "items.parquet")
        if data.filters is not None:
            subset(data.filters, numbers.tolist(), store.folder)
        if (folder / LOG).exists():
            rows = pq.read_table(folder / LOG)
            pq.write_table(rows.filter(_others(rows["sequence_id"], person)), store.folder / LOG, compression="zstd")
    return {"before": data.digest, "after": Prepared(folder).digest, "sequences": erased}


def _used_filters(data: Prepared, keep: Mapping[str, np.ndarray]) -> np.ndarray:
    """Numbers of the filters that the kept sequences refer to: a filter tells what its person had seen."""
    used = [np.zeros(0, np.int32)]
    for name, split in data.splits.items():
        if "filter" in split.arrays:
            used.append(np.unique(split.arrays["filter"][np.repeat(keep[name], np.diff(split.offsets))]))
    numbers = np.unique(np.concatenate(used))
    return numbers[numbers >= 0]


def _renumbered(number: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The same references once only the filters `kept` are left."""
    return np.where(number < 0, number, np.searchsorted(kept, number))


def _record(path: Path, entry: dict[str, Any]) -> None:
    known = read_json(path) if path.exists() else []
    write_json(path, [*known, entry])
