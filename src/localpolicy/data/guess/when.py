"""Guesses of the time: its column, its notation, and the order that stands for it if there is none."""

from __future__ import annotations

import re
from shlex import quote

from localpolicy.data.column_names import columns_meant, plain
from localpolicy.data.guess.plain_copy import CLOCK
from localpolicy.data.guess.state import GuessState
from localpolicy.data.log_schema import ROW
from localpolicy.data.times import YEAR_LAST
from localpolicy.errors import DataError

# Words of a name that may be of a time, if the values are times too: English, German, French, Spanish, Italian, Dutch.
TIMELIKE = {
    "time", "date", "dt", "datetime", "timestamp", "at", "ts", "t", "ms", "when", "day", "zeit", "uhrzeit", "datum",
    "tag", "zeitpunkt",
    "heure", "jour", "horodatage", "fecha", "hora", "dia", "data", "ora", "giorno", "tijd",
}  # fmt: skip
# A date with the year last, as SQL that `LogColumns.share` takes.
LAST = "regexp_matches(CAST({0} AS VARCHAR), '" + YEAR_LAST.replace("{", "{{").replace("}", "}}") + "')"
TIMELIKE_ENDS = ("date", "datum", "zeit")


def settle_time(state: GuessState) -> None:
    """Settle the column of times if no usual name does: by words of its name, or by its values alone."""
    if "timestamp" in state.meant:
        theirs = state.meant["timestamp"]
        unit = state.log.epoch(theirs)
        if unit is None and theirs not in state.why and _is_of_alternatives(state, theirs):
            del state.meant["timestamp"]
            state.why[theirs] = "ignored: it differs within a list, so it is no time of the row"
            return
        state.why.setdefault(theirs, f"its name{f'; numbers of epoch {unit}' if unit else ''}")
        if unit is None and "+" not in theirs and state.log.numeric(theirs):
            state.unsure.append(
                f"the numbers of {theirs} are no times between 1979 and 2103, in whatever unit: their order alone is "
                "used, and days that are named mean nothing"
            )
        _refuse_clock(state, theirs)
        _say_notation(state, theirs)
        return
    seconds = []
    for name in state.left():
        words = [plain(word) for word in re.split(r"[\W_]+", name)]
        timelike = not TIMELIKE.isdisjoint(words) or "time" in name.lower()
        timelike = timelike or any(word.endswith(TIMELIKE_ENDS) for word in words)
        unit, is_id = state.log.epoch(name), plain(name).endswith("id")
        if unit is not None and (timelike or (unit != "s" and not is_id)):
            state.meant["timestamp"], state.why[name] = name, f"its numbers are epoch times ({unit})"
            return
        if unit == "s" and not is_id:
            seconds.append(name)
        texts = f"TRY_CAST({{0}} AS TIMESTAMP) IS NOT NULL OR {LAST}"
        if timelike and state.log.share(name, texts) > 0.95:
            _take(state, name)
            return
        if timelike and unit is None and not state.log.numeric(name):
            state.why[name] = f"ignored: named like a time, and '{state.log.example(name)}' is none"
    dated = "TRY_CAST({0} AS TIMESTAMP) IS NOT NULL AND regexp_matches(CAST({0} AS VARCHAR), '^[0-9]{{4}}-[0-9]{{2}}-')"
    dated = f"({dated}) OR {LAST}"
    likely = [name for name in state.left() if state.log.share(name, dated) > 0.95]
    if len(likely) == 1:
        _take(state, likely[0])
    elif likely:
        _ask(state, likely, sure=True)
    elif seconds:
        _settle_seconds(state, seconds)


def _is_of_alternatives(state: GuessState, name: str) -> bool:
    """Whether numbers differ within the lists of a log of choices, as the duration of each way to travel."""
    if "place" not in state.meant or "+" in name or not state.log.numeric(name):
        return False
    case = state.meant.get("request", state.meant["sequence_id"])
    return 2 * state.log.several(case, name) > state.log.distinct(case)


