"""Types and columns of the whole log: whether ids are integers, the unit of times, and the columns it has.

Decided once for the whole log, from its columns' types and its first rows; a later row that does not fit is a bad row,
and is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localpolicy.data.column_names import RATINGS, columns_meant, plain
from localpolicy.data.config import SPLIT_RULES, PrepareConfig
from localpolicy.data.sources import SourceTable
from localpolicy.data.times import Notation, as_number, unit_of
from localpolicy.errors import ConfigError, DataError, nearest

COLUMNS = (
    "sequence_id", "item_id", "event", "timestamp", "reward", "propensity", "policy", "request", "place", "filter",
    "filter_content", "context_id", "past_event", "split",
)  # fmt: skip
REQUIRED = ("sequence_id", "item_id", "event")
SAMPLED = ("sequence_id", "item_id", "timestamp")
SAMPLE = 1000  # rows looked at
MOST_EXACT = 2**53  # beyond it a float stands for several whole numbers
ROW = "\0row"  # stands for a column: the row's number. No file has a column of that name
ROW_NUMBER = "_row"  # its name in SQL, as c0, c1, …: the order in a log without times, or its sequences without ids

WHOLE = re.compile(r"(-?[0-9]{1,19})(?:[.]0+)?")

IdType = Literal["integer", "text"]


def alias(table: SourceTable, column: str) -> str:
    """Name of a raw column in SQL: c0, c1, …, so that no engine's quoting matters."""
    return f"c{table.place(column)}"


def text_of(value: str, kind: str) -> str:
    """SQL of an id as a text. A whole number is written 14, never 14.0, whether stored as an integer or a float."""
    text = f"CAST({value} AS STRING)"
    if kind != "float":
        return text
    whole = f"{value} = FLOOR({value}) AND ABS({value}) <= {MOST_EXACT}"
    return f"CASE WHEN {whole} THEN CAST(CAST({value} AS BIGINT) AS STRING) ELSE {text} END"


def joined(parts: Sequence[str]) -> str:
    """SQL of a column, or of several as one text: a+b."""
    texts = ", ".join(f"CAST({part} AS STRING)" for part in parts)
    return parts[0] if len(parts) == 1 else f"CONCAT_WS('+', {texts})"


def check_columns(table: SourceTable) -> None:
    """Raise unless every mapped column exists and every required one is mapped."""
    where = f"{table.shown()} (columns: {', '.join(table.names)})"
    for ours in table.columns:
        if ours not in COLUMNS:
            raise DataError(f"columns: '{ours}' is not a column of events{nearest(ours, COLUMNS)}")
    if (by := table.columns.get("split")) is not None and by not in table.names:
        raise ConfigError(
            f"split: expected {', '.join(SPLIT_RULES)} or a column of the log, got '{by}'"
            f"{nearest(by, [*SPLIT_RULES, *table.names])}"
        )
    for ours, theirs in table.columns.items():
        for name in table.parts(theirs):
            if table.names.count(name) > 1:
                raise DataError(
                    f"two columns are called '{name}' in {where}, and either may hold '{ours}'. Rename one."
                )
            if name not in table.names and name != ROW:
                raise DataError(f"no column '{name}' for '{ours}' in {where}{nearest(name, table.names)}")
    missing = [ours for ours in REQUIRED if ours not in table.columns and ours not in table.constants]
    if missing:
        raise DataError(f"no column '{missing[0]}' in {where}. {_likely_map(table, missing)}")


def _likely_map(table: SourceTable, missing: Sequence[str]) -> str:
    """Text of all columns that must still be mapped, with the names that likely mean them."""
    left = [name for name in table.names if name not in table.columns.values()]
    meant = columns_meant(left)
    if plain(meant.get("event", "")) in RATINGS and "reward" not in table.columns:
        ratings = ". Ratings also need a reward each, such as --rewards '>=4=1,>=3=0.5,*=0'"
    else:
        ratings = ""
    optional = [name for name in ("timestamp",) if name in meant and name not in table.columns]
    pairs = ",".join(f"{name}={meant.get(name, 'NAME')}" for name in [*missing, *optional])
    constant = ", or name the event of every row with --event click" if "event" in missing else ""
    return f"Map it with --columns {pairs}{constant}{ratings}."


