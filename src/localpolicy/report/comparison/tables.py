"""A comparison as tables."""

from __future__ import annotations

from localpolicy.errors import ConfigError, nearest
from localpolicy.evaluation.breakdown import Bucket
from localpolicy.evaluation.compare import Comparison
from localpolicy.evaluation.estimate import Estimate
from localpolicy.evaluation.evaluation import Evaluation
from localpolicy.evaluation.significance import stars
from localpolicy.report.table import Cell, Table, largest_shown, number


def comparison_pages(comparison: Comparison, *, baseline: str | None = None, by_count: bool = False) -> list[Table]:
    """The main table; with `baseline` each gain over it; `by_count` the paper's breakdown; what would predict J."""
    found = [comparison_table(comparison)]
    if baseline is not None:
        found.append(gains_table(comparison, baseline))
    if by_count:
        found += [breakdown_table(comparison, event) for event in comparison.events]
    if comparison.predicts_truth:
        found.append(prediction_table(comparison))
    return found


def comparison_table(comparison: Comparison) -> Table:
    """Policies by figures; the largest of a column is bold, stars compare it with the second largest."""
    rewards, lists = list(comparison.evaluations[0].rewards), comparison.evaluations[0].settings["lists"]
    heads = [*comparison.columns, *rewards, "JS", "entropy", f"coverage@{lists}"]
    truth = any(one.truth is not None for one in comparison.evaluations)
    rows = []
    for one in comparison.evaluations:
        row = [Cell(one.name), *(_cell(comparison, one, column) for column in comparison.columns)]
        row += [Cell(number(one.rewards[name].mean)) for name in rewards]
        js = None if one.divergence is None else one.divergence.js.overall.mean
        row += [Cell(number(js, 3)), Cell(number(one.estimate("entropy").mean, 2))]
        row.append(Cell(number(_plain(one.policy[f"coverage@{lists}"]), 3)))
        if truth:
            row.append(Cell("—" if one.truth is None else number(one.truth.value)))
        rows.append(row)
    return Table("Policies compared", ["policy", *heads, *(["true J"] if truth else [])], rows, _note(comparison))


def _cell(comparison: Comparison, one: Evaluation, column: str) -> Cell:
    lead, mean = comparison.leads.get(column), one.estimate(column).mean
    stars = lead.stars if lead is not None and lead.best == one.name else ""
    return Cell(
        number(mean), largest_shown(mean, [each.estimate(column).mean for each in comparison.evaluations]), stars
    )


def _note(comparison: Comparison) -> str:
    first = comparison.evaluations[0]
    seen = ", seen items excluded" if first.settings["exclude_seen"] else ""
    errors = ", ".join(
        f"{column} ± {max(one.estimate(column).se for one in comparison.evaluations):.4f}"
        for column in comparison.columns
    )
    parts = [
        f"Split '{first.settings['split']}', {len(first.scores):,} positions, min_history "
        f"{first.settings['min_history']}{seen}. Largest standard errors, clustered by sequence: {errors}.",
        "Stars: the largest against the second largest, paired t-test by sequence, Holm-corrected over columns "
        "(* .05, ** .01, *** .001).",
    ]
    measured = [one.divergence for one in comparison.evaluations if one.divergence is not None]
    if measured:
        names = sorted({reference.name for each in measured for reference in each.references})
        floors = [each.floor_js.overall.mean for each in measured if each.floor_js is not None]
        floor = f"noise floor {max(floors):.3f}" if floors else "noise floor unknown: give two references"
        parts.append(f"JS against {', '.join(names)} ({floor}).")
    return " ".join(parts)


def _plain(value: Estimate | float) -> float:
    return value.mean if isinstance(value, Estimate) else value


def gains_table(comparison: Comparison, baseline: str) -> Table:
    """Each policy's gain over one, with intervals."""
    names = [one.name for one in comparison.evaluations]
    if baseline not in names:
        raise ConfigError(f"no policy '{baseline}' in this comparison{nearest(baseline, names)}")
    rows = []
    for name, tests in comparison.against(baseline).items():
        row = [Cell(name)]
        for test, p in tests.values():
            row.append(Cell(f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]", stars=stars(p)))
        rows.append(row)
    note = "Paired by position, clustered by sequence, 95 % intervals; stars are Holm-corrected over this table."
    return Table(f"Gain over {baseline}", ["policy", *comparison.columns], rows, note)


def bucket_cell(bucket: Bucket, name: str) -> Cell:
    """A policy's mean in a bucket, with the paper's marks."""
    mean = bucket.means[name].mean
    best = largest_shown(mean, [one.mean for one in bucket.means.values()])
    return Cell(number(mean), best, bucket.stars if bucket.best == name else "")


def breakdown_table(comparison: Comparison, event: str, metric: str = "nDCG@20") -> Table:
    """Sequence-level means by number of events."""
    buckets = comparison.breakdown(event, metric=metric)
    rows = []
    for one in comparison.evaluations:
        row = [Cell(one.name)]
        for bucket in buckets:
            row.append(bucket_cell(bucket, one.name))
        rows.append(row)
    heads = [f"{bucket.label} (n={next(iter(bucket.means.values())).n:,})" for bucket in buckets]
    note = "Means over sequences; stars: the largest against the second largest, paired t-test, not corrected."
    return Table(f"{metric} by number of {event} positions per sequence", ["policy", *heads], rows, note)


def prediction_table(comparison: Comparison) -> Table:
    """Which figure would have put the policies in their true order?"""
    found = sorted(comparison.predicts_truth.items(), key=lambda pair: -pair[1])
    rows = [[Cell(name), Cell(f"{value:+.2f}")] for name, value in found]
    note = f"Spearman's correlation with the true J over {len(comparison.evaluations)} policies."
    return Table("Which figure predicts the truth", ["figure", "rank correlation"], rows, note)
