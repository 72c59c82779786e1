"""What a log's columns and events mean, guessed from their names: shown to the user, never taken in silence."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.reading import alias
from localpolicy.data.sources import SourceTable, delimiter_of, file_format, first_line, parquet_schema, split_line
from localpolicy.errors import DataError

# Our column -> names that mean it, the surest first; compared in small letters without marks.
NAMES: dict[str, tuple[str, ...]] = {
    "sequence_id": (
        "sequenceid", "seqid", "sequence", "sessionid", "session", "visitid", "visit", "visitorid", "visitor", "userid",
        "user", "customerid", "customer", "clientid", "client", "memberid", "member", "uid", "basketid", "cookie",
    ),
    "item_id": (
        "itemid", "item", "productid", "product", "articleid", "article", "movieid", "movie", "trackid", "track",
        "songid", "song", "sku", "contentid", "content", "videoid", "video", "bookid", "book", "asin", "iid", "pid",
    ),
    "event": (
        "event", "eventtype", "eventname", "action", "actiontype", "behavior", "behaviour", "behaviortype", "what",
        "interaction", "interactiontype", "type", "rating", "stars", "score",
    ),
    "timestamp": (
        "timestamp", "time", "eventtime", "datetime", "date", "createdat", "when", "ts", "unixtime", "occurredat",
    ),
    "propensity": ("propensity", "propensityscore", "pscore"),
    "policy": ("policy", "policyversion"),
    "reward": ("reward",),
}  # fmt: skip
NEEDED = ("sequence_id", "item_id")
# Words in the name of an event -> its likely reward; the first that fits.
LIKELY_REWARDS = (
    (("unlike", "dislike", "remove", "none", "impression", "show", "skip", "noclick"), 0.0),
    (("purchase", "buy", "bought", "transaction", "order", "checkout", "sale", "pay", "conversion"), 1.0),
    (("cart", "basket", "wish", "fav", "like", "share", "save", "follow", "subscribe"), 0.5),
    (("click", "view", "play", "listen", "watch", "read", "visit", "open", "detail", "pv"), 0.2),
)
OPEN_BANDIT = {"item_id", "position", "click", "propensity_score"}
MOST_CODES = 5  # events that are so few numbers, from 0 on, may be codes and no ratings
MOST_EVENTS = 50  # a column with more values is no event, unless they are numbers: ratings
ONE_EVENT = "click"  # of every row, in a log that has no such column


@dataclass(frozen=True)
class Guess:
    """How a log is read, as `lpi prepare` would be told."""

    source: str  # the reader
    columns: Mapping[str, str]  # our column -> the log's
    rewards: str | None  # as --rewards; None: the reader's own
    event: str | None = None  # of every row
    rename: Mapping[str, str] = field(default_factory=dict)  # the log's event -> ours
    unsure: tuple[str, ...] = ()  # what the user should look at

    def settings(self) -> dict[str, Any]:
        """For `prepare`."""
        settings = {
            "columns": dict(self.columns), "rewards": self.rewards, "event": self.event, "rename": dict(self.rename)
        }  # fmt: skip
        return {name: value for name, value in settings.items() if value}


class UnknownColumns(DataError):
    """Columns whose names say nothing: the user must."""

    def __init__(self, path: Path, missing: Sequence[str], names: Sequence[str]) -> None:
        self.missing, self.names = list(missing), list(names)
        super().__init__(
            f"{path}: no column looks like {' or '.join(missing)} (its columns: {', '.join(names)}). Say which it is: "
            f"--columns {','.join(f'{name}=NAME' for name in missing)}"
        )


def guess(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rewards: str | None = None,
    rename: Mapping[str, str] | None = None,
) -> Guess:
    """Read the names, and the events' values; what the user says holds."""
    rename = rename or {}
    names = column_names(path)
    if not columns and set(names) >= OPEN_BANDIT:
        return Guess("openbandit", {}, rewards)
    meant = {**guess_columns(names), **(columns or {})}
    missing = [name for name in NEEDED if name not in meant]
    if missing:
        raise UnknownColumns(path, missing, names)
    parts = [part for theirs in meant.values() for part in theirs.split("+")]  # a+b: the two together
    unknown = next((part for part in parts if part not in names), None)
    if unknown is not None:
        raise DataError(f"{path} has no column '{unknown}': its columns are {', '.join(names)}.")
    ours = {name: theirs for name, theirs in meant.items() if name != theirs}
    if "event" not in meant:
        said = (
            f"there is no event column: every row is a '{ONE_EVENT}', so that no event is worth more than another, and "
            "there is nothing to improve but the likelihood"
        )
        return Guess("events", ours, rewards or f"{ONE_EVENT}=1", ONE_EVENT, unsure=(said,))
    if rewards is not None or "reward" in meant:
        return Guess("events", ours, rewards, rename=rename)
    counts: Counter[str] = Counter()
    for value, count in _values(path, meant["event"]).items():
        counts[rename.get(value, value)] += count
    reward_map, unsure = guess_rewards(counts, path)
    return Guess("events", ours, reward_map, rename=rename, unsure=unsure)


