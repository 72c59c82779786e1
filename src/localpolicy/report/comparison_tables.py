"""Policies side by side: the one builder behind the tables of terminal, files and page.

A figure of the long table is a column. A terminal has room for means, and marks the largest; a page has room for
intervals, and marks what differs significantly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from localpolicy.judge.comparison import TRUE_GAIN, VALUE, Comparison
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor, two_digits
from localpolicy.measure.metrics import AT_K
from localpolicy.measure.significance import STARS, Bucket, Paired
from localpolicy.report.contents import Section
from localpolicy.report.table import (
    NOTHING,
    Cell,
    Column,
    Mark,
    Table,
    best_cell,
    corrected,
    decimals,
    joined,
    known,
    number,
    sentences,
)

ALL_K = joined(dict.fromkeys(name.partition("@")[2] for name in AT_K))
BETTER = Mark("▲", "significantly better", "up")
WORSE = Mark("▼", "significantly worse", "down")
LEVEL = Mark("≈", "within the noise between two seeds")
BLIND = Mark("≈!", "within noise by JS, but it ranks differently", "down")
SCARCE = Mark("!", "few positions decide", "down")
MARKS = {1: BETTER, -1: WORSE, 0: None}
WEIGHTS = {
    "effective_share": Column("effective share", "of positions"),
    "clipped_share": Column("clipped share", "of positions"),
    **{key: Column(name, "weight") for key, name in
       {"mean": "mean", "q5": "5 %", "q50": "median", "q95": "95 %", "max": "largest"}.items()},
}  # fmt: skip
DECIMALS = {"JS": 3, "entropy": 2, "coverage": 3}  # on a terminal; others: 4
HEADS = {VALUE: f"value ({VALUE})"}  # of figures whose name says too little


def side_by_side(
    title: str, names: Mapping[str, Cell], columns: Mapping[str, str | Column], cell: Callable[[str, str], Cell],
    note: str = "", foot: Sequence[Sequence[Cell]] = (),
) -> Table:  # fmt: skip
    """One row per policy, one column per figure; `cell` is of a policy and a figure."""
    rows = [[named, *(cell(name, figure) for figure in columns)] for name, named in names.items()]
    return Table(title, [Column("policy", numeric=False), *columns.values()], rows, note, foot)


# ---------------------------------------------------------------------- on a page


def policies_table(section: Section, names: Mapping[str, Cell]) -> Table:
    """All policies by every figure that any has; the logging policy's own value below them."""
    columns = {
        "true J": Column("J(π)", "true reward"),
        TRUE_GAIN: Column("gain", "J(π) − J(μ)"),
        VALUE: Column("value", f"by {VALUE}"),
        **{figure: Column(said) for figure, said in section.columns.items() if figure != VALUE},
        "JS": Column("JS", "nats"),
        "KL": Column("KL", "nats"),
        "logp": Column("likelihood", "mean log π"),
        (coverage := f"coverage@{section.lists}"): Column(coverage, "of the catalogue"),
        "entropy": Column("entropy", "nats"),
    }
    shown = {figure: column for figure, column in columns.items() if any(map(known, _means(section, figure)))}
    foot = []
    if section.logging_value is not None and "true J" in shown:
        level = Cell.of(section.logging_value, decimals(_means(section, "true J")))
        foot = [[Cell("the logging policy μ", value="the logging policy μ"), level, *[Cell("")] * (len(shown) - 1)]]
    note = _page_note(section, shown)
    return side_by_side("Policies side by side", names, shown, lambda *of: _page_cell(section, *of), note, foot)


def at_k_table(section: Section, names: Mapping[str, Cell]) -> Table:
    """Every policy at every k of `AT_K`."""
    note = "Intervals of 95 %. None of these is tested: with more columns each would need a larger difference."
    columns = {figure: Column(said) for figure, said in section.at_k.items()}
    title = f"Ranking at k = {ALL_K}"
    return side_by_side(title, names, columns, lambda *of: _page_cell(section, *of, marked=False), note)


