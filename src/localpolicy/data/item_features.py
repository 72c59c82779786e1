"""Features of items: each column of the item table becomes a few sparse entries per item.

    category     one entry at its value
    categories   an entry of 1/n at each of its n values
    number       two entries, at the quantiles of the known items between which it lies (hat functions)
    vector       whitened: its principal directions among the known items, each with variance 1

A missing value is a value of its own, and so are all values that fewer than FEWEST known items have: such a value
identifies items as their ids do, and nothing can be learnt from it for others. Everything is fitted on the items that
the training split shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KIND = b"localpolicy.kind"  # of a column of items.parquet, in its field's metadata
LEARNT = ("category", "categories", "number", "vector")
FEWEST = 2
KNOTS = 9
DIRECTIONS = 64  # of a whitened vector, at most
POWER = 1.0  # of a list's length by which its entries are divided
MISSING, OTHER = 0, 1  # the first rows of every column but vectors


class Encoded(NamedTuple):
    """Features of V items: entries `row[offsets[a]:offsets[a+1]]` with their weights, then dense ones."""

    offsets: np.ndarray  # [V + 1]
    row: np.ndarray  # of W
    weight: np.ndarray
    dense: np.ndarray  # [V, F_dense], whose rows of W come after the sparse ones
    n_sparse: int
    keys: np.ndarray  # [F]: the same number wherever a feature means the same

    @property
    def n_features(self) -> int:
        """Number of features, F."""
        return self.n_sparse + int(self.dense.shape[1])

    def rows(self, own: slice) -> Encoded:
        """Features of a range of items."""
        start, stop = self.offsets[own.start], self.offsets[own.stop]
        offsets = self.offsets[own.start : own.stop + 1] - start
        return Encoded(
            offsets, self.row[start:stop], self.weight[start:stop], self.dense[own], self.n_sparse, self.keys
        )

    def taken(self, items: np.ndarray) -> Encoded:
        """Features of these items, in this order."""
        lengths = np.diff(self.offsets)[items]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        at = np.repeat(self.offsets[items] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Encoded(offsets, self.row[at], self.weight[at], self.dense[items], self.n_sparse, self.keys)


def kinds_of(items: pa.Table) -> dict[str, str]:
    """Kinds of the columns of a catalogue that came from an item table, by name."""
    found = {field.name: (field.metadata or {}).get(KIND) for field in items.schema}
    return {name: kind.decode() for name, kind in found.items() if kind is not None}


def learnt_columns(items: pa.Table) -> list[str]:
    """Columns that a model can learn from; names are only shown."""
    return [name for name, kind in kinds_of(items).items() if kind in LEARNT]


class ItemFeatures:
    """Encoder of the columns of an item table."""

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self.columns = list(columns)

    @classmethod
    def fit(cls, items: pa.Table, names: Sequence[str], known: np.ndarray) -> ItemFeatures:
        """Fit an encoder of these columns to the known items."""
        kinds, shown = kinds_of(items), items.filter(pa.array(known))
        return cls([{"name": name, "kind": kinds[name], **_fitted(shown[name], kinds[name])} for name in names])

    def encode(self, items: pa.Table) -> Encoded:
        """Features of these items."""
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # item, row of W, weight
        dense = [np.zeros((len(items), 0), np.float32)]
        first = 0
        for column in self.columns:
            values = items[column["name"]].combine_chunks()
            if column["kind"] == "vector":
                dense.append(_whitened(values, column))
                continue
            item, row, weight = _sparse(values, column)
            parts.append((item, first + row, weight))
            first += _rows(column)
        item, row, weight = (np.concatenate(each) for each in zip(*parts, strict=True)) if parts else (np.zeros(0),) * 3
        order = np.argsort(item, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(item.astype(np.int64), minlength=len(items)))])
        return Encoded(
            offsets.astype(np.int64), row[order].astype(np.int64), weight[order].astype(np.float32),
            np.concatenate(dense, axis=1), first, np.array([_number(key) for key in self.keys()], np.int64),
        )  # fmt: skip

    def keys(self) -> list[str]:
        """Name for every row of W, equal for features of equal meaning."""
        sparse, dense = [], []
        for column in self.columns:
            name = column["name"]
            if column["kind"] == "vector":
                white = _number(repr(column["directions"]))  # whitened otherwise, directions mean something else
                dense += [f"{name}|{number}|{white}" for number in range(len(column["directions"]))]
            else:
                values = column.get("values") or [
                    f"quantile {number}" for number in range(len(column.get("knots", ())))
                ]
                sparse += [f"{name}|{value}" for value in ("\0missing", "\0other", *values)]
        return sparse + dense


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _fitted(values: pa.ChunkedArray, kind: str) -> dict[str, Any]:
    if kind in ("category", "categories"):
        texts = values.combine_chunks()
        texts = pc.list_flatten(texts) if kind == "categories" else texts
        counted = pc.value_counts(texts.cast(pa.string()).drop_null())
        pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
        return {"values": sorted(value for value, count in pairs if count >= FEWEST)}
    if kind == "number":
        numbers = np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), float)
        numbers = numbers[np.isfinite(numbers)]
        knots = np.unique(np.quantile(numbers, np.linspace(0, 1, KNOTS))) if len(numbers) else np.zeros(1)
        return {"knots": knots.tolist()}
    vectors = _vectors(values.combine_chunks())
    vectors = vectors[np.isfinite(vectors).all(1)]
    mean = vectors.mean(0) if len(vectors) else np.zeros(vectors.shape[1])
    centred = vectors - mean
    scale, directions = np.linalg.eigh(centred.T @ centred / max(len(centred), 1))
    order = np.argsort(-scale)[: min(DIRECTIONS, len(scale))]
    order = order[scale[order] > 1e-8 * max(scale.max(initial=0), 1e-30)]
    white = directions[:, order] / np.sqrt(scale[order])
    return {"mean": mean.tolist(), "directions": white.T.tolist()}


def _rows(column: Mapping[str, Any]) -> int:
    return 2 + len(column["values"] if "values" in column else column["knots"])


def _sparse(values: pa.Array, column: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrays (item, feature row, weight) of the entries of one item column."""
    everyone = np.arange(len(values))
    if column["kind"] == "number":
        return _hats(np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), float), column["knots"])
    if column["kind"] == "category":
        return everyone, _codes(values, column["values"]), np.ones(len(values))
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), np.int64)
    item = np.repeat(everyone, lengths)
    codes = _codes(pc.list_flatten(values), column["values"])
    bare = everyone[lengths == 0]
    weight = np.concatenate([lengths[item] ** -POWER, np.ones(len(bare))])
    return np.concatenate([item, bare]), np.concatenate([codes, np.full(len(bare), MISSING)]), weight


