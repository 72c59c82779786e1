"""Description of an export: `export.json`, sealed, typed and checked against its other files.

A propensity is only as true as the files it is computed from. Each of them has its digest in export.json, which has a
seal: the digest of itself. Both tell what was damaged or edited by hand; they are no signature. Whatever is wrong with
an export is one kind of error, which names the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from localpolicy.errors import DataError, LocalPolicyError, RunError
from localpolicy.runtime.files import SEAL, read_json, read_sealed, sealed, sha256, write_json
from localpolicy.runtime.formats import Format, unchanged

ABOUT, ITEMS, NAMES, COUNTS, ARRAYS = "export.json", "items.json", "names.json", "counts.json", "baseline.npz"
Id = int | str


class ExportError(RunError):
    """An export that was damaged or altered, or that was made by another version."""


FORMAT = Format(2, "export again", upgrades={1: unchanged}, error=ExportError)


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Sample(_Part):
    """A history, and the list that the policy gave for it at export."""

    history: list[Id]
    events: list[str]
    top: list[Id]


class Description(_Part):
    """Schema of `export.json`."""

    format: int
    version: str = Field(min_length=1)
    events: list[str] = Field(min_length=1)
    length: int = Field(ge=1)
    graphs: list[Literal["policy", "dial"]]
    files: dict[str, str]
    samples: list[Sample]
    objective: str = ""
    int8: bool = False
    items: int | None = None
    baseline: dict[str, Any] | None = None
    default_event: str | None = None
    policy_sha256: str | None = None
    policy_json_sha256: str | None = None
    largest_difference: float = 0.0
    tolerance: float = 0.0
    js: float = 0.0
    most_js: float = 0.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Raise ValueError if two parts contradict each other, or a file that decides a list has no digest."""
        read = {ITEMS, COUNTS, *(f"{name}.onnx" for name in self.graphs), *([ARRAYS] if self.baseline else [])}
        wrong = {
            "two events have one name": len(set(self.events)) < len(self.events),
            "it has neither a policy nor a baseline": ("policy" in self.graphs) == (self.baseline is not None),
            "its default event is none of its events": self.default_event not in (None, *self.events),
            "a file lies elsewhere": any(Path(name).name != name for name in self.files),
            "a file has no digest": not read <= set(self.files),
            "a sample does not fit": any(
                len(one.history) != len(one.events) or not set(one.events) <= set(self.events) for one in self.samples
            ),
        }
        for why, found in wrong.items():
            if found:
                raise ValueError(why)
        return self


def write_description(folder: Path, content: dict[str, Any]) -> None:
    """Write export.json with its seal."""
    write_json(folder / ABOUT, sealed(content))


def read_export(folder: Path, *, verify: bool = True) -> Description:
    """Read export.json and, with `verify`, compare the digest of every file; raise ExportError on any fault."""
    path = folder / ABOUT
    if not path.exists():
        raise ExportError(f"{folder} is not an export (no {ABOUT}); 'lpi export RUN --out {folder}' makes one.")
    with readable(folder):
        try:
            content = read_sealed(path)
        except DataError as error:
            raise ExportError(f"{path} cannot be read: {error} Export again.") from None
        unsealed = isinstance(content, dict) and content.get("format") == FORMAT.current and SEAL not in content
        if unsealed:
            raise ExportError(f"{path} has no seal: it was altered. Export again.")
        content = FORMAT.upgraded(content, folder)
        try:
            about = Description.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"][:2]))
            why = f"{where}: {first['msg']}" if where else first["msg"]
            raise ExportError(f"{path} is not an export's: it was altered ({why[:200]}). Export again.") from None
        for name, expected in about.files.items() if verify else ():
            file = folder / name
            if not file.is_file():
                raise ExportError(f"{file} is missing: the export is damaged. Export again.")
            if sha256(file) != expected:
                raise ExportError(f"{file} was altered (its digest differs). Export again.")
    return about


def read_items(folder: Path, about: Description) -> list[Any]:
    """Read the catalogue's ids: whole numbers, or texts, each once."""
    ids = _listed(folder / ITEMS, (int, str))
    if about.items not in (None, len(ids)):
        raise ExportError(f"{folder / ITEMS} has {len(ids):,} items, and {ABOUT} says {about.items:,}. Export again.")
    if len(set(ids)) < len(ids):
        raise ExportError(f"{folder / ITEMS} has an id twice. Export again.")
    missing = {item for sample in about.samples for item in sample.top} - set(ids)
    if missing:
        raise ExportError(f"{folder / ABOUT} has a list with an item that {ITEMS} lacks. Export again.")
    return ids


def read_names(folder: Path, about: Description, items: int) -> list[str] | None:
    """Read the items' names; None if the export has none."""
    if NAMES not in about.files:
        return None
    names = _listed(folder / NAMES, (str,))
    if len(names) != items:
        raise ExportError(f"{folder / NAMES} has {len(names):,} names of {items:,} items. Export again.")
    return names


def read_counts(folder: Path, items: int) -> np.ndarray:
    """Read how often each item was chosen in the log [V]."""
    counts = np.array(_listed(folder / COUNTS, (int, float)), np.float64)
    if counts.shape != (items,) or not np.isfinite(counts).all() or (counts < 0).any():
        raise ExportError(f"{folder / COUNTS} does not hold one count, of 0 or more, for each item. Export again.")
    return counts


def _listed(path: Path, kinds: Sequence[type]) -> list[Any]:
    """Read a JSON list whose elements are all of one of these types; raise ExportError otherwise."""
    content = read_json(path)
    if not isinstance(content, list) or not content or set(map(type, content)) not in [{kind} for kind in kinds]:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ExportError(f"{path} is no list of {expected}: it was altered. Export again.")
    return content


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Context manager: turn any error of reading an export into ExportError. Our own errors keep their messages."""
    try:
        yield
    except DataError as error:
        raise ExportError(f"{folder} is no export that this version reads: {error} Export again.") from None
    except LocalPolicyError:
        raise
    except Exception as error:
        raise unreadable(folder, error) from None


def unreadable(folder: Path, error: Exception) -> ExportError:
    """Return an ExportError for an error of the export's graph, or of the library that reads it."""
    what = f"{type(error).__name__}: {error}"[:200]
    return ExportError(f"{folder} is no export that this version reads ({what}): it was altered, or made by another "
                       "version. Export the run again.")  # fmt: skip
