"""`prepare`: from a raw log to a data set of sequences, on DuckDB or on Spark."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from localpolicy.data import sql
from localpolicy.data.answers import make_answers
from localpolicy.data.append import check_fits, continued, earlier_table
from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.data.events import fields_of
from localpolicy.data.filters import keep
from localpolicy.data.load import load, open_tables
from localpolicy.data.readers import READERS
from localpolicy.data.reading import Reading
from localpolicy.data.sources import Table
from localpolicy.data.splits import cut_points, fitting, literals, split_sizes
from localpolicy.data.store import OPTIONAL, Prepared, writing
from localpolicy.data.stream import write_events, write_ids
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.runtime.files import PARTIAL, refuse_occupied, sha256

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = ("duckdb", "spark")


def prepare(
    source: str,
    paths: Sequence[Path | str],
    *,
    out: Path | str,
    append: Path | str | None = None,
    like: Path | str | None = None,
    skip_bad_rows: bool = False,
    engine: str = "duckdb",
    memory: str = "1GB",
    threads: int | None = None,
    scratch: Path | str | None = None,
    spark: SparkSession | None = None,
    spark_master: str | None = None,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> Prepared:
    """Prepare the log at `paths` into the folder `out`.

    `source` names a reader, whose recipe holds unless `settings` (the fields of `PrepareConfig`) change it.
    `append` names an earlier data set that this log continues; its settings hold. With `like` they hold too, items
    keep their indices and events their codes, but none of its rows are taken: a policy of the earlier data set can
    then read this one, and stand for its logging policy where it served it.
    """
    if source not in READERS:
        raise ConfigError(f"no source '{source}'{nearest(source, READERS)}")
    reader, out = READERS[source], Path(out)
    if append is not None and like is not None:
        raise ConfigError("append takes an earlier data set's rows and like does not: name one of them.")
    named = append if append is not None else like
    earlier = None if named is None else Prepared(named)
    config = PrepareConfig.parse({**reader.preset, **settings}) if earlier is None else continued(earlier, settings)
    refuse_occupied(out, force=force)
    with _scratch_folder(out, scratch) as folder, _disk_errors(out), ThreadPoolExecutor(1) as beside:
        tables = reader.tables(paths, config, folder)
        runner = _engine(engine, folder, memory=memory, threads=threads, spark=spark, spark_master=spark_master)
        try:
            work = _Preparation(runner, tables, config, earlier, folder, beside, say, rows=append is not None)
            return work.run(out, source=source, given=settings, skip_bad_rows=skip_bad_rows, force=force)
        finally:
            runner.close()


class _Preparation:
    """One preparation: the steps share an engine, a config and perhaps an earlier data set."""

    def __init__(
        self,
        engine: Engine,
        tables: list[Table],
        config: PrepareConfig,
        earlier: Prepared | None,
        scratch: Path,
        beside: Executor,
        say: Callable[[str], None],
        *,
        rows: bool,
    ) -> None:
        self.engine, self.tables, self.config = engine, tables, config
        self.earlier, self.scratch, self.beside, self.say = earlier, scratch, beside, say
        self.continues = earlier is not None and rows  # the earlier rows are part of this data set

    def run(self, out: Path, *, source: str, given: Mapping[str, Any], skip_bad_rows: bool, force: bool) -> Prepared:
        """All steps, from files to the store."""
        engine, earlier, say = self.engine, self.earlier, self.say
        known: Mapping[str, Any] = {} if earlier is None else earlier.manifest
        before = []
        if earlier is not None and self.continues:
            # The earlier data set comes first: where there are no times, its rows precede the new ones.
            before = [earlier_table(earlier, self.scratch)]
        elif earlier is not None:
            known = {**known, "policies": []}  # who served the earlier rows has no part in these
        say(f"reading {sum(len(table.inputs) for table in self.tables):,} file(s)")
        raws = open_tables(engine, [*before, *self.tables], skip_malformed=skip_bad_rows)
        reading = Reading.decide(raws, self.config)
        if self.config.split == "time" and not reading.has_time:
            raise ConfigError("split=time needs times, and this log has none: map a timestamp, or use split=random.")
        if earlier is not None:
            check_fits(earlier, self.tables, reading)
        answers = make_answers(engine, raws, reading, self.config, earlier=known)
        if earlier is not None and answers.kind != earlier.kind:
            raise DataError(f"the new log makes these {answers.kind}; {earlier.path} holds {earlier.kind}.")
        config = self.config.model_copy(update={"rewards": answers.reward_map})
        rows, problems = load(engine, raws, reading, answers, skip_bad_rows=skip_bad_rows, scratch=self.scratch)
        inputs = self.beside.submit(_digest, self.tables)  # not sooner: a log that is refused needs none
        engine.small("known", _known_items(earlier, integer=reading.item_id == "integer"))
        fields = fields_of(reading, answers)
        order = sql.order(fields, answers=answers.tell)
        click = answers.events.index("click") if "click" in answers.events else None
        say("filtering")
        kept = keep(engine, config, fields=fields, order=order, click=click)
        say("indexing items and sequences")
        by_time = config.split == "time"
        keys = sql.KEYS_BY_TIME if by_time else sql.keys_at_random(kept.sequences, seed=config.seed)
        # Shares at random need each key once: no table then, since md5s are the widest column of all.
        (engine.view if not by_time and config.test < 1 else engine.table)("sequence_keys", keys)
        config = fitting(engine, config, given=given, say=say)
        cuts = cut_points(engine, config, known=known.get("cuts"))
        engine.table("sequences", sql.sequences(literals(cuts)))
        sizes = split_sizes(engine)
        engine.table("numbered", sql.numbered(kept.source, fields=fields, sequences=sum(sizes)))
        engine.drop(*kept.behind)
        engine.table("items", sql.ITEMS)
        optional = tuple(name for name in OPTIONAL if name in fields or (name == "above" and "request" in fields))
        extra: dict[str, Any] = {
            "source": source,
            "rows": rows,
            "policies": answers.policies if "policy" in fields else [],
            "cuts": cuts,
            "filters": kept.trail,
            "bad_rows": problems,
            "inputs": {},
        }
        if earlier is not None:
            extra["continues" if self.continues else "like"] = earlier.digest
        say("sorting and writing")
        with writing(
            out,
            kind=answers.kind,
            events=answers.events,
            rewards=answers.rewards,
            settings=config.model_dump(mode="json"),
            optional=optional,
            extra=extra,
            force=force,
        ) as store:
            parts = sql.parts(sum(sizes), int(engine.rows("SELECT COUNT(*) FROM numbered")[0][0]))
            events = chain.from_iterable(engine.batches(sql.final(*part, fields=fields, order=order)) for part in parts)
            columns, rewards = ("item", "event", "reward", *optional), list(answers.rewards.values())
            write_events(store, events, columns, sizes=sizes, rewards=rewards)
            write_ids(store, engine.batches(sql.sequence_ids(integer=reading.sequence_id == "integer")), sizes=sizes)
            items = engine.arrow(sql.CATALOGUE)
            store.write_items(items.column("item_id").combine_chunks(), items.column("count").to_numpy())
            extra["inputs"] = inputs.result()
        return Prepared(out)


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


def _digest(tables: Sequence[Table]) -> dict[str, Any]:
    """One digest over all input files, by name and content."""
    files = [file for table in tables for file in table.inputs]
    content = "".join(f"{file.name}:{sha256(file)};" for file in files)
    return {
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }


@contextmanager
def _scratch_folder(out: Path, scratch: Path | str | None) -> Iterator[Path]:
    """Where engines keep what memory does not hold: beside the output, whose disk must be large anyway."""
    parent = Path(scratch) if scratch is not None else out.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}{PARTIAL}scratch-", dir=parent) as folder:
        yield Path(folder)


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise DataError(
            f"the disk is full ({error}); {out} was not written. Free some space, or choose another."
        ) from None
