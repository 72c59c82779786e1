"""Where a table's data comes from: a prepared folder, the original files, a simulated set; and Table 2."""

from __future__ import annotations

import logging
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.data.prepare import prepare
from localpolicy.data.published_counts import compare
from localpolicy.data.readers import READERS
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.reproduction.settings import PaperConfig
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import refuse_foreign, remove_abandoned
from localpolicy.simulation.run import simulate
from localpolicy.study.arms import Study

LOG = logging.getLogger(__name__)
PAPERS = ("yoochoose", "retailrocket", "netflix")  # the data sets of the paper
# How each source's files are recognised, in the order tried.
FILES = {
    "yoochoose": ("yoochoose-clicks.dat", "yoochoose-clicks.dat.gz", "yoochoose-buys.dat", "yoochoose-buys.dat.gz"),
    "netflix": ("combined_data_*.txt", "mv_*.txt"),
    "movielens": ("u.data", "ratings.dat", "ratings.csv", "u.data.gz", "ratings.dat.gz", "ratings.csv.gz"),
    "retailrocket": ("events.csv", "events.csv.gz"),
}
# Sequences (before the recipe's filters) and items of simulated sets: as large as on a GPU one may wish, and small.
SIZES = {
    "retailrocket": ((1_407_580, 235_061), (50_000, 4_000)),
    "yoochoose": ((9_249_729, 52_739), (12_000, 2_000)),
    "netflix": ((480_189, 17_770), (2_000, 1_000)),
    "store": ((195_523, 70_852), (6_000, 1_000)),
}
SHOPS = ("retailrocket", "yoochoose", "store")  # clicks and purchases
RATINGS = ("netflix",)


@dataclass(frozen=True)
class DataSet:
    """Prepared data with a display name, and whether they are the paper's data."""

    name: str
    data: Prepared
    source: str  # yoochoose, retailrocket, netflix, movielens, …
    original: bool

    @property
    def folder(self) -> str:
        """Folder name made from the display name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-")

    def to_dict(self) -> dict[str, Any]:
        """Content of the JSON output."""
        return {
            "name": self.name,
            "source": self.source,
            "original": self.original,
            "digest": self.data.digest,
            "counts": self.data.manifest["counts"],
        }

    def counts(self) -> dict[str, Any]:
        """Content of Table 2 as JSON: found counts, and published ones if there are any."""
        manifest, reader = self.data.manifest, READERS.get(self.source)
        counts = manifest["counts"]
        found = {"sequences": counts["sequences"], "items": counts["items"], **counts["events"]}
        known = reader is not None and "rows" in manifest
        published = compare(manifest, reader.editions, reader.preset) if reader is not None and known else {}
        return {**self.to_dict(), "found": found, "published": published}

    @property
    def about(self) -> str:
        """One sentence about the data set."""
        counts = self.data.manifest["counts"]
        what = "the paper's data" if self.original else "not the paper's data (simulated, a sample or another log)"
        return f"{self.name}: {counts['sequences']:,} sequences, {counts['items']:,} items; {what}."


def data_sets(config: PaperConfig, out: Path, what: str) -> list[DataSet]:
    """Data sets for a table: the named ones, opened or prepared, or else a simulated one."""
    if not config.data:
        among = {"table1": RATINGS, "table2": (*RATINGS, *SHOPS)}.get(what, SHOPS)
        world = config.simulate or ("netflix" if what == "table1" else "retailrocket")
        if world not in among:
            raise ConfigError(f"--simulate: no set '{world}' that fits here{nearest(world, among)}")
        sequences, items = SIZES[world][config.fast]
        return [_simulated(world, out, sequences=config.sequences or sequences, items=config.items or items)]
    data_sets = [_opened(path, out) for path in config.data]
    names = [data.name for data in data_sets]
    if len(set(names)) < len(names):
        raise ConfigError(f"two data sets are called '{max(names, key=names.count)}': rename a folder.")
    return data_sets


def studies(config: PaperConfig, out: Path, what: str) -> list[tuple[DataSet, Study]]:
    """Pairs of each data set and the study that trains its arms in a folder of its own."""
    sets = data_sets(config, out, what)
    for data in sets:
        refuse_foreign(out / data.folder)
    deadline = None if config.minutes is None else time.time() + 60 * config.minutes
    shared: dict[str, Any] = {"processes": config.processes, "keep": config.keep, "truth": config.truth}
    return [(data, Study(data.data, out / data.folder, deadline=deadline, **shared)) for data in sets]


def _opened(path: Path, out: Path) -> DataSet:
    if (path / "manifest.json").exists():
        data = Prepared(path)
        return _data_set(data, data.manifest.get("source", "simulated"), name=path.name or path.resolve().name)
    source, files = _source_of(path)
    folder = out / f"data-{source}"
    remove_abandoned(folder)
    if (folder / "manifest.json").exists():
        data = Prepared(folder)
        if data.manifest["inputs"]["bytes"] != sum(file.stat().st_size for file in files):
            raise DataError(f"{folder} was prepared from other files than {path}; choose another --out, or remove it.")
    else:
        LOG.info("preparing %s from %s", source, path)
        data = prepare(source, [path], out=folder)
    return _data_set(data, source, name=source)


def _source_of(path: Path) -> tuple[str, list[Path]]:
    """Name of the source that these files belong to, and the files."""
    if not path.exists():
        raise DataError(f"{path} does not exist: expected a prepared data set, or the original files' folder.")
    folder = path if path.is_dir() else path.parent
    for source, patterns in FILES.items():
        files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
        if not path.is_dir():
            files = [file for file in files if file == path]
        if files:
            return source, files
    raise DataError(
        f"{path} is neither a prepared data set nor the original files of {', '.join(FILES)}; "
        "prepare another log with 'lpi prepare'."
    )


def _simulated(world: str, out: Path, *, sequences: int, items: int) -> DataSet:
    folder, raw = out / f"data-{world}", out / f"raw-{world}"
    size: dict[str, Any] = {"sequences": sequences, "items": items, "seed": 0}
    asked = {"world": world, **size}
    remove_abandoned(folder)  # what a kill left next to complete data
    if not (folder / "manifest.json").exists():
        LOG.info("simulating %s sequences of %s", f"{sequences:,}", world)
        write_json(folder.with_suffix(".json"), asked)  # first: data without it would be anybody's
        if world == "store":
            simulate(world, folder, **size, interactions=True, prepared=True)
        else:
            simulate(world, raw, **size, force=True)
            prepare(world, [raw], out=folder, seed=0)
    elif read_json(folder.with_suffix(".json")) != asked:
        raise DataError(f"{folder} was simulated with other settings; choose another --out, or remove it.")
    shutil.rmtree(raw, ignore_errors=True)  # here, since a kill may have come between
    return _data_set(Prepared(folder), world, name=f"{world} (simulated)")


def _data_set(data: Prepared, source: str, *, name: str) -> DataSet:
    reader = READERS[source] if source in PAPERS else None  # MovieLens, say, is not one of the paper's data sets
    rows = sum(data.manifest.get("rows", {}).values())
    original = reader is not None and any(rows == edition.rows for edition in reader.editions)
    return DataSet(name, data, source, original)
