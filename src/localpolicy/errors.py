"""Errors for users: what was expected, what was found, and what to do.

Every `LocalPolicyError` is something the user can fix; the command line prints its text and leaves with exit code 2.
Anything else that escapes is our fault, and leaves with exit code 1.

Messages name options as the command line has them (--skip-bad-rows). A caller from Python reads them as keywords
(skip_bad_rows=True): `as_keywords`.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any

_repr = Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother, _repr.maxlong = 3, 200, 200, 100

LONGEST_MESSAGE = 1900  # characters
_flags = False  # whether the user typed a command
_warned: set[str] = set()  # deprecations that this process has printed
LOG = logging.getLogger(__name__)

# Our name -> names of the same thing elsewhere. Only letters count.
MEANT = {
    "sequence_id": ("user", "userid", "uid", "session", "sessionid", "visitor", "visitorid", "customer", "customerid"),
    "item_id": ("item", "itemid", "product", "productid", "movie", "movieid", "article", "articleid", "sku"),
    "timestamp": ("time", "date", "datetime", "ts", "createdat", "timems"),
    "event": ("action", "eventtype", "behavior", "behaviour", "rating", "stars"),
    "reward": ("value", "target", "label", "watchratio"),
    "seed": ("randomstate", "randomseed", "rng"),
    "learning_rate": ("lr", "eta", "stepsize", "learningrate"),
    "batch_size": ("batch", "batchsize", "bs"),
    "epochs": ("nepochs", "numepochs", "epoch", "iterations", "niter", "maxepochs"),
    "width": ("dim", "hidden", "hiddensize", "embeddingdim", "factors", "dmodel"),
    "blocks": ("layers", "nlayers", "numlayers"),
    "length": ("maxlen", "maxlength", "window", "seqlen", "sequencelength"),
    "gamma": ("discount",),
    "patience": ("earlystopping",),
    "test": ("testsize",),
    "validation": ("valsize", "validationsize", "val"),
    "out": ("output", "folder", "path", "dir"),
    "k": ("n", "topk", "topn"),
}  # fmt: skip
# Options that are switches, or have another name in Python.
KEYWORDS = {
    "all": "every=", "no-baselines": "baselines=False", "no-keep-log": "keep_log=False", "resume": "resume=True",
    "resume-older": "resume_older=True", "force": "force=True", "skip-bad-rows": "skip_bad_rows=True",
    "shard-catalogue": "shard_catalogue=True", "yes": "yes=True",
    "dayfirst": "dayfirst=True", "monthfirst": "monthfirst=True",
}  # fmt: skip
MAPS = ("columns", "rename", "rewards")
# A quoted command stays as it is; an option may have a value after it: a word, or name=value pairs, quoted or not.
_OPTION = re.compile(
    r"'lpi [^']*'|\(lpi [^)]*\)|--([a-z][a-z-]*)"
    r"(?:\s+('[^']*'|[^\s=,;:()']+=[^\s;:()]*[^\s;:().,]|(?:duckdb|click|optuna|exact|measure|log|text|random|last|30m|0)\b))?"
)


def bounded(text: str) -> str:
    """Shorten a message for a terminal: the beginning and the end of a long one."""
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} […] {text[-half:]}"


@contextmanager
def on_command_line() -> Iterator[None]:
    """Context manager: messages name options as they are typed on a command line."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def to_caller(text: str) -> str:
    """A message in the caller's terms: flags of a command, or keywords of a function."""
    return text if _flags else as_keywords(text)


def as_keywords(text: str) -> str:
    """Rewrite options as keywords: `--columns item_id=sku` becomes `columns={"item_id": "sku"}`."""
    return _OPTION.sub(_keyword, text)


def _keyword(option: re.Match[str]) -> str:
    name, value = option[1], option[2]
    if name is None:
        return option[0]
    if value is None:
        return KEYWORDS.get(name, f"{name.replace('-', '_')}=")
    value = value.strip("'")
    if name == "set":  # a setting is a keyword of its own
        return value.rpartition(".")[2]
    if name in MAPS and "=" in value and ">=" not in value:
        pairs = (part.rpartition("=") for part in value.split(",") if "=" in part)
        listed = ", ".join(f'"{key}": {each}' if name == "rewards" else f'"{key}": "{each}"' for key, _, each in pairs)
        return f"{name}={{{listed}}}"
    return f"{name.replace('-', '_')}={value}" if value.isdigit() else f'{name.replace("-", "_")}="{value}"'


def _again(cls: type[LocalPolicyError], args: tuple[Any, ...], rest: dict[str, Any]) -> LocalPolicyError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(rest)
    return error


class LocalPolicyError(Exception):
    """An error that the user can fix: the message says how. A very long message is shortened."""

    def __str__(self) -> str:
        return bounded(to_caller(super().__str__()))

    def __reduce__(self) -> tuple[Any, ...]:
        """State for pickling, whatever arguments a subclass takes: errors pass between processes."""
        return _again, (type(self), self.args, self.__dict__)


class ConfigError(LocalPolicyError):
    """A setting is unknown, out of range, or contradicts another."""


class DataError(LocalPolicyError):
    """A log or a prepared data set is not as expected."""


class RunError(LocalPolicyError):
    """A run folder is missing, altered, incomplete or does not fit."""


class WriteError(LocalPolicyError):
    """The disk is full, or cannot be written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} could not be written: {why}. Earlier files are untouched; make room, then run the "
                         "command again (a training continues with --resume).")  # fmt: skip


class TrainingError(LocalPolicyError):
    """Training met a loss, gradient or weight that is not finite."""


class Stopped(LocalPolicyError):
    """Training was stopped at the user's request or by a time limit; finished work is saved."""


def deprecated(old: str, *, instead: str, until: str) -> None:
    """Warn that `old` goes away with version `until`: a DeprecationWarning, and once per process a line on stderr."""
    text = to_caller(f"{old} is deprecated and will be removed in version {until}: use {instead}.")
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    if text not in _warned:
        _warned.add(text)
        LOG.warning("%s", text)


def shown(value: Any) -> str:
    """A user's value for a message, shortened if it is large."""
    return _repr.repr(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" for the known name that means the same, or is closest to `name`; else the known names."""
    known = sorted(known)
    letters = re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower())
    means = next((ours for ours, theirs in MEANT.items() if letters in theirs), None)
    same = [each for each in known if means is not None and each.rpartition(".")[2] == means]
    close = same[:1] or get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(known)})"
