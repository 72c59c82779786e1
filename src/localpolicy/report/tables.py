"""An evaluation and a comparison as tables, for a terminal and for files. The tables of a page are in `report.page`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from localpolicy.data.rewards import is_rating
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.divergence import MOST_JS, Divergence, two_digits
from localpolicy.measure.estimate import Interval
from localpolicy.measure.estimators import ESTIMATORS, INTERVAL
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.gains import Exchange
from localpolicy.measure.intervals import Bounds
from localpolicy.measure.metrics import AT_K, is_certain
from localpolicy.measure.number_text import NOTHING, corrected, fixed, interval_text, sentences
from localpolicy.measure.significance import STARS, Bucket, Paired
from localpolicy.measure.truth import Truth
from localpolicy.measure.value import OffPolicy
from localpolicy.report.table import Cell, Column, Table, best_cell

DECIMALS = {"JS": 3, "entropy": 2, "coverage": 3}  # others: 4
WHY_NOT = {  # a policy may lack a figure
    **dict.fromkeys(
        (each.title for each in ESTIMATORS.values()), "no value, since the log says too little of the policy"
    ),
    "reward per answer": "the gate measures the reward per answer for the two policies that it compares and for simple "
    "baselines, where the log says enough of them",
    **dict.fromkeys(("JS", "KL"), "JS and KL need a reference other than the policy itself"),
}
EVERY_K = f"At k = {', '.join(dict.fromkeys(name.partition('@')[2] for name in AT_K))}"
FRONTIER = "On the frontier: no other policy is as large in all of these figures and larger in one."
INTERVALS = "± and [ ]: 95 % intervals, clustered by sequence."


def side_by_side(
    title: str, names: Mapping[str, Cell], columns: Mapping[str, str | Column], cell: Callable[[str, str], Cell],
    note: str = "", foot: Sequence[Sequence[Cell]] = (), *, missing: str = "",
) -> Table:  # fmt: skip
    """Table of policies by metrics; `cell` makes each cell, and `missing` says why one is empty."""
    rows = [[named, *(cell(name, figure) for figure in columns)] for name, named in names.items()]
    empty = [figure for at, figure in enumerate(columns, start=1) if any(row[at].text == NOTHING for row in rows)]
    reasons = dict.fromkeys(WHY_NOT.get(figure, missing or f"{figure} is not known of the policy") for figure in empty)
    heads = [Column("policy", numeric=False), *columns.values()]
    return Table(title, heads, rows, note, foot, missing="; ".join(reasons))


# ---------------------------------------------------------------------- one policy


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    tables = [ranking_table(evaluation), policy_table(evaluation)]
    tables += [divergence_table(evaluation.divergence)] if evaluation.divergence else []
    tables += [off_policy_table(evaluation.off_policy)] if evaluation.off_policy else []
    return tables + ([truth_table(evaluation.truth)] if evaluation.truth else [])


def ranking_table(evaluation: Evaluation) -> Table:
    """Table of ranking metrics, one row per group of positions."""
    names = list(next(iter(evaluation.metrics.values())))
    rows = []
    for group, figures in evaluation.metrics.items():
        if is_rating(group):
            continue  # one group per rating would be too many; 'all' holds them together
        count = next(iter(figures.values())).n
        rows.append([group, f"{count:,}", *(_figure(evaluation, f"{group}.{name}") for name in names)])
    settings = evaluation.settings
    seen = "excluded" if settings["exclude_seen"] else "may be shown"
    note = (
        "Ranked over the full catalogue; items with equal scores share their mean rank. min_history "
        f"{settings['min_history']}, windows of {settings['length']}; seen items {seen}. {INTERVALS}"
    )
    return Table(f"{evaluation.name} on '{settings['split']}'", ["positions", "n", *names], rows, note)


def _figure(evaluation: Evaluation, name: str) -> str:
    """Cell of a metric from the long table; without an interval for a share of the catalogue."""
    row = evaluation.row(name)
    return fixed(row and row.mean) if row is None or row.n is None else interval_text(row.interval, 4)


def policy_table(evaluation: Evaluation) -> Table:
    rows = [[name, _figure(evaluation, name)] for name in evaluation.figures if "." not in name]
    note = sentences({
        INTERVALS: True,
        "logp: mean log-probability of what was logged, among what could be shown there.": True,
        "popularity@K: mean count of a shown item over that of a logged one.": True,
        "iAR@1 comes from imputed ratings. It prefers policies that show the same few items to everyone: read it "
        "with coverage and entropy.": evaluation.imputation is not None,
    })  # fmt: skip
    return Table("What it would show", ["figure", "value"], rows, note)


def divergence_table(divergence: Divergence) -> Table:
    """Table of JS and KL from each reference, and of the noise floor between references."""
    measured = {
        f"{each.name} ({each.objective}, seed {each.seed}, epoch {each.epoch} by {each.selected_by})": (
            divergence.js.by_name[each.name], divergence.kl.by_name[each.name],
        )
        for each in divergence.references
    }  # fmt: skip
    if divergence.floor_js is not None and divergence.floor_kl is not None:
        floors = divergence.floor_js.overall, divergence.floor_kl.overall
        measured["noise floor: references among themselves"] = floors
    rows = [[name, *(interval_text(Interval.known(each), 4) for each in both)] for name, both in measured.items()]
    spread = divergence.js.quantiles
    times = divergence.above_floor
    note = sentences({
        f"In nats, JS <= {MOST_JS:.3f}. {INTERVALS}": True,
        f"Over contexts: median {spread['q50']:.4f}, 95 % below {spread['q95']:.4f}.": True,
        f"The policy is {times or 0:.1f} times as far as the references are from each other.": times is not None,
        "Give two references of different seeds to see how much of this is noise.": times is None,
    })  # fmt: skip
    return Table("Divergence", ["from", "JS", "KL(π‖reference)"], rows, note)


def off_policy_table(off_policy: OffPolicy) -> Table:
    """Table of estimates of J, or of the reason why there is none, by estimand for a log of lists."""
    overlap, questions = off_policy.overlap, (off_policy, *off_policy.beside.values())
    mean = Interval.of(overlap.mean_weight, overlap.mean_weight_se)
    found = {
        f"{each.estimand}: {name}" if off_policy.beside else name: estimate
        for each in questions
        for name, estimate in {"the log itself": each.logged, **each.estimates}.items()
    }
    names = dict.fromkeys(kind for each in found.values() for kind in each.intervals)
    kinds = {"95 %" if kind == INTERVAL else kind: kind for kind in names}
    rows = [
        [name, fixed(each.value), *(_bounds(each.intervals.get(kind)) for kind in kinds.values())]
        for name, each in found.items()
    ]
    refusals = {f" of the {each.estimand}" if off_policy.beside else "": each.refusal for each in questions}
    note = sentences({
        **{f"NO ESTIMATE{what}: {refusal}.": refusal for what, refusal in refusals.items()},
        **{f"{why}.": True for each in questions for why in each.refusals.values()},
        f"{overlap.n:,} {off_policy.unit}, effective sample {overlap.effective:,.0f}; largest weight "
        f"{overlap.largest:,.1f}; mean weight {interval_text(mean, 3)} (95 %); propensities: "
        f"{off_policy.propensities}. Contexts are those of the log.": True,
        "J of a whole list is per list, the others are per place. 'Under a cascade' assumes that no reward depends on "
        "the items below; 'one place changed' leaves the places above to the log, and is not the value of a list. "
        "Neither decides.": off_policy.beside,
        **{f"{note}.": True for note in off_policy.notes},
    })  # fmt: skip
    heads = ["estimator", "J" if off_policy.beside else f"J per {off_policy.unit.removesuffix('s')}", *kinds]
    return Table("Value by off-policy estimates", heads, rows, note, missing="no such interval holds for it")


def _bounds(interval: Bounds | None) -> str:
    if interval is None:
        return NOTHING
    both = f"{interval.low:.4f} to {interval.high:.4f}"
    return both if math.isfinite(interval.high) else f"at least {interval.low:.4f}"


def truth_table(truth: Truth) -> Table:
    figures = {
        "J of this policy": (truth.value, truth.se), "J of the logging policy": (truth.logging, 0.0),
        "gain": (truth.gain, truth.gain_se), "best possible J": (truth.optimum, 0.0),
    }  # fmt: skip
    rows = [[name, interval_text(Interval.of(mean, se), 4)] for name, (mean, se) in figures.items() if mean is not None]
    note = "95 % intervals; a figure without one is exact."
    return Table("The truth, since the world is simulated", ["figure", "reward per decision"], rows, note)


# ---------------------------------------------------------------------- policies compared


def comparison_tables(comparison: Comparison, *, gains: bool = True, by_count: bool = False) -> list[Table]:
    """Tables of a comparison: metrics, gains over the baseline, breakdown, prediction of the true J."""
    tables = [comparison_table(comparison), *at_k_tables(comparison)]
    tables += [gains_table(comparison)] if gains and comparison.gains else []
    tables += [frontier_table(comparison)] if len(comparison.frontier) > 1 else []
    tables += [features_table(comparison)] if comparison.feature_gains else []
    note = "Means over sequences; stars: the largest against the second largest, paired t-test, Holm-corrected."
    for event in comparison.events if by_count else ():
        title = f"nDCG@20 by number of {event} positions per sequence"
        tables.append(bucket_table(title, comparison.breakdown(event), note))
    return [*tables, *([prediction_table(comparison)] if comparison.predicts_truth else [])]


def comparison_table(comparison: Comparison) -> Table:
    """Table of policies by metrics, the best marked, with stars for its lead over the second best."""

    def cell(policy: str, figure: str) -> Cell:
        row = comparison[policy].row(figure)
        mean, lead = None if row is None else row.mean, comparison.leads.get(figure)
        if figure not in (comparison.value, *comparison.columns) or mean is None:
            return Cell(fixed(mean, DECIMALS.get(figure.partition("@")[0], 4)))
        stars = lead.test.stars if lead is not None and lead.best == policy and lead.test.sign > 0 else ""
        return best_cell(mean, [comparison.level(each.name, figure) for each in comparison.evaluations], stars)

    names = {each.name: Cell(each.name) for each in comparison.evaluations}
    columns = {figure: head(comparison, figure) for figure in comparison.figures}
    return side_by_side("Policies compared", names, columns, cell, _comparison_note(comparison))


def head(comparison: Comparison, figure: str) -> str:
    """Column title of a metric; for a value with its unit and estimator."""
    return f"value per {comparison.evaluations[0].unit} ({comparison.value})" if figure == comparison.value else figure


def groups_at_k(comparison: Comparison) -> list[str]:
    """Groups of positions shown at every k; empty if no column names a k."""
    named = any("@" in column for column in comparison.columns)
    return (comparison.events or ["all"]) if named else []


def at_k_tables(comparison: Comparison) -> list[Table]:
    """Tables of every policy at every k, one per group of positions; without tests."""
    groups, rows = groups_at_k(comparison), []
    names = [name for name in AT_K if not is_certain(name, len(comparison.evaluations[0].counts))]
    several = len(groups) > 1
    for group in groups:
        means = [[each.metrics[group][name].mean for each in comparison.evaluations] for name in names]
        for evaluation, *figures in zip(comparison.evaluations, *means, strict=True):
            rows.append([evaluation.name, *([group] if several else []), *map(best_cell, figures, means)])
    if not rows:
        return []
    keys, of, best = ["policy"], f", {groups[0]}", "the largest of its column"
    if several:
        keys, of, best = ["policy", "positions"], "", f"{best} at these positions"
    note = "Beside the columns that are tested."
    return [Table(f"{EVERY_K}{of}", [*keys, *names], rows, note, keys=len(keys), best=best)]


def _comparison_note(comparison: Comparison) -> str:
    evaluations, settings = comparison.evaluations, comparison.evaluations[0].settings
    value = comparison.value
    shown = {**({value: "value"} if value in comparison.figures else {}), **{name: name for name in comparison.columns}}
    rows = {said: [row for each in evaluations if (row := each.row(name))] for name, said in shown.items()}
    widest = {said: max((row.high - row.low) / 2 for row in every) for said, every in rows.items() if every}
    names = sorted({one.name for each in evaluations if each.divergence for one in each.divergence.references})
    ranks = next((figure for figure in comparison.leads if figure != comparison.value), "")
    floor = "unknown: it needs two mle runs that differ in their seed alone"
    floor = floor if comparison.floor is None else two_digits(comparison.floor.mean)
    return sentences({
        f"Split '{settings['split']}', {len(evaluations[0].scores):,} positions, min_history "
        f"{settings['min_history']}{', seen items excluded' if settings['exclude_seen'] else ''}.": True,
        "Widest 95 % intervals, clustered by sequence: "
        f"{', '.join(f'{column} ± {half:.4f}' for column, half in widest.items())}.": True,
        f"Value: what a policy would earn per {evaluations[0].unit}, estimated from the log's "
        "propensities.": value in comparison.figures,
        "Stars: the largest against the second largest, paired t-test by sequence"
        f"{corrected(comparison.comparisons(ranks))}, by Holm's method {STARS}.": ranks,
        f"At the value one star: 0 is outside the 95 % interval{corrected(comparison.comparisons(value))}.":
            value in comparison.leads,
        f"JS against {', '.join(names)} (noise floor {floor}).": names,
        **{f"Note: {note}.": True for note in comparison.notes},
    })  # fmt: skip


def gains_table(comparison: Comparison) -> Table:
    gains = comparison.gains
    figures = [figure for figure in comparison.tested if any(figure in each for each in gains.values())]
    ranks = next((figure for figure in figures if figure != comparison.value), "")
    note = sentences({
        f"Paired by position, errors clustered by sequence. An interval without 0 has a star {STARS}, at the value one "
        "star.": True,
        f"Intervals of 95 %{corrected(comparison.comparisons(ranks))} (Holm).": ranks,
        f"Those of the value: 95 %{corrected(comparison.comparisons(comparison.value))} (Holm).":
            comparison.value in figures,
    })  # fmt: skip
    names, columns = {name: Cell(name) for name in gains}, {figure: head(comparison, figure) for figure in figures}
    title = f"Gain over {comparison.baseline}"
    return side_by_side(title, names, columns, lambda name, figure: _gain(gains[name].get(figure)), note)


def _gain(gain: Paired | None) -> Cell:
    if gain is None:
        return Cell(NOTHING)
    return Cell(f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]", stars=gain.stars)


def frontier_table(comparison: Comparison) -> Table:
    """Table of each policy's gains and losses by event."""
    note = sentences({
        f"Gains over {comparison.baseline}, paired by position, errors clustered by sequence; 95 % intervals"
        f"{corrected(comparison.comparisons(comparison.traded[0]))} (Holm).": True,
        FRONTIER: True,
    })  # fmt: skip
    return exchange_table(" against ".join(map(comparison.said, comparison.traded)), comparison.frontier, note)


