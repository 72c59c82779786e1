"""What the gathered evidence says: one short function per check, each giving findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

from localpolicy.serving.audit_lists import TOLERANCE, Evidence, LoggedList, forbidden_items, scores
from localpolicy.serving.database import Database
from localpolicy.serving.draw import conditional_propensities
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import FALLBACK

SURE = 1e-5  # chance with which each test accuses a true log
FEWEST = 50  # lists below which a distribution is not judged
BINS = 20  # of the first place's distribution
PER_LIST = 5  # how often an enumerated list must be expected to be counted by itself
Status = Literal["passed", "fault", "unsure"]


@dataclass(frozen=True)
class Finding:
    """What one check says."""

    check: str
    status: Status
    text: str


def identity(evidence: Evidence, log: Path | str) -> Iterable[Finding]:
    """Whether every request id occurs once, and every answer has its request."""
    doubled = sum(count > 1 for count in evidence.ids.values())
    if doubled:
        yield Finding("ids", "fault", f"{doubled:,} of {len(evidence.ids):,} request ids occur twice.")
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
        yield Finding("ids", "passed", f"{evidence.lists:,} lists, no id missing or doubled.")


def recomputed(evidence: Evidence, policies: Mapping[str, Recommender]) -> Iterable[Finding]:
    """Whether the logged propensities are those of the policies that the lists name."""
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
    """Whether first places are drawn with the logged probabilities (randomised probability integral transform)."""
    values = np.concatenate(evidence.uniform) if evidence.uniform else np.empty(0)
    if len(values) < FEWEST:
        if not evidence.wrong and not evidence.unknown_policies:
            text = f"{len(values)} drawn lists are too few to test how they were drawn (at least {FEWEST})."
            yield Finding("draws", "unsure", text)
        return
    counts = np.histogram(values, BINS, (0, 1))[0]
    p = float(stats.chisquare(counts).pvalue)
    if p >= SURE:
        yield Finding("draws", "passed", f"first places are drawn as logged (χ² p = {p:.2g}, {len(values):,} lists).")
    elif evidence.best_taken == len(values):
        text = f"argmax played, softmax logged: all {len(values):,} lists begin with their most probable item."
        yield Finding("draws", "fault", text)
    else:
        text = f"items are not drawn with the logged probabilities (χ² p = {p:.1e}, {len(values):,} lists)."
        yield Finding("draws", "fault", text)


def weights(evidence: Evidence) -> Iterable[Finding]:
    """Whether the mean importance weight towards a flatter policy is 1."""
    values = np.concatenate(evidence.weights) if evidence.weights else np.empty(0)
    if len(values) < FEWEST:
        return
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    text = f"mean importance weight {mean:.4f} ± {error:.4f} (expected 1)."
    fine = abs(mean - 1) <= stats.norm.isf(SURE / 2) * error + 1e-9
    yield Finding("weights", "passed" if fine else "fault", text)


def enumerated(evidence: Evidence, policies: Mapping[str, Recommender]) -> Iterable[Finding]:
    """Whether whole lists of frequent contexts follow Plackett and Luce's law, where they can be enumerated."""
    tested, worst = 0, 1.0
    for (version, beta, floor, items, events, item_filter), counts in evidence.contexts.items():
        policy = policies[version]
        context = LoggedList("", list(items), list(events), (), [], item_filter)
        gone = forbidden_items(context, policy)
        allowed = np.setdiff1d(np.arange(policy.n_items), gone)
        k = len(next(iter(counts)))
        lists = np.array(list(permutations(allowed.tolist(), k)))
        total = sum(counts.values())
        if total < PER_LIST * 2:
            continue
        logits = np.repeat(scores(policy, [context], beta), len(lists), axis=0)
        chance = conditional_propensities(logits, lists, floor=floor, forbidden=[gone] * len(lists)).prod(1)
        observed = np.array([counts[tuple(policy.ids[item] for item in row)] for row in lists.tolist()])
        rare = chance * total < PER_LIST
        expected = np.append(chance[~rare], chance[rare].sum()) * total
        counted = np.append(observed[~rare], observed[rare].sum())
        kept = expected > PER_LIST / 2
        if kept.sum() < 2:
            continue
        tested += 1
        statistic = ((counted[kept] - expected[kept]) ** 2 / expected[kept]).sum()
        worst = min(worst, float(stats.chi2.sf(statistic, kept.sum() - 1)))
    if tested:
        fine = worst >= SURE / tested
        text = f"lists of {tested:,} contexts against enumerated Plackett-Luce: smallest p = {worst:.2g}."
        yield Finding("whole lists", "passed" if fine else "fault", text)


def feedback(log: Path | str, answered: float) -> Iterable[Finding]:
    """Which share of the lists has an answer."""
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
        answered_lists = database.rows("SELECT COUNT(DISTINCT request) FROM feedback WHERE late = 0")[0][0]
        late = database.rows("SELECT COUNT(*) FROM feedback WHERE late = 1")[0][0]
        share = answered_lists / max(total, 1)
        database.close()
    text = f"{1 - share:.1%} of the lists have no answer; {late:,} answers came late."
    yield Finding("feedback", "passed" if share >= answered else "fault", text)


def drift(evidence: Evidence) -> Iterable[Finding]:
    """Whether the contexts of the second half are those of the first: a change is told, and is nobody's fault."""
    half = evidence.lists // 2
    if half < FEWEST:
        return
    lengths = stats.ks_2samp(evidence.lengths[:half], evidence.lengths[half:], method="asymp")
    names = [name for name, _ in Counter(evidence.last).most_common(BINS)]
    table = np.array([[Counter(part)[name] for name in names] for part in (evidence.last[:half], evidence.last[half:])])
    table = table[:, table.sum(0) > 0]
    p = stats.chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0
    changed = [name for name, value in (("length", lengths.pvalue), ("last item", p)) if value < SURE]
    text = (
        f"contexts changed over the log: {' and '.join(changed)} of histories." if changed else "contexts are stable."
    )
    yield Finding("drift", "passed", text)
