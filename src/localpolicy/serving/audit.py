"""`audit`: are the logged propensities true?

A log can be wrong in ways that no estimator notices: the best items shown and a softmax logged, a filter applied after
the draw, a server that still held yesterday's policy. Each list is therefore drawn up again from the policy it names:

- its propensities are computed once more, place by place, under its filter;
- where they differ, the likely faults are tried in turn (no filter, another policy), and the one that fits is named;
- the first place is tested against its distribution: the probability of all better items plus a uniform share of its
  own is uniform if and only if items were drawn with the probabilities logged (a randomised probability integral
  transform), which finds an argmax under any propensities;
- the mean importance weight towards a flatter policy must be 1, within its standard error;
- where a context comes often and its lists can be enumerated, they are counted against Plackett and Luce's law (χ²).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from math import perm
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

from localpolicy.errors import DataError
from localpolicy.serving.database import Database
from localpolicy.serving.draw import conditional_propensities, first_place, top
from localpolicy.serving.filters import Filter
from localpolicy.serving.recommender import MOST_SCORES, Recommender
from localpolicy.serving.records import FALLBACK
from localpolicy.serving.rotate import RAW, REQUESTS
from localpolicy.serving.service import exported

TOLERANCE = 1e-3  # of a propensity, relative: batches of other sizes round differently
SURE = 1e-5  # chance with which each test accuses a true log
FEWEST = 50  # lists below which a distribution is not judged
BLOCK = 4096  # lists at once
BINS = 20  # of the first place's distribution
MOST_LISTS, PER_LIST = 5_000, 5  # lists that are enumerated at most; how often each must be expected
Status = Literal["passed", "fault", "unsure"]
COLUMNS = [name.split(".")[-1] for name in RAW]


@dataclass(frozen=True)
class Finding:
    """What one check says."""

    check: str
    status: Status
    text: str


@dataclass(frozen=True)
class Audit:
    """What all checks say."""

    findings: list[Finding]
    lists: int

    @property
    def exit_code(self) -> int:
        """0: the propensities are true; 3: a fault was found; 4: it cannot be told."""
        if any(one.status == "fault" for one in self.findings):
            return 3
        return 4 if any(one.status == "unsure" for one in self.findings) else 0

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"lists": self.lists, "exit_code": self.exit_code, "findings": [vars(one) for one in self.findings]}


@dataclass
class _Seen:
    """What is gathered over all lists."""

    lists: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    ids: Counter[bytes] = field(default_factory=Counter)
    strangers: Counter[str] = field(default_factory=Counter)  # policies that nobody gave
    checked: int = 0
    wrong: Counter[str] = field(default_factory=Counter)  # by what explains it
    example: dict[str, str] = field(default_factory=dict)
    uniform: list[np.ndarray] = field(default_factory=list)
    best_taken: int = 0
    weights: list[np.ndarray] = field(default_factory=list)
    contexts: dict[tuple[Any, ...], Counter[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(Counter))
    lengths: list[int] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)


def audit(
    log: Path | str,
    *,
    runs: Sequence[Path | str] = (),
    answered: float = 0.0,
    seed: int = 0,
) -> Audit:
    """Check a log (a database, or a folder of rotated files) against the runs or exports that served it."""
    policies = {made.version: made for made in (Recommender(exported(Path(one))) for one in runs)}
    seen, rng = _Seen(), np.random.default_rng(seed)
    stream = _requests(log)
    while block := list(islice(stream, BLOCK)):
        _gather(seen, block, policies, rng)
    if not seen.lists:
        raise DataError(f"{log} holds no lists.")
    findings = [
        *_identity(seen, log),
        *_recomputed(seen, policies),
        *_distribution(seen),
        *_weights(seen),
        *_enumerated(seen, policies),
        *_feedback(log, answered),
        *_drift(seen),
    ]
    return Audit(findings, seen.lists)


def _requests(log: Path | str) -> Iterator[dict[str, Any]]:
    """Lists out of a database, or out of rotated files."""
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


# ---------------------------------------------------------------------- gathering


@dataclass(frozen=True)
class _List:
    """One list, read."""

    id: str
    items: list[Any]
    events: list[str]
    shown: tuple[Any, ...]
    logged: list[float]
    narrow: Filter


def _gather(seen: _Seen, block: list[dict[str, Any]], policies: Mapping[str, Recommender], rng: Any) -> None:
    alike: defaultdict[tuple[Any, ...], list[_List]] = defaultdict(list)
    for row in block:
        seen.lists += 1
        seen.modes[row["mode"]] += 1
        seen.ids[row["id"].encode()] += 1
        history = json.loads(row["history"])
        seen.lengths.append(len(history))
        seen.last.append(history[-1][0] if history else None)
        narrow = Filter() if row["content"] is None else Filter.of(json.loads(row["content"]))
        one = _List(
            row["id"], [item for item, _ in history], [event for _, event in history],
            tuple(json.loads(row["items"])), json.loads(row["propensities"]), narrow,
        )  # fmt: skip
        if row["mode"] != "fallback" and row["policy"] not in policies:
            seen.strangers[row["policy"]] += 1
            continue
        alike[row["policy"], row["beta"], row["mode"], row["floor"], len(one.shown)].append(one)
    for (version, beta, mode, floor, _), lists in alike.items():
        if mode != "fallback":
            _check(seen, lists, policies, version, beta, mode, floor, rng)


def _check(
    seen: _Seen,
    lists: list[_List],
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
        seen.checked += len(part)
        logits = _logits(named, part, beta)
        forbidden = [_forbidden(one, named) for one in part]
        logged = np.array([one.logged for one in part])
        indices = np.array([[named.index.get(item, -1) for item in one.shown] for one in part])
        if mode == "top":
            _check_top(seen, part, logits, forbidden, indices, logged)
            continue
        fits = _fits(logits, indices, logged, floor, forbidden)
        for place in np.flatnonzero(~fits):
            _blame(seen, part[place], policies, version, beta, floor)
        good = np.flatnonzero(fits)
        if not len(good):
            continue
        chosen = indices[good, 0]
        p = first_place(logits[good], floor=floor, forbidden=[forbidden[one] for one in good])
        rows = np.arange(len(good))
        own = p[rows, chosen]
        above = np.where(p > own[:, None], p, 0).sum(1)
        same = np.where(p == own[:, None], p, 0).sum(1)
        seen.uniform.append(above + rng.random(len(good)) * same)
        seen.best_taken += int((above == 0).sum())
        flat = np.sqrt(p)
        seen.weights.append(flat[rows, chosen] / flat.sum(1) / own)
        for place in good:
            one = part[place]
            allowed = named.n_items - len(forbidden[place])
            if perm(allowed, len(one.shown)) <= MOST_LISTS:
                key = (version, beta, floor, tuple(one.items), tuple(one.events), one.narrow)
                seen.contexts[key][one.shown] += 1


def _logits(policy: Recommender, lists: Sequence[_List], beta: float | None) -> np.ndarray:
    return policy.logits([one.items for one in lists], [one.events for one in lists], beta=beta)


def _forbidden(one: _List, policy: Recommender) -> np.ndarray:
    allowed = one.narrow.allowed(one.items, policy.index)
    if allowed is None:
        return one.narrow.forbidden(one.items, policy.index)
    return np.setdiff1d(np.arange(policy.n_items), allowed)


def _fits(logits: np.ndarray, indices: np.ndarray, logged: np.ndarray, floor: float, forbidden: Any) -> np.ndarray:
    """Whether each list's propensities are those of the policy [B]."""
    possible = (indices >= 0).all(1) & np.array([len(set(row)) == len(row) for row in indices.tolist()])
    if forbidden is not None:
        possible &= [not np.isin(row, gone).any() for row, gone in zip(indices, forbidden, strict=True)]
    found = np.zeros(len(indices), bool)
    some = np.flatnonzero(possible)
    if len(some):
        narrow = None if forbidden is None else [forbidden[one] for one in some]
        again = conditional_propensities(logits[some], indices[some], floor=floor, forbidden=narrow)
        found[some] = (np.abs(again - logged[some]) <= TOLERANCE * logged[some] + 1e-12).all(1)
    return found