def _codes(values: pa.Array, known: Sequence[str]) -> np.ndarray:
    texts = values.cast(pa.string())
    found = pc.index_in(texts, value_set=pa.array(known, pa.string()))
    codes = np.asarray(pc.fill_null(pc.add(found.cast(pa.int64()), 2), OTHER).to_numpy(zero_copy_only=False), np.int64)
    return np.where(np.asarray(texts.is_null().to_numpy(zero_copy_only=False), bool), MISSING, codes)


def _hats(numbers: np.ndarray, knots: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Item, row and weight of each number: shares of two quantiles, or the whole of an outermost one."""
    edges, missing = np.asarray(knots), ~np.isfinite(numbers)
    inside = np.clip(np.where(missing, edges[0], numbers), edges[0], edges[-1])
    if len(edges) == 1:
        return np.arange(len(numbers)), np.where(missing, MISSING, 2), np.ones(len(numbers))
    low = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, len(edges) - 2)
    share = (inside - edges[low]) / (edges[low + 1] - edges[low])
    item = np.repeat(np.arange(len(numbers)), 2)
    row = np.stack([np.where(missing, MISSING, 2 + low), np.where(missing, MISSING, 3 + low)], 1).ravel()
    return item, row, np.stack([1 - share, share], 1).ravel()


def _vectors(values: pa.Array) -> np.ndarray:
    """Vectors of a column [V, d]; a missing one is NaN."""
    width = max((len(each) for each in (values[:1000].to_pylist()) if each is not None), default=0)
    if not width:
        width = max((len(each) for each in values.to_pylist() if each is not None), default=1)
    filled = pc.if_else(values.is_null(), pa.scalar([float("nan")] * width, values.type), values)
    return np.asarray(pc.list_flatten(filled).cast(pa.float64()).to_numpy(zero_copy_only=False)).reshape(
        len(values), -1
    )


def _whitened(values: pa.Array, column: Mapping[str, Any]) -> np.ndarray:
    """Whitened vectors, scaled to the length of a category's entry; a missing one is the mean."""
    mean, directions = np.asarray(column["mean"]), np.asarray(column["directions"])
    if not len(directions):
        return np.zeros((len(values), 0), np.float32)
    vectors = _vectors(values)
    white = (np.where(np.isfinite(vectors).all(1)[:, None], vectors, mean) - mean) @ directions.T
    return np.asarray(white / np.sqrt(len(directions)), np.float32)
