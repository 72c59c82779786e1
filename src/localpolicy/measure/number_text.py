"""Numbers in words: how many digits, intervals, counts; and as many digits as tell two that decide apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:  # `lpi doctor` prints a table where scipy is missing
    from localpolicy.measure.estimate import Interval

NOTHING = "—"  # shown where a figure is missing
FIGURES = 4  # significant ones of the largest number of a column
MOST_DECIMALS = 6
DIGITS, MOST_DIGITS = 4, 9


def known(value: float | None) -> TypeGuard[float]:
    """Whether a number is neither None nor NaN."""
    return value is not None and math.isfinite(value)


def decimals(values: Iterable[float | None], figures: int = FIGURES) -> int:
    """Decimal places that print the largest of `values` with `figures` significant figures."""
    largest = max((abs(value) for value in values if known(value)), default=0.0)
    if largest == 0:
        return 1
    return min(max(figures - 1 - math.floor(math.log10(largest)), 0), MOST_DECIMALS)


def fixed(value: float | None, digits: int = 4, *, signed: bool = False) -> str:
    """Text with thousands separators and fixed digits: 1,234.5; zero has no sign."""
    if not known(value):
        return NOTHING
    text = f"{abs(value):,.{digits}f}"
    sign = "-" if value < 0 else "+" if signed else ""
    return f"{sign}{text}" if float(text.replace(",", "")) else text


def short(value: float | None, figures: int = FIGURES) -> str:
    """Text of one number with a few significant digits."""
    return fixed(value, decimals([value], figures))


def percent(share: float | None) -> str:
    """Text of a share: 12.3 %."""
    return f"{fixed(100 * share, 1)} %" if known(share) else NOTHING


def range_text(interval: Interval, digits: int) -> str:
    """Text of an interval: ± 0.012 if symmetric, else [0.10, 0.13]; empty if the value is exact."""
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


def interval_text(interval: Interval | None, digits: int | None = None, *, signed: bool = False) -> str:
    """Text of a mean with its 95 % interval."""
    if interval is None or not known(interval.mean):
        return NOTHING
    digits = decimals([interval.mean]) if digits is None else digits
    return f"{fixed(interval.mean, digits, signed=signed)} {range_text(interval, digits)}".rstrip()


def sentences(holds: Mapping[str, object]) -> str:
    """Join the sentences that are mapped to a true condition."""
    return " ".join(sentence for sentence, condition in holds.items() if condition)


def joined(names: Iterable[str]) -> str:
    """Text `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def counted(number: int, what: str) -> str:
    """Text of a count with its noun in the right number: 1 sequence, 2,000 sequences."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def corrected(tests: int) -> str:
    """Note that an interval is corrected for several tests; empty for a single one."""
    return f", corrected for {counted(tests, 'comparison')}" if tests > 1 else ""


def apart(*values: float, form: str = "") -> list[str]:
    """Texts of the values with four decimals, or with as many more as unequal ones need to differ.

    What decides is a comparison of two numbers: printed equal, they would contradict the answer.
    """
    for digits in range(DIGITS, MOST_DIGITS + 1):
        texts = [f"{value:{form}.{digits}f}" for value in values]
        if len({text.lstrip("+") for text in texts}) == len(set(values)):
            break
    return texts
