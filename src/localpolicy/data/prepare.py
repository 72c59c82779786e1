"""`prepare`: from a raw log to a data set of sequences, on DuckDB or on Spark."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from localpolicy.data import sql
from localpolicy.data.append import change, check_fits, continued, earlier_log, refuse_taken, write_log
from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.data.event_codes import make_event_codes
from localpolicy.data.events import fields_of
from localpolicy.data.filters import keep
from localpolicy.data.load import load, open_tables
from localpolicy.data.readers import READERS, Reader, find_reader
from localpolicy.data.readers.events import frame_table
from localpolicy.data.reading import Reading
from localpolicy.data.sources import SourceTable, check_text
from localpolicy.data.splits import cut_points, fitting, literals, split_sizes
from localpolicy.data.store import LOG, OPTIONAL, Prepared, writing
from localpolicy.data.stream import write_events, write_ids
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.runtime.files import sha256
from localpolicy.runtime.folders import check_target, new_folder, partial_folder, remove_abandoned
from localpolicy.runtime.frames import is_table, table_name
from localpolicy.runtime.full_disk import told_when_full

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = ("duckdb", "spark")

log = logging.getLogger(__name__)


def prepare(
    *logs: Any,
    source: str | object = "events",
    out: Path | str | None = None,
    append: Path | str | Prepared | None = None,
    like: Path | str | Prepared | None = None,
    skip_bad_rows: bool = False,
    keep_log: bool = True,
    engine: str = "duckdb",
    memory: str = "1GB",
    threads: int | None = None,
    scratch: Path | str | None = None,
    spark: SparkSession | None = None,
    spark_master: str | None = None,
    force: bool = False,
    **settings: Any,
) -> Prepared:
    """Prepare `logs` into the folder `out`, or into a new one under the working directory.

    A log is a table (pandas, Polars, Arrow, a DuckDB relation, anything with the Arrow C stream or the dataframe
    protocol) or the path of a file or folder; several are one log. `source` is one of the named formats, or a reader:
    its recipe holds unless `settings` (the fields of `PrepareConfig`) change it. As on the command line, a format's
    name may also come first: prepare("retailrocket", "raw/").

    `append` names an earlier data set that this log continues: the result is what preparing all its rows at once
    gives. `like` names one whose items keep their indices, events their codes and splits their cuts; a policy of that
    data set can then read this one, and stand for its logging policy where it served it. Either's settings hold. With
    `keep_log` the data set keeps its log's rows, which later appending needs.
    """
    _refuse_unknown(settings)
    if len(logs) > 1 and _names_source(logs[0]):
        source, logs = logs[0], logs[1:]
    given = _flat(logs)
    name, reader = find_reader(source)
    earlier = None if append is None else _opened(append)
    model = None if like is None else _opened(like)
    before = earlier or model
    config = PrepareConfig.parse({**reader.preset, **settings}) if before is None else continued(before, settings)
    out = new_folder("data") if out is None else Path(out)
    check_target(out, force=force)
    # Where engines keep what memory does not hold: beside the output, whose disk must be large anyway.
    within = out.parent if scratch is None else Path(scratch)
    remove_abandoned(out, within=within)
    with told_when_full(out), partial_folder(out, within=within) as folder, ThreadPoolExecutor(1) as beside:
        tables = _tables(given, reader, config, folder)
        _refuse_inside(out, tables)
        runner = _engine(engine, folder, memory=memory, threads=threads, spark=spark, spark_master=spark_master)
        try:
            work = _Preparation(runner, tables, config, earlier, model, folder, beside)
            options = {"skip_bad_rows": skip_bad_rows, "keep_log": keep_log, "force": force}
            data = work.run(out, source=name, given=settings, **options)
        finally:
            runner.close()
    if earlier is not None:
        log.info(f"{out} is {earlier.path} and {sum(len(table.inputs) for table in tables)} more file(s):")
        for line in change(earlier, data):
            log.info(line)
    return data


def _refuse_inside(out: Path, tables: Sequence[SourceTable]) -> None:
    """Raise where the folder that is to be replaced holds an input."""
    target = out.resolve()
    for file in (file for table in tables for file in table.inputs):
        if target in file.resolve().parents:
            raise ConfigError(
                f"{out} holds the log {file}, and would be replaced. Choose another folder for the data set."
            )


def _opened(data: Path | str | Prepared) -> Prepared:
    return data if isinstance(data, Prepared) else Prepared(data)


def _refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Raise on a keyword that neither `prepare` nor its settings have."""
    keywords = {name for name, one in inspect.signature(prepare).parameters.items() if one.kind is one.KEYWORD_ONLY}
    known = {*keywords, *PrepareConfig.model_fields}
    for name in settings:
        if name not in known:
            raise ConfigError(f"{name}: no such key{nearest(name, known)}")


