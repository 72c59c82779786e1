"""An evaluation as tables, for a terminal, a page or a paper."""

from __future__ import annotations

import math

from localpolicy.measure.divergence import Divergence
from localpolicy.measure.estimate import Estimate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.off_policy import OffPolicy
from localpolicy.measure.off_policy.estimate import INTERVAL
from localpolicy.measure.off_policy.intervals import Bounds
from localpolicy.measure.segments import is_rating
from localpolicy.measure.truth import Truth
from localpolicy.report.numbers import NOTHING, number, share_with_error, with_error
from localpolicy.report.table import Cell, Table, cells


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Every table of one evaluation."""
    tables = [ranking_table(evaluation), policy_table(evaluation)]
    if evaluation.divergence is not None:
        tables.append(divergence_table(evaluation.divergence))
    if evaluation.off_policy is not None:
        tables.append(off_policy_table(evaluation.off_policy))
    if evaluation.truth is not None:
        tables.append(truth_table(evaluation.truth))
    return tables


def ranking_table(evaluation: Evaluation) -> Table:
    """Groups of positions by metrics."""
    names = list(next(iter(evaluation.metrics.values())))
    rows = []
    for group, figures in evaluation.metrics.items():
        if is_rating(group):
            continue  # one group per rating would be too many; 'all' holds them together
        count = next(iter(figures.values())).n
        rows.append(cells(group, f"{count:,}", *(share_with_error(figures[name]) for name in names)))
    settings = evaluation.settings
    seen = "seen items excluded" if settings["exclude_seen"] else "seen items may be shown"
    note = (
        "Ranked over the full catalogue; items with equal scores share their mean rank. min_history "
        f"{settings['min_history']}, windows of {settings['length']}; "
        f"{seen}. Errors are clustered by sequence."
    )
    return Table(f"{evaluation.name} on '{settings['split']}'", ["positions", "n", *names], rows, note)


def policy_table(evaluation: Evaluation) -> Table:
    """Logged reward, coverage, entropy and popularity."""
    named = {**evaluation.rewards, **evaluation.policy}
    rows = [
        cells(name, with_error(value.mean, value.se) if isinstance(value, Estimate) else number(value))
        for name, value in named.items()
    ]
    note = "popularity@K: mean count of a shown item over that of a logged one."
    if evaluation.imputation is not None:
        note += (
            " iAR@1 comes from imputed ratings. It prefers policies that show the same few items to everyone: read it "
            "beside coverage and entropy."
        )
    return Table("What it would show", ["figure", "value"], rows, note)


def divergence_table(divergence: Divergence) -> Table:
    """Distance from each reference, and between references."""
    rows: list[list[Cell]] = []
    for reference in divergence.references:
        about = f"{reference.objective}, seed {reference.seed}, epoch {reference.epoch} by {reference.selected_by}"
        js, kl = divergence.js.by_name[reference.name], divergence.kl.by_name[reference.name]
        rows.append(cells(f"{reference.name} ({about})", with_error(js.mean, js.se), with_error(kl.mean, kl.se)))
    if divergence.floor_js is not None and divergence.floor_kl is not None:
        js, kl = divergence.floor_js.overall, divergence.floor_kl.overall
        rows.append(
            cells("noise floor: references among themselves", with_error(js.mean, js.se), with_error(kl.mean, kl.se))
        )
    spread = divergence.js.quantiles
    note = f"In nats, JS <= 0.693. JS over contexts: median {spread['q50']:.4f}, 95 % below {spread['q95']:.4f}."
    if divergence.above_floor is not None:
        note += f" The policy is {divergence.above_floor:.1f} times as far as the references are from each other."
    else:
        note += " Give two references of different seeds to see how much of this is noise."
    return Table("Divergence", ["from", "JS", "KL(π‖reference)"], rows, note)


def off_policy_table(off_policy: OffPolicy) -> Table:
    """Estimates of J, or the reason why there is none; of a log of lists each question has rows of its own."""
    overlap = off_policy.overlap
    what = "lists" if off_policy.beside else "decisions"
    weights = (
        f"{overlap.n:,} {what}, effective sample {overlap.effective:,.0f}; largest weight "
        f"{overlap.largest:,.1f}; mean weight {overlap.mean_weight:.3f} ± {overlap.mean_weight_se:.3f}; propensities: "
        f"{off_policy.propensities}. Contexts are those of the log."
    )
    rows = []
    for each in (off_policy, *off_policy.beside.values()):
        prefix = f"{each.estimand}: " if off_policy.beside else ""
        for name, estimate in {"the log itself": each.logged, **each.estimates}.items():
            texts = [_bounds(estimate.intervals.get(kind)) for kind in (INTERVAL, "empirical Bernstein")]
            value = number(estimate.value) if math.isnan(estimate.se) else with_error(estimate.value, estimate.se)
            rows.append(cells(prefix + name, value, *texts))
    refused = [
        f"NO ESTIMATE{f' of the {each.estimand}' if off_policy.beside else ''}: {each.refusal}."
        for each in (off_policy, *off_policy.beside.values())
        if each.refusal is not None
    ]
    note = " ".join([*refused, weights])
    if off_policy.beside:
        note += " 'One place changed' leaves the places above to the log: it is no list's value, and decides nothing."
    return Table("Value by off-policy estimates", ["estimator", "J", "95 %", "empirical Bernstein"], rows, note)


def _bounds(interval: Bounds | None) -> str:
    if interval is None:
        return NOTHING
    return (
        f"{interval.low:.4f} to {interval.high:.4f}" if math.isfinite(interval.high) else f"at least {interval.low:.4f}"
    )


def truth_table(truth: Truth) -> Table:
    """The true reward, which the simulated world knows."""
    rows = [
        cells("J of this policy", with_error(truth.value, truth.se)),
        cells("J of the logging policy", number(truth.logging)),
        cells("gain", with_error(truth.gain, truth.gain_se)),
    ]
    if truth.optimum is not None:
        rows.append(cells("best possible J", number(truth.optimum)))
    return Table("The truth, since the world is simulated", ["figure", "value"], rows)
