"""`erase`: removal of one person from the log, its files and the data sets prepared from them.

An erasure changes digests. It is therefore recorded, without the person, next to the files it changed: old and
new digest of each file; a reader that knows the old one can see why it is gone. The bytes go too: what is deleted from
a database stays in its files until they are rewritten.

A call that was cut short is finished by calling again. Only the files name the lists behind answers that came late, so
the log is rid of these before the files are; and what a file becomes is recorded before it does.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from localpolicy.data.item_filters import subset
from localpolicy.data.store import LOG as KEPT_LOG
from localpolicy.data.store import SPLITS, Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import DataError
from localpolicy.runtime.files import read_json, sha256, whole_file, write_json
from localpolicy.runtime.folders import only_writer
from localpolicy.serving.database import Database
from localpolicy.serving.filters import dumps
from localpolicy.serving.log import INSERT_ERASED, erased_name
from localpolicy.serving.records import new_id, now

LOG = logging.getLogger(__name__)
HOLD_PERSONS = ("feedback", "shown", "shadow", "evidence_answers", "evidence", "requests")  # tables, by list
ROTATED_LISTS = "SELECT COUNT(*) FROM feedback WHERE request NOT IN (SELECT id FROM requests)"
RECORD = "erasures.json"  # next to Parquet files and in data sets: their erasures, without the persons


def erase(
    person: str,
    *,
    log: Path | str | None = None,
    files: Iterable[Path | str] = (),
    data: Iterable[Path | str] = (),
) -> dict[str, Any]:
    """Remove all rows of a person; return what was removed where. Raise if the log is being rotated."""
    moment = now()
    record: dict[str, Any] = {"id": new_id(moment), "time": moment, "log": {}, "files": {}, "data": {}}
    paths, folders = _parquet(files), _data_sets(data)
    database = None if log is None else Database(log)  # raises on a wrong name before anything is changed
    try:
        with nullcontext() if database is None else database.only_mover():
            requests = {request for path in paths for request in _requests_of(path, person)}
            if database is not None:
                with database.explain_errors():
                    if not paths and (late := database.rows(ROTATED_LISTS)[0][0]):
                        LOG.warning(f"{late:,} late answers in the log are to lists that were rotated, which alone say "
                                    "whose they are: name them with --files as well")  # fmt: skip
                    record["log"] = _erase_log(database, person, requests, record)
            about = {"id": record["id"], "time": moment}
            for path in paths:
                if changed := _erase_file(path, person, requests, about):
                    record["files"][str(path)] = changed
            for folder in folders:
                with only_writer(folder):
                    changed = _erase_prepared(folder, person, about, _digests(paths))
                if changed:
                    record["data"][str(folder)] = changed
            if database is not None:
                with database.explain_errors():
                    _record_files(database, paths, record)
                    database.forget(HOLD_PERSONS)
    finally:
        if database is not None:
            database.close()
    return record


def _parquet(files: Iterable[Path | str]) -> list[Path]:
    paths: list[Path] = []
    for path in map(Path, files):
        if not path.exists():
            raise DataError(f"{path} does not exist.")
        found = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not found:
            raise DataError(f"{path} holds no Parquet file; expected the folder that the log was rotated to. Nothing "
                            "was erased.")  # fmt: skip
        paths += found
    for path in paths:
        _owner(path)
    return paths


def _data_sets(data: Iterable[Path | str]) -> list[Path]:
    """Return the folders of these data sets, and of those inside folders of data sets."""
    found: list[Path] = []
    for folder in map(Path, data):
        inside = [] if (folder / "manifest.json").exists() else sorted(folder.glob("*/manifest.json"))
        found += [Prepared(file.parent).path for file in inside] or [Prepared(folder).path]
    return found


def _owner(path: Path) -> str:
    """Return the column of a rotated file that names a row's person; raise DataError if it is another file."""
    try:
        columns = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not readable as Parquet ({error}).") from None
    if "request" not in columns and "history" not in columns:
        raise DataError(f"{path} is no file of 'lpi rotate': it has no column 'request' and no 'history'. Nothing was "
                        "erased; name the folder that the log was rotated to.")  # fmt: skip
    return "sequence_id" if "sequence_id" in columns else "person"


def _requests_of(path: Path, person: str) -> set[str]:
    """Return the ids of the person's lists in a rotated file: late answers name only their list."""
    columns, owner = pq.read_schema(path).names, _owner(path)
    request = "request" if "request" in columns else "id"
    table = pq.read_table(path, columns=[owner, request])
    mine = table.filter(pc.invert(_others(table[owner], person)))
    return {each for each in mine[request].to_pylist() if each is not None}


def _erase_log(database: Database, person: str, requests: set[str], record: dict[str, Any]) -> dict[str, int]:
    with database.transaction(alone=True):
        for known in ("SELECT id FROM requests WHERE person = ?", "SELECT request FROM evidence WHERE person = ?"):
            requests = requests | {id for (id,) in database.rows(known, (person,))}
        counts = dict.fromkeys(("feedback", "shown", "requests"), 0)
        for request in sorted(requests):
            database.execute(INSERT_ERASED, (erased_name(request),))
            for table in HOLD_PERSONS:
                column = "id" if table == "requests" else "request"
                gone = database.execute(f"DELETE FROM {table} WHERE {column} = ?", (request,)).rowcount
                if table in counts:
                    counts[table] += int(gone)
        database.drop_unused_filters()
        content = {**record, "log": counts}
        database.execute("INSERT INTO erasures VALUES (?, ?, ?)", (record["id"], record["time"], dumps(content)))
    return counts