def _check_top(
    seen: _Seen, lists: Sequence[_List], logits: np.ndarray, forbidden: Any, indices: np.ndarray, logged: np.ndarray
) -> None:
    best = top(logits, indices.shape[1], forbidden=forbidden).indices
    rows = np.arange(len(lists))[:, None]
    close = np.abs(logits[rows, best] - logits[rows, indices]) <= TOLERANCE
    for one, same, sure in zip(lists, close.all(1), (logged == 1).all(1), strict=True):
        if not sure:
            _wrong(seen, one, "a top-k list is logged with propensities other than 1")
        elif not same:
            _wrong(seen, one, "a list logged as the best k holds others")


def _blame(
    seen: _Seen, one: _List, policies: Mapping[str, Recommender], version: str, beta: float | None, floor: float
) -> None:
    """Which fault explains propensities that are not those of the policy they name."""
    logged = np.array([one.logged])

    def explained(policy: Recommender, forbidden: Any, floor: float = floor) -> bool:
        try:
            indices = np.array([[policy.index.get(item, -1) for item in one.shown]])
            return bool(_fits(_logits(policy, [one], beta), indices, logged, floor, forbidden)[0])
        except Exception:  # another policy may know neither these events nor this β
            return False

    named = policies[version]
    if one.narrow != Filter() and explained(named, None):
        _wrong(seen, one, "the filter was applied after the draw: propensities are those without it")
        return
    for other, policy in policies.items():
        if other != version and explained(policy, [_forbidden(one, policy)]):
            _wrong(seen, one, f"stale policy version: lists named {version} were drawn by {other}")
            return
    if floor and explained(named, [_forbidden(one, named)], 0.0):
        _wrong(seen, one, "the exploration floor is not in the propensities")
        return
    _wrong(seen, one, f"propensities are not those of policy {version}")