def _names_source(first: Any) -> bool:
    """Whether the first of several arguments is a source, as on the command line, rather than a path."""
    if not isinstance(first, str) or not re.fullmatch(r"\w+|[\w.]+:[\w.]+", first):
        return False
    return first in READERS or not Path(first).exists()


def _flat(logs: Sequence[Any]) -> list[Any]:
    """Tables and paths, one after another, whether they were given as arguments or in a list."""
    found: list[Any] = []
    for one in logs:
        if isinstance(one, list | tuple):
            found += _flat(one)
        elif isinstance(one, str | os.PathLike):
            found.append(Path(one))
        elif is_table(one):
            found.append(one)
        else:
            raise ConfigError(f"expected a table or the path of a log, got {table_name(one)}.")
    if not found:
        raise DataError("no log given: name a file or a folder, or pass a table.")
    return found


def _tables(logs: Sequence[Any], reader: Reader, config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """What the reader finds at the paths, and the tables as they are, in the order given."""
    if reader is not READERS["events"] and not all(isinstance(one, Path) for one in logs):
        raise ConfigError("a named source reads files. Leave source out for a table, and map its columns (columns=…).")
    found: list[Any] = []
    for files, group in groupby(logs, lambda one: isinstance(one, Path)):
        together = list(group)
        found += reader.tables(together, config, scratch) if files else together
    frames = sum(not isinstance(one, SourceTable) for one in found)
    numbers = iter(range(1, frames + 1))
    return [
        one if isinstance(one, SourceTable) else frame_table(one, config, scratch, number=next(numbers), of=frames)
        for one in found
    ]


class _Preparation:
    """One preparation: the steps share an engine, a config and perhaps earlier data sets."""

    def __init__(
        self,
        engine: Engine,
        tables: list[SourceTable],
        config: PrepareConfig,
        earlier: Prepared | None,
        model: Prepared | None,
        scratch: Path,
        beside: Executor,
    ) -> None:
        self.engine, self.tables, self.config = engine, tables, config
        self.earlier = earlier  # whose rows come first
        self.model = model  # whose indices, codes and cuts hold
        self.scratch, self.beside = scratch, beside

    def run(
        self, out: Path, *, source: str, given: Mapping[str, Any], skip_bad_rows: bool, keep_log: bool, force: bool
    ) -> Prepared:
        """All steps, from files to the store."""
        engine, earlier, model = self.engine, self.earlier, self.model
        known: Mapping[str, Any] = {} if model is None else model.manifest
        before = []
        if earlier is not None:
            # Where there are no times, its rows precede the new ones.
            before = [earlier_log(earlier)]
            refuse_taken(earlier, _digests(self.tables))
        else:
            known = {**known, "policies": []}  # who served the rows of `model` has no part in these
        log.info(f"reading {sum(len(table.inputs) for table in self.tables):,} file(s)")
        raws = open_tables(engine, [*before, *self.tables], skip_malformed=skip_bad_rows)
        reading = Reading.decide(raws, self.config)
        if self.config.split == "time" and not reading.has_time:
            raise ConfigError("split=time needs times, and this log has none: map a timestamp, or use split=random.")
        for one in filter(None, (earlier, model)):
            check_fits(one, self.tables, reading)
        first = earlier is None and model is None
        codes = make_event_codes(engine, raws, reading, self.config, earlier=known, first=first)
        for one in filter(None, (earlier, model)):
            if codes.kind != one.kind:
                raise DataError(f"the new log makes these {codes.kind}; {one.path} holds {one.kind}.")
        config = self.config.model_copy(update={"rewards": codes.reward_map})
        rows, problems = load(engine, raws, reading, codes, skip_bad_rows=skip_bad_rows, scratch=self.scratch)
        inputs = self.beside.submit(_digests, self.tables)  # not sooner: a log that is refused needs none
        engine.small("known", _known_items(model, integer=reading.item_id == "integer"))
        fields = fields_of(reading, codes)
        if keep_log:
            log.info("keeping the log")
            write_log(engine, self.scratch / LOG, fields, reading, codes)
        order = sql.order(fields, impressions=codes.rate_items)
        click = codes.events.index("click") if "click" in codes.events else None
        log.info("filtering")
        kept = keep(engine, config, fields=fields, order=order, click=click)
        log.info("indexing items and sequences")
        by_time = config.split == "time"
        keys = sql.KEYS_BY_TIME if by_time else sql.keys_at_random(kept.sequences, seed=config.seed)
        # Shares at random need each key once: no table then, since md5s are the widest column of all.
        (engine.view if not by_time and config.test < 1 else engine.table)("sequence_keys", keys)
        asked = {*given} if earlier is None else {*given, *earlier.manifest.get("given", ())}
        config = fitting(engine, config, given=asked)
        cuts = cut_points(engine, config, known=known.get("cuts"))
        engine.table("sequences", sql.sequences(literals(cuts)))
        sizes = split_sizes(engine)
        engine.table("numbered", sql.numbered(kept.source, fields=fields, sequences=sum(sizes)))
        engine.drop(*kept.behind)
        engine.table("items", sql.ITEMS)
        dates = _dates(*engine.rows(sql.FIRST_AND_LAST)[0]) if reading.has_time else None
        optional = tuple(name for name in OPTIONAL if name in fields or (name == "above" and "request" in fields))
        extra: dict[str, Any] = {
            "source": source,
            "asked": self.config.model_dump(mode="json", exclude_unset=True),
            "given": sorted(asked),
            "rows": rows,
            "policies": codes.policies if "policy" in fields else [],
            "dates": dates,
            "cuts": cuts,
            "filters": kept.trail,
            "bad_rows": _added({} if earlier is None else earlier.manifest["bad_rows"], problems),
            "inputs": {},
        }
        if earlier is not None:
            extra["continues"] = earlier.digest
        if model is not None:
            extra["like"] = model.digest
        log.info("sorting and writing")
        with writing(
            out,
            kind=codes.kind,
            events=codes.events,
            rewards=codes.rewards,
            settings=config.model_dump(mode="json"),
            optional=optional,
            extra=extra,
            force=force,
        ) as store:
            parts = sql.parts(sum(sizes), int(engine.rows("SELECT COUNT(*) FROM numbered")[0][0]))
            events = chain.from_iterable(engine.batches(sql.final(*part, fields=fields, order=order)) for part in parts)
            columns, rewards = ("item", "event", "reward", *optional), list(codes.rewards.values())
            write_events(store, events, columns, sizes=sizes, rewards=rewards)
            write_ids(store, engine.batches(sql.sequence_ids(integer=reading.sequence_id == "integer")), sizes=sizes)
            items = engine.arrow(sql.CATALOGUE)
            store.write_items(items.column("item_id").combine_chunks(), items.column("count").to_numpy())
            if keep_log:
                shutil.move(self.scratch / LOG, store.folder / LOG)
            taken = [] if earlier is None else earlier.manifest["inputs"]["taken"]
            extra["inputs"] = _inputs([*taken, *inputs.result()])
        return Prepared(out)


def _dates(first: int, last: int) -> dict[str, str]:
    """The first and the last time, as people write them (UTC)."""
    return {name: str(np.datetime64(time, "ms")) for name, time in (("first", first), ("last", last))}


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def _known_items(earlier: Prepared | None, *, integer: bool) -> pa.Table:
    """Items whose indices must stay."""
    schema = pa.schema({"item_id": pa.int64() if integer else pa.string(), "index": pa.int32()})
    return schema.empty_table() if earlier is None else earlier.catalogue.select(["item_id", "index"]).cast(schema)


def _engine(
    name: str,
    folder: Path,
    *,
    memory: str,
    threads: int | None,
    spark: SparkSession | None,
    spark_master: str | None,
) -> Engine:
    if name not in ENGINES:
        raise ConfigError(f"no engine '{name}'{nearest(name, ENGINES)}")
    if name == "spark":
        from localpolicy.data.engines.spark import Spark

        return Spark(folder, session=spark, master=spark_master)
    from localpolicy.data.engines.duckdb import DuckDB

    return DuckDB(folder, memory=memory, threads=threads)


def _digests(tables: Sequence[SourceTable]) -> list[dict[str, Any]]:
    """Each input file's name, size and digest; raises on text that is not whole."""
    for table in tables:
        for file in table.files if table.format == "csv" else ():
            check_text(file)
    files = [file for table in tables for file in table.inputs]
    return [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)} for file in files]


def _inputs(taken: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the manifest says of the files, with one digest over all of them, by name and content."""
    content = "".join(f"{one['name']}:{one['sha256']};" for one in taken)
    return {
        "files": len(taken),
        "bytes": sum(one["bytes"] for one in taken),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "taken": list(taken),
    }