def _settle_seconds(state: GuessState, names: list[str]) -> None:
    """Settle numbers of ten digits, which may be ids too: they are times if they rise from row to row of a sequence."""
    rising = [name for name in names if state.log.rises(state.meant["sequence_id"], name)]
    if len(rising) == 1:
        (name,) = rising
        state.meant["timestamp"], state.why[name] = name, "its numbers are epoch times (s), in order"
        state.unsure.append(f"{name} is taken for the time: its numbers are epoch seconds, in order")
    else:
        _ask(state, rising or names, sure=False)


def _ask(state: GuessState, names: list[str], *, sure: bool) -> None:
    """Ask which of these columns is the time, with the option that states it."""
    found, hold = ("its values are times", "hold times")
    if not sure:
        found, hold = "its numbers may be epoch seconds", "may hold times"
    options = {name: f"--columns {quote(f'timestamp={name}')}" for name in names}
    state.why |= {name: f"{found}: the row's? Then say {option}" for name, option in options.items()}
    which = "say so" if len(names) == 1 else "say which is the row's"
    state.unsure.append(f"{' and '.join(names)} {hold}: {which}, such as {options[names[0]]}")


def _take(state: GuessState, name: str) -> None:
    state.meant["timestamp"], state.why[name] = name, "its values are times"
    _say_notation(state, name)


def say_order(state: GuessState) -> None:
    """Note that the file's order is taken for time, and warn if rows of a sequence are sorted by another column."""
    if state.meant.get("request") == state.meant["sequence_id"]:
        return  # each sequence is one list: there is no order to say
    note = "there is no time column: the order of the file is taken for time"
    for ours in ("item_id", "reward", "event"):
        theirs = state.meant.get(ours)
        if theirs is None or "+" in theirs or state.meant["sequence_id"] == ROW:
            continue
        if ours == "item_id" and "request" in state.meant:
            continue  # the order of alternatives in a list is no order of time
        if ours == "event" and not state.log.numeric(theirs):
            continue  # a visit that ends with its purchase is in the order of time
        if state.log.is_sorted(state.meant["sequence_id"], theirs):
            state.unsure.append(
                f"{note}, and the rows of a sequence seem sorted by {theirs}: that is no order of time. Do not "
                "trust sequence models here; find the times, or shuffle the rows and take every sequence for a set"
            )
            return
    odd = next((name for name in state.left() if "like a time" in state.why.get(name, "")), None)
    which = "; if a column holds the time, say --columns timestamp=NAME" if state.left() else ""
    which = f"; {odd} is named like a time, and its values are none" if odd else which
    state.unsure.append(f"{note}. If it is not, sequence models learn the file's order and nothing else{which}")


def _refuse_clock(state: GuessState, name: str) -> None:
    """Raise DataError if a column holds times of day without the day."""
    clock = f"regexp_full_match(CAST({{}} AS VARCHAR), '{CLOCK.replace('{', '{{').replace('}', '}}')}')"
    if "+" in name or state.log.share(name, clock) < 1:
        return
    day = columns_meant(state.left(), ["timestamp"]).get("timestamp", "the day")
    raise DataError(
        f"{state.path}: {name} holds the time of day alone. Join {day} and {name} into one column, such as "
        "2024-01-31 23:59:59, or name another column: --columns timestamp=NAME"
    )


def _say_notation(state: GuessState, name: str) -> None:
    """Note how dates with the year last are read, and that days alone give no order within a day."""
    if "+" in name:
        return
    day = "regexp_full_match(CAST({} AS VARCHAR), '[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([ T]00:00:00([.]0+)?)?')"
    if state.log.share(name, day) == 1 and state.meant["sequence_id"] != ROW:
        state.unsure.append(
            f"{name} holds days without the time of day: the rows of one {state.meant['sequence_id']} and day are "
            "in no order of time among themselves"
        )
    notation, example = state.log.times(name, asked=state.dates)
    if notation in ("day first", "month first"):
        state.unsure.append(f"{name} holds times such as {example}, read with the {notation}")
