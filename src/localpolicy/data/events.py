"""Events: the one schema every log is read into, and the check of each row.

    sequence_id, item_id   integers or text
    event                  a code: click, purchase, none (shown, unanswered), context (history only), …, or a rating;
                           NULL where the row cannot be used
    time                   milliseconds since 1970; or, where the log has none,
    position               row order
    reward                 where the log states it (else a reward map gives it)
    propensity, policy     impression logs: the logged probability, and a code of who logged it
    request, place         impression logs of lists: which list a row stood in (else empty), and where, from 0
    filter, filter_content the name of the filter that held there (else empty); and, at least once for each name, its
                           items (see `item_filters`)
    context_id, past_event logs of lists: rows of a sequence with one context_id are one history, and the first of
                           another begins a new one (else empty); and the event that a context row had then (else -1)

The SELECT written here is the only code that turns raw columns into these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from localpolicy.data.event_codes import EventCodes
from localpolicy.data.log_schema import MOST_EXACT, ROW, ROW_NUMBER, IdType, LogSchema, Raw, alias, joined, text_of
from localpolicy.data.store import CONTEXT, NO_ANSWER
from localpolicy.data.times import WRITTEN, has_no_underscore, in_one_unit, milliseconds

LARGEST, SMALLEST = "3.4e38", "1.2e-38"  # of 4-byte floats, in which rewards and propensities are kept
YEARS = (-62_135_596_800_000, 253_402_300_799_999)  # ms: the first and last that a calendar can show
SPLIT_WORDS = (("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing"))
MOST_CASES = 32  # names of events or policies that SQL tells apart without a join


def fields_of(schema: LogSchema, codes: EventCodes) -> tuple[str, ...]:
    """Columns that this log's events have."""
    shown = codes.kind == "impressions"
    optional = {
        "time": schema.has_time,
        "position": not schema.has_time,
        "reward": not codes.rewards,
        "propensity": shown and schema.has_propensity,
        "policy": shown and bool(codes.policies),
        "request": shown and schema.has_lists,
        "place": shown and schema.has_lists,
        "filter": shown and schema.has_filters,
        "filter_content": shown and schema.has_filters,
        "context_id": shown and schema.has_contexts,
        "past_event": shown and schema.has_contexts,
        "split": schema.has_split,
    }
    return ("sequence_id", "item_id", "event", *(name for name, present in optional.items() if present))


def quoted(text: str) -> str:
    """SQL literal of a text."""
    return "'" + text.replace("'", "''") + "'"


