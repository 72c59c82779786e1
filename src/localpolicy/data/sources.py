"""Log files on disk: their search, their formats, and whether their content fits their names."""

from __future__ import annotations

import csv
import gzip
import logging
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import DataError
from localpolicy.runtime.folders import refuse_odd_name

TEXT_SUFFIXES = (
    ".csv",
    ".tsv",
    ".txt",
    ".dat",
    ".data",
    ".csv.gz",
    ".tsv.gz",
    ".txt.gz",
    ".dat.gz",
    ".data.gz",
)
WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how Excel files begin
READ = "CSV, JSON lines, gzip of either, Parquet, or an Excel workbook"
JSON_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")  # found in folders; *.json there may be notes
LONGEST_LINE = 1 << 20  # characters: an endless line must not fill the memory
LINE_ENDS = {b"\r\n": "CR LF", b"\r": "CR", b"\n": "LF"}
MOST_COLUMNS = 10_000  # of a file: DuckDB's time grows with their square, and 100,000 take minutes
DELIMITERS = ("::", "\t", ";", "|", ",")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BadLines:
    """Lines that a reader could not make rows of: the first, with file and line number, and their number."""

    first: str
    count: int


class Origin(NamedTuple):
    """Place and version that a file was fetched from."""

    address: str
    version: str  # of the object or table, as its store tells it