def _page_cell(section: Section, policy: str, figure: str, *, marked: bool = True) -> Cell:
    if figure.startswith("coverage"):
        return Cell.of_share(section.mean(policy, figure))
    if figure == "entropy":
        return Cell.of(section.mean(policy, figure), decimals(_means(section, figure), 3))
    # A difference has as many decimals as the values it comes from.
    digits = decimals(_means(section, "true J" if figure == TRUE_GAIN else figure))
    mark = _mark(section, policy, figure) if marked else None
    return Cell.of(section.figure(policy, figure), digits, mark)


def _means(section: Section, figure: str) -> list[float | None]:
    return [section.mean(policy.name, figure) for policy in section.policies]


def _mark(section: Section, policy: str, figure: str) -> Mark | None:
    if figure == "JS":
        level = LEVEL if beyond_floor(section.figure(policy, "JS"), section.floor) is False else None
        return BLIND if policy in section.unseen_by_js else level
    gain = section.gains.get(policy, {}).get(figure)
    return MARKS[0 if gain is None else gain.sign]


def _page_note(section: Section, shown: Mapping[str, Column]) -> str:
    gained = {figure for gains in section.gains.values() for figure in gains}
    ranks = next((figure for figure in shown if figure in gained and figure not in (VALUE, TRUE_GAIN)), "")
    untested = [column.title for figure, column in shown.items() if figure not in (*gained, "true J")]
    made = {figure: corrected(count) for figure, count in section.corrected.items()}
    return sentences({
        "Intervals of 95 %; a figure without one is exact.": True,
        f"Gain: ▲ significantly better, ▼ significantly worse than the logging policy{made.get(TRUE_GAIN, '')}.":
            TRUE_GAIN in shown and TRUE_GAIN in gained,
        "Value: what the policy would earn, estimated from the log's propensities; a policy has none where the log "
        "says too little of it.": VALUE in shown,
        f"At the value: ▲ significantly better, ▼ significantly worse than {section.baseline}{made.get(VALUE, '')}.":
            VALUE in shown and VALUE in gained,
        f"{'At the other figures' if VALUE in gained else 'Figures'}: ▲ significantly better, ▼ significantly worse "
        f"than {section.baseline or 'the reference'}; paired t-test by sequence{made.get(ranks, '')} (Holm).": ranks,
        f"Not tested: {untested and joined(untested)}.": untested and gained,
        f"Marks of {', '.join(section.likeliest)}{', but for the value,' if VALUE in gained else ''} are of the "
        "weights of the best held-out likelihood, not of the figures beside them: their epochs were chosen by another "
        "figure, which raises that figure.": section.likeliest,
        "≈: the distance from the reference is within seed noise.": "JS" in shown and section.floor,
        "≈!: within seed noise by JS, but its ranking differs significantly. JS compares whole distributions; it "
        "hardly sees the order of the first few items. Read it beside the metrics and the likelihood.":
            section.unseen_by_js,
        f"JS and KL are taken from {section.reference}.": "JS" in shown and section.reference,
    })  # fmt: skip


def weights_table(section: Section, names: Mapping[str, Cell]) -> Table | None:
    """How the objective weighed the log at the selected epoch; None if no policy has weights."""
    weighed = {policy.name: policy for policy in section.policies if policy.weights}
    if not weighed:
        return None
    columns = {key: each for key, each in WEIGHTS.items() if any(key in policy.weights for policy in weighed.values())}
    if any(policy.selected_epoch is not None for policy in weighed.values()):
        columns = {"epoch": Column("epoch kept"), **columns}

    def cell(name: str, key: str) -> Cell:
        policy = weighed[name]
        if key == "epoch":
            return Cell.of(policy.selected_epoch, 0)
        value = policy.weights.get(key)
        if not key.endswith("_share"):
            return Cell.of(value, decimals([value], 3))
        scarce = key == "effective_share" and value is not None and value < LEAST_EFFECTIVE
        return Cell.of_share(value, SCARCE if scarce else None)

    note = (
        "At the epoch kept. A small effective share (marked ! below "
        f"{LEAST_EFFECTIVE:.0%}) or a large clipped share means that β has less effect than its value suggests."
    )
    return side_by_side("Weights of logged positions", {name: names[name] for name in weighed}, columns, cell, note)


