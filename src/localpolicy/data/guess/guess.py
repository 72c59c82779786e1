"""What a log's columns and events mean, guessed from names and values: shown to the user, never taken in silence.

Every column of the log gets a line: used as what, or ignored and why. A column that looks like a time or a reward is
used, or asked about. Where there is no time the order of the file stands for it; that is said, with a test of whether
the rows are sorted by something that is not time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from localpolicy.data.guess.event_words import guess_rewards, number
from localpolicy.data.guess.log import LogColumns, column_names, list_columns, opened
from localpolicy.data.guess.reading import Reading, Use
from localpolicy.data.guess.reward import refuse_empty_rewards, settle_event, settle_one_event, settle_reward
from localpolicy.data.guess.shown import settle_lists, settle_propensity, settle_showings
from localpolicy.data.names import columns_meant, plain
from localpolicy.data.reading import ROW
from localpolicy.data.times import YEAR_LAST
from localpolicy.errors import DataError

NEEDED = ("sequence_id", "item_id")
OPEN_BANDIT = {"item_id", "position", "click", "propensity_score"}
PUBLISHED = {"all", "men", "women", *(f"{a}_{b}" for a in ("random", "bts") for b in ("all", "men", "women"))}
# Words of a name that may be of a time, if the values are times too: English, German, French, Spanish, Italian, Dutch.
TIMELIKE = {
    "time", "date", "timestamp", "at", "ts", "t", "ms", "when", "day", "zeit", "uhrzeit", "datum", "tag", "zeitpunkt",
    "heure", "jour", "horodatage", "fecha", "hora", "dia", "data", "ora", "giorno", "tijd",
}  # fmt: skip
TIMELIKE_ENDS = ("date", "datum", "zeit")
IDS = ("id", "no", "nr", "number", "nummer", "code", "key")  # how names of ids end
MOST_SHOWN = 20  # columns that an error names


@dataclass(frozen=True)
class Guess:
    """How a log is read, as `lpi prepare` would be told."""

    source: str  # the reader
    columns: Mapping[str, str]  # our column -> the log's
    rewards: str | None  # as --rewards; None: the reader's own, or the log's column
    event: str | None = None  # of every row
    rename: Mapping[str, str] = field(default_factory=dict)  # the log's event -> ours
    unsure: tuple[str, ...] = ()  # what the user should look at
    uses: tuple[Use, ...] = ()  # every column of the log
    sequences: int = 0  # about so many
    kind: str | None = None  # what the log holds, where its events do not tell
    skip_bad_rows: bool = False
    held_out: int | None = None  # sequences for validation and for the test each; None: a tenth
    preparing: Mapping[str, Any] = field(default_factory=dict)  # settings of `prepare` that the user gave beside these

    def settings(self) -> dict[str, Any]:
        """For `prepare`."""
        settings = {
            "columns": dict(self.columns), "rewards": self.rewards, "event": self.event, "rename": dict(self.rename),
            "kind": self.kind, "skip_bad_rows": self.skip_bad_rows, "validation": self.held_out, "test": self.held_out,
        }  # fmt: skip
        return {**{name: value for name, value in settings.items() if value}, **self.preparing}


class UnknownColumns(DataError):
    """Columns whose names say nothing: the user must."""

    def __init__(self, path: Path, missing: Sequence[str], names: Sequence[str], lists: Sequence[str] = ()) -> None:
        self.missing, self.names = list(missing), list(names)
        listed = ", ".join(names[:MOST_SHOWN]) + (
            f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        )
        headless = sum(number(name) is not None for name in names) > len(names) / 2
        remedy = (
            "These are numbers: has the file no header? Write the columns' names into its first line"
            if headless
            else f"Say which it is: --columns {','.join(f'{name}=NAME' for name in missing)}"
        )
        if lists and "item_id" in missing:
            remedy = f"Is it in {' or '.join(lists)}, which holds lists? Write one row for each item then"
        super().__init__(f"{path}: no column looks like {' or '.join(missing)} (its columns: {listed}). {remedy}")


def guess(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rewards: str | None = None,
    rename: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
) -> Guess:
    """Read the names, and the values; what the user says holds."""
    rename, given = dict(rename or {}), dict(columns or {})
    names, why = column_names(path), "as you said"
    if not given and set(names) >= OPEN_BANDIT and path.name.partition(".")[0] not in PUBLISHED:
        given = {"sequence_id": ROW, "event": "click", "propensity": "propensity_score"}  # each row is a decision alone
        rename, rewards = rename or {"0": "none", "1": "click"}, rewards or "none=0,click=1"
        why = "its name, as in the Open Bandit data"
    elif not given and set(names) >= OPEN_BANDIT:
        return Guess("openbandit", {}, rewards, uses=tuple(Use(name, "openbandit", "as published") for name in names))
    taken = {part for theirs in given.values() for part in theirs.split("+")}  # a+b: the two together
    meant = {**columns_meant([name for name in names if name not in taken]), **given}
    without_names = _by_ends(meant, names)
    missing = [name for name in NEEDED if name not in meant]
    if missing:
        raise UnknownColumns(path, missing, names, list_columns(path))
    parts = [part for theirs in meant.values() for part in theirs.split("+")]
    unknown = next((part for part in parts if part not in (*names, ROW)), None)
    if unknown is not None:
        raise DataError(f"{path} has no column '{unknown}': its columns are {', '.join(names)}.")
    with opened(path, skip_malformed=skip_bad_rows) as (engine, table):
        reading = Reading(path, LogColumns(engine, table), meant, given, rewards, rename, why)
        reading.unsure += without_names
        reading.skip_bad_rows = skip_bad_rows
        if not reading.log.count():
            raise DataError(f"{path} holds no rows, only the names of columns.")
        return replace(_guessed(reading), skip_bad_rows=skip_bad_rows)


def _guessed(reading: Reading) -> Guess:
    """Roles one after another: a later one leaves alone what an earlier one took."""
    settle_time(reading)
    settle_propensity(reading)
    settle_event(reading)
    settle_reward(reading)
    if "event" not in reading.meant:
        settle_one_event(reading)
    else:
        settle_showings(reading)
    if "event" in reading.meant and reading.rewards is None and "reward" not in reading.meant:
        counts: Counter[str] = Counter()
        for value, count in reading.log.values(reading.meant["event"]).items():
            counts[reading.rename.get(value, value)] += count
        reading.rewards, unsure = guess_rewards(counts, reading.path)
        reading.unsure += unsure
    if not reading.skip_bad_rows:
        refuse_empty_rewards(reading)
    settle_lists(reading)
    if "timestamp" not in reading.meant:
        say_order(reading)
    ours = {name: theirs for name, theirs in reading.meant.items() if name != theirs}
    renamed = {theirs: name for theirs, name in reading.rename.items() if theirs != name}
    return Guess(
        "events", ours, reading.rewards, reading.event, renamed, tuple(reading.unsure), tuple(reading.uses()),
        reading.sequences(), reading.kind,
    )  # fmt: skip


def _by_ends(meant: dict[str, str], names: Sequence[str]) -> list[str]:
    """Who and what, where no name is known: an only column of ids that is left; a request; a decision of its own."""
    said = []
    for ours, what in (("item_id", "item"), ("sequence_id", "person or visit")):
        free = "request" if ours == "sequence_id" else ""  # a request may stand for a visit, never for an item
        used = {part for name, theirs in meant.items() if name != free for part in theirs.split("+")}
        left = [name for name in names if name not in used and plain(name).endswith(IDS)]
        if ours in meant:
            continue
        if len(left) == 1:
            meant[ours] = left[0]
            said.append(f"{left[0]} is taken for the {what}, since it is the only id left")
        elif ours == "sequence_id" and "request" in meant:
            meant[ours] = meant["request"]
            said.append(f"no column says who it was: each {meant['request']} is a sequence of its own")
        elif ours == "sequence_id" and "propensity" in meant:
            meant[ours] = ROW
            said.append("no column says who it was: each row is a decision of its own, without a history")
    return said


# ---------------------------------------------------------------------- when


def settle_time(reading: Reading) -> None:
    """A column of times that its name did not tell: by words of its name, or by its values alone."""
    if "timestamp" in reading.meant:
        theirs = reading.meant["timestamp"]
        unit = reading.log.epoch(theirs)
        reading.why.setdefault(theirs, f"its name{f'; numbers of epoch {unit}' if unit else ''}")
        if unit is None and "+" not in theirs and reading.log.numeric(theirs):
            reading.unsure.append(
                f"the numbers of {theirs} are no times between 1979 and 2103, in whatever unit: their order alone is "
                "used, and days that are named mean nothing"
            )
        _refuse_clock(reading, theirs)
        _say_notation(reading, theirs)
        return
    seconds = []
    for name in reading.left():
        words = [plain(word) for word in re.split(r"[\W_]+", name)]
        timelike = not TIMELIKE.isdisjoint(words) or "time" in name.lower()
        timelike = timelike or any(word.endswith(TIMELIKE_ENDS) for word in words)
        unit, is_id = reading.log.epoch(name), plain(name).endswith("id")
        if unit is not None and (timelike or (unit != "s" and not is_id)):
            reading.meant["timestamp"], reading.why[name] = name, f"its numbers are epoch times ({unit})"
            return
        if unit == "s" and not is_id:
            seconds.append(name)
        pattern = YEAR_LAST.replace("{", "{{").replace("}", "}}")
        texts = f"TRY_CAST({{0}} AS TIMESTAMP) IS NOT NULL OR regexp_matches(CAST({{0}} AS VARCHAR), '{pattern}')"
        if timelike and reading.log.share(name, texts) > 0.95:
            _take(reading, name)
            return
    dated = "TRY_CAST({0} AS TIMESTAMP) IS NOT NULL AND regexp_matches(CAST({0} AS VARCHAR), '^[0-9]{{4}}-[0-9]{{2}}-')"
    likely = [name for name in reading.left() if reading.log.share(name, dated) > 0.95]
    if len(likely) == 1:
        _take(reading, likely[0])
    elif likely:
        _ask(reading, likely, sure=True)
    elif seconds:
        _settle_seconds(reading, seconds)


def _settle_seconds(reading: Reading, names: list[str]) -> None:
    """Numbers of ten digits may be ids too: they are times if they rise from row to row of a sequence."""
    rising = [name for name in names if reading.log.rises(reading.meant["sequence_id"], name)]
    if len(rising) == 1:
        (name,) = rising
        reading.meant["timestamp"], reading.why[name] = name, "its numbers are epoch times (s), in order"
        reading.unsure.append(f"{name} is taken for the time: its numbers are epoch seconds, in order")
    else:
        _ask(reading, rising or names, sure=False)


def _ask(reading: Reading, names: list[str], *, sure: bool) -> None:
    """Which of these columns is the time, with the option that says so."""
    found, hold = ("its values are times", "hold times")
    if not sure:
        found, hold = "its numbers may be epoch seconds", "may hold times"
    options = {name: f"--columns {quote(f'timestamp={name}')}" for name in names}
    reading.why |= {name: f"{found}: the row's? Then say {option}" for name, option in options.items()}
    which = "say so" if len(names) == 1 else "say which is the row's"
    reading.unsure.append(f"{' and '.join(names)} {hold}: {which}, such as {options[names[0]]}")


def _take(reading: Reading, name: str) -> None:
    reading.meant["timestamp"], reading.why[name] = name, "its values are times"
    _say_notation(reading, name)


def say_order(reading: Reading) -> None:
    """Say that the file's order is taken for time, and what the rows of a sequence are sorted by, if anything."""
    said = "there is no time column: the order of the file is taken for time"
    for ours in ("item_id", "reward", "event"):
        theirs = reading.meant.get(ours)
        if theirs is None or "+" in theirs or reading.meant["sequence_id"] == ROW:
            continue
        if ours == "event" and not reading.log.numeric(theirs):
            continue  # a visit that ends with its purchase is in the order of time
        if reading.log.is_sorted(reading.meant["sequence_id"], theirs):
            reading.unsure.append(
                f"{said}, and the rows of a sequence seem sorted by {theirs}: that is no order of time. Do not "
                "trust sequence models here; find the times, or shuffle the rows and take every sequence for a set"
            )
            return
    which = "; if a column holds the time, say --columns timestamp=NAME" if reading.left() else ""
    reading.unsure.append(f"{said}. If it is not, sequence models learn the file's order and nothing else{which}")