class EventSelect:
    """Writer of the SELECT that reads one table's rows as events.

    Two levels deep: the inner one cuts and casts each raw value once, the outer one checks the results. In one level
    DuckDB would cast again for every check, which took a third of the time of a load.
    """

    def __init__(self, raw: Raw, schema: LogSchema, codes: EventCodes) -> None:
        self.raw, self.schema, self.codes = raw, schema, codes
        self.read: dict[str, str] = {}  # columns of the inner SELECT
        self.checks: list[tuple[str, str]] = []  # (what must be true, what is wrong where it is not)

    def sql(self, view: str, *, fields: Sequence[str], narrow: Collection[str] = ()) -> str:
        """SQL of the usable rows as events; other rows have a NULL event, as have those whose `narrow` ids need 8
        bytes.
        """
        columns = self._columns(fields, narrow)
        fine = " AND ".join(condition for condition, _ in self.checks)
        columns["event"] = f"CASE WHEN {fine} THEN {columns['event']} END"
        chosen = ",\n    ".join(f"{columns[name]} AS {name}" for name in fields)
        return f"SELECT {chosen}\nFROM ({self._inner(view)}) inner_{self.raw.number}"

    def problem_sql(self, view: str, *, also: Mapping[str, str] | None = None) -> str:
        """SQL of the fault of each bad row (the first check it fails), with the columns of `also`, by name."""
        self._columns()
        shown = [self._reads(name, value) for name, value in (also or {}).items()]
        fine = " AND ".join(condition for condition, _ in self.checks)
        cases = "\n    ".join(f"WHEN NOT COALESCE({condition}, FALSE) THEN '{text}'" for condition, text in self.checks)
        return f"""SELECT {", ".join([f"CASE {cases} END AS problem", *shown])}
FROM ({self._inner(view)}) inner_{self.raw.number} WHERE NOT COALESCE({fine}, FALSE)"""

    def _columns(self, fields: Sequence[str] = (), narrow: Collection[str] = ()) -> dict[str, str]:
        """SQL of each of our columns over the inner SELECT; rows are numbered only if position is wanted."""
        self.read, self.checks = {}, []
        columns = {
            "sequence_id": self._id("sequence_id", self.schema.sequence_id, narrow),
            "item_id": self._id("item_id", self.schema.item_id, narrow),
            "event": self._event(),
            "time": self._time(),
            "reward": self._reward(),
            "propensity": self._propensity(),
            "policy": self._policy(),
            "request": self._text("request"),
            "place": self._place(),
            "filter": self._text("filter"),
            "filter_content": self._text("filter_content"),
            "context_id": self._text("context_id"),
            "past_event": self._past_event(),
            "split": self._split(),
        }
        return columns | ({"position": self._reads("position", self._position())} if "position" in fields else {})

    def _reads(self, name: str, value: str) -> str:
        """Add `value` to the inner SELECT under `name`, and return the name."""
        self.read[name] = value
        return name

    def _must(self, condition: str, otherwise: str) -> None:
        self.checks.append((condition, otherwise))

    def _inner(self, view: str) -> str:
        """SQL of the rows that are events at all, with the codes of their event and policy."""
        table = self.raw.table
        joins, conditions = "", []
        if table.constants.get("event") not in (None, *self.codes.names):
            conditions.append("FALSE")  # all its rows are of an event that is dropped
        if "event" in table.columns:
            code, joined = self._code("event")
            joins += joined
            if self.codes.drops:
                conditions.append(f"({self.value('event')} IS NULL OR {code} IS NOT NULL)")
        for column in ("policy", "past_event"):
            if column in table.columns:
                joins += self._code(column)[1]
        read = ", ".join(f"{value} AS {name}" for name, value in self.read.items())
        return f"SELECT {read}\n    FROM {view}{joins} WHERE {' AND '.join([*conditions, self.raw.where])}"

    def value(self, column: str) -> str | None:
        """SQL for the raw value of one of our columns; None if the table lacks it."""
        table = self.raw.table
        if column not in table.columns:
            return None
        names = table.parts(table.columns[column])
        parts = [self._position() if name == ROW else alias(table, name) for name in names]
        if len(names) > 1 and column in ("sequence_id", "item_id"):
            parts = [text_of(part, self.raw.kind_of(name)) for part, name in zip(parts, names, strict=True)]
        return joined(parts)

    def _position(self) -> str:
        """SQL of the row order over all tables: the table's number, then the row's."""
        return f"(CAST({self.raw.number} AS BIGINT) * {2**56} + {ROW_NUMBER})"

    def _code(self, column: str) -> tuple[str, str]:
        """SQL for the code of an event, a past one or a policy, and the join that it needs.

        A few names need no join: that is no slower, and after a join DuckDB gives rows in any order, but a log that is
        kept should have its own.
        """
        text = f"CAST({self.value(column)} AS STRING)"
        codes = self.codes.codes(column)
        if len(codes) <= MOST_CASES and all(name.isprintable() and "\\" not in name for name in codes):
            cases = " ".join(f"WHEN {quoted(name)} THEN {code}" for name, code in codes.items())
            return (f"CASE {text} {cases} END" if codes else "NULL"), ""
        table, short = {"event": ("event_codes", "a"), "past_event": ("event_codes", "b"),
                        "policy": ("policies", "p")}[column]  # fmt: skip
        named = "policy" if column == "policy" else "event"
        return f"{short}.code", f" LEFT JOIN {table} {short} ON {text} = {short}.{named}"

    def _id(self, column: str, wanted: IdType, narrow: Collection[str]) -> str:
        value, kind = f"{self.value(column)}", self.raw.type_of(column)
        raw = self._reads(f"raw_{column}", value)
        self._must(f"{raw} IS NOT NULL", f"{column} is empty")
        if kind == "float":  # by its text: DuckDB believes a file's statistics, which leave NaN out
            self._must(f"LOWER(CAST({raw} AS STRING)) <> 'nan'", f"{column} is empty")
        if wanted == "text":
            return self._reads(column, text_of(value, kind))
        size = "INT" if column in narrow else "BIGINT"
        if kind == "text":
            # 7 and 7.0 are one whole number; 7 and 07 are two ids that one integer would stand for.
            bare = f"CASE WHEN {value} LIKE '%.0%' THEN REGEXP_REPLACE({value}, '[.]0+$', '') ELSE {value} END"
            number = self._reads(column, f"TRY_CAST({bare} AS {size})")
            reason = f"{column} is no whole number of 8 bytes, as the first are: read all of them as text (--ids text)"
            self._must(f"CAST({number} AS STRING) = {self._reads(f'bare_{column}', bare)}", reason)
            return number
        number = self._reads(column, f"TRY_CAST({value} AS {size})")
        if kind == "float":
            rounded = f"{column} is a float beyond 2^53, where one stands for several ids: store integers or text"
            self._must(f"ABS({raw}) <= {MOST_EXACT}", rounded)
        wide = f"{column} does not fit 8 bytes with a sign: read ids as text (--ids text)"
        self._must(f"({raw} <= {2**63 - 1} AND {raw} >= {-(2**63)})", wide)
        self._must(f"{number} = {raw}", f"{column} is not a whole number, as ids in floats must be (or --ids text)")
        return number

    def _event(self) -> str:
        constant = self.raw.table.constants.get("event")
        if constant is not None:
            return f"CAST({self.codes.code(constant)} AS SMALLINT)"
        raw = self._reads("raw_event", f"{self.value('event')}")
        self._must(f"{raw} IS NOT NULL", "event is empty")
        return self._reads("event", f"CAST({self._code('event')[0]} AS SMALLINT)")

    def _time(self) -> str:
        value = self.value("timestamp")
        if value is None:
            return "CAST(NULL AS BIGINT)"
        type_of, written = self.raw.type_of("timestamp"), self.raw.written
        as_first = "a time that can be read (see --time-unit)"
        if type_of in ("timestamp", "date"):
            time = f"unix_millis(CAST({value} AS TIMESTAMP))" if type_of == "date" else f"unix_millis({value})"
        else:
            time = milliseconds(value, written=written, unit=self.schema.time_unit, is_text=type_of == "text")
            as_first = as_first if written == "number" else f"written as the first are ({WRITTEN[written]})"
        time = self._reads("time", time)
        self._must(f"{self._reads('raw_time', value)} IS NOT NULL", "timestamp is empty")
        self._must(f"{time} IS NOT NULL", f"timestamp is not {as_first}")
        if self.schema.one_unit and written == "number" and type_of not in ("timestamp", "date"):
            unit = self.schema.time_unit
            self._must(in_one_unit(time, unit), f"timestamp is not in {unit}, as the first are (see --time-unit)")
        first, last = YEARS
        self._must(f"{time} BETWEEN {first} AND {last}", "timestamp is beyond the years 1 to 9999 (see --time-unit)")
        return time

    def _number(self, column: str) -> str | None:
        value = self.value(column)
        if value is None:
            return None
        raw, number = self._reads(f"raw_{column}", value), self._reads(column, f"TRY_CAST({value} AS DOUBLE)")
        plain = f" AND {has_no_underscore(raw)}" if self.raw.type_of(column) == "text" else ""
        self._must(f"({raw} IS NULL OR ({number} IS NOT NULL{plain}))", f"{column} is not a number")
        return number

    def _reward(self) -> str:
        reward = None if self.codes.rewards else self._number("reward")  # a map was given: the column is not read
        if reward is None:
            return "CAST(0 AS DOUBLE)"
        event = quoted(self.raw.table.constants["event"]) if "event" not in self.raw.table.columns else (
            "CAST(raw_event AS STRING)")  # fmt: skip
        finite = f"NOT isnan({reward}) AND ABS({reward}) <= {LARGEST}"
        self._must(f"({reward} IS NULL OR ({finite}))", "reward is not a finite number")
        unpaid = [raw for raw, name in self.codes.names.items() if name in self.codes.unpaid]
        silent = ", ".join(quoted(each) for each in (CONTEXT, NO_ANSWER, *unpaid))
        self._must(f"({reward} IS NOT NULL OR {event} IN ({silent}))", "reward is empty")
        earned = f"COALESCE({reward}, CAST(0 AS DOUBLE))"
        if not unpaid:
            return earned
        # What is negative stays: money that was given back.
        least = f"LEAST({earned}, CAST(0 AS DOUBLE))"
        return f"CASE WHEN {event} IN ({', '.join(map(quoted, unpaid))}) THEN {least} ELSE {earned} END"

    def _propensity(self) -> str:
        logged = self._number("propensity")
        if logged is None:
            return "CAST('NaN' AS DOUBLE)"
        inside = f"isnan({logged}) OR ({logged} > 0 AND {logged} <= 1)"
        self._must(f"({logged} IS NULL OR {inside})", "propensity is outside (0, 1]")
        kept = f"isnan({logged}) OR {logged} >= {SMALLEST}"
        self._must(f"({logged} IS NULL OR {kept})", f"propensity is below {SMALLEST}, and would be kept as 0")
        return f"COALESCE({logged}, CAST('NaN' AS DOUBLE))"  # NaN is how data frames, and we, write "none"

    def _policy(self) -> str:
        constant = self.raw.table.constants.get("policy")
        if constant is not None:
            return f"CAST({self.codes.policies.index(constant)} AS SMALLINT)"
        if "policy" not in self.raw.table.columns:
            return "CAST(-1 AS SMALLINT)"
        return self._reads("policy", f"CAST(COALESCE({self._code('policy')[0]}, -1) AS SMALLINT)")

    def _past_event(self) -> str:
        if "past_event" not in self.raw.table.columns:
            return "CAST(-1 AS SMALLINT)"
        return self._reads("past_event", f"CAST(COALESCE({self._code('past_event')[0]}, -1) AS SMALLINT)")

    def _text(self, column: str) -> str:
        value = self.value(column)
        text = "CAST('' AS STRING)" if value is None else f"COALESCE(CAST({value} AS STRING), '')"
        return self._reads(column, text)

    def _split(self) -> str:
        value = self.value("split")
        if value is None:
            return "CAST(0 AS SMALLINT)"
        cases = " ".join(f"WHEN '{word}' THEN {code}" for code, words in enumerate(SPLIT_WORDS) for word in words)
        code = f"CASE LOWER(TRIM(CAST({value} AS STRING))) {cases} END"
        number = self._reads("split", f"CAST({code} AS SMALLINT)")
        self._must(f"{number} IS NOT NULL", "the column of the split says neither train nor validation nor test")
        return number

    def _place(self) -> str:
        value = self.value("place")
        if value is None:
            return "CAST(0 AS SMALLINT)"
        raw, number = self._reads("raw_place", value), self._reads("place", f"TRY_CAST({value} AS SMALLINT)")
        history = f" OR ({number} < 0 AND raw_event = '{CONTEXT}')" if "event" in self.raw.table.columns else ""
        whole = f"TRY_CAST({raw} AS DOUBLE) = {number}"  # a cast alone would round
        self._must(f"({raw} IS NULL OR ({number} >= 0 AND {whole}){history})", "place is not a whole number from 0 on")
        return f"COALESCE({number}, CAST(0 AS SMALLINT))"
