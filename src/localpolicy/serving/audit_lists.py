"""Logged lists recomputed from the policy they name: counts of those that fit, and the likely fault of the others."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from localpolicy.errors import DataError
from localpolicy.ranker.features import as_columns
from localpolicy.ranker.layer import Layer
from localpolicy.ranker.rules import Rules, openings, propensities_under, transforms_under
from localpolicy.serving.database import Database
from localpolicy.serving.filters import RERANK, Filter
from localpolicy.serving.recommender import MOST_SCORES, Recommender
from localpolicy.serving.rotate import RAW, REQUESTS
from localpolicy.serving.sampling import conditional_propensities, top, transforms

TOLERANCE = 1e-3  # of a propensity, relative: batches of other sizes round differently
BLOCK = 4096  # lists at once
COLUMNS = [name.split(".")[-1] for name in RAW]


BINS = 1 << 15  # of transforms: an exact test of n values looks at steps of 1/n, this one at steps of 1/BINS


@dataclass
class Evidence:
    """Evidence of the audit over all lists: counts, and 8 bytes for each list's id."""

    expected: int = 0  # lists that the log says it has: contexts of the first half are compared with the others
    lists: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    ids: array[int] = field(default_factory=lambda: array("q"))  # digests of the ids
    unknown_policies: Counter[str] = field(default_factory=Counter)  # policies that the caller did not name
    checked: int = 0
    wrong: Counter[str] = field(default_factory=Counter)  # by the fault that explains it
    example: dict[str, str] = field(default_factory=dict)
    uniform: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # by order and place: counts by bin
    best_taken: Counter[int] = field(default_factory=Counter)  # by place: lists that took the best that was left
    lengths: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))  # by half
    last: tuple[Counter[Any], Counter[Any]] = field(default_factory=lambda: (Counter(), Counter()))

    def add(self, uniform: np.ndarray, best: np.ndarray) -> None:
        """Count the transforms of lists (`sampling.transforms`) by order, place and bin."""
        for place in range(best.shape[1]):
            self.best_taken[place] += int(best[:, place].sum())
            for order, values in enumerate(uniform):
                bins = np.minimum((values[:, place] * BINS).astype(np.int64), BINS - 1)
                counts = self.uniform.setdefault((order, place), np.zeros(BINS, np.int64))
                counts += np.bincount(bins, minlength=BINS)

    def see(self, row: Mapping[str, Any], history: Sequence[Any]) -> None:
        """Count a list's id, mode, and context."""
        half = int(2 * self.lists >= self.expected)
        self.lists += 1
        self.modes[row["mode"]] += 1
        self.ids.append(int.from_bytes(hashlib.blake2b(row["id"].encode(), digest_size=8).digest(), signed=True))
        self.lengths[half][len(history)] += 1
        self.last[half][history[-1][0] if history else None] += 1

    @property
    def doubled(self) -> int:
        """Number of ids that occur more than once."""
        _, counts = np.unique(np.frombuffer(self.ids, np.int64), return_counts=True)
        return int((counts > 1).sum())


def count_lists(log: Path | str) -> int:
    """Number of lists in a database, or in rotated files."""
    if Path(log).is_dir():
        return sum(pq.read_metadata(file).num_rows for file in (Path(log) / REQUESTS).glob("*.parquet"))
    database = Database(log)
    try:
        return int(database.rows("SELECT COUNT(*) FROM requests")[0][0])
    finally:
        database.close()


def logged_requests(log: Path | str) -> Iterator[dict[str, Any]]:
    """Yield logged lists from a database or from rotated files."""
    path = Path(log)
    if path.is_dir():
        files = sorted((path / REQUESTS).glob("*.parquet"))
        if not files:
            raise DataError(f"{path} holds no rotated lists (no {REQUESTS}/*.parquet).")
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(BLOCK):
                yield from batch.to_pylist()
        return
    if not path.exists() and "://" not in str(log):
        raise DataError(f"{log} does not exist; expected a log, or the folder it was rotated to.")
    database = Database(log)
    try:
        chosen = ", ".join(RAW)
        query = f"SELECT {chosen} FROM requests r LEFT JOIN filters f ON f.digest = r.filter ORDER BY time, id"
        for row in database.stream(query):
            yield dict(zip(COLUMNS, row, strict=True))
    finally:
        database.close()