def column_names(path: Path) -> tuple[str, ...]:
    """The columns of a CSV or Parquet file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}: expected a CSV or Parquet file, one row per event.")
    if file_format(path) == "parquet":
        return tuple(parquet_schema(path).names)
    line = first_line(path)
    return split_line(line, delimiter_of(line))


def guess_columns(names: Sequence[str]) -> dict[str, str]:
    """Our column -> theirs, each of theirs once, the surest names first."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)}
    matches: dict[str, str] = {}
    for ours, known in NAMES.items():
        match = next((plain[word] for word in known if word in plain and plain[word] not in matches.values()), None)
        if match is not None:
            matches[ours] = match
    return matches


def guess_rewards(values: Mapping[str, int], path: Path) -> tuple[str, tuple[str, ...]]:
    """A reward map, and what to say of events whose names say nothing."""
    numbers = [_number(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        top = max(known)
        codes = min(known) == 0 and len(known) <= MOST_CODES
        said = (
            f"the events {', '.join(values)} are read as ratings. If they are codes, name them, such as --rename "
            "0=view,1=cart,2=purchase"
        )
        return f">={0.8 * top:g}=1,>={0.6 * top:g}=0.5,*=0", (said,) if codes else ()
    if len(values) > MOST_EVENTS:
        raise DataError(
            f"{path}: the event column has {len(values)} different values: it is not one. Say which column it is "
            "(--columns event=NAME), or what each event is worth (--rewards)."
        )
    likely = {value: _likely_reward(value) for value in values}
    listed = ",".join(f"{value}={0.2 if reward is None else reward:g}" for value, reward in likely.items())
    unsure = [value for value, reward in likely.items() if reward is None]
    note = f"what {', '.join(unsure)} is worth is a guess (0.2): say it with --rewards"
    return listed, (note,) if unsure else ()


def _likely_reward(event: str) -> float | None:
    plain = re.sub(r"[^a-z0-9]", "", event.lower())
    return next((reward for words, reward in LIKELY_REWARDS if any(word in plain for word in words)), None)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _values(path: Path, column: str) -> dict[str, int]:
    """The values of a column (a+b: the two together), the most frequent first."""
    with opened(path) as (engine, table):
        parts = [f"CAST({alias(table, name)} AS VARCHAR)" for name in column.split("+")]
        value = parts[0] if len(parts) == 1 else f"CONCAT_WS('+', {', '.join(parts)})"
        rows = engine.rows(f"SELECT {value}, COUNT(*) FROM log WHERE {value} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1")
    return {str(value): int(count) for value, count in rows}


@contextmanager
def opened(path: Path) -> Iterator[tuple[DuckDB, SourceTable]]:
    """A CSV or Parquet file as the view `log`, cut into columns as `prepare` does it."""
    names, kind = column_names(path), file_format(path)
    delimiter = delimiter_of(first_line(path)) if kind == "csv" else ""
    table = SourceTable(files=(path,), format=kind, columns={}, names=names, delimiter=delimiter)
    with tempfile.TemporaryDirectory() as scratch:
        engine = DuckDB(Path(scratch))
        try:
            engine.read("log", table, rows=False)
            yield engine, table
        finally:
            engine.close()
