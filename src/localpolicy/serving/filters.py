"""Item filters of a request: applied before the draw, so that propensities stay exact under any filter.

A filter is logged by its digest, and its content once per digest, so that an audit can apply it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Id = int | str
dumps: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
RERANK = "rerank"  # key, in a filter's content, of what determined a list of `/v1/rerank`


@dataclass(frozen=True)
class Filter:
    """Excluded items, the only candidates, and whether items of the history, or its last ones, are excluded."""

    exclude: tuple[Id, ...] = ()
    candidates: tuple[Id, ...] | None = None
    seen: bool = False  # also exclude the items of the history
    last: int = 0  # or only its last items, by number: the one viewed now, in a log whose users come back to items

    def content(self) -> dict[str, Any]:
        """Return the content as logged; equal filters give equal content."""
        whole = {"exclude": _sorted(self.exclude), "seen": self.seen}
        whole |= {} if self.candidates is None else {"candidates": _sorted(self.candidates)}
        return whole | ({"last": self.last} if self.last else {})

    def resolved(self, history: Sequence[Id]) -> Filter:
        """Return the shortest equivalent filter for one history: either excluded items, or candidates."""
        gone = set(self._gone(history))
        if self.candidates is None:
            return Filter(tuple(gone))
        return Filter(candidates=tuple(item for item in self.candidates if item not in gone))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Filter:
        """Build the filter from its logged content."""
        candidates = content.get("candidates")
        candidates = None if candidates is None else tuple(candidates)
        return cls(tuple(content["exclude"]), candidates, content["seen"], content.get("last", 0))

    @cached_property
    def text(self) -> str:
        """Content of the filter as JSON."""
        return dumps(self.content())

    @cached_property
    def digest(self) -> str:
        """Digest of the content, 16 hex digits; empty if nothing is filtered. Of 20,000 ids it takes 10 ms."""
        return "" if self == Filter() else hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def forbidden(self, history: Sequence[Hashable], index: Mapping[Hashable, int]) -> np.ndarray:
        """Return the sorted indices of excluded items; items that the catalogue lacks cannot be shown anyway."""
        gone = self._gone(history)
        return np.unique(np.array([index[item] for item in gone if item in index], np.int64))

    def _gone(self, history: Sequence[Hashable]) -> list[Any]:
        """Return the ids of the items excluded after a history."""
        return [*self.exclude, *(history if self.seen else history[max(len(history) - self.last, 0) :])]

    def allowed(self, history: Sequence[Hashable], index: Mapping[Hashable, int]) -> np.ndarray | None:
        """Return the sorted indices of the only items that may be shown; None without candidates: then all may."""
        if self.candidates is None:
            return None
        mine = np.unique(np.array([index[item] for item in self.candidates if item in index], np.int64))
        return np.setdiff1d(mine, self.forbidden(history, index), assume_unique=True)


def _sorted(ids: Sequence[Id]) -> list[Id]:
    """Return the unique ids, sorted, numbers before texts."""
    return sorted(set(ids), key=lambda item: (isinstance(item, str), item))
