"""How numbers are written, for every reader: as many decimals as say something, and a dash where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localpolicy.measure.estimate import Estimate, Interval

NOTHING = "—"  # shown where a figure is missing
FIGURES = 4  # significant ones of the largest number of a column
MOST_DECIMALS = 6


def known(value: float | None) -> bool:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def decimals(values: Iterable[float | None], figures: int = FIGURES) -> int:
    """Decimal places that give the largest of `values` so many significant figures."""
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    if largest == 0:
        return 1
    return min(max(figures - 1 - math.floor(math.log10(largest)), 0), MOST_DECIMALS)


def fixed(value: float | None, digits: int) -> str:
    """1,234.5 with a true minus sign; what rounds to zero has no sign."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{abs(value):,.{digits}f}"
    return f"−{text}" if value < 0 and float(text.replace(",", "")) else text


def short(value: float | None, figures: int = FIGURES) -> str:
    """One number on its own."""
    return fixed(value, decimals([value], figures))


def percent(share: float | None) -> str:
    """12.3 %."""
    return NOTHING if share is None or not math.isfinite(share) else f"{fixed(100 * share, 1)} %"


def range_text(interval: Interval, digits: int) -> str:
    """± 0.012 where the interval is symmetric, else [0.10, 0.13]; nothing where it is exact."""
    if interval.exact:
        return ""
    if not (known(interval.low) and known(interval.high)):
        return "± ?"
    below, above = interval.mean - interval.low, interval.high - interval.mean
    unit = 10.0**-digits
    if abs(above - below) < unit / 2:
        half = (above + below) / 2
        return f"± {fixed(half, digits)}" if half >= unit / 2 else f"± <{fixed(unit, digits)}"
    return f"[{fixed(interval.low, digits)}, {fixed(interval.high, digits)}]"


def interval_text(interval: Interval | None, digits: int | None = None) -> str:
    """A figure with its interval, as plain text."""
    if interval is None or not known(interval.mean):
        return NOTHING
    digits = decimals([interval.mean]) if digits is None else digits
    return f"{fixed(interval.mean, digits)} {range_text(interval, digits)}".rstrip()


def number(value: float | None, digits: int = 4) -> str:
    """0.1234 for a terminal; a dash where there is none."""
    return NOTHING if value is None or value != value else f"{value:.{digits}f}"


def with_error(value: float, se: float, digits: int = 4) -> str:
    """0.1234 ± 0.0012: a mean and its standard error."""
    return f"{number(value, digits)} ± {number(se, digits)}"


def with_interval(interval: Interval | None, digits: int, sign: str = "") -> str:
    """0.123 ±0.012: a mean and half its 95 % interval; the mean alone where it is exact."""
    if interval is None:
        return NOTHING
    text = f"{interval.mean:{sign}.{digits}f}"
    return text if interval.exact else f"{text} ±{number((interval.high - interval.low) / 2, digits)}"


def joined(names: Iterable[str]) -> str:
    """a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def share_with_error(value: Estimate) -> str:
    """0.1234 ± 0.0012; where the standard error is 0, an exact interval instead: 0.0000 (0 to 0.35)."""
    if value.n == 0 or value.se > 0:
        return with_error(value.mean, value.se)
    interval = value.within_unit()
    return f"{number(value.mean)} ({interval.low:.2g} to {interval.high:.2g})"
