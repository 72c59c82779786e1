"""Log of requests in memory: requests to a ranker, its scores of their candidates, shown lists, and answers.

N requests have M candidates in all, request by request: those of request n are rows start[n] to start[n + 1]. Every
array says which of the two it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from localpolicy.errors import DataError, shown

CELLS = 1 << 21  # cells of a block of requests as one padded table


class Column(NamedTuple):
    """A column of requests [N] or candidates [M]: numbers, or codes of names."""

    values: np.ndarray  # float64, NaN if unknown; or int32 codes, -1 if unknown
    names: tuple[str, ...] | None = None  # of codes

    def at(self, rows: np.ndarray) -> Column:
        """Return the column at these rows."""
        return self._replace(values=self.values[rows])


class Answers(NamedTuple):
    """Answers to shown items, one entry each."""

    row: np.ndarray  # of the candidate
    event: np.ndarray  # code
    events: tuple[str, ...]
    reward: np.ndarray


class Padded(NamedTuple):
    """Requests as padded tables [B, C]: rows are indices of candidates, `real` masks the cells that hold one."""

    requests: np.ndarray  # [B]
    rows: np.ndarray  # [B, C], 0 beyond a request's end
    real: np.ndarray  # [B, C]

    def of(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """Arrange values of candidates [M] as a table [B, C]."""
        return np.asarray(np.where(self.real, values[self.rows], fill))


@dataclass(frozen=True)
class RequestLog:
    """Requests with their candidates, shown lists and answers."""

    ids: np.ndarray  # [N] texts
    start: np.ndarray  # [N + 1]
    item: np.ndarray  # [M] codes of `items`
    items: np.ndarray  # [V] texts
    place: np.ndarray  # [M] from 1; 0 for candidates that were not shown
    answers: Answers
    score: np.ndarray | None = None  # [M]
    probability: np.ndarray | None = None  # [M] at the first drawn place
    person: np.ndarray | None = None  # [N] codes
    time: np.ndarray | None = None  # [N] seconds
    policy: Column | None = None  # [N]
    temperature: np.ndarray | None = None  # [N]
    standardise: bool | None = None  # whether scores were divided by their standard deviation before the temperature
    pinned: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [N] places from the top
    weight: np.ndarray = field(default_factory=lambda: np.zeros(0))  # [N] requests that each stands for
    context: Mapping[str, Column] = field(default_factory=dict)  # [N] each
    columns: Mapping[str, Column] = field(default_factory=dict)  # [M] each
    label: str = "the log"

    def __post_init__(self) -> None:
        if len(self.pinned) != len(self):
            object.__setattr__(self, "pinned", np.zeros(len(self), np.int64))
        if len(self.weight) != len(self):
            object.__setattr__(self, "weight", np.ones(len(self)))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def request(self) -> np.ndarray:
        """Index of the request of every candidate [M]."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @cached_property
    def length(self) -> np.ndarray:
        """Number of places of each list [N]."""
        return np.bincount(self.request, weights=self.place > 0, minlength=len(self)).astype(np.int64)

    @cached_property
    def shown(self) -> np.ndarray:
        """Rows of the shown candidates, list by list and place by place."""
        rows = np.flatnonzero(self.place)
        return rows[np.lexsort((self.place[rows], self.request[rows]))]

    @cached_property
    def clusters(self) -> np.ndarray:
        """Cluster of each request [N]: the person if persons are logged, else the request itself."""
        return np.arange(len(self)) if self.person is None else self.person

    def reward(self) -> np.ndarray:
        """Sum the rewards of each candidate [M]."""
        return np.bincount(self.answers.row, weights=self.answers.reward, minlength=len(self.item))

    def padded(self, requests: np.ndarray | None = None) -> Iterator[Padded]:
        """Yield requests in blocks of bounded size, sorted by their number of candidates."""
        requests = np.arange(len(self)) if requests is None else requests
        size = np.diff(self.start)[requests]
        order = np.argsort(size, kind="stable")
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * size[order[end]] <= CELLS:
                end += 1
            block = requests[order[begin:end]]
            column = np.arange(size[order[end - 1]])
            real = column < size[order[begin:end], None]
            yield Padded(block, np.where(real, self.start[block, None] + column, 0), real)
            begin = end

    def taken(self, requests: np.ndarray) -> RequestLog:
        """Return the log of these requests alone, in this order."""
        counts = np.diff(self.start)[requests]
        start = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(self.start[requests] - start[:-1], counts) + np.arange(start[-1])
        new_row = np.full(len(self.item), -1)
        new_row[rows] = np.arange(len(rows))
        kept = new_row[self.answers.row] >= 0
        answers = self.answers._replace(
            row=new_row[self.answers.row[kept]], event=self.answers.event[kept], reward=self.answers.reward[kept]
        )

        def some(values: Any, which: np.ndarray) -> Any:
            return None if values is None else values.at(which) if isinstance(values, Column) else values[which]

        return replace(
            self, start=start, answers=answers,
            **{name: some(getattr(self, name), requests)
               for name in ("ids", "person", "time", "policy", "temperature", "pinned", "weight")},
            **{name: some(getattr(self, name), rows) for name in ("item", "place", "score", "probability")},
            context={name: column.at(requests) for name, column in self.context.items()},
            columns={name: column.at(rows) for name, column in self.columns.items()},
        )  # fmt: skip