def sources_table(section: Section) -> Table | None:
    """The folder and digest of each policy's run; None if no policy has one."""
    rows = [policy for policy in section.policies if policy.run or policy.digest or policy.selected_by]
    if not rows:
        return None
    columns = [Column(name, numeric=False) for name in ("policy", "epoch kept by", "run", "digest of its weights")]
    body = [
        [
            Cell(row.name, value=row.name), row.selected_by or NOTHING,
            *(Cell(text, value=text, code=True) if text else NOTHING for text in (row.run, row.digest)),
        ]
        for row in rows
    ]  # fmt: skip
    return Table("Runs behind the policies", columns, body)


# ---------------------------------------------------------------------- on a terminal and in files


def comparison_tables(comparison: Comparison, *, gains: bool = True, by_count: bool = False) -> list[Table]:
    """The main table; gains over the baseline; `by_count` the paper's breakdown; what would predict J."""
    tables = [comparison_table(comparison), *at_k_tables(comparison)]
    if gains and comparison.gains:
        tables.append(gains_table(comparison))
    if comparison.feature_gains:
        tables.append(features_table(comparison))
    note = "Means over sequences; stars: the largest against the second largest, paired t-test, Holm-corrected."
    for event in comparison.events if by_count else ():
        title = f"nDCG@20 by number of {event} positions per sequence"
        tables.append(bucket_table(title, comparison.breakdown(event), note))
    if comparison.predicts_truth:
        tables.append(prediction_table(comparison))
    return tables


def comparison_table(comparison: Comparison) -> Table:
    """Policies by figures; the largest of a column is bold, stars compare it with the second largest."""

    def cell(policy: str, figure: str) -> Cell:
        row = comparison[policy].row(figure)
        mean, lead = None if row is None else row.mean, comparison.leads.get(figure)
        if figure not in (VALUE, *comparison.columns) or mean is None:
            return Cell(number(mean, DECIMALS.get(figure.partition("@")[0], 4)))
        stars = lead.test.stars if lead is not None and lead.best == policy and lead.test.sign > 0 else ""
        return best_cell(mean, [comparison.level(each.name, figure) for each in comparison.evaluations], stars)

    names = {each.name: Cell(each.name) for each in comparison.evaluations}
    columns = {figure: HEADS.get(figure, figure) for figure in comparison.figures}
    return side_by_side("Policies compared", names, columns, cell, _comparison_note(comparison))


def groups_at_k(comparison: Comparison) -> list[str]:
    """The groups of positions that are shown at every k: none where no column names a k."""
    named = any("@" in column for column in comparison.columns)
    return (comparison.events or ["all"]) if named else []


def at_k_tables(comparison: Comparison) -> list[Table]:
    """Every policy at every k, by event, where a column names a k: measured, not tested."""
    groups, rows = groups_at_k(comparison), []
    several = len(groups) > 1
    for group in groups:
        means = [[each.metrics[group][name].mean for each in comparison.evaluations] for name in AT_K]
        for evaluation, *figures in zip(comparison.evaluations, *means, strict=True):
            rows.append([evaluation.name, *([group] if several else []), *map(best_cell, figures, means)])
    if not rows:
        return []
    heads = ["policy", *(["positions"] if several else []), *AT_K]
    of = "" if several else f", {groups[0]}"
    return [Table(f"At k = {ALL_K}{of}", heads, rows, "Beside the columns that are tested; in bold the largest.")]


