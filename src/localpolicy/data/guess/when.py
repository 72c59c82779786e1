"""When rows happened: which column is the time, how it is written, and what stands for it where there is none."""

from __future__ import annotations

import re
from shlex import quote

from localpolicy.data.column_names import columns_meant, plain
from localpolicy.data.guess.plain_copy import CLOCK
from localpolicy.data.guess.reading import Reading
from localpolicy.data.reading import ROW
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


def settle_time(reading: Reading) -> None:
    """A column of times that its name did not tell: by words of its name, or by its values alone."""
    if "timestamp" in reading.meant:
        theirs = reading.meant["timestamp"]
        unit = reading.log.epoch(theirs)
        if unit is None and theirs not in reading.why and _is_of_alternatives(reading, theirs):
            del reading.meant["timestamp"]
            reading.why[theirs] = "ignored: it differs within a list, so it is no time of the row"
            return
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
        texts = f"TRY_CAST({{0}} AS TIMESTAMP) IS NOT NULL OR {LAST}"
        if timelike and reading.log.share(name, texts) > 0.95:
            _take(reading, name)
            return
        if timelike and unit is None and not reading.log.numeric(name):
            reading.why[name] = f"ignored: named like a time, and '{reading.log.example(name)}' is none"
    dated = "TRY_CAST({0} AS TIMESTAMP) IS NOT NULL AND regexp_matches(CAST({0} AS VARCHAR), '^[0-9]{{4}}-[0-9]{{2}}-')"
    dated = f"({dated}) OR {LAST}"
    likely = [name for name in reading.left() if reading.log.share(name, dated) > 0.95]
    if len(likely) == 1:
        _take(reading, likely[0])
    elif likely:
        _ask(reading, likely, sure=True)
    elif seconds:
        _settle_seconds(reading, seconds)


def _is_of_alternatives(reading: Reading, name: str) -> bool:
    """Whether numbers differ within the lists of a log of choices, as the duration of each way to travel."""
    if "place" not in reading.meant or "+" in name or not reading.log.numeric(name):
        return False
    case = reading.meant.get("request", reading.meant["sequence_id"])
    return 2 * reading.log.several(case, name) > reading.log.distinct(case)


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
    if reading.meant.get("request") == reading.meant["sequence_id"]:
        return  # each sequence is one list: there is no order to say
    said = "there is no time column: the order of the file is taken for time"
    for ours in ("item_id", "reward", "event"):
        theirs = reading.meant.get(ours)
        if theirs is None or "+" in theirs or reading.meant["sequence_id"] == ROW:
            continue
        if ours == "item_id" and "request" in reading.meant:
            continue  # the order of alternatives in a list is no order of time
        if ours == "event" and not reading.log.numeric(theirs):
            continue  # a visit that ends with its purchase is in the order of time
        if reading.log.is_sorted(reading.meant["sequence_id"], theirs):
            reading.unsure.append(
                f"{said}, and the rows of a sequence seem sorted by {theirs}: that is no order of time. Do not "
                "trust sequence models here; find the times, or shuffle the rows and take every sequence for a set"
            )
            return
    odd = next((name for name in reading.left() if "like a time" in reading.why.get(name, "")), None)
    which = "; if a column holds the time, say --columns timestamp=NAME" if reading.left() else ""
    which = f"; {odd} is named like a time, and its values are none" if odd else which
    reading.unsure.append(f"{said}. If it is not, sequence models learn the file's order and nothing else{which}")


def _refuse_clock(reading: Reading, name: str) -> None:
    """The hours of a day without the day tell no order."""
    clock = f"regexp_full_match(CAST({{}} AS VARCHAR), '{CLOCK.replace('{', '{{').replace('}', '}}')}')"
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
    notation, example = reading.log.times(name, asked=reading.dates)
    if notation in ("day first", "month first"):
        reading.unsure.append(f"{name} holds times such as {example}, read with the {notation}")
