"""A comparison as tables."""

from __future__ import annotations

from localpolicy.judge.breakdown import Bucket
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import Paired
from localpolicy.report.numbers import number
from localpolicy.report.table import Cell, Table, largest_shown


def comparison_tables(comparison: Comparison, *, gains: bool = True, by_count: bool = False) -> list[Table]:
    """The main table; gains over the baseline; `by_count` the paper's breakdown; what would predict J."""
    tables = [comparison_table(comparison)]
    if gains and comparison.gains:
        tables.append(gains_table(comparison))
    if by_count:
        tables += [breakdown_table(comparison, event) for event in comparison.events]
    if comparison.predicts_truth:
        tables.append(prediction_table(comparison))
    return tables


def comparison_table(comparison: Comparison) -> Table:
    """Policies by figures; the largest of a column is bold, stars compare it with the second largest."""
    rewards = list(comparison.evaluations[0].rewards)
    heads = [*comparison.columns, *rewards, "JS", "entropy", f"coverage@{comparison.evaluations[0].lists}"]
    truth = any(evaluation.truth is not None for evaluation in comparison.evaluations)
    rows = []
    for evaluation in comparison.evaluations:
        row = [Cell(evaluation.name), *(_cell(comparison, evaluation, column) for column in comparison.columns)]
        row += [Cell(number(evaluation.rewards[name].mean)) for name in rewards]
        js = None if evaluation.divergence is None else evaluation.divergence.js.overall.mean
        row += [Cell(number(js, 3)), Cell(number(evaluation.estimate("entropy").mean, 2))]
        row.append(Cell(number(evaluation.coverage, 3)))
        if truth:
            row.append(Cell("—" if evaluation.truth is None else number(evaluation.truth.value)))
        rows.append(row)
    return Table("Policies compared", ["policy", *heads, *(["true J"] if truth else [])], rows, _note(comparison))


def _cell(comparison: Comparison, evaluation: Evaluation, column: str) -> Cell:
    lead, mean = comparison.leads.get(column), evaluation.estimate(column).mean
    stars = lead.test.stars if lead is not None and lead.best == evaluation.name else ""
    return Cell(
        number(mean), largest_shown(mean, [each.estimate(column).mean for each in comparison.evaluations]), stars
    )


def _note(comparison: Comparison) -> str:
    first = comparison.evaluations[0]
    seen = ", seen items excluded" if first.settings["exclude_seen"] else ""
    errors = ", ".join(
        f"{column} ± {max(evaluation.estimate(column).se for evaluation in comparison.evaluations):.4f}"
        for column in comparison.columns
    )
    parts = [
        f"Split '{first.settings['split']}', {len(first.scores):,} positions, min_history "
        f"{first.settings['min_history']}{seen}. Largest standard errors, clustered by sequence: {errors}.",
        "Stars: the largest against the second largest, paired t-test by sequence, Holm-corrected over columns "
        "(* .05, ** .01, *** .001).",
    ]
    measured = [evaluation.divergence for evaluation in comparison.evaluations if evaluation.divergence is not None]
    if measured:
        names = sorted({reference.name for each in measured for reference in each.references})
        floor = (
            "noise floor unknown: it needs two mle runs that differ in their seed alone"
            if comparison.floor is None
            else f"noise floor {comparison.floor.mean:.3f}"
        )
        parts.append(f"JS against {', '.join(names)} ({floor}).")
    parts += [f"Note: {note}." for note in comparison.notes]
    return " ".join(parts)


def gains_table(comparison: Comparison) -> Table:
    """Each policy's gain over the baseline, with intervals."""
    rows = [[Cell(name), *map(_gain, gains.values())] for name, gains in comparison.gains.items()]
    note = (
        "Paired by position, errors clustered by sequence. Intervals and stars are Holm-corrected over this table: an "
        "interval without 0 has a star (* .05, ** .01, *** .001)."
    )
    return Table(f"Gain over {comparison.baseline}", ["policy", *comparison.columns, "AR@1"], rows, note)


def _gain(gain: Paired) -> Cell:
    return Cell(f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]", stars=gain.stars)


def bucket_cell(bucket: Bucket, name: str) -> Cell:
    """A policy's mean in a bucket, with the paper's marks."""
    mean = bucket.means[name].mean
    best = largest_shown(mean, [estimate.mean for estimate in bucket.means.values()])
    return Cell(number(mean), best, bucket.stars if bucket.best == name else "")


def breakdown_table(comparison: Comparison, event: str, metric: str = "nDCG@20") -> Table:
    """Sequence-level means by number of events."""
    buckets = comparison.breakdown(event, metric=metric)
    rows = []
    for evaluation in comparison.evaluations:
        row = [Cell(evaluation.name)]
        for bucket in buckets:
            row.append(bucket_cell(bucket, evaluation.name))
        rows.append(row)
    heads = [f"{bucket.label} (n={next(iter(bucket.means.values())).n:,})" for bucket in buckets]
    note = "Means over sequences; stars: the largest against the second largest, paired t-test, Holm-corrected."
    return Table(f"{metric} by number of {event} positions per sequence", ["policy", *heads], rows, note)


def prediction_table(comparison: Comparison) -> Table:
    """Which figure would have put the policies in their true order?"""
    ranked = sorted(comparison.predicts_truth.items(), key=lambda pair: -pair[1])
    rows = [[Cell(name), Cell(f"{value:+.2f}")] for name, value in ranked]
    note = f"Spearman's correlation with the true J over {len(comparison.evaluations)} policies."
    return Table("Which figure predicts the truth", ["figure", "rank correlation"], rows, note)
