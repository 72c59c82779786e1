"""`Recommender`: an exported policy that answers without torch, through onnxruntime and numpy.

An export is a folder:

    export.json    what it is: version, events, longest history, graphs, digests, lists it must give (see `exports`)
    items.json     item ids by index
    names.json     what they are called, where the item table says so
    policy.onnx    (items [B, T], events [B, T], lengths [B]) -> logits [B, V]: the trained policy
    dial.onnx      the same with `beta` [1]: μ̂ exp(Q/β), where the run has μ̂ and a critic; β = ∞ gives μ̂ itself
    counts.json    how often each item was chosen in the log: what the fallback list is drawn from
    baseline.npz   in the place of the graphs, where a simple baseline was exported (see `baseline_scorer`)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from localpolicy.errors import ConfigError, DataError, LocalPolicyError, nearest
from localpolicy.limits import NO_ANSWER, SMOOTHING
from localpolicy.serving.baseline_scorer import BaselineScorer
from localpolicy.serving.exports import (
    ARRAYS,
    ExportError,
    Sample,
    read_counts,
    read_export,
    read_items,
    read_names,
    readable,
    unreadable,
)
from localpolicy.serving.filters import Filter
from localpolicy.serving.sampling import Drawn, check_length, plackett_luce, top
from localpolicy.serving.session import GraphSession

START = -1  # token before the first item of a history that is not truncated
SMALLEST_BETA = 1e-6  # Q/β must stay a finite number
TIE = 1e-4  # nats within which two items are equally good
MOST_SCORES = 1 << 24  # scores in memory at once: more histories are computed in turns

Histories = Sequence[Sequence[Hashable]]
Events = Sequence[Sequence[str]]


class ExportedLists(NamedTuple):
    """Lists for B histories."""

    items: list[list[Any]]  # item ids, best or first drawn first
    propensity: np.ndarray  # [B, K] of each place given those above; 1 where the list is the top k
    indices: np.ndarray  # [B, K] the same items as indices


class Recommender:
    """A policy loaded from an export folder. `threads` is onnxruntime's."""

    def __init__(self, folder: Path | str, *, threads: int = 1, verify: bool = True) -> None:
        self.folder = Path(folder)
        with readable(self.folder):
            self._open(threads, verify)

    def _open(self, threads: int, verify: bool) -> None:
        self.description = about = read_export(self.folder, verify=verify)
        self.version: str = about.version
        self.events: list[str] = about.events
        self.length: int = about.length
        self.ids: list[Any] = read_items(self.folder, about)
        self.names: list[str] | None = read_names(self.folder, about, len(self.ids))
        self.index = {item: number for number, item in enumerate(self.ids)}
        self._codes = {name: code for code, name in enumerate(self.events)}
        self._fallback = np.log(read_counts(self.folder, len(self.ids)) + SMOOTHING).astype(np.float32)
        self._sessions = {
            name: GraphSession(self.folder / f"{name}.onnx", threads, int8=self.int8) for name in about.graphs
        }
        self._simple = None if about.baseline is None else BaselineScorer.load(self.folder / ARRAYS, about.baseline)
        for beta in (None, 1.0) if verify and self.has_dial else (None,) if verify else ():
            if (scores := self.logits([[]], beta=beta).shape) != (1, self.n_items):
                raise ExportError(f"{self.folder} gives {scores} scores for {self.n_items:,} items. Export again.")

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue, V."""
        return len(self.ids)

    @property
    def default_event(self) -> str:
        """Event assumed for an item of a history that comes without one."""
        return self.description.default_event or self.events[0]

    @property
    def int8(self) -> bool:
        """Whether the graph has rounded rows (see `graph`): a policy of its own, close to the run's."""
        return self.description.int8

    @property
    def has_dial(self) -> bool:
        """Whether the export has a dial, so that `beta` may be given."""
        return "dial" in self._sessions

    def called(self, items: Sequence[Any]) -> list[str]:
        """Return the names of these items; the id of an item without a name."""
        return [str(item) if self.names is None else self.names[self.index[item]] for item in items]

    # ------------------------------------------------------------------ scores

    def logits(self, histories: Histories, events: Events | None = None, *, beta: float | None = None) -> np.ndarray:
        """Unnormalised log π(·|x) of each history [B, V]; a β means the dial, and β = ∞ the logging policy μ̂."""
        feed = self._feed(histories, events)
        if beta is not None:
            self.check_beta(beta)
            with np.errstate(over="ignore"):  # above 3e38 it is ∞
                feed["beta"] = np.array([beta]).astype(np.float32)
        try:
            if self._simple is not None:
                return self._simple.logits(feed["items"], feed["events"], feed["lengths"])
            return self._sessions["policy" if beta is None else "dial"].run(feed)
        except LocalPolicyError:
            raise
        except Exception as error:  # the library's error about damaged files
            raise unreadable(self.folder, error) from None

    def check_events(self, events: Sequence[str]) -> None:
        """Raise DataError unless the policy knows all these events; 'no answer' is always allowed."""
        unknown = next((name for name in events if name not in self._codes and name != NO_ANSWER), None)
        if unknown is not None:
            raise DataError(f"no event '{unknown}'{nearest(str(unknown), self._codes)}")

    def check_beta(self, beta: float) -> None:
        """Raise ConfigError unless this policy has a dial and β is in its range."""
        if not beta >= SMALLEST_BETA:  # NaN included
            raise ConfigError(f"beta must be at least {SMALLEST_BETA:g}, got {beta}.")
        if not self.has_dial:
            raise ConfigError(
                f"a {self.description.objective} policy has no dial: it lacks a critic or an estimate of the "
                "logging policy. Leave beta out to use the trained policy."
            )

    def fallback(self, rows: int = 1) -> np.ndarray:
        """log(count + ½) of each item [B, V], for requests that the policy cannot answer."""
        return np.broadcast_to(self._fallback, (rows, self.n_items))

    def _feed(self, histories: Histories, events: Events | None) -> dict[str, np.ndarray]:
        """Return the graph's inputs: START and the latest `length` known items of each history, padded at the end."""
        rows = [self._encode(number, history, None if events is None else events[number])
                for number, history in enumerate(histories)]  # fmt: skip
        lengths = np.array([len(row) for row in rows], np.int64)
        items = np.zeros((len(rows), int(lengths.max(initial=1))), np.int64)
        codes = np.zeros_like(items)
        for number, row in enumerate(rows):
            items[number, : len(row)], codes[number, : len(row)] = np.array(row, np.int64).T
        return {"items": items, "events": codes, "lengths": lengths}

    def _encode(self, number: int, history: Sequence[Hashable], events: Sequence[str] | None) -> list[tuple[int, int]]:
        """Return (index, event code) of one history's tokens; unknown items and events are left out."""
        if events is None:
            events = [self.default_event] * len(history)
        if len(events) != len(history):
            raise DataError(f"history {number} has {len(history)} items and {len(events)} events.")
        self.check_events(events)
        known = [
            (self.index[item], self._codes[name])
            for item, name in zip(history, events, strict=True)
            if item in self.index and name in self._codes
        ]
        return [(START, 0), *known][-self.length :]

    # ------------------------------------------------------------------ lists

    def recommend(
        self,
        histories: Histories,
        k: int,
        *,
        events: Events | None = None,
        beta: float | None = None,
        sample: bool = True,
        floor: float = 0.0,
        filters: Sequence[Filter] | None = None,
        seed: int | None = None,
    ) -> ExportedLists:
        """Make a list of k items for each history: drawn with exact propensities, or with sample=False the k best."""
        filters = [Filter()] * len(histories) if filters is None else filters
        rng = np.random.default_rng(seed)
        parts = []
        step = max(1, MOST_SCORES // self.n_items)
        for start in range(0, len(histories), step):
            part = slice(start, start + step)
            logits = self.logits(histories[part], None if events is None else events[part], beta=beta)
            parts.append(self.draw(logits, k, histories[part], filters[part], rng=rng if sample else None, floor=floor))
        indices = np.concatenate([part.indices for part in parts]) if parts else np.empty((0, k), np.int64)
        propensity = np.concatenate([part.propensity for part in parts]) if parts else np.empty((0, k))
        return ExportedLists([[self.ids[index] for index in row] for row in indices], propensity, indices)

    def log_probabilities(
        self, histories: Histories, indices: np.ndarray, *, events: Events | None = None, beta: float | None = None
    ) -> np.ndarray:
        """log π(a|x) of these items [B, K], over the whole catalogue."""
        log_probability = np.empty(indices.shape)
        step = max(1, MOST_SCORES // self.n_items)
        for start in range(0, len(histories), step):
            part = slice(start, start + step)
            logits = self.logits(histories[part], None if events is None else events[part], beta=beta)
            logits = logits.astype(np.float64)
            largest = logits.max(1, keepdims=True)
            total = largest + np.log(np.exp(logits - largest).sum(1, keepdims=True))
            log_probability[part] = np.take_along_axis(logits, indices[part], axis=1) - total
        return log_probability

    def draw(
        self,
        logits: np.ndarray,
        k: int,
        histories: Histories,
        filters: Sequence[Filter],
        *,
        rng: np.random.Generator | None,
        floor: float = 0.0,
    ) -> Drawn:
        """Draw lists from scores under each history's filter; without a generator take the k best."""
        if any(item_filter.candidates is not None for item_filter in filters):
            rows = [
                self._draw_from(scores, k, history, item_filter, rng, floor)
                for scores, history, item_filter in zip(logits, histories, filters, strict=True)
            ]
            return Drawn(
                np.concatenate([row.indices for row in rows]), np.concatenate([row.propensity for row in rows])
            )
        forbidden = None
        if any(item_filter != Filter() for item_filter in filters):
            forbidden = [
                item_filter.forbidden(history, self.index)
                for item_filter, history in zip(filters, histories, strict=True)
            ]
        if rng is None:
            return top(logits, k, forbidden=forbidden)
        return plackett_luce(logits, k, rng=rng, floor=floor, forbidden=forbidden)

    def _draw_from(
        self,
        logits: np.ndarray,
        k: int,
        history: Sequence[Hashable],
        item_filter: Filter,
        rng: np.random.Generator | None,
        floor: float,
    ) -> Drawn:
        """Draw one list from the filter's candidates, reading only their scores."""
        allowed = item_filter.allowed(history, self.index)
        if allowed is None:
            return self.draw(logits[None], k, [history], [item_filter], rng=rng, floor=floor)
        check_length(k, len(allowed))
        own = logits[None, allowed]
        drawn = top(own, k) if rng is None else plackett_luce(own, k, rng=rng, floor=floor)
        return Drawn(allowed[drawn.indices], drawn.propensity)

    # ------------------------------------------------------------------ comparison with the export

    def check(self) -> None:
        """Raise ExportError unless the policy gives the lists stored at its export."""
        for sample in self.description.samples:
            lists = self.recommend([sample.history], len(sample.top), events=[sample.events], sample=False)
            if lists.items[0] != sample.top and not self._as_good(sample, lists.indices[0]):
                raise ExportError(
                    f"{self.folder} does not give the lists it gave at export: {lists.items[0]}, expected "
                    f"{sample.top}. Export the run again on this kind of machine."
                )

    def _as_good(self, sample: Sample, indices: np.ndarray) -> bool:
        """Whether the list differs from the stored one only by equally good items, which rounding swaps."""
        scores = self.logits([sample.history], [sample.events])[0]
        expected = scores[[self.index[item] for item in sample.top]]
        return bool(np.abs(expected - scores[indices]).max(initial=0.0) <= TIE)
