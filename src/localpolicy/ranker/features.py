"""Features of a candidate for a critic: the ranker's score, columns of request and item, as codes and numbers.

Every column becomes codes, 0 where nothing is known: names as they are, numbers by quantiles. Numbers are
kept too, standardised. A log and a single request are encoded by one rule: the layer sees what the critic was trained
on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from localpolicy.errors import DataError, shown
from localpolicy.ranker.log import Column, RequestLog

BINS = 10  # quantiles of a number
LEAST = 5  # a name on fewer shown rows has no code
MOST_NAMES = 50_000  # codes of a column
SCORE = "score"  # the ranker's score, standardised within its request
ITEM = "item"  # the item's id


@dataclass(frozen=True)
class Coding:
    """Encoding of one column: codes of its names or quantiles, and the scale of its numbers."""

    name: str
    of_request: bool
    names: tuple[str, ...] | None = None  # a code each, from 1
    edges: tuple[float, ...] = ()  # of quantiles
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Coding:
        """Build the encoding from its JSON content."""
        names = content["names"]
        return cls(**{**content, "names": None if names is None else tuple(names), "edges": tuple(content["edges"])})

    @property
    def codes(self) -> int:
        """Number of codes, 0 (unknown) included."""
        return 1 + (len(self.edges) + 1 if self.names is None else len(self.names))


class Seen(NamedTuple):
    """Features of R candidates for a critic."""

    codes: np.ndarray  # [R, F]
    numbers: np.ndarray  # [R, G] standardised, 0 where nothing is known
    place: np.ndarray  # [R] from 0


class Encoder:
    """Encoder of columns as codes and numbers."""

    def __init__(self, codings: Sequence[Coding]) -> None:
        self.codings = tuple(codings)
        self.known = [{name: code for code, name in enumerate(one.names or (), 1)} for one in self.codings]
        self.numeric = [number for number, one in enumerate(self.codings) if one.names is None]

    @classmethod
    def learnt(cls, log: RequestLog, rows: np.ndarray, score: np.ndarray) -> Encoder:
        """Fit the encoder to the shown rows of a log; `score` [M] is standardised."""
        codings = [_numbers(SCORE, score[rows], of_request=False)]
        request = log.request[rows]
        for name, column in log.context.items():
            codings.append(_coding(name, column.at(request), of_request=True))
        for name, column in log.columns.items():
            codings.append(_coding(name, column.at(rows), of_request=False))
        codings.append(_names(ITEM, log.item[rows], log.items, of_request=False))
        return cls([one for one in codings if one.codes > 2 or one.names is None])

    def of_log(self, log: RequestLog, rows: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode these candidates of a log as codes and numbers."""
        given: dict[str, Any] = {SCORE: Column(score[rows]), ITEM: Column(log.item[rows], tuple(log.items))}
        request = log.request[rows]
        given |= {name: column.at(request) for name, column in log.context.items()}
        given |= {name: column.at(rows) for name, column in log.columns.items()}
        return self._encoded(given, len(rows))

    def of_request(self, candidates: Mapping[str, Any], context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Encode one request's candidates, given as columns with `score` standardised, as codes and numbers."""
        size = len(candidates[SCORE])
        codes = np.zeros((size, len(self.codings)), np.int32)
        numbers = np.zeros((size, len(self.numeric)))
        place = {column: number for number, column in enumerate(self.numeric)}
        for number, one in enumerate(self.codings):
            if one.of_request:
                if one.names is not None:
                    codes[:, number] = self.known[number].get(str(context.get(one.name)), 0)
                    continue
                values = np.full(1, _number(context.get(one.name)))
            elif one.names is not None:
                known = self.known[number]
                if one.name in candidates:
                    codes[:, number] = [known.get(name, 0) for name in _texts(candidates[one.name])]
                continue
            else:
                values = _floats(candidates[one.name]) if one.name in candidates else np.full(1, np.nan)
            codes[:, number], numbers[:, place[number]] = _placed(one, values)
        return codes, numbers

    def _encoded(self, given: Mapping[str, Column], size: int) -> tuple[np.ndarray, np.ndarray]:
        codes, numbers = np.zeros((size, len(self.codings)), np.int32), np.zeros((size, len(self.numeric)))
        place = {column: number for number, column in enumerate(self.numeric)}
        for number, one in enumerate(self.codings):
            column = given.get(one.name)
            if column is None:
                continue
            if one.names is not None and column.names is not None:
                own = np.array([0, *(self.known[number].get(name, 0) for name in column.names)], np.int32)
                codes[:, number] = own[column.values + 1]
            elif one.names is None and column.names is None:
                codes[:, number], numbers[:, place[number]] = _placed(one, column.values)
        return codes, numbers


def _texts(values: Any) -> Any:
    """Return names as texts."""
    return values if set(map(type, values)) == {str} else map(str, values)


def _coding(name: str, column: Column, *, of_request: bool) -> Coding:
    if column.names is None:
        return _numbers(name, column.values, of_request=of_request)
    return _names(name, column.values, column.names, of_request=of_request)


def _names(name: str, codes: np.ndarray, names: Any, *, of_request: bool) -> Coding:
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    often = np.argsort(-counts, kind="stable")[:MOST_NAMES]
    kept = [str(names[code]) for code in often if counts[code] >= LEAST]
    return Coding(name=name, of_request=of_request, names=tuple(kept))


def _numbers(name: str, values: np.ndarray, *, of_request: bool) -> Coding:
    known = values[np.isfinite(values)]
    if not len(known):
        return Coding(name=name, of_request=of_request)
    edges = np.unique(np.quantile(known, np.arange(1, BINS) / BINS))
    return Coding(name=name, of_request=of_request, edges=tuple(edges.tolist()), mean=float(known.mean()),
                  scale=float(known.std()) or 1.0)  # fmt: skip


def _placed(one: Coding, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes by quantile, and standardised numbers, clipped at 5 standard deviations."""
    known = np.isfinite(values)
    plain = np.where(known, values, one.mean)
    codes = np.where(known, 1 + np.searchsorted(one.edges, plain), 0)
    return codes, np.clip((plain - one.mean) / one.scale, -5, 5)


def _number(value: Any) -> float:
    try:
        return float("nan" if value is None else value)
    except (TypeError, ValueError):
        return float("nan")


def _floats(values: Any) -> np.ndarray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        return np.array([_number(value) for value in values])


def _whole(item: float) -> Any:
    """Return 3 for 3.0, as JSON has one kind of number."""
    return int(item) if item.is_integer() and abs(item) < 1 << 53 else item


def _ids(items: Any) -> list[Any]:
    """Return items' ids as whole numbers and texts; raise DataError for anything else."""
    if set(map(type, items)) <= {str, int}:
        return list(items)
    ids = [_whole(item) if isinstance(item, float) else item for item in items]
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, str | int | np.integer):
            raise DataError(f"an item's id is a whole number or a text, got {shown(item)}.")
    return ids


class Columns(dict[str, Any]):
    """Columns of candidates, checked by `as_columns`."""


def as_columns(candidates: Any) -> Columns:
    """Return candidates as columns of one length; raise DataError naming what is wrong."""
    if isinstance(candidates, Columns):
        return candidates
    columns = Columns()
    if isinstance(candidates, Mapping):
        columns.update((str(name), values) for name, values in candidates.items())
    else:
        rows = list(candidates)
        names = dict.fromkeys(name for row in rows for name in row)
        columns.update((name, [row.get(name) for row in rows]) for name in names)
    if "item" not in columns or not len(columns["item"]):
        raise DataError("candidates must name their 'item', and there must be one at least.")
    if not {"score", "probability"} & set(columns):
        raise DataError("candidates need a 'score' or a 'probability' each.")
    size = len(columns["item"])
    for name, values in columns.items():
        if len(values) != size:
            raise DataError(f"{size} candidates have {len(values)} of '{name}': expected one each.")
    columns["item"] = _ids(columns["item"])
    if len(set(_texts(columns["item"]))) < size:
        seen: set[str] = set()
        twice = next(item for item in map(str, columns["item"]) if item in seen or seen.add(item))  # type: ignore[func-returns-value]
        raise DataError(f"candidate {shown(twice)} is named twice.")
    for name in {"score", "probability"} & set(columns):
        try:
            columns[name] = np.array(columns[name], np.float64)
        except (TypeError, ValueError):
            raise DataError(f"every candidate needs a '{name}' that is a number.") from None
        if not np.isfinite(columns[name]).all():
            where = int(np.flatnonzero(~np.isfinite(columns[name]))[0])
            raise DataError(f"the {name} of {shown(columns['item'][where])} is not a finite number. Leave it out.")
    return columns