@dataclass(frozen=True)
class LoggedList:
    """One logged list, parsed."""

    id: str
    history: list[Any]
    events: list[str]  # of the history
    items: tuple[Any, ...]  # the list
    propensities: list[float]
    item_filter: Filter


def gather(
    evidence: Evidence,
    block: list[dict[str, Any]],
    policies: Mapping[str, Recommender],
    layers: Sequence[Layer],
    rng: Any,
) -> None:
    """Check a block of logged requests, and keep what the tests need of it."""
    groups: defaultdict[tuple[Any, ...], list[LoggedList]] = defaultdict(list)
    for row in block:
        content = None if row["content"] is None else json.loads(row["content"])
        history = json.loads(row["history"])
        evidence.see(row, history)
        if content is not None and RERANK in content:
            check_reranked(evidence, row, content[RERANK], layers, rng)
            continue
        item_filter = Filter() if content is None else Filter.of(content)
        logged_list = LoggedList(
            row["id"], [item for item, _ in history], [event for _, event in history],
            tuple(json.loads(row["items"])), json.loads(row["propensities"]), item_filter,
        )  # fmt: skip
        if row["mode"] != "fallback" and row["policy"] not in policies:
            evidence.unknown_policies[row["policy"]] += 1
            continue
        groups[row["policy"], row["beta"], row["mode"], row["floor"], len(logged_list.items)].append(logged_list)
    for (version, beta, mode, floor, _), lists in groups.items():
        if mode != "fallback":
            _check(evidence, lists, policies, version, beta, mode, floor, rng)


def check_reranked(
    evidence: Evidence, row: Mapping[str, Any], about: Mapping[str, Any], layers: Sequence[Layer], rng: Any
) -> None:
    """Check a list of `/v1/rerank`: its propensities by its logged probabilities, and these by the layer it names."""
    items, k = [str(item) for item in about["items"]], len(json.loads(row["items"]))
    position = {item: number for number, item in enumerate(items)}
    listed = [*about["above"], *json.loads(row["items"])]
    logged_list = LoggedList(row["id"], [], [], tuple(listed), json.loads(row["propensities"]), Filter())
    evidence.checked += 1
    layer = next((one for one in layers if one.version == row["policy"]), None)
    if layer is None:
        evidence.unknown_policies[row["policy"]] += 1
    if not {str(item) for item in listed} <= position.keys():
        _wrong(evidence, logged_list, "a list holds items that are none of its candidates")
        return
    order = np.array([position[str(item)] for item in listed])
    columns = as_columns({**about["columns"], "item": about["items"], "score": about["scores"]})
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(about["probabilities"]))
    rules = Rules.parse(about["rules"])
    if layer is not None and layer.law["kind"] != "probabilities":
        again = layer.logits(columns, about["context"], rules.weights)
        again = np.exp(again - again.max())
        if not np.allclose(again / again.sum(), np.exp(logits), rtol=TOLERANCE, atol=1e-9):
            _wrong(evidence, logged_list, f"probabilities are not those of layer {row['policy']}")
            return
    if row["mode"] == "top":
        if not np.array_equal(columns["score"][order], np.sort(columns["score"])[::-1][: len(order)]):
            _wrong(evidence, logged_list, "a list logged as the best k holds others")
        return
    opened = openings(logits, len(order), rules, items, columns, [str(item) for item in about["resting"]])
    fits = propensities_under(opened, order)[len(order) - k :]
    if not np.allclose(fits, logged_list.propensities, rtol=TOLERANCE, atol=1e-12):
        _wrong(evidence, logged_list, f"propensities are not those of layer {row['policy']}")
        return
    uniform, best = transforms_under(opened, order, rng)
    evidence.add(uniform[:, None, len(order) - k :], best[None, len(order) - k :])


