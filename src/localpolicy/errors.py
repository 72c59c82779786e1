"""Errors that speak to users: what was expected, what came, and what to do.

Every `LocalPolicyError` is something the user can mend; the command line prints its text and leaves with
exit code 2. Anything else that escapes is our fault, and leaves with exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any

_repr = Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother, _repr.maxlong = 3, 200, 200, 100

LONGEST_MESSAGE = 1900  # characters


def bounded(text: str) -> str:
    """A message short enough for a terminal: the beginning and the end of a long one."""
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} […] {text[-half:]}"


class LocalPolicyError(Exception):
    """An error that the user can mend: the message says how. A very long message is shortened."""

    def __str__(self) -> str:
        return bounded(super().__str__())


class ConfigError(LocalPolicyError):
    """A setting is unknown, out of range, or contradicts another."""


class DataError(LocalPolicyError):
    """A log or a prepared data set is not what it should be."""


class RunError(LocalPolicyError):
    """A run folder is missing, altered, incomplete or does not fit."""


class WriteError(LocalPolicyError):
    """The disk is full, or refuses to be written."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} could not be written: {why}. What was there before it is untouched; make room, then "
                         "run the command again (a training goes on with --resume).")  # fmt: skip

    def __reduce__(self) -> tuple[type[WriteError], tuple[Path, str]]:
        return type(self), (self.path, self.why)  # else it could not leave a process of its own


class TrainingError(LocalPolicyError):
    """Training met a number it cannot go on with."""


class Stopped(LocalPolicyError):
    """The user asked to stop; what was done is saved."""


def shown(value: Any) -> str:
    """A user's value for a message: the beginning of a large one."""
    return _repr.repr(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" for the known name closest to `name`, or the list of known names."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(known)})"
