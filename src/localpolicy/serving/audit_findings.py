"""Findings of the audit's checks, computed from the gathered evidence: one short function per check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import stats

from localpolicy.limits import CONTEXT, FALLBACK, NO_ANSWER
from localpolicy.serving.audit_lists import TOLERANCE, Evidence
from localpolicy.serving.database import Database
from localpolicy.serving.join import LATE, UNKNOWN
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.rotate import FATE, FEEDBACK

ACCUSED = 1e-4  # chance with which the test of draws accuses a true log; the others compare numbers, and do not guess
DRIFTED = 1e-5  # false-alarm probability of the test that contexts changed
ALL = -1  # all places together
FEWEST = 50  # lists below which a distribution is not judged
MOST_ITEMS = 20  # last items of histories whose shares are compared
Status = Literal["passed", "fault", "unsure"]


@dataclass(frozen=True)
class Finding:
    """Finding of one check: passed, a fault, or a note, with its text."""

    check: str
    status: Status
    text: str


def identity(evidence: Evidence, log: Path | str) -> Iterable[Finding]:
    """Check that every request id occurs once and every answer has its request."""
    if doubled := evidence.doubled:
        yield Finding("ids", "fault", f"{doubled:,} request ids occur more than once in {evidence.lists:,} lists.")
        return
    if Path(log).is_dir():
        orphans = _rotated(Path(log))[UNKNOWN]
    else:
        database = Database(log)
        query = """SELECT COUNT(*) FROM feedback f WHERE late = 0 AND NOT EXISTS
            (SELECT 1 FROM requests r WHERE r.id = f.request)"""
        orphans = database.rows(query)[0][0]
        database.close()
    if orphans:
        yield Finding("ids", "fault", f"{orphans:,} answers name a request that is missing from the log.")
    else:
        yield Finding("ids", "passed", f"{evidence.lists:,} lists, no id missing or doubled.")


def recomputed(evidence: Evidence, policies: Mapping[str, Recommender]) -> Iterable[Finding]:
    """Check that the logged propensities are those of the policies that the lists name."""
    for why, count in evidence.wrong.most_common():
        yield Finding(
            "propensities", "fault", f"{why} ({count:,} of {evidence.checked:,} lists, first {evidence.example[why]})."
        )
    if evidence.unknown_policies:
        named = ", ".join(f"{name} ({count:,})" for name, count in evidence.unknown_policies.most_common(3))
        unchecked = sum(evidence.unknown_policies.values())
        text = f"{unchecked:,} lists name policies that were not given: {named}. Name them with --run."
        yield Finding("policies", "unsure", text)
    fallback = evidence.modes["fallback"]
    if evidence.checked and not evidence.wrong:
        yield Finding("propensities", "passed", f"recomputed for {evidence.checked:,} lists: all within {TOLERANCE:g}.")
    if fallback:
        text = f"{fallback:,} of {evidence.lists:,} lists ({fallback / evidence.lists:.1%}) came from '{FALLBACK}'."
        yield Finding("fallback", "passed", text)


def distribution(evidence: Evidence) -> Iterable[Finding]:
    """Test whether every place is drawn with the logged probabilities, given the places above it.

    If so, the transforms are independent and uniform, at each place and all together. Kolmogorov and Smirnov's test
    knows its error exactly at any size and for any policy; what it may accuse is divided among all of them.
    """
    parts = dict(evidence.uniform)
    lists = int(parts.get((0, 0), np.zeros(1)).sum())
    if lists < FEWEST:
        if not evidence.wrong and not evidence.unknown_policies:
            text = f"{lists} drawn lists are too few to test how they were drawn (at least {FEWEST})."
            yield Finding("draws", "unsure", text)
        return
    places = 1 + max(place for _, place in parts)
    for order in (0, 1) if places > 1 else ():
        parts[order, ALL] = np.sum([parts[order, place] for place in range(places)], axis=0)
    p = {key: uniformity(counts) for key, counts in parts.items()}
    smallest = min(1.0, len(p) * min(p.values()))
    if smallest >= ACCUSED:
        text = f"all {places} places are drawn as logged (p = {smallest:.2g}, {lists:,} lists)."
        yield Finding("draws", "passed", text if places > 1 else text.replace("all 1 places are", "items are"))
        return
    wrong = sorted({place for (_, place), value in p.items() if place != ALL and value * len(p) < ACCUSED})
    greedy = [place for place in wrong if evidence.best_taken[place] == parts[0, place].sum()]
    if 0 in greedy:
        text = f"argmax played, softmax logged: all {lists:,} lists begin with their most probable item."
    elif greedy:
        always = "always takes" if len(greedy) == 1 else "always take"
        text = f"argmax played, softmax logged: {_named(greedy)} {always} the most probable item that is left."
    else:
        where = f" at {_named(wrong)}" if wrong else ""
        text = f"items are not drawn with the logged probabilities{where} (p = {smallest:.1e}, {lists:,} lists)."
    yield Finding("draws", "fault", text)


def uniformity(counts: np.ndarray) -> float:
    """p of Kolmogorov and Smirnov's test that values in equal bins of (0, 1) are uniform.

    The largest distance is looked for at the bins' edges, so p is never too small: a true log is accused no more often.
    """
    n, share = int(counts.sum()), np.arange(1, len(counts) + 1) / len(counts)
    return float(stats.kstwo.sf(np.abs(counts.cumsum() / n - share).max(), n))


def _named(places: list[int]) -> str:
    """Return the numbers of these places as text, counted from 1."""
    if len(places) == 1:
        return f"place {places[0] + 1}"
    consecutive = places[-1] - places[0] == len(places) - 1
    return f"places {places[0] + 1} to {places[-1] + 1}" if consecutive else f"{len(places)} places"


def feedback(log: Path | str, answered: float) -> Iterable[Finding]:
    """Check that the share of lists with an answer is at least `answered`; report late answers."""
    if Path(log).is_dir():
        total = with_answer = 0
        for file in Path(log).glob("events-*.parquet"):  # all rows of a list are in one file
            rows = pq.read_table(file, columns=["request", "event"])
            rows = rows.filter(pc.and_(pc.is_valid(rows["request"]), pc.not_equal(rows["event"], CONTEXT)))
            total += pc.count_distinct(rows["request"]).as_py()
            with_answer += pc.count_distinct(rows.filter(pc.not_equal(rows["event"], NO_ANSWER))["request"]).as_py()
        share = with_answer / max(total, 1)
        late = _rotated(Path(log))[LATE]
    else:
        database = Database(log)
        total = database.rows("SELECT COUNT(*) FROM requests")[0][0]
        answered_lists = database.rows("SELECT COUNT(DISTINCT request) FROM feedback WHERE late = 0")[0][0]
        late = database.rows("SELECT COUNT(*) FROM feedback WHERE late = 1")[0][0]
        share = answered_lists / max(total, 1)
        database.close()
    text = f"{1 - share:.1%} of the lists have no answer; {late:,} answers came late."
    yield Finding("feedback", "passed" if share >= answered else "fault", text)


def _rotated(folder: Path) -> Counter[str]:
    """Count the rotated answers of a folder by outcome (`FATE`)."""
    found: Counter[str] = Counter()
    for file in sorted((folder / FEEDBACK).glob("*.parquet")):
        if FATE in pq.read_schema(file).names:  # files of older versions do not say
            counts = pc.value_counts(pq.read_table(file, columns=[FATE])[FATE])
            found.update({row["values"]: row["counts"] for row in counts.to_pylist()})
    return found


def drift(evidence: Evidence) -> Iterable[Finding]:
    """Compare the contexts of the log's two halves; a change is reported, and is no fault."""
    if min(part.total() for part in evidence.lengths) < FEWEST:
        return
    lengths = _same_lengths(*evidence.lengths)
    names = [name for name, _ in sum(evidence.last, Counter()).most_common(MOST_ITEMS)]
    table = np.array([[part[name] for name in names] for part in evidence.last])
    p = stats.chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0
    changed = [name for name, value in (("length", lengths), ("last item", p)) if value < DRIFTED]
    text = (
        f"contexts changed over the log: {' and '.join(changed)} of histories." if changed else "contexts are stable."
    )
    yield Finding("drift", "passed", text)


def _same_lengths(first: Counter[int], second: Counter[int]) -> float:
    """p of Kolmogorov and Smirnov's test for large samples that two counts of lengths have one distribution."""
    lengths = sorted(first | second)
    counts = np.array([[part[length] for length in lengths] for part in (first, second)])
    n, m = counts.sum(1)
    distance = np.abs(np.diff(counts.cumsum(1) / counts.sum(1, keepdims=True), axis=0)).max()
    return float(stats.kstwo.sf(distance, round(n * m / (n + m))))
