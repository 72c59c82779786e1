"""A prepared data set on disk: flat memory-mapped arrays with offsets, and a manifest.

    DATA/manifest.json     format, counts, reward map, settings, digests
    DATA/items.parquet     index, item_id (as the log wrote it), count
    DATA/<split>/*.npy     offsets [S+1]; item, event, reward [E]; where logged: propensity, policy, time [E]
    DATA/<split>/sequences.parquet   sequence_id (as the log wrote it) of each sequence, where it is kept
    DATA/filters/*.npy     the filters under which items were shown, where the log names any (see `item_filters`)
    DATA/log.parquet       every usable row of the log, before the filters, on which `append` decides again

Sequence s of a split is the slice offsets[s]:offsets[s+1] of each array.

**Lists.** A request shows several items at once: one decision, drawn place by place from what is still open. Its rows
lie together in their sequence, in the order of their places:

    above        how many rows of the same list lie before this one; 0 begins a list, and a row of no list is one alone
    place        as the log states it, from 0; it equals `above` unless a row of the list was dropped or not logged
    propensity   μ(a | x, open): given the places above and the filter; the list's probability is their product
    filter       the filter's number: with the items above it says what was open (see `catalogue.open_items`)
    reward       of this place; the list's reward is the sum of its rows'. Where a list has one reward (`list_reward`
                 of `prepare`) it is stored on the last row: what depends on all places is weighted by all of them

All rows of a list share one context, that of its first row: what stands above is not history. A later list of the same
sequence is the next step, and lower places are not. `Batch.context` and `Scores.list_number` carry this on.

**Histories.** A sequence is one history, unless rows of `anew` begin others: what a service was sent with a request
need not be what it had shown before. Windows are cut from histories; splits, parts and error clusters are sequences,
and so are returns: what a sequence earned after a history is known (`Batch.following`).

Opening reads the manifest and maps
the arrays, so it takes milliseconds whatever the size; `verify` reads everything and compares digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.growing_files import open_array
from localpolicy.data.item_filters import FOLDER as FILTERS
from localpolicy.data.item_filters import StoredFilters, open_filters
from localpolicy.data.manifest import read_manifest
from localpolicy.data.position_bias import PositionBias, examination
from localpolicy.data.split import Split as Split
from localpolicy.data.split import events_table
from localpolicy.errors import DataError, nearest
from localpolicy.limits import CONTEXT as CONTEXT
from localpolicy.limits import NO_ANSWER as NO_ANSWER
from localpolicy.runtime.files import sha256
from localpolicy.runtime.frames import to_frame

SPLITS = ("train", "validation", "test")
DTYPES = {
    "item": np.int32,
    "event": np.uint8,
    "reward": np.float32,
    "propensity": np.float32,
    "policy": np.int16,
    "time": np.int64,
    "place": np.int16,  # in its list, from 0
    "above": np.int16,  # rows of the same list before this one: all share the context of the first
    "anew": np.uint8,  # 1: a history begins here that does not continue the rows before
    "past_event": np.uint8,  # event of the item within its history: for a context row not the row's event
    "filter": np.int32,  # number of the filter under which it was shown, among `Prepared.filters`
}
OPTIONAL = ("propensity", "policy", "time", "place", "above", "anew", "past_event", "filter")

QUALITY_PAGE = "quality.html"  # added after the preparation
SPARSE = 30  # actions per item, on average, below which a log is sparse
LOG = "log.parquet"  # no result depends on it, so the data set's digest leaves it out


def whole_splits(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Splits that hold every event once; with split=last the test split repeats the events of the others."""
    return SPLITS[2:] if settings.get("split") == "last" else SPLITS