def _check(
    evidence: Evidence,
    lists: list[LoggedList],
    policies: Mapping[str, Recommender],
    version: str,
    beta: float | None,
    mode: str,
    floor: float,
    rng: Any,
) -> None:
    named = policies[version]
    step = max(1, min(BLOCK, MOST_SCORES // named.n_items))
    for start in range(0, len(lists), step):
        part = lists[start : start + step]
        evidence.checked += len(part)
        logits = scores(named, part, beta)
        forbidden = [forbidden_items(logged_list, named) for logged_list in part]
        logged = np.array([logged_list.propensities for logged_list in part])
        indices = np.array([[named.index.get(item, -1) for item in logged_list.items] for logged_list in part])
        if mode == "top":
            _check_top(evidence, part, logits, forbidden, indices, logged)
            continue
        fits = _fits(logits, indices, logged, floor, forbidden)
        for row in np.flatnonzero(~fits):
            _blame(evidence, part[row], policies, version, beta, floor)
        good = np.flatnonzero(fits)
        if not len(good):
            continue
        left_out = [forbidden[row] for row in good]
        evidence.add(*transforms(logits[good], indices[good], rng=rng, floor=floor, forbidden=left_out))


def scores(policy: Recommender, lists: Sequence[LoggedList], beta: float | None) -> np.ndarray:
    return policy.logits(
        [logged_list.history for logged_list in lists], [logged_list.events for logged_list in lists], beta=beta
    )


def forbidden_items(logged_list: LoggedList, policy: Recommender) -> np.ndarray:
    """Return the indices of the items that the list's filter excluded."""
    allowed = logged_list.item_filter.allowed(logged_list.history, policy.index)
    if allowed is None:
        return logged_list.item_filter.forbidden(logged_list.history, policy.index)
    return np.setdiff1d(np.arange(policy.n_items), allowed)


def _fits(logits: np.ndarray, indices: np.ndarray, logged: np.ndarray, floor: float, forbidden: Any) -> np.ndarray:
    """Return whether each list's propensities are those of the policy [B]."""
    possible = (indices >= 0).all(1) & np.array([len(set(row)) == len(row) for row in indices.tolist()])
    if forbidden is not None:
        possible &= [not np.isin(row, gone).any() for row, gone in zip(indices, forbidden, strict=True)]
    fits = np.zeros(len(indices), bool)
    some = np.flatnonzero(possible)
    if len(some):
        left_out = None if forbidden is None else [forbidden[row] for row in some]
        again = conditional_propensities(logits[some], indices[some], floor=floor, forbidden=left_out)
        fits[some] = (np.abs(again - logged[some]) <= TOLERANCE * logged[some] + 1e-12).all(1)
    return fits


def _check_top(
    evidence: Evidence,
    lists: Sequence[LoggedList],
    logits: np.ndarray,
    forbidden: Any,
    indices: np.ndarray,
    logged: np.ndarray,
) -> None:
    best = top(logits, indices.shape[1], forbidden=forbidden).indices
    rows = np.arange(len(lists))[:, None]
    close = np.abs(logits[rows, best] - logits[rows, indices]) <= TOLERANCE
    for logged_list, same, fixed in zip(lists, close.all(1), (logged == 1).all(1), strict=True):
        if not fixed:
            _wrong(evidence, logged_list, "a top-k list is logged with propensities other than 1")
        elif not same:
            _wrong(evidence, logged_list, "a list logged as the best k holds others")


def _blame(
    evidence: Evidence,
    logged_list: LoggedList,
    policies: Mapping[str, Recommender],
    version: str,
    beta: float | None,
    floor: float,
) -> None:
    """Record the fault that explains propensities other than those of the policy that the list names."""
    logged = np.array([logged_list.propensities])

    def explained(policy: Recommender, forbidden: Any, floor: float = floor) -> bool:
        try:
            indices = np.array([[policy.index.get(item, -1) for item in logged_list.items]])
            return bool(_fits(scores(policy, [logged_list], beta), indices, logged, floor, forbidden)[0])
        except Exception:  # another policy may know neither these events nor this β
            return False

    named = policies[version]
    if logged_list.item_filter != Filter() and explained(named, None):
        _wrong(evidence, logged_list, "the filter was applied after the draw: propensities are those without it")
        return
    for other, policy in policies.items():
        if other != version and explained(policy, [forbidden_items(logged_list, policy)]):
            _wrong(evidence, logged_list, f"stale policy version: lists named {version} were drawn by {other}")
            return
    if floor and explained(named, [forbidden_items(logged_list, named)], 0.0):
        _wrong(evidence, logged_list, "the exploration floor is not in the propensities")
        return
    _wrong(evidence, logged_list, f"propensities are not those of policy {version}")


def _wrong(evidence: Evidence, logged_list: LoggedList, why: str) -> None:
    evidence.wrong[why] += 1
    evidence.example.setdefault(why, logged_list.id)
