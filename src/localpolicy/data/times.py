"""Reading of times: one notation for each column, one unit for all that are numbers, decided from the first rows.

Numbers are seconds, milliseconds, microseconds or nanoseconds since 1970. Texts are YYYY-MM-DD, perhaps with HH:MM,
seconds and parts of them; either none states a UTC offset (then all are UTC), or all do (Z, UTC, +02:00, +0200, +02),
each its own. Dates with the year last (31.12.2024, 12/31/2024 11:59 PM) are UTC too. A number above 12 anywhere in the
column decides whether their day or their month comes first; 05.06.2024 begins with the day; for 05/06/2024 the user
must say (--dayfirst, --monthfirst). A later row of another notation or unit is a bad row, and is named: read by this
rule it would land in another year, or hours off. The SQL cuts offsets off itself: engines, and versions of one, differ
in what a cast does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import Any, Literal

from localpolicy.errors import DataError

Notation = Literal["number", "plain", "zoned", "day first", "month first"]

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second
EARLIEST, LATEST = 31_536_000, 4_102_444_800  # seconds: 1971 to 2099; no number is such a time in two units
RECENT = 631_152_000  # 1990: a number that is a time since then in another unit is no sentinel of this one
COMPACT = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}  # digits that are a date, and no number

DAY = "[0-9]{4}[-/][0-9]{1,2}[-/][0-9]{1,2}"
CLOCK = "[T ][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?"
PLAIN = f"^ *({DAY}({CLOCK})?) *$"
UTC = f"^ *({DAY}{CLOCK}) ?(Z|UTC) *$"
OFFSET = f"^ *({DAY}{CLOCK}) ?([+-])([0-9]{{2}}):?([0-9]{{2}})? *$"  # groups 1, 4, 5, 6
YEAR_LAST = f"^ *([0-9]{{1,2}})([./-])([0-9]{{1,2}})[./-]([0-9]{{4}})({CLOCK})?( ?[AaPp][Mm])? *$"  # groups 1 to 5, 8
QUICK = {"plain": "____-__-_____:__:__", "zoned": "____-__-__T__:__:__%Z"}  # what most logs write: casts check the rest
WRITTEN = {
    "plain": "2024-01-31 23:59:59, without a UTC offset", "zoned": "2024-01-31 23:59:59+01:00, or with Z",
    "day first": "31/01/2024 23:59:59", "month first": "01/31/2024 23:59:59",
}  # fmt: skip


def as_number(value: Any) -> float | None:
    """The value as a number, or None. Unlike Python, 1_0 is not a number here."""
    try:
        return None if "_" in str(value) else float(value)
    except (TypeError, ValueError):
        return None


def notation(sample: Sequence[Any]) -> Notation | Literal["year last"]:
    """Notation of most of the first values: one bad row decides nothing."""
    if 2 * sum(as_number(value) is not None for value in sample) >= len(sample):
        return "number"
    texts = [value for value in sample if isinstance(value, str)]
    if 2 * sum(bool(re.match(YEAR_LAST, text)) for text in texts) > len(texts):
        return "year last"
    zoned = sum(bool(re.match(UTC, text) or re.match(OFFSET, text)) for text in texts)
    return "zoned" if 2 * zoned > len(texts) else "plain"


def written(
    sample: Sequence[Any],
    rows: Callable[[str], list[tuple[Any, ...]]],
    view: str,
    column: str,
    *,
    asked: Notation | None = None,
) -> Notation:
    """Notation of a column, with the order of day and month decided by all its rows, or as `asked`.

    `rows` queries the `view`. If no row decides, an error asks the user.
    """
    first_rows = notation(sample)
    if first_rows != "year last":
        return first_rows
    if asked is not None:
        return asked
    first, mark, second = (_part(column, YEAR_LAST, group) for group in (1, 2, 3))
    above = ", ".join(f"COUNT(CASE WHEN TRY_CAST({number} AS INT) > 12 THEN 1 END)" for number in (first, second))
    query = f"SELECT {above}, MIN({mark}), MIN({column}) FROM {view} WHERE {_part(column, YEAR_LAST, 0)} <> ''"
    days_first, days_second, least_mark, example = rows(query)[0]
    if days_first == days_second and least_mark != ".":
        raise DataError(
            f"timestamps: does {example} begin with the day or with the month? No row tells. Say --dayfirst or "
            "--monthfirst, or write the times as 2024-12-31."
        )
    return "month first" if days_second > days_first else "day first"


def unit_of(samples: Iterable[Any]) -> tuple[str, bool]:
    """Unit of times that are numbers, by the median of the first, and whether they are times of a calendar.

    Small ones count from a beginning of their own, and are taken for seconds. Dates written as one number are refused.
    """
    times = [time for value in samples if (time := as_number(value)) is not None]
    usual = median(map(abs, times)) if times else 0.0
    dates = [time for time in times if _is_date(time)]
    if 2 * len(dates) > len(times):
        raise DataError(f"timestamps such as {dates[0]:.0f} are dates written as one number, not seconds. Write "
                        "them as 2024-01-31 23:59:59, or say what they count with --time-unit.")  # fmt: skip
    for unit, scale in UNITS.items():
        if EARLIEST * scale <= usual <= LATEST * scale:
            return unit, True
    if usual > LATEST:
        raise DataError(f"timestamps such as {usual:.0f} are between 1971 and 2099 in no unit (s, ms, us, ns). Say "
                        "which it is with --time-unit, or map another column.")  # fmt: skip
    return "s", False


def _is_date(number: float) -> bool:
    """Whether the digits are a date of our days, with a time or without."""
    digits = f"{number:.0f}"
    if not number.is_integer() or len(digits) not in COMPACT:
        return False
    try:
        return 1971 <= datetime.strptime(digits, COMPACT[len(digits)]).year <= 2099
    except ValueError:
        return False


def milliseconds(value: str, *, written: Notation, unit: str, is_text: bool) -> str:
    """SQL for the milliseconds since 1970 of a raw value that is no timestamp yet; NULL if it has another notation.

    `unix_millis` is Spark's name, which the DuckDB adapter defines too.
    """
    if written == "number":
        whole, parts = f"TRY_CAST({value} AS BIGINT)", UNITS[unit] // 1000
        floored = f"TRY_CAST(FLOOR(TRY_CAST({value} AS DOUBLE) / {parts or 1}) AS BIGINT)"
        # A float does not hold all digits of nanoseconds: what is over a millisecond goes before they are divided.
        exact = f"CAST(ROUND(({whole} - MOD(MOD({whole}, {parts}) + {parts}, {parts})) / {parts}) AS BIGINT)"
        number = {
            "s": f"TRY_CAST(ROUND(TRY_CAST({value} AS DOUBLE) * 1000) AS BIGINT)",
            "ms": whole,
            "us": floored,
            "ns": f"COALESCE({exact}, {floored})",
        }[unit]
        return f"CASE WHEN {has_no_underscore(value)} THEN {number} END" if is_text else number
    if written in ("day first", "month first"):
        first, second, year, clock = (_part(value, YEAR_LAST, group) for group in (1, 3, 4, 5))
        day, month = (first, second) if written == "day first" else (second, first)
        hour = f"TRY_CAST({_part(clock, '^.([0-9]+)', 1)} AS INT)"
        half = f"LOWER(TRIM({_part(value, YEAR_LAST, 8)}))"
        shift = (
            f"CASE WHEN {half} = 'pm' AND {hour} < 12 THEN 12 WHEN {half} = 'am' AND {hour} = 12 THEN -12 ELSE 0 END"
        )
        instant = _instant(f"CONCAT({year}, '-', {month}, '-', {day}, {clock})")
        return f"{instant} + 3600000 * {shift}"
    cases = [(f"{value} LIKE '{QUICK[written]}'", _instant(value))]
    for pattern in (PLAIN,) if written == "plain" else (UTC, OFFSET):
        local = _instant(f"REPLACE({_part(value, pattern, 1)}, '/', '-')")
        if pattern == OFFSET:
            minutes = f"(60 * TRY_CAST({_part(value, pattern, 5)} AS INT) + COALESCE(TRY_CAST(NULLIF("
            minutes += f"{_part(value, pattern, 6)}, '') AS INT), 0))"
            local += f" - 60000 * {minutes} * CASE {_part(value, pattern, 4)} WHEN '-' THEN -1 ELSE 1 END"
        cases.append((f"{_part(value, pattern, 0)} <> ''", local))
    return "CASE " + " ".join(f"WHEN {condition} THEN {result}" for condition, result in cases) + " END"


def has_no_underscore(text: str) -> str:
    """SQL that is false for 1_0, which DuckDB casts to ten."""
    return f"POSITION('_' IN {text}) = 0"


def _instant(text: str) -> str:
    return f"unix_millis(TRY_CAST({text} AS TIMESTAMP))"


def _part(value: str, pattern: str, group: int) -> str:
    return f"regexp_extract({value}, '{pattern}', {group})"


def in_one_unit(time: str, unit: str) -> str:
    """SQL that is true unless a time, read in `unit`, would be one of our days in another."""
    scale = UNITS[unit]
    ranges = [(other / scale * RECENT, other / scale * LATEST) for name, other in UNITS.items() if name != unit]
    return " AND ".join(f"{time} NOT BETWEEN {1000 * first:.0f} AND {1000 * last:.0f}" for first, last in ranges)


# ---------------------------------------------------------------------- rows without times

SORTED = 0.95  # share of steps up (or down), from which rows are sorted by it: chance alone makes half
FEWEST_STEPS = 50  # least number of steps for that
# How far it is from a sequence's first row to its last, as a share of all rows by that value: n random rows that were
# sorted have (n - 1) / (n + 1). Episodes of a series and news rise step by step too, and stay near where they began.
REACH = 0.25


def seems_sorted(steps: int, up: float, reach: float) -> bool:
    """Whether the steps within sequences go one way, and all over the values."""
    return goes_one_way(steps, up) and reach >= REACH


def goes_one_way(steps: int, up: float) -> bool:
    """Whether nearly all `steps` within sequences go one way; `up` is the share of them that go up."""
    return steps >= FEWEST_STEPS and not 1 - SORTED < up < SORTED