class Prepared:
    """A prepared data set, opened."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        for name, file in self.manifest["files"].items():
            size = (self.path / name).stat().st_size if (self.path / name).is_file() else None
            if size != file["bytes"]:
                came = "is missing" if size is None else f"has {size} bytes, expected {file['bytes']}"
                raise DataError(f"{self.path / name} {came}: the data set is damaged. Prepare it again.")
        self.splits = {name: self._open(name) for name in SPLITS}

    def __reduce__(self) -> tuple[type[Prepared], tuple[Path]]:
        """State for another process, which maps the same files."""
        return Prepared, (self.path,)

    def _open(self, split: str) -> Split:
        """Map the arrays of a split; DataError if their headers and lengths do not fit the manifest."""
        folder = self.path / split
        offsets = open_array(folder / "offsets.npy", np.int64)
        names = [Path(name).stem for name in self.manifest["files"] if name.startswith(f"{split}/")]
        arrays = {name: open_array(folder / f"{name}.npy", DTYPES[name]) for name in names if name in DTYPES}
        counted = self.manifest["splits"].get(split, {"sequences": -1, "events": {}})
        lengths = {"offsets": counted["sequences"] + 1} | dict.fromkeys(arrays, sum(counted["events"].values()))
        for name, array in {"offsets": offsets, **arrays}.items():
            if len(array) != lengths[name]:
                raise DataError(
                    f"{folder / name}.npy holds {len(array):,} numbers, and the manifest says {lengths[name]:,}: one "
                    "of them was altered. Prepare the data set again."
                )
        fits = len(offsets) > 0 and offsets[-1] == lengths.get("item") and offsets[0] == 0
        if not fits or (offsets[1:] < offsets[:-1]).any():
            raise DataError(f"{folder / 'offsets.npy'} was altered: it does not fit the events. Prepare it again.")
        return Split(split, offsets, arrays)

    def __getitem__(self, split: str) -> Split:
        if split not in self.splits:
            raise DataError(f"no split '{split}'{nearest(split, self.splits)}")
        return self.splits[split]

    def __len__(self) -> int:
        return int(self.manifest["counts"]["sequences"])

    def __repr__(self) -> str:
        counts, splits = self.manifest["counts"], self.manifest["splits"]
        events = ", ".join(f"{name} {count:,}" for name, count in counts["events"].items())
        sizes = ", ".join(f"{name} {split['sequences']:,}" for name, split in splits.items())
        return (
            f"Prepared('{self.path}'): {self.kind}, {counts['items']:,} items, "
            f"{counts['sequences']:,} sequences ({sizes}), {sum(counts['events'].values()):,} events ({events})"
        )

    def _repr_html_(self) -> str:
        """HTML for notebooks: sequences and events of each split."""
        splits = {**self.manifest["splits"], "all": self.manifest["counts"]}
        head = "".join(f"<th>{escape(name)}</th>" for name in ("split", "sequences", *self.events))
        rows = "".join(
            f"<tr><th>{name}</th><td>{split['sequences']:,}</td>"
            + "".join(f"<td>{split['events'][event]:,}</td>" for event in self.events)
            + "</tr>"
            for name, split in splits.items()
        )
        caption = f"{escape(str(self.path))}: {self.kind}, {self.n_items:,} items"
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Numbers of the data set: the manifest, without its list of files."""
        return {"path": str(self.path), **{key: value for key, value in self.manifest.items() if key != "files"}}

    def to_arrow(self) -> pa.Table:
        """Events, one row each, in the log's own ids: split, sequence_id, item_id, event, reward, …

        With split=last the rows of `validation` and `test` are the held-out events alone.
        """
        ids = self.sequence_ids if self.has_sequence_ids else None
        return events_table(
            self.splits, self.catalogue.column("item_id"), self.events, self.manifest.get("policies", []), ids=ids,
            only_last=self.holds_out_last,
        )  # fmt: skip

    def to_frame(self) -> Any:
        """`to_arrow` as a pandas DataFrame, or as a Polars one if pandas is not installed."""
        return to_frame(self.to_arrow())

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue, V."""
        return int(self.manifest["counts"]["items"])

    @property
    def events(self) -> list[str]:
        """Event names by their code."""
        return list(self.manifest["events"])

    @property
    def kind(self) -> str:
        """'interactions' (users' actions) or 'impressions' (shown items, with their responses)."""
        return str(self.manifest["kind"])

    @property
    def digest(self) -> str:
        """Digest of the whole content."""
        return str(self.manifest["digest"])

    @property
    def digests(self) -> set[str]:
        """Digest of the data, and its digests from before persons were erased."""
        return {self.digest, *(str(erasure["before"]) for erasure in self.manifest.get("erasures", ()))}

    @cached_property
    def catalogue(self) -> pa.Table:
        """Item table of the catalogue: index, item_id, count."""
        return self._table("items.parquet")

    @cached_property
    def known_items(self) -> np.ndarray:
        """Mask of the items that the training split shows: [V]."""
        return np.bincount(self["train"].arrays["item"], minlength=self.n_items) > 0

    @property
    def sparse(self) -> bool:
        """Whether this is an interaction log whose training split has few events for most items."""
        return self.kind == "interactions" and self["train"].events < SPARSE * self.n_items

    @property
    def one_reward(self) -> bool:
        """Whether a list has one reward, which belongs to no place: it is stored at the list's last row."""
        return bool(self.manifest["settings"].get("list_reward", "places") != "places")

    @cached_property
    def position_bias(self) -> PositionBias | None:
        """Examination of each place of a list, by the training split.

        None if no list has two places, or if the reward is the whole list's.
        """
        return None if self.one_reward else examination(self["train"].arrays)

    @cached_property
    def filters(self) -> StoredFilters | None:
        """Filters that the numbers in the `filter` arrays refer to; None if the log names no filters."""
        return open_filters(self.path) if f"{FILTERS}/offsets.npy" in self.manifest["files"] else None

    @property
    def holds_out_last(self) -> bool:
        """Whether a held-out sequence is judged at its last event alone, the others being history (split=last)."""
        return self.whole_splits != SPLITS

    @property
    def whole_splits(self) -> tuple[str, ...]:
        """Splits that together hold every event once."""
        return whole_splits(self.manifest["settings"])

    def chosen(self, split: str) -> np.ndarray:
        """Which rows of a split a policy chose: all but those of context."""
        context = self.events.index(CONTEXT) if CONTEXT in self.events else -1
        return np.asarray(self[split].arrays["event"] != context)

    def held_out_events(self, split: str) -> dict[str, int]:
        """Number of events of each name at which a held-out split is judged."""
        if not self.holds_out_last:
            return dict(self.manifest["splits"][split]["events"])
        ends = self[split].arrays["event"][self[split].offsets[1:] - 1]
        return dict(zip(self.events, np.bincount(ends, minlength=len(self.events)).tolist(), strict=True))

    @property
    def has_sequence_ids(self) -> bool:
        """Whether the log's ids of sequences were kept."""
        return f"{SPLITS[0]}/sequences.parquet" in self.manifest["files"]

    def sequence_ids(self, split: str) -> pa.Array:
        """Ids of a split's sequences, as the log wrote them."""
        path = self[split].name + "/sequences.parquet"
        if not self.has_sequence_ids:
            raise DataError(f"{self.path} was written without sequence ids. Prepare it again.")
        return self._table(path).column("sequence_id").combine_chunks()

    def _table(self, name: str) -> pa.Table:
        try:
            return pq.read_table(self.path / name)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.path / name} was altered ({str(error)[:200]}). Prepare the data set again."
            ) from None

    def verify(self) -> None:
        """Read every file; raise DataError if one, or the manifest's list of them, is not what was prepared."""
        files = self.manifest["files"]
        for name, file in files.items():
            if sha256(self.path / name) != file["sha256"]:
                raise DataError(f"{self.path / name} was altered (its digest differs). Prepare the data set again.")
        if digest_of(files) != self.digest:
            raise DataError(f"{self.path / 'manifest.json'} was altered: its digests do not agree. Prepare it again.")
        if len(self.catalogue) != self.n_items:
            raise DataError(f"{self.path / 'manifest.json'} was altered: it miscounts the items. Prepare it again.")


def verify(folder: Path | str) -> dict[str, int]:
    """Raise DataError unless every file of the data set in `folder` is unchanged; return how much was read."""
    data = Prepared(folder)
    data.verify()
    files = data.manifest["files"]
    return {"files": len(files), "bytes": sum(file["bytes"] for file in files.values())}


def digest_of(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest over all files that results depend on, by name and content."""
    content = "".join(f"{name}:{file['sha256']};" for name, file in files.items() if name != LOG)
    return hashlib.sha256(content.encode()).hexdigest()