def _record_files(database: Database, paths: Iterable[Path], record: dict[str, Any]) -> None:
    """Record the new digests of rotated files, from this call and from interrupted ones."""
    with database.transaction(alone=True):
        for entry in _records(paths):
            database.execute("UPDATE rotations SET sha256 = ?, rows = ? WHERE file = ? AND sha256 = ?",
                             (entry["after"], entry["rows"], entry["file"], entry["before"]))  # fmt: skip
        database.execute("UPDATE erasures SET content = ? WHERE id = ?", (dumps(record), record["id"]))


def _erase_file(path: Path, person: str, requests: set[str], about: dict[str, Any]) -> dict[str, Any] | None:
    """Rewrite one Parquet file without the person's rows, and record that next to it.

    A late answer may name only its list, one of `requests`.
    """
    table = pq.read_table(path)
    kept = table.filter(_others(table[_owner(path)], person))
    if "request" in kept.column_names:
        kept = kept.filter(pc.invert(pc.is_in(kept["request"], pa.array(sorted(requests), pa.string()))))
    if len(kept) == len(table):
        return None
    before = sha256(path)
    with whole_file(path) as partial:
        pq.write_table(kept, partial)
        changed = {"before": before, "after": sha256(partial), "erased": len(table) - len(kept), "rows": len(kept)}
        _record(path.parent / RECORD, {**about, "file": path.name, **changed})
    return changed


def _others(column: Any, person: str) -> Any:
    """Return a mask of the rows that are not the person's."""
    return pc.fill_null(pc.not_equal(column.cast("string"), person), True)


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return {old digest: new digest} of all erasures recorded next to the files, by interrupted calls too."""
    return {entry["before"]: entry["after"] for entry in _records(paths)}


def _records(paths: Iterable[Path]) -> list[dict[str, Any]]:
    files = sorted({path.parent / RECORD for path in paths})
    return [entry for file in files if file.exists() for entry in read_json(file)]


def _latest(digest: str, digests: Mapping[str, str]) -> str:
    return digest if digest not in digests else _latest(digests[digest], digests)


def _erase_prepared(
    folder: Path, person: str, about: dict[str, Any], digests: Mapping[str, str]
) -> dict[str, Any] | None:
    """Rewrite a data set without the person's sequences; its catalogue stays, so that runs still fit it."""
    data = Prepared(folder)
    manifest, keep = data.manifest, {}
    for name in SPLITS:
        ids = data.sequence_ids(name).cast("string")
        if manifest["settings"].get("session_gap") is not None:
            ids = pc.replace_substring_regex(ids, r"#-?\d+$", "")  # sessions of a person are named id#time
        keep[name] = pc.not_equal(ids, person).to_numpy(zero_copy_only=False)
    others, in_log = None, False
    if (folder / KEPT_LOG).exists():  # it also holds persons whose rows were all filtered out of the splits
        kept_log = pq.read_table(folder / KEPT_LOG)
        others = kept_log.filter(_others(kept_log["sequence_id"], person))
        in_log = len(others) < len(kept_log)
    # A file without the person is the same day still: it is not to be appended again, even where no row of it was kept.
    taken = manifest.get("inputs", {}).get("taken", [])
    known = {file["sha256"] for file in taken}
    again = [{**file, "sha256": latest} for file in taken
             if (latest := _latest(file["sha256"], digests)) not in known]  # fmt: skip
    if all(kept.all() for kept in keep.values()) and not in_log and not again:
        return None
    fixed = {"format", "kind", "counts", "splits", "events", "rewards", "settings", "files", "digest"}
    extra = {key: value for key, value in manifest.items() if key not in fixed}
    erased = int(sum((~kept).sum() for kept in keep.values()))
    extra["erasures"] = [*extra.get("erasures", []), {**about, "before": data.digest, "sequences": erased}]
    if again:
        extra["inputs"] = {**manifest["inputs"], "taken": [*taken, *again]}
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
                among = arrays["filter"]  # renumbered, since only some of the filters are left
                arrays["filter"] = np.where(among < 0, among, np.searchsorted(numbers, among))
            store.splits[name].append(lengths[wanted], arrays)
            store.splits[name].append_ids(ids[name].filter(wanted))
        shutil.copyfile(folder / "items.parquet", store.folder / "items.parquet")
        if data.filters is not None:
            subset(data.filters, numbers.tolist(), store.folder)
        if others is not None:
            pq.write_table(others, store.folder / KEPT_LOG, compression="zstd")
    return {"before": data.digest, "after": Prepared(folder).digest, "sequences": erased}


def _used_filters(data: Prepared, keep: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the numbers of the filters that the kept sequences use; a filter reveals what its person had seen."""
    used = [np.zeros(0, np.int32)]
    for name, split in data.splits.items():
        if "filter" in split.arrays:
            used.append(np.unique(split.arrays["filter"][np.repeat(keep[name], np.diff(split.offsets))]))
    numbers = np.unique(np.concatenate(used))
    return numbers[numbers >= 0]


def _record(path: Path, entry: dict[str, Any]) -> None:
    known = read_json(path) if path.exists() else []
    # One of the same bytes was cut short before the file was replaced.
    write_json(path, [*(other for other in known if other["before"] != entry["before"]), entry])
