"""Steps of one preparation, from opened tables to the data set on disk."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.data import sql
from localpolicy.data.append import check_fits, earlier_log, refuse_taken, write_log
from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.data.event_codes import make_event_codes
from localpolicy.data.events import fields_of
from localpolicy.data.filter_contents import write_filters
from localpolicy.data.filters import keep
from localpolicy.data.inputs import digests, inputs_of
from localpolicy.data.item_table import ItemTable, check_overlap, earlier_table, read_item_table, renewed
from localpolicy.data.load import load, open_tables
from localpolicy.data.log_schema import LogSchema
from localpolicy.data.sources import SourceTable
from localpolicy.data.splits import Cut, cut_points, fitting, literals, milliseconds_of, share_key, split_sizes
from localpolicy.data.store import LOG, OPTIONAL, Prepared
from localpolicy.data.store_writer import writing
from localpolicy.data.stream import write_events, write_ids
from localpolicy.errors import ConfigError, DataError
from localpolicy.limits import DAY

LONGEST_SEQUENCE = 1 << 22  # events: one sequence is held in memory, whatever --memory says
log = logging.getLogger("localpolicy.data.prepare")  # the steps of `prepare`, under its name


class Preparation:
    """Run of `prepare`: its steps share an engine, a config and perhaps earlier data sets."""

    def __init__(
        self,
        engine: Engine,
        tables: list[SourceTable],
        config: PrepareConfig,
        earlier: Prepared | None,
        model: Prepared | None,
        scratch: Path,
        background: Executor,
        items: Any = None,
    ) -> None:
        self.items = items  # the item table, as it was given
        self.engine, self.tables, self.config = engine, tables, config
        self.earlier = earlier  # data set whose rows come first
        self.model = model  # data set whose indices, codes and cuts are kept
        self.scratch, self.background = scratch, background

    def run(
        self, out: Path, *, source: str, given: Mapping[str, Any], skip_bad_rows: bool, keep_log: bool, force: bool
    ) -> Prepared:
        """Run all steps, from files to the store; return the data set."""
        engine, earlier, model = self.engine, self.earlier, self.model
        known: Mapping[str, Any] = {} if model is None else model.manifest
        before = []
        if earlier is not None:
            # Where there are no times, its rows precede the new ones.
            before = [earlier_log(earlier)]
            refuse_taken(earlier, digests(self.tables))
        else:
            known = {**known, "policies": []}  # who served the rows of `model` has no part in these
        log.info(f"reading {sum(len(table.inputs) for table in self.tables):,} file(s)")
        raws = open_tables(engine, [*before, *self.tables], skip_malformed=skip_bad_rows, dates=self.config.dates)
        schema = LogSchema.decide(raws, self.config)
        if self.config.split == "time" and not schema.has_time:
            raise ConfigError("split=time needs times, and this log has none: map a timestamp, or use split=random.")
        for other in filter(None, (earlier, model)):
            check_fits(other, self.tables, schema, ids=self.config.ids)
        first = earlier is None and model is None
        codes = make_event_codes(engine, raws, schema, self.config, earlier=known, first=first)
        for other in filter(None, (earlier, model)):
            if codes.kind != other.kind:
                raise DataError(f"the new log holds {codes.kind}; {other.path} holds {other.kind}.")
        config = self.config.model_copy(update={"rewards": codes.reward_map})
        rows, problems = load(engine, raws, schema, codes, skip_bad_rows=skip_bad_rows, scratch=self.scratch)
        if config.since is not None or config.days is not None:
            self._leave_out_old(config, fields_of(schema, codes))
        inputs = self.background.submit(digests, self.tables)  # only now: a log that is refused needs no digests
        engine.small("known", _known_items(model, integer=schema.item_id == "integer"))
        fields = fields_of(schema, codes)
        if self.config.split_column is not None and not schema.has_split:
            raise ConfigError(
                f"split: expected random, time or last, got '{self.config.split_column}': this source has no column of "
                "that name."
            )
        if self.config.split_column is not None and earlier is not None:
            raise ConfigError("a data set whose splits are a column's cannot be continued: prepare both logs at once.")
        if keep_log:
            log.info("keeping the log")
            logged = tuple(name for name in fields if name != "split")
            write_log(engine, self.scratch / LOG, logged, schema, codes)
        fields = tuple(name for name in fields if name != "filter_content")  # from here on rows refer to it by name
        if config.list_reward != "places" and "request" not in fields:
            raise ConfigError(
                f"list_reward={config.list_reward} needs an impression log of lists: columns 'request' and 'place'."
            )
        first_place = self._first_place() if "request" in fields else 0
        loaded = "usable"
        if "time" in fields and "request" not in fields:  # lists have an order of their own
            rewards = [] if codes.rate_items else list(codes.rewards.values())
            reward_rank = [sorted(set(rewards)).index(reward) for reward in rewards]
            integers = schema.sequence_id == schema.item_id == "integer"
            engine.view("with_lots", sql.with_lots(loaded, integers=integers, reward_rank=reward_rank))
            loaded, fields = "with_lots", (*fields, "lot", *["reward_rank"] * bool(reward_rank))
        order = sql.order(fields, impressions=codes.rate_items)
        click = codes.events.index("click") if "click" in codes.events else None
        log.info("filtering")
        kept = keep(engine, loaded, config, fields=fields, order=order, click=click)
        log.info("indexing items and sequences")
        asked = {*given} if earlier is None else {*given, *earlier.manifest.get("given", ())}
        events_from, cuts = kept.source, []
        if last := config.split == "last":
            if "request" in fields:
                raise ConfigError("split=last takes one item at a time, and this log has lists: use random or time.")
            engine.table("sequence_keys", sql.KEYS_BY_COUNT)
            engine.table("sequences", sql.SEQUENCES_BY_LAST)
            if short := int(engine.rows(sql.TOO_SHORT)[0][0]):
                log.info(f"split=last leaves out {short:,} sequences of fewer than 3 events")
            # Counted from the end among what is kept, not among what the filters then drop.
            events_from = sql.from_end("kept", order=order)
        elif config.split_column is not None:
            cuts = self._split_by_column(config.seed)
        else:
            by_time = config.split == "time"
            keys = sql.KEYS_BY_TIME if by_time else sql.keys_at_random(kept.sequences, seed=config.seed)
            # Shares at random need each key once: no table then, since md5s are the widest column of all.
            (engine.view if not by_time and config.test < 1 else engine.table)("sequence_keys", keys)
            config = fitting(engine, config, given=asked)
            cuts = cut_points(engine, config, known=known.get("cuts"))
            engine.table("sequences", sql.sequences(literals(cuts)))
        fields = tuple(name for name in fields if name != "split")
        sizes = split_sizes(engine, config)
        engine.table(
            "numbered",
            sql.numbered(events_from, fields=fields, sequences=sum(sizes), last=last, first_place=first_place),
        )
        if "filter" in fields:
            engine.table("item_filters", sql.ITEM_FILTERS)
        engine.drop(*kept.tables)
        item_table = self._item_table(integer=schema.item_id == "integer")
        engine.table("items", sql.items(sum(sizes[:2]) if last else 0))
        self._say_near_duplicates(schema)
        dates = None
        if schema.has_time:
            first, last = engine.rows(sql.FIRST_AND_LAST)[0]
            dates = {"first": _date(first), "last": _date(last)}
        derived = {"above": "request", "anew": "context_id"}
        optional = tuple(name for name in OPTIONAL if derived.get(name, name) in fields)
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
        events_in_all = int(engine.rows("SELECT COUNT(*) FROM numbered")[0][0])
        self._refuse_long(events_in_all)
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
            parts = sql.parts(sum(sizes), events_in_all)
            events = chain.from_iterable(engine.batches(sql.final(*part, fields=fields, order=order)) for part in parts)
            columns, rewards = ("item", "event", "reward", *optional), list(codes.rewards.values())
            write_events(store, events, columns, sizes=sizes, rewards=rewards, list_reward=config.list_reward)
            write_ids(store, engine.batches(sql.sequence_ids(integer=schema.sequence_id == "integer")), sizes=sizes)
            items = engine.arrow(sql.CATALOGUE)
            if item_table is not None:
                check_overlap(items, item_table)
            store.write_items(items.column("item_id").combine_chunks(), items.column("count").to_numpy(), item_table)
            if "filter" in fields:
                write_filters(store.folder, engine, items.column("item_id").combine_chunks())
            if keep_log:
                shutil.move(self.scratch / LOG, store.folder / LOG)
            taken = [] if earlier is None else earlier.manifest["inputs"]["taken"]
            extra["inputs"] = inputs_of([*taken, *inputs.result()])
        return Prepared(out)

    def _refuse_long(self, events: int) -> None:
        """Raise DataError for a sequence that is too long for the memory."""
        if events > LONGEST_SEQUENCE and (found := self.engine.rows(sql.too_long(LONGEST_SEQUENCE))):
            name, length = found[0]
            raise DataError(
                f"sequence {name!r} has {length:,} events; expected at most {LONGEST_SEQUENCE:,}: no person "
                "does so much, and it would have to fit into memory. Cut it with --session-gap, or keep its last "
                "events with --most-recent."
            )

    def _leave_out_old(self, config: PrepareConfig, fields: Sequence[str]) -> None:
        """Keep rows within the window of time; the log that is kept for later drops the others, too."""
        if "time" not in fields:
            raise ConfigError("since and days need times, and this log has none: map a timestamp.")
        last = int(self.engine.rows("SELECT MAX(time) FROM usable")[0][0])
        cuts = [] if config.since is None else [milliseconds_of(config.since, "since")]
        cuts += [] if config.days is None else [last - round(config.days * DAY) + 1]
        before = int(self.engine.rows("SELECT COUNT(*) FROM usable")[0][0])
        self.engine.view("usable", sql.recent(max(cuts), contexts="context_id" in fields))
        after = int(self.engine.rows("SELECT COUNT(*) FROM usable")[0][0])
        if not after:
            raise DataError(f"nothing happened since {_date(max(cuts))}; this log's last event is of {_date(last)}.")
        log.info(f"since {_date(max(cuts))}: {after:,} of {before:,} rows")

    def _first_place(self) -> int:
        """Number of the first place of lists in the log, 0 or 1; warns of incomplete lists."""
        first = int(self.engine.rows(sql.FIRST_PLACE)[0][0] or 0)
        if first == 1:
            log.info("places are counted from 1: stored as counted from 0")
        lists, broken = map(int, self.engine.rows(sql.lists(first if first == 1 else 0))[0])
        if broken:
            log.warning(
                f"{broken:,} of {lists:,} lists lack a place, or have one twice. They do not count in values of whole "
                "lists: log every place of a list once, with the first as 0 or 1."
            )
        return first if first == 1 else 0

    def _item_table(self, *, integer: bool) -> ItemTable | None:
        """Item table: the given one, over that of the earlier data set; None without both."""
        before = self.earlier or self.model
        found = None if before is None else earlier_table(before.catalogue)
        if self.items is not None:
            id_column = self.config.columns.get("item_id")
            newer = read_item_table(
                self.items, kinds=self.config.item_columns, id_column=id_column, integer_ids=integer,
                earlier=None if found is None else found.kinds,
            )  # fmt: skip
            found = newer if found is None else renewed(found, newer)
        schema = pa.schema({"item_id": pa.int64() if integer else pa.string()})
        listed = schema.empty_table() if found is None else found.table.select(["item_id"]).cast(schema)
        self.engine.small("listed", listed)
        return found

    def _split_by_column(self, seed: int) -> list[Cut]:
        """Cuts by the log's column; if it names no validation, a tenth of the training sequences."""
        engine = self.engine
        if torn := engine.rows(sql.IN_TWO_SPLITS):
            raise DataError(
                f"sequence {torn[0][0]} is in two splits by the column '{self.config.split_column}': a sequence is in "
                "one split. Name another column, or cut sequences where the split changes."
            )
        engine.table("sequence_keys", sql.KEYS_BY_COLUMN)
        if not engine.rows("SELECT 1 FROM sequence_keys WHERE split_key = 1 LIMIT 1"):
            log.info(
                f"{self.config.split_column} knows no validation: a tenth of the training sequences is taken for it"
            )
            engine.table("sequence_keys", sql.keys_with_validation(share_key(0.9), seed=seed))
        cuts: list[Cut] = [1, 2]
        engine.table("sequences", sql.sequences(literals(cuts)))
        return cuts

    def _say_near_duplicates(self, schema: LogSchema) -> None:
        """Warn of ids that differ in spaces, capitals or a '.0' alone: they are kept apart."""
        for what, table, kind in (("item", "items", schema.item_id), ("sequence", "sequences", schema.sequence_id)):
            if kind != "text":
                continue
            count, one, other = self.engine.rows(sql.near_duplicates(table, f"{what}_id"))[0]
            if count:
                log.warning(
                    f"{count:,} {what} ids differ from another in spaces, capitals or '.0' alone ({one!r} and "
                    f"{other!r}): they are kept apart. If they are one, write them the same way in the log"
                )


def _date(time: int) -> str:
    """Date of a time in milliseconds, as people write it (UTC)."""
    return str(np.datetime64(time, "ms"))


def _added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + more.get(name, 0) for name in sorted({*counts, *more})}


def _known_items(earlier: Prepared | None, *, integer: bool) -> pa.Table:
    """Items of an earlier data set, whose indices must stay."""
    schema = pa.schema({"item_id": pa.int64() if integer else pa.string(), "index": pa.int32()})
    return schema.empty_table() if earlier is None else earlier.catalogue.select(["item_id", "index"]).cast(schema)
