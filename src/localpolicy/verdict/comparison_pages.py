"""A comparison as tables."""

from __future__ import annotations

from localpolicy.evaluate.breakdown import Bucket
from localpolicy.evaluate.significance import stars
from localpolicy.evaluate.tables import Cell, Table, largest_shown, number
from localpolicy.verdict.compare import Comparison
from localpolicy.vocabulary.errors import ConfigError, nearest


def comparison_pages(comparison: Comparison, *, baseline: str | None = None, by_count: bool = False) -> list[Table]:
    """The main table; with `baseline` each gain over it; `by_count` the paper's breakdown; what would predict J."""
    found = [comparison.table()]
    if baseline is not None:
        found.append(gains_table(comparison, baseline))
    if by_count:
        found += [breakdown_table(comparison, event) for event in comparison.events]
    if comparison.predicts_truth:
        found.append(prediction_table(comparison))
    return found


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