@dataclass(frozen=True)
class SourceTable:
    """Files of one layout, and the map of their columns to events."""

    files: tuple[Path, ...]
    format: Literal["csv", "parquet"]
    columns: Mapping[str, str]  # our column -> theirs; 'a+b' joins two
    names: tuple[str, ...]  # every column of the files, in order
    header: bool = True  # text files: the first line holds the names
    delimiter: str = ","
    constants: Mapping[str, str] = field(default_factory=dict)  # our column -> one value for every row
    where: str = ""  # rows that are events at all, as SQL over the files' columns
    originals: tuple[Path, ...] = ()  # the user's files, if `files` were made from them
    bad: tuple[BadLines, ...] = ()  # lines left out in making them
    label: str = ""  # name, in messages, of a table that the user gave as an object
    origins: Mapping[Path, Origin] = field(default_factory=dict)  # of inputs that were fetched

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files of the table as the user named them, also where copies of them are read."""
        return self.originals or self.files

    def place(self, name: str) -> int:
        """Index of a column, from 0; the first of several of one name."""
        return self._places[name]

    @cached_property
    def _places(self) -> dict[str, int]:  # a list would be searched once for each of 100,000 columns
        return {name: number for number, name in reversed(list(enumerate(self.names)))}

    def parts(self, theirs: str) -> tuple[str, ...]:
        """Raw columns behind a name: 'a+b' joins two, unless the files have a column of that name."""
        return (theirs,) if theirs in self._places else tuple(theirs.split("+"))

    def shown(self, file: Path | None = None) -> str:
        """Name of the table, or of one of its files, in messages."""
        file = file or self.files[0]
        if len(self.originals) == len(self.files):
            file = self.originals[self.files.index(file)]
        return self.label or str(file)


def files_under(paths: Sequence[Path | str]) -> list[Path]:
    """Log files at `paths`; a folder stands for the files in it, or for its events.* if it has one."""
    if not paths:
        raise DataError("no log given: name a file or a folder.")
    logs: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = _logs_inside(path)
            logs += [file for file in inside if file.name.split(".")[0] == "events" and file.parent == path] or inside
            if not inside:
                raise DataError(
                    f"{path} holds no log: expected files that end in .parquet, {', '.join(TEXT_SUFFIXES)}."
                )
        elif path.is_file():
            logs.append(path)
        elif path.exists():
            raise DataError(
                f"{path} is a pipe or a device, and a log is read more than once. Write it to a file first."
            )
        else:
            broken = ": it is a link to nothing" if path.is_symlink() else ""
            raise DataError(f"{path} does not exist{broken}.")
    return logs


def _logs_inside(folder: Path) -> list[Path]:
    """Log files in a folder and in those below it; logs a warning for files behind a link."""
    inside = [file for file in sorted(folder.rglob("*")) if is_log(file.relative_to(folder))]
    for file in inside:
        if file.is_symlink() and not file.exists():
            raise DataError(f"{file} is a link to nothing: expected a log. Bring back what it names, or remove it.")
    for link in sorted(folder.rglob("*")):
        if link.is_symlink() and link.is_dir():
            log.warning("%s is a link to a folder, and its files are not read; name it as well as %s", link, folder)
    return [file for file in inside if file.is_file()]


def find(paths: Sequence[Path | str], *patterns: str, what: str) -> list[Path]:
    """Files among `paths`, or in folders among them, that match one of `patterns`, by name; DataError if none does."""
    if missing := [path for path in map(Path, paths) if not path.exists()]:
        raise DataError(f"{missing[0]} does not exist.")
    inside = [file for path in map(Path, paths) for file in (path.rglob("*") if path.is_dir() else [path])]
    matching = [file for file in inside if any(fnmatch(file.name, pattern) for pattern in patterns)]
    if not matching:
        searched = ", ".join(map(str, paths))
        raise DataError(f"no {' or '.join(patterns)} in {searched}: expected {what}, as downloaded.")
    for file in matching:
        file_format(file)
    return sorted(matching)


def is_log(path: Path) -> bool:
    """Whether a file in a folder is read as a log, by its path in the folder."""
    hidden = any(part.startswith(("_", ".")) for part in path.parts)
    return not hidden and path.name.endswith((".parquet", *TEXT_SUFFIXES, *JSON_LINES))


def file_format(path: Path) -> Literal["csv", "parquet"]:
    """Format of a file, from its first bytes; DataError if its name says otherwise."""
    refuse_odd_name(path)
    with path.open("rb") as file:
        start = file.read(65536)
    if not start:
        raise DataError(f"{path} is empty: expected a log with at least one row.")
    named_parquet, named_gzip = path.name.endswith(".parquet"), path.name.endswith(".gz")
    is_parquet, is_gzip = start.startswith(b"PAR1"), start.startswith(b"\x1f\x8b")
    if named_parquet != is_parquet:
        what = "is named .parquet but is not a Parquet file" if named_parquet else "is a Parquet file by its content"
        raise DataError(f"{path} {what}. Rename it to what it is, or fetch it again.")
    if named_gzip != is_gzip:
        what = "is named .gz but is not gzip" if named_gzip else "is gzip by its content, but not named .gz"
        raise DataError(f"{path} {what}. Rename it to what it is, or fetch it again.")
    if start.startswith(WORKBOOKS):
        raise DataError(f"{path} looks like an Excel workbook: if it is one, let its name end in .xlsx (or .xls).")
    if not is_parquet and not is_gzip and b"\x00" in start:
        raise DataError(f"{path} is not text (it holds zero bytes) and not Parquet. Expected {READ}.")
    if not is_parquet and start.lstrip()[:1] in (b"{", b"["):
        raise DataError(f"{path} is JSON: expected CSV or Parquet here. A log in JSON has a name that ends in .jsonl.")
    return "parquet" if is_parquet else "csv"


def parquet_schema(path: Path) -> pa.Schema:
    """Schema of a Parquet file."""
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a whole Parquet file ({error}). It was cut short or altered: fetch it again."
        ) from None


def first_line(path: Path) -> str:
    """The first line of a text file, gzip or not."""
    try:
        opener = gzip.open if path.name.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            line = file.readline(LONGEST_LINE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): it was cut short or altered. Fetch it again.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text.") from None
    if len(line) > LONGEST_LINE:
        raise DataError(
            f"{path}: the first line has more than {LONGEST_LINE:,} characters. Expected rows of a log, one per line."
        )
    line = line.rstrip("\r\n")
    if not line:
        raise DataError(f"{path} has no first line: expected column names or a row.")
    return line.removeprefix("\ufeff")


def other_line_end(path: Path) -> tuple[int, str, str] | None:
    """Number and ending of the first line that ends differently from the first, and the first's ending; else None."""
    first, number, rest = "", 1, b""
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        while block := file.read(LONGEST_LINE):
            block = rest + block
            rest = b"\r" if block.endswith(b"\r") else b""  # its line feed may come with the next block
            for end in re.finditer(rb"\r\n|\r|\n", block[: len(block) - len(rest)]):
                first = first or LINE_ENDS[end[0]]
                if LINE_ENDS[end[0]] != first:
                    return number, LINE_ENDS[end[0]], first
                number += 1
    return None


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Lines of a text; of one that is too long, only its beginning."""
    while line := file.readline(LONGEST_LINE):
        yield line
        while not line.endswith("\n") and (line := file.readline(LONGEST_LINE)):
            pass


def check_text(path: Path) -> None:
    """Raise DataError for text that DuckDB may cut silently: a last line without end, or cut gzip."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            while len(block := file.read(4 * LONGEST_LINE)) == 4 * LONGEST_LINE:
                if b"\n" not in block:
                    raise DataError(f"{path} holds a line of more than {4 * LONGEST_LINE:,} bytes. Is it a log?")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not whole ({error}): it was cut short or altered. Fetch it again.") from None


def delimiter_of(line: str) -> str:
    """Separator that occurs most often in a line; the longer one of two that tie."""
    return max(DELIMITERS, key=lambda mark: line.count(mark) * len(mark))


def split_line(line: str, delimiter: str) -> tuple[str, ...]:
    """Fields of one line."""
    if len(delimiter) > 1:
        return tuple(line.split(delimiter))
    return tuple(next(csv.reader([line], delimiter=delimiter)))