def _wrong(seen: _Seen, one: _List, why: str) -> None:
    seen.wrong[why] += 1
    seen.example.setdefault(why, one.id)


# ---------------------------------------------------------------------- findings


def _identity(seen: _Seen, log: Path | str) -> Iterable[Finding]:
    doubled = sum(count > 1 for count in seen.ids.values())
    if doubled:
        yield Finding("ids", "fault", f"{doubled:,} of {len(seen.ids):,} request ids occur twice.")
        return
    orphans = 0
    if not Path(log).is_dir():
        database = Database(log)
        query = """SELECT COUNT(*) FROM feedback f WHERE late = 0 AND NOT EXISTS
            (SELECT 1 FROM requests r WHERE r.id = f.request)"""
        orphans = database.rows(query)[0][0]
        database.close()
    if orphans:
        yield Finding("ids", "fault", f"{orphans:,} answers name a request that is missing from the log.")
    else:
        yield Finding("ids", "passed", f"{seen.lists:,} lists, no id missing or doubled.")


def _recomputed(seen: _Seen, policies: Mapping[str, Recommender]) -> Iterable[Finding]:
    for why, count in seen.wrong.most_common():
        yield Finding(
            "propensities", "fault", f"{why} ({count:,} of {seen.checked:,} lists, first {seen.example[why]})."
        )
    if seen.strangers:
        named = ", ".join(f"{name} ({count:,})" for name, count in seen.strangers.most_common(3))
        text = (
            f"{sum(seen.strangers.values()):,} lists name policies that were not given: {named}. Name them with --run."
        )
        yield Finding("policies", "unsure", text)
    fallback = seen.modes["fallback"]
    if seen.checked and not seen.wrong:
        yield Finding("propensities", "passed", f"recomputed for {seen.checked:,} lists: all within {TOLERANCE:g}.")
    if fallback:
        text = f"{fallback:,} of {seen.lists:,} lists ({fallback / seen.lists:.1%}) came from '{FALLBACK}'."
        yield Finding("fallback", "passed", text)


def _distribution(seen: _Seen) -> Iterable[Finding]:
    values = np.concatenate(seen.uniform) if seen.uniform else np.empty(0)
    if len(values) < FEWEST:
        if not seen.wrong and not seen.strangers:
            text = f"{len(values)} drawn lists are too few to test how they were drawn (at least {FEWEST})."
            yield Finding("draws", "unsure", text)
        return
    counts = np.histogram(values, BINS, (0, 1))[0]
    p = float(stats.chisquare(counts).pvalue)
    if p >= SURE:
        yield Finding("draws", "passed", f"first places are drawn as logged (χ² p = {p:.2g}, {len(values):,} lists).")
    elif seen.best_taken == len(values):
        text = f"argmax played, softmax logged: all {len(values):,} lists begin with their most probable item."
        yield Finding("draws", "fault", text)
    else:
        text = f"items are not drawn with the logged probabilities (χ² p = {p:.1e}, {len(values):,} lists)."
        yield Finding("draws", "fault", text)


