"""Manifest of a data set: the entries that its arrays need to be read."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from localpolicy.errors import DataError
from localpolicy.runtime.files import read_sealed
from localpolicy.runtime.formats import Format, unchanged

FORMAT = Format(2, "prepare it again", upgrades={1: unchanged}, error=DataError)


class File(BaseModel):
    """Entry of a file of the data set."""

    bytes: NonNegativeInt
    sha256: str


class Counts(BaseModel):
    """Numbers of sequences and events in one split."""

    model_config = ConfigDict(extra="allow")

    sequences: NonNegativeInt
    events: dict[str, NonNegativeInt]


class AllCounts(Counts):
    """Numbers of sequences, items and events in the whole data set."""

    items: NonNegativeInt


class Manifest(BaseModel):
    """Entries that every manifest has; `prepare` and `simulate` add more."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["interactions", "impressions"]
    counts: AllCounts
    splits: dict[str, Counts]
    events: list[str]
    rewards: dict[str, float] = {}
    settings: dict[str, Any] = {}
    files: dict[str, File]
    digest: str


def read_manifest(folder: Path) -> dict[str, Any]:
    """Manifest of the data set in `folder`; a `DataError` says what is wrong with it."""
    path = folder / "manifest.json"
    if not path.exists():
        raise DataError(f"{folder} is not a prepared data set (no manifest.json). Make one with 'lpi prepare'.")
    manifest = read_sealed(path)
    if not isinstance(manifest, dict):
        raise DataError(f"{path} is not a data set's: it was altered. Prepare it again.")
    if "policy_sha256" in manifest:
        raise DataError(f"{folder} is a run; expected a prepared data set, as 'lpi prepare' makes one.")
    manifest = FORMAT.upgraded(manifest, folder)
    lacking = [name for name, field in Manifest.model_fields.items() if field.is_required() and name not in manifest]
    if lacking:
        raise DataError(f"{path} lacks {', '.join(sorted(lacking))}: it was altered. Prepare it again.")
    try:
        Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path} was altered: {where} should be otherwise ({first['msg']}). Prepare it again."
        ) from None
    for name in manifest["files"]:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{path} was altered: it names a file outside the data set ({name}). Prepare it again.")
    return manifest