def checked(log: RequestLog) -> RequestLog:
    """Return the log; raise DataError, which names the first invalid request, unless all are valid."""
    if not len(log):
        raise DataError(f"{log.label} holds no requests.")
    size = np.diff(log.start)

    def refuse(requests: np.ndarray, what: str, remedy: str) -> None:
        if len(requests):
            first = int(requests.min())
            more = len(np.unique(log.ids[requests])) - 1
            also = f" (and {more:,} more)" if more else ""
            raise DataError(f"request {shown(str(log.ids[first]))}{also} {what}. {remedy}")

    unique, counts = np.unique(log.ids, return_counts=True)
    twice = np.isin(log.ids, unique[counts > 1])
    refuse(np.flatnonzero(twice), "is logged twice", "A request has one row; give each its own id.")
    refuse(np.flatnonzero(size == 0), "has no candidates", "Leave it out, or log what could have been shown.")
    pairs = log.request * len(log.items) + log.item
    order = np.argsort(pairs, kind="stable")
    double = order[1:][np.diff(pairs[order]) == 0]
    refuse(log.request[double], "names a candidate twice", "Keep one of them, with its score.")
    for name, values in (("score", log.score), ("probability", log.probability)):
        if values is not None:
            bad = np.flatnonzero(~np.isfinite(values))
            refuse(log.request[bad], f"has a {name} that is missing or not finite",
                   "Leave such candidates out of the request, as they were left out of the draw.")  # fmt: skip
    if log.score is not None:
        begin = log.start[:-1]
        flat = np.maximum.reduceat(log.score, begin) == np.minimum.reduceat(log.score, begin)
        refuse(np.flatnonzero(flat & (size > 1)), "has scores that are all equal",
               "They are not informative: leave such requests out.")  # fmt: skip
    if log.probability is not None:
        bad = np.flatnonzero((log.probability < 0) | (log.probability > 1))
        refuse(log.request[bad], "has a probability outside 0 to 1", "Log that of the first place for every candidate.")
        total = np.bincount(log.request, weights=log.probability, minlength=len(log))
        refuse(np.flatnonzero(np.abs(total - 1) > 1e-3), "has probabilities that do not sum to 1",
               "All candidates need one, not shown ones alone; log scores where you have none.")  # fmt: skip
        impossible = np.flatnonzero((log.place > log.pinned[log.request]) & (log.probability == 0))
        refuse(log.request[impossible], "shows an item that had probability 0",
               "Log the probabilities that it was drawn with, or the places that were pinned as 'pinned'.")  # fmt: skip
    refuse(np.flatnonzero(log.length == 0), "shows nothing", "Leave it out: nobody saw a list.")
    last = np.zeros(len(log), np.int64)
    np.maximum.at(last, log.request, log.place)
    refuse(np.flatnonzero(last != log.length), "has places that are not 1, 2, 3 …",
           "Count places from 1, and give no two items one place; others are left empty.")  # fmt: skip
    pinned = "'pinned' counts the places from the top that were not drawn."
    refuse(np.flatnonzero(log.pinned < 0), "has fewer than 0 pinned places", pinned)
    refuse(np.flatnonzero(log.pinned > log.length), "has more pinned places than places", pinned)
    if log.temperature is not None:
        refuse(
            np.flatnonzero(~(log.temperature >= 0)),
            "has a temperature that is missing or below 0",
            "State what scores were divided by; 0 where nothing was drawn.",
        )
    refuse(np.flatnonzero(~(log.weight > 0)), "has a weight that is not above 0", "It is 1 / the share that was kept.")
    hidden = np.flatnonzero(log.place[log.answers.row] == 0)
    refuse(log.request[log.answers.row[hidden]], "has an answer to an item that was not shown",
           "Answers to other lists belong to their own requests.")  # fmt: skip
    refuse(log.request[log.answers.row[~np.isfinite(log.answers.reward)]], "has a reward that is not a finite number",
           "Write 0 where nothing came back, or leave the answer out.")  # fmt: skip
    return log


def coded(texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the code of each text, and the distinct texts by code."""
    names, codes = np.unique(np.asarray(texts, dtype=str), return_inverse=True)
    return codes.reshape(-1), names