def exchange_table(title: str, exchanges: Sequence[Exchange], note: str) -> Table:
    """Table of policies by their gain in each event, with those that others beat."""
    rows: list[list[str | Cell]] = [
        [each.name, *map(_gain, each.gains.values()), f"no: {each.beaten_by[0]}" if each.beaten_by else "yes"]
        for each in exchanges
    ]
    figures = [figure.replace(".", " ", 1) for figure in exchanges[0].gains]
    return Table(title, ["policy", *figures, "on the frontier"], rows, note)


def features_table(comparison: Comparison) -> Table:
    """Table of runs that read the item table, each tested against a run of its recipe that does not."""
    rows: list[list[str | Cell]] = [
        [
            each.policy, f"{', '.join(each.features)}{', shuffled' if each.shuffled else ''}", each.against,
            *map(_gain, each.tests.values()),
        ]
        for each in comparison.feature_gains
    ]  # fmt: skip
    note = (
        "Paired by position, clustered by sequence; 95 % intervals, Holm-corrected over this table; logp in nats. "
        "Shuffled ones are a control: they should bring nothing. The noise of training seeds comes on top."
    )
    heads = ["policy", "item features", "against", comparison.ranked, "logp"]
    return Table("What item features bring", heads, rows, note, keys=3)


def bucket_table(title: str, buckets: Sequence[Bucket], note: str) -> Table:
    """Table of each policy's mean in each bucket of sequences, with significance stars."""
    names = {name: Cell(name) for bucket in buckets for name in bucket.means}
    by_label = {bucket.label: bucket for bucket in buckets}
    heads = {label: f"{label} (n={next(iter(each.means.values())).n:,})" for label, each in by_label.items()}

    def cell(policy: str, label: str) -> Cell:
        bucket = by_label[label]
        means = [estimate.mean for estimate in bucket.means.values()]
        return best_cell(bucket.means[policy].mean, means, bucket.stars if bucket.best == policy else "")

    return side_by_side(title, names, heads, cell, note)


def prediction_table(comparison: Comparison) -> Table:
    """Table of how well each metric orders policies by their true J."""
    found = comparison.predicts_truth
    rows = [[name, f"{found[name]:+.2f}"] for name in sorted(found, key=lambda name: -found[name])]
    note = f"Spearman's correlation with the true J over {len(comparison.evaluations)} policies."
    return Table("Which figure predicts the truth", ["figure", "rank correlation"], rows, note)
