"""Filters on a log: duplicates, sessions, and filters on sequences and items, with a trail of counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from localpolicy.data import sql
from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.errors import ConfigError, DataError


class Step(TypedDict):
    """Counts of one filter step: the things it filters and the events, before and after."""

    filter: str
    of: str
    before: int
    after: int
    events_before: int
    events_after: int


@dataclass(frozen=True)
class Filtered:
    """Result of the filters: the view `kept`, with its counts."""

    source: str  # joined with the sequences kept it gives `kept`, and costs less
    sequences: str  # a table of the distinct sequences kept
    tables: list[str]  # the large tables it is made from
    trail: list[Step]


def keep(
    engine: Engine, rows: str, config: PrepareConfig, *, fields: Sequence[str], order: str, click: int | None
) -> Filtered:
    """Make the view `kept` from `rows`: without duplicates, cut into sessions, filtered, and only the most recent."""
    tables = ["loaded"]
    source = _without_duplicates(engine, rows, config, fields=fields, order=order)
    if source != rows:
        tables.append(source)
    if config.session_gap is not None:
        if "time" not in fields:
            raise ConfigError("session_gap needs times, and this log has none.")
        engine.table("sessions", sql.sessions(source, fields=fields, gap_ms=round(config.session_gap * 1000)))
        source = "sessions"
        tables.append(source)
    filters = _Filters(engine, source, config, click=-1 if click is None else click)
    while filters.pass_once() and config.iterate:
        pass
    if config.most_recent is not None:
        engine.table("kept", sql.most_recent(filters.view, config.most_recent, fields=fields, order=order))
        source = "kept"
        tables.append(source)
    else:
        engine.view("kept", f"SELECT * FROM {filters.view}")
        source = f"({sql.only(source, {'item_id': table})})" if (table := filters.passing.get("item_id")) else source
    # A sequence that passed may yet have lost every item; without an item filter none has.
    exact = set(filters.passing) == {"sequence_id"}
    sequences = filters.passing["sequence_id"] if exact else sql.DISTINCT_SEQUENCES
    return Filtered(source, sequences, tables, filters.trail)


def _without_duplicates(
    engine: Engine, source: str, config: PrepareConfig, *, fields: Sequence[str], order: str
) -> str:
    if config.duplicates == "keep":
        return source
    if config.duplicates == "exact" and "time" not in fields:
        raise ConfigError("duplicates=exact needs times (a row without one may be a true repeat); try 'consecutive'.")
    exact = config.duplicates == "exact"
    distinct = sql.without_exact_duplicates if exact else sql.without_consecutive_duplicates
    engine.table("distinct_events", distinct(source, fields=fields, order=order))
    return "distinct_events"


class _Filters:
    """Filters on sequences and items; `view` is the source restricted to the ids that passed all of them so far."""

    def __init__(self, engine: Engine, source: str, config: PrepareConfig, *, click: int) -> None:
        self.engine, self.source, self.config, self.click = engine, source, config, click
        self.trail: list[Step] = []
        self.passing: dict[str, str] = {}  # sequence_id or item_id -> table of those that passed
        self.view = source

    def pass_once(self) -> bool:
        """Filter sequences, then items, as in the paper's recipes; return whether anything was removed."""
        config, before = self.config, len(self.trail)
        if config.min_clicks or config.min_events:
            sizes = sql.sequence_sizes(self.view, click=self.click)
            self._apply(
                "sequence", sizes, min_clicks=("clicks", config.min_clicks), min_events=("events", config.min_events)
            )
        if config.min_item_events or config.min_item_sequences:
            sizes = sql.item_sizes(self.view, count_sequences=config.min_item_sequences > 0)
            self._apply(
                "item",
                sizes,
                min_item_events=("events", config.min_item_events),
                min_item_sequences=("sequences", config.min_item_sequences),
            )
        return any(step["before"] != step["after"] for step in self.trail[before:])

    def _apply(self, what: str, sizes: str, **conditions: tuple[str, int]) -> None:
        active = {name: condition for name, condition in conditions.items() if condition[1]}
        passes = " AND ".join(f"{column} >= {least}" for column, least in active.values())
        if what == "item":  # an item of an earlier data set keeps its index, however rare
            passes = f"({passes}) OR item_id IN (SELECT item_id FROM known)"
        number = len(self.trail)
        self.engine.table(f"sizes_{number}", sizes)
        self.engine.table(f"passing_{number}", f"SELECT {what}_id, events FROM sizes_{number} WHERE {passes}")
        before, events_before = self._size(f"sizes_{number}")
        after, events_after = self._size(f"passing_{number}")
        self.engine.drop(f"sizes_{number}")
        label = ", ".join(f"{name}={least}" for name, (_, least) in active.items())
        self.trail.append(
            Step(
                filter=label,
                of=f"{what}s",
                before=before,
                after=after,
                events_before=events_before,
                events_after=events_after,
            )
        )
        if after == 0:
            raise DataError(f"the filters leave nothing: {trail_text(self.trail)}. Loosen {label}, or leave it out.")
        self.passing[f"{what}_id"] = f"passing_{number}"
        self.view = f"filtered_{number}"
        self.engine.view(self.view, sql.only(self.source, self.passing))

    def _size(self, table: str) -> tuple[int, int]:
        count, events = self.engine.rows(f"SELECT COUNT(*), CAST(COALESCE(SUM(events), 0) AS BIGINT) FROM {table}")[0]
        return int(count), int(events)


def trail_text(steps: Sequence[Step]) -> str:
    """Text of the filters' counts in one line."""
    return "; ".join(
        f"{step['filter']} kept {step['after']:,} of {step['before']:,} {step['of']} "
        f"({step['events_after']:,} of {step['events_before']:,} events)"
        for step in steps
    )