@dataclass(frozen=True)
class Raw:
    """A table as an engine has opened it."""

    number: int
    table: SourceTable
    types: Mapping[str, str]  # of each raw column
    sample: Mapping[str, Sequence[Any]]  # first values of the columns in SAMPLED
    written: Notation = "number"  # its times, where they are no timestamps yet

    @property
    def view(self) -> str:
        """Name of its view in SQL."""
        return f"raw_{self.number}"

    @property
    def where(self) -> str:
        """SQL of the condition that makes a row an event."""
        if not self.table.where:
            return "TRUE"
        names = {name: alias(self.table, name) for name in self.table.names if name.isidentifier()}
        return self.table.where.format(**names)

    def has(self, column: str) -> bool:
        """Whether the table has one of our columns."""
        return column in self.table.columns or column in self.table.constants

    def type_of(self, column: str) -> str:
        """Type of the raw column behind one of ours."""
        if column not in self.table.columns:
            return "text"  # a constant; a column of the log may have no name at all
        return self.kind_of(self.table.columns[column])

    def kind_of(self, theirs: str) -> str:
        """Type of a raw column."""
        return "integer" if theirs == ROW else self.types.get(theirs, "text")  # joined columns are text


@dataclass(frozen=True)
class LogSchema:
    """Types and columns that hold for the whole log, whichever of its tables a row comes from."""

    sequence_id: IdType
    item_id: IdType
    time_unit: str  # of times that are numbers
    one_unit: bool  # no number may be a time in another unit: they are calendar times, and no unit was given
    has_time: bool
    has_reward: bool
    has_propensity: bool
    has_lists: bool  # rows say which list they stood in, and at which place
    has_filters: bool  # and under which filter its items were chosen
    has_contexts: bool  # and which rows before it were its history, and what they were then
    has_split: bool  # rows say which split they are in
    narrow: tuple[str, ...]  # integer ids that take 4 bytes, by the first of them: half the memory of what follows

    @classmethod
    def decide(cls, raws: Sequence[Raw], config: PrepareConfig) -> LogSchema:
        """Decide the types from the columns' types and first values."""
        timed = {raw.has("timestamp") for raw in raws}
        if len(timed) > 1:
            raise DataError("some of these files have a timestamp column and some have none: prepare them apart.")
        sequence_id: IdType = "text" if config.session_gap is not None else _id_type("sequence_id", raws, config)
        item_id = _id_type("item_id", raws, config)
        unit, one_unit = str(config.time_unit), False
        if unit == "auto":
            unit, one_unit = unit_of(value for raw in raws for value in raw.sample.get("timestamp", ()))
        integers = [name for name, kind in (("sequence_id", sequence_id), ("item_id", item_id)) if kind == "integer"]
        return cls(
            sequence_id=sequence_id,
            item_id=item_id,
            time_unit=unit,
            one_unit=one_unit,
            has_time=timed == {True},
            has_reward=any(raw.has("reward") for raw in raws),
            has_propensity=any(raw.has("propensity") for raw in raws),
            has_lists=any(raw.has("request") and raw.has("place") for raw in raws),
            has_filters=any(raw.has("filter") for raw in raws),
            has_contexts=any(raw.has("context_id") and raw.has("request") for raw in raws),
            has_split=all(raw.has("split") for raw in raws),
            narrow=tuple(name for name in integers if all(_is_narrow(raw.sample.get(name)) for raw in raws)),
        )


def _id_type(column: str, raws: Sequence[Raw], config: PrepareConfig) -> IdType:
    """Type of ids: integers, unless a table says or shows otherwise. Text in Parquet was declared; in CSV all is text.

    So a log has equal ids however it is stored. Whole numbers of 8 bytes are integers, written 14 or 14.0 (which is
    what pandas makes of integers with gaps); a column with any other text (007, 14.5, A7) is text throughout.
    """
    if config.ids == "text":
        return "text"
    for raw in raws:
        if raw.type_of(column) in ("integer", "float"):
            continue
        if raw.type_of(column) != "text":  # UUIDs, times and truth values are ids as they are written
            return "text"
        declared = raw.table.format == "parquet" or column not in raw.sample
        if declared or (config.ids == "auto" and not all(map(_is_integer, raw.sample[column]))):
            return "text"
    return "integer"


def _is_integer(text: str) -> bool:
    """Whether a text is a whole number of 8 bytes, written as an integer or with zeros behind a point."""
    integer = WHOLE.fullmatch(text)
    return integer is not None and str(int(integer[1])) == integer[1] and -(2**63) <= int(integer[1]) < 2**63


def _is_narrow(sample: Sequence[Any] | None) -> bool:
    numbers = [as_number(value) for value in sample or ()]
    return bool(numbers) and all(number is not None and abs(number) < 2**31 for number in numbers)