def _refuse_clock(reading: Reading, name: str) -> None:
    """The hours of a day without the day tell no order."""
    clock = "regexp_full_match(CAST({} AS VARCHAR), '[0-9]{{1,2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]+)?)?')"
    if "+" in name or reading.log.share(name, clock) < 1:
        return
    day = columns_meant(reading.left(), ["timestamp"]).get("timestamp", "the day")
    raise DataError(
        f"{reading.path}: {name} holds the time of day alone. Join {day} and {name} into one column, such as "
        "2024-01-31 23:59:59, or name another column: --columns timestamp=NAME"
    )


def _say_notation(reading: Reading, name: str) -> None:
    """Dates with the year last are read by the rule of `prepare`; which one it is, is said; so are days alone."""
    if "+" in name:
        return
    day = "regexp_full_match(CAST({} AS VARCHAR), '[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([ T]00:00:00([.]0+)?)?')"
    if reading.log.share(name, day) == 1 and reading.meant["sequence_id"] != ROW:
        reading.unsure.append(
            f"{name} holds days without the time of day: the rows of one {reading.meant['sequence_id']} and day are "
            "in no order of time among themselves"
        )
    notation, example = reading.log.times(name)
    if notation in ("day first", "month first"):
        reading.unsure.append(f"{name} holds times such as {example}, read with the {notation}")
