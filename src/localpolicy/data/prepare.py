"""`prepare`: from a raw log to a data set of sequences, on DuckDB or on Spark."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpolicy.data.append import change, continued, not_taken
from localpolicy.data.config import PrepareConfig, PrepareOptions
from localpolicy.data.engines import Engine
from localpolicy.data.inputs import flat_list, refuse_inside, source_tables
from localpolicy.data.preparation import Preparation
from localpolicy.data.quality import duplicate_events
from localpolicy.data.readers import READERS, find_reader
from localpolicy.data.remote import named_by_address
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, nearest, to_caller
from localpolicy.runtime.folders import check_target, new_folder, only_writer, partial_folder, remove_abandoned
from localpolicy.runtime.full_disk import raise_on_full_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = ("duckdb", "spark")

log = logging.getLogger(__name__)


def prepare(
    *logs: Any,
    source: str | object = "events",
    out: Path | str | None = None,
    append: Path | str | Prepared | None = None,
    new_only: bool = False,
    like: Path | str | Prepared | None = None,
    items: Any = None,
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
    gives; `new_only` passes over files that it holds already. `like` names one whose items keep their indices, events
    their codes and splits their cuts; a policy of that data set can then read this one, and stand for its logging
    policy where it served it. Either's settings hold. `items` is a table of what is known of the items (see
    `item_table`); its items are part of the catalogue. With `keep_log` the data set keeps its log's rows, which later
    appending needs.
    """
    _refuse_unknown(settings)
    PrepareOptions.parse({"memory": memory, "threads": threads})
    if len(logs) > 1 and _names_source(logs[0]):
        source, logs = logs[0], logs[1:]
    given = flat_list(logs)
    name, reader = find_reader(source)
    earlier = None if append is None else _opened(append)
    model = None if like is None else _opened(like)
    before = earlier or model
    config = PrepareConfig.parse({**reader.preset, **settings}) if before is None else continued(before, settings)
    out = new_folder("data") if out is None else Path(out)
    check_target(out, force=force)
    # Engines spill to a folder next to the output, whose disk must be large anyway.
    within = out.parent if scratch is None else Path(scratch)
    remove_abandoned(out, within=within)
    with (
        raise_on_full_disk(out),
        only_writer(out),
        partial_folder(out, within=within) as folder,
        ThreadPoolExecutor(1) as background,
        named_by_address(folder),
    ):
        if earlier is not None and Prepared(earlier.path).digest != earlier.digest:
            raise DataError(f"{earlier.path} was written by another process just now. Run this again.")
        tables = source_tables(given, reader, config, folder)
        refuse_inside(out, tables)
        if new_only and earlier is not None:
            tables = not_taken(earlier, tables)
        runner = _engine(engine, folder, memory=memory, threads=threads, spark=spark, spark_master=spark_master)
        try:
            work = Preparation(runner, tables, config, earlier, model, folder, background, items)
            options = {"skip_bad_rows": skip_bad_rows, "keep_log": keep_log, "force": force}
            data = work.run(out, source=name, given=settings, **options)
        finally:
            runner.close()
    if config.duplicates == "keep" and (same := duplicate_events(data)):
        kept = "They are kept; --duplicates exact drops them"
        log.warning(to_caller(f"{same:,} events equal the one before in sequence, time, item and event. {kept}"))
    if earlier is not None:
        log.info(f"{out} is {earlier.path} and {sum(len(table.inputs) for table in tables)} more file(s):")
        for line in change(earlier, data):
            log.info(line)
    return data


def _opened(data: Path | str | Prepared) -> Prepared:
    return data if isinstance(data, Prepared) else Prepared(data)


def _refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword that neither `prepare` nor its settings have."""
    parameters = inspect.signature(prepare).parameters.items()
    keywords = {name for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    known = {*keywords, *PrepareConfig.model_fields}
    for name in settings:
        if name not in known:
            raise ConfigError(f"{name}: no such key{nearest(name, known)}")


def _names_source(first: Any) -> bool:
    """Whether the first of several arguments is a source, as on the command line, rather than a path."""
    if not isinstance(first, str) or not re.fullmatch(r"\w+|[\w.]+:[\w.]+", first):
        return False
    return first in READERS or not Path(first).exists()


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