def _weights(seen: _Seen) -> Iterable[Finding]:
    values = np.concatenate(seen.weights) if seen.weights else np.empty(0)
    if len(values) < FEWEST:
        return
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    text = f"mean importance weight {mean:.4f} ± {error:.4f} (expected 1)."
    fine = abs(mean - 1) <= stats.norm.isf(SURE / 2) * error + 1e-9
    yield Finding("weights", "passed" if fine else "fault", text)


def _enumerated(seen: _Seen, policies: Mapping[str, Recommender]) -> Iterable[Finding]:
    tested, worst = 0, 1.0
    for (version, beta, floor, items, events, narrow), counts in seen.contexts.items():
        policy = policies[version]
        one = _List("", list(items), list(events), (), [], narrow)
        gone = _forbidden(one, policy)
        allowed = np.setdiff1d(np.arange(policy.n_items), gone)
        k = len(next(iter(counts)))
        lists = np.array(list(permutations(allowed.tolist(), k)))
        total = sum(counts.values())
        if total < PER_LIST * 2:
            continue
        logits = np.repeat(_logits(policy, [one], beta), len(lists), axis=0)
        chance = conditional_propensities(logits, lists, floor=floor, forbidden=[gone] * len(lists)).prod(1)
        observed = np.array([counts[tuple(policy.ids[item] for item in row)] for row in lists.tolist()])
        rare = chance * total < PER_LIST
        expected = np.append(chance[~rare], chance[rare].sum()) * total
        found = np.append(observed[~rare], observed[rare].sum())
        kept = expected > PER_LIST / 2
        if kept.sum() < 2:
            continue
        tested += 1
        statistic = ((found[kept] - expected[kept]) ** 2 / expected[kept]).sum()
        worst = min(worst, float(stats.chi2.sf(statistic, kept.sum() - 1)))
    if tested:
        fine = worst >= SURE / tested
        text = f"lists of {tested:,} contexts against enumerated Plackett-Luce: smallest p = {worst:.2g}."
        yield Finding("whole lists", "passed" if fine else "fault", text)


def _feedback(log: Path | str, answered: float) -> Iterable[Finding]:
    if Path(log).is_dir():
        files = sorted(Path(log).glob("events-*.parquet"))
        parts = [pq.read_table(file, columns=["request", "event"]) for file in files]
        rows = [(r, e) for part in parts for r, e in zip(*(column.to_pylist() for column in part.columns), strict=True)]
        lists = {request for request, _ in rows if request}
        with_answer = {request for request, event in rows if request and event != "none"}
        share = len(with_answer) / max(len(lists), 1)
        late = 0
    else:
        database = Database(log)
        total = database.rows("SELECT COUNT(*) FROM requests")[0][0]
        found = database.rows("SELECT COUNT(DISTINCT request) FROM feedback WHERE late = 0")[0][0]
        late = database.rows("SELECT COUNT(*) FROM feedback WHERE late = 1")[0][0]
        share = found / max(total, 1)
        database.close()
    text = f"{1 - share:.1%} of the lists have no answer; {late:,} answers came late."
    yield Finding("feedback", "passed" if share >= answered else "fault", text)


def _drift(seen: _Seen) -> Iterable[Finding]:
    """Whether the contexts of the second half are those of the first: a change is told, and is nobody's fault."""
    half = seen.lists // 2
    if half < FEWEST:
        return
    lengths = stats.ks_2samp(seen.lengths[:half], seen.lengths[half:], method="asymp")
    names = [name for name, _ in Counter(seen.last).most_common(BINS)]
    table = np.array([[Counter(part)[name] for name in names] for part in (seen.last[:half], seen.last[half:])])
    table = table[:, table.sum(0) > 0]
    p = stats.chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0
    changed = [name for name, value in (("length", lengths.pvalue), ("last item", p)) if value < SURE]
    text = (
        f"contexts changed over the log: {' and '.join(changed)} of histories." if changed else "contexts are stable."
    )
    yield Finding("drift", "passed", text)