def _comparison_note(comparison: Comparison) -> str:
    evaluations, settings = comparison.evaluations, comparison.evaluations[0].settings
    seen = ", seen items excluded" if settings["exclude_seen"] else ""
    errors = {column: max(each.estimate(column).se for each in evaluations) for column in comparison.columns}
    names = sorted({one.name for each in evaluations if each.divergence for one in each.divergence.references})
    ranks = next((figure for figure in comparison.leads if figure != VALUE), "")
    floor = "unknown: it needs two mle runs that differ in their seed alone"
    if names and comparison.floor is not None:
        floor = two_digits(comparison.floor.mean)
    return sentences({
        f"Split '{settings['split']}', {len(evaluations[0].scores):,} positions, min_history "
        f"{settings['min_history']}{seen}.": True,
        "Largest standard errors, clustered by sequence: "
        f"{', '.join(f'{column} ± {error:.4f}' for column, error in errors.items())}.": True,
        f"Value: what a policy would earn {_unit(comparison)}, estimated from the log's propensities; {NOTHING}: "
        "the log says too little of it.": VALUE in comparison.figures,
        "Stars: the largest against the second largest, paired t-test by sequence"
        f"{corrected(comparison.comparisons(ranks))}, by Holm's method {STARS}.": ranks,
        f"At the value one star: the 95 % interval{corrected(comparison.comparisons(VALUE))}, excludes 0.":
            VALUE in comparison.leads,
        f"JS against {', '.join(names)} (noise floor {floor}).": names,
        **{f"Note: {note}.": True for note in comparison.notes},
    })  # fmt: skip


def _unit(comparison: Comparison) -> str:
    value = comparison.evaluations[0].off_policy
    return "per list" if value is not None and value.unit == "lists" else "per decision"


def gains_table(comparison: Comparison) -> Table:
    """Each policy's gain over the baseline, with intervals."""
    figures = [figure for figure in comparison.tested if any(figure in each for each in comparison.gains.values())]
    rows: list[list[str | Cell]] = [
        [name, *(_gain_cell(each.get(figure)) for figure in figures)] for name, each in comparison.gains.items()
    ]
    ranks = next((figure for figure in figures if figure != VALUE), "")
    note = sentences({
        f"Paired by position, errors clustered by sequence. An interval without 0 has a star {STARS}, at the value one "
        "star.": True,
        f"Intervals of 95 %{corrected(comparison.comparisons(ranks))} (Holm).": ranks,
        f"Those of the value: 95 %{corrected(comparison.comparisons(VALUE))} (Holm).": VALUE in figures,
    })  # fmt: skip
    return Table(
        f"Gain over {comparison.baseline}", ["policy", *(HEADS.get(each, each) for each in figures)], rows, note
    )


def _gain_cell(gain: Paired | None) -> Cell:
    if gain is None:
        return Cell(NOTHING)
    return Cell(f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]", stars=gain.stars)


def features_table(comparison: Comparison) -> Table:
    """Runs that read the item table against runs of the same recipe that do not."""
    rows: list[list[str | Cell]] = [
        [
            each.policy, f"{', '.join(each.features)}{', shuffled' if each.shuffled else ''}", each.against,
            *map(_gain_cell, each.tests.values()),
        ]
        for each in comparison.feature_gains
    ]  # fmt: skip
    note = (
        "Paired by position, errors clustered by sequence, Holm-corrected over this table; logp in nats. Shuffled ones "
        "are a control: they should bring nothing. The noise of training seeds comes on top."
    )
    heads = ["policy", "item features", "against", comparison.ranked, "logp"]
    return Table("What item features bring", heads, rows, note)


def bucket_table(title: str, buckets: Sequence[Bucket], note: str) -> Table:
    """A policy's mean in each bucket of sequences, with the paper's marks."""
    names = {name: Cell(name) for bucket in buckets for name in bucket.means}
    by_label = {bucket.label: bucket for bucket in buckets}
    heads = {label: f"{label} (n={next(iter(each.means.values())).n:,})" for label, each in by_label.items()}

    def cell(policy: str, label: str) -> Cell:
        bucket = by_label[label]
        means = {name: estimate.mean for name, estimate in bucket.means.items()}
        return best_cell(means[policy], [*means.values()], bucket.stars if bucket.best == policy else "")

    return side_by_side(title, names, heads, cell, note)


def prediction_table(comparison: Comparison) -> Table:
    """Which figure would have put the policies in their true order?"""
    ranked = sorted(comparison.predicts_truth.items(), key=lambda pair: -pair[1])
    rows = [[name, f"{value:+.2f}"] for name, value in ranked]
    note = f"Spearman's correlation with the true J over {len(comparison.evaluations)} policies."
    return Table("Which figure predicts the truth", ["figure", "rank correlation"], rows, note)
