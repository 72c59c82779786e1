"""Which column is the time of a row, and what is said of its order where there is none."""

from __future__ import annotations

from localpolicy.data.names import columns_meant, plain
from localpolicy.data.reading import ROW
from localpolicy.data.times import YEAR_LAST
from localpolicy.errors import DataError
from localpolicy.study.log_reading import Reading

TIMELIKE = ("time", "date", "timestamp", "at", "ts", "ms", "when", "day")  # words of a name


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
    for name in reading.left():
        words = set(name.lower().replace("-", "_").split("_"))
        timelike = bool(words & set(TIMELIKE)) or "time" in name.lower() or plain(name).endswith("date")
        unit = reading.log.epoch(name)
        if unit is not None and (timelike or (unit != "s" and not plain(name).endswith("id"))):
            reading.meant["timestamp"], reading.why[name] = name, f"its numbers are epoch times ({unit})"
            return
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
        reading.why |= {
            name: f"its values are times: the row's? Then say --columns timestamp={name}" for name in likely
        }
        reading.unsure.append(
            f"{' and '.join(likely)} hold times: say which is the row's, such as --columns timestamp={likely[0]}"
        )


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
    reading.unsure.append(f"{said}. If it is not, sequence models learn the file's order and nothing else")


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
            "ordered by event and item, which is no order of time"
        )
    notation, example = reading.log.times(name)
    if notation in ("day first", "month first"):
        reading.unsure.append(f"{name} holds times such as {example}, read with the {notation}")
