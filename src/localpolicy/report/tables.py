"""An evaluation, a run and lists as tables, for a terminal, a page or a paper."""

from __future__ import annotations

import math
from typing import Any

from localpolicy.data.rewards import is_rating
from localpolicy.measure.divergence import MOST_JS, Divergence
from localpolicy.measure.estimate import Estimate
from localpolicy.measure.estimators import Bounds
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.off_policy import INTERVAL, OffPolicy
from localpolicy.measure.truth import Truth
from localpolicy.model.lists import Lists
from localpolicy.report.table import NOTHING, Table, number, with_error
from localpolicy.runs.run import Run


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Every table of one evaluation."""
    tables = [ranking_table(evaluation), policy_table(evaluation)]
    tables += [divergence_table(evaluation.divergence)] if evaluation.divergence else []
    tables += [off_policy_table(evaluation.off_policy)] if evaluation.off_policy else []
    return tables + ([truth_table(evaluation.truth)] if evaluation.truth else [])


def ranking_table(evaluation: Evaluation) -> Table:
    """Groups of positions by metrics."""
    names = list(next(iter(evaluation.metrics.values())))
    rows = []
    for group, figures in evaluation.metrics.items():
        if is_rating(group):
            continue  # one group per rating would be too many; 'all' holds them together
        count = next(iter(figures.values())).n
        rows.append([group, f"{count:,}", *(share_with_error(figures[name]) for name in names)])
    settings = evaluation.settings
    seen = "seen items excluded" if settings["exclude_seen"] else "seen items may be shown"
    note = (
        "Ranked over the full catalogue; items with equal scores share their mean rank. min_history "
        f"{settings['min_history']}, windows of {settings['length']}; "
        f"{seen}. Errors are clustered by sequence."
    )
    return Table(f"{evaluation.name} on '{settings['split']}'", ["positions", "n", *names], rows, note)


def share_with_error(value: Estimate) -> str:
    """0.1234 ± 0.0012; where the standard error is 0, an exact interval instead: 0.0000 (0 to 0.35)."""
    if value.n == 0 or value.se > 0:
        return number(value)
    interval = value.within_unit()
    return f"{number(value.mean)} ({interval.low:.2g} to {interval.high:.2g})"


def policy_table(evaluation: Evaluation) -> Table:
    """Logged reward, coverage, entropy and popularity."""
    rows = [[name, number(value)] for name, value in evaluation.figures.items() if "." not in name]
    note = "popularity@K: mean count of a shown item over that of a logged one."
    if evaluation.imputation is not None:
        note += (
            " iAR@1 comes from imputed ratings. It prefers policies that show the same few items to everyone: read it "
            "beside coverage and entropy."
        )
    return Table("What it would show", ["figure", "value"], rows, note)


def divergence_table(divergence: Divergence) -> Table:
    """Distance from each reference, and between references."""
    measured = {
        f"{each.name} ({each.objective}, seed {each.seed}, epoch {each.epoch} by {each.selected_by})": (
            divergence.js.by_name[each.name], divergence.kl.by_name[each.name],
        )
        for each in divergence.references
    }  # fmt: skip
    if divergence.floor_js is not None and divergence.floor_kl is not None:
        floors = divergence.floor_js.overall, divergence.floor_kl.overall
        measured["noise floor: references among themselves"] = floors
    rows = [[name, *map(number, both)] for name, both in measured.items()]
    spread = divergence.js.quantiles
    note = f"In nats, JS <= {MOST_JS:.3f}. Over contexts: median {spread['q50']:.4f}, 95 % below {spread['q95']:.4f}."
    if divergence.above_floor is not None:
        note += f" The policy is {divergence.above_floor:.1f} times as far as the references are from each other."
    else:
        note += " Give two references of different seeds to see how much of this is noise."
    return Table("Divergence", ["from", "JS", "KL(π‖reference)"], rows, note)


def off_policy_table(off_policy: OffPolicy) -> Table:
    """Estimates of J, or the reason why there is none; of a log of lists each question has rows of its own."""
    overlap, questions = off_policy.overlap, (off_policy, *off_policy.beside.values())
    weights = (
        f"{overlap.n:,} {off_policy.unit}, effective sample {overlap.effective:,.0f}; largest weight "
        f"{overlap.largest:,.1f}; mean weight {overlap.mean_weight:.3f} ± {overlap.mean_weight_se:.3f}; propensities: "
        f"{off_policy.propensities}. Contexts are those of the log."
    )
    rows = []
    for each in questions:
        prefix = f"{each.estimand}: " if off_policy.beside else ""
        for name, estimate in {"the log itself": each.logged, **each.estimates}.items():
            texts = [_bounds(estimate.intervals.get(kind)) for kind in (INTERVAL, "empirical Bernstein")]
            value = number(estimate.value) if math.isnan(estimate.se) else with_error(estimate.value, estimate.se)
            rows.append([prefix + name, value, *texts])
    refused = [
        f"NO ESTIMATE{f' of the {each.estimand}' if off_policy.beside else ''}: {each.refusal}."
        for each in questions
        if each.refusal is not None
    ]
    note = " ".join([*refused, weights])
    if off_policy.beside:
        note += (
            " 'One place changed' leaves the places above to the log: it is not the value of a list, and decides "
            "nothing."
        )
    return Table("Value by off-policy estimates", ["estimator", "J", "95 %", "empirical Bernstein"], rows, note)


def _bounds(interval: Bounds | None) -> str:
    if interval is None:
        return NOTHING
    both = f"{interval.low:.4f} to {interval.high:.4f}"
    return both if math.isfinite(interval.high) else f"at least {interval.low:.4f}"


def truth_table(truth: Truth) -> Table:
    """The true reward, which the simulated world knows."""
    rows = [
        ["J of this policy", with_error(truth.value, truth.se)],
        ["J of the logging policy", number(truth.logging)],
        ["gain", with_error(truth.gain, truth.gain_se)],
    ]
    if truth.optimum is not None:
        rows.append(["best possible J", number(truth.optimum)])
    return Table("The truth, since the world is simulated", ["figure", "value"], rows)


# ---------------------------------------------------------------------- a finished run


WEIGHED = {"effective_share": "effective sample of the weights", "clipped_share": "weights capped or clamped"}


def run_table(run: Run) -> Table:
    """The selected epoch, its losses and weights, and the digest of the weights."""
    manifest, last = run.manifest, run.selected_metrics()
    rows = [
        *run.selection().items(),
        ("patience, in validations", str(manifest["patience"] or "none: all epochs")),
        *((f"loss: {name}", f"{value:.5f}") for name, value in last["losses"].items()),
        *((title, f"{last['weights'][name]:.1%}") for name, title in WEIGHED.items() if name in last["weights"]),
        *_improvement(manifest.get("improvement")),
        *_beginnings(manifest),
    ]
    digest = f"sha256 of policy.safetensors: {manifest['policy_sha256']}"  # below: in a cell it would be broken
    return Table(f"{manifest['objective']} in {run.folder}", ["what", "value"], rows, digest)


def _improvement(improvement: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What the closed form chose, and what its critic knows."""
    if improvement is None:
        return []
    calibration, by = improvement["calibration"], improvement["chosen_by"]
    rows = [
        ("β, as given" if by == "given" else f"β, chosen by {by}", f"{improvement['beta']:.4g}"),
        ("the critic's calibration: slope (lower bound)", f"{calibration['slope']:.3f} ({calibration['low']:.3f})"),
        ("what it explains within contexts, held out (R²)", f"{calibration['r2']:.4f}"),
        ("advantage scale", f"{improvement['slope']:.3f}"),
    ]
    if errors := improvement.get("critic_error"):
        what = "its squared error, held out (item and user means)"
        rows.append((what, f"{errors['critic']:.4g} ({errors['plain']:.4g})"))
    return [*rows, ("note", improvement["said"])] if improvement["said"] else rows


def _beginnings(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """What came from an older run: the weights to start from, or the logging policy."""
    rows = []
    if start := manifest.get("warm_start"):
        rows.append((f"started from {start['run']}: items known, new", f"{start['known_items']}, {start['new_items']}"))
        rows.append(("heads that started fresh", ", ".join(start["fresh_heads"]) or "none"))
    if (logging := manifest.get("logging")) and "unseen_items" in logging:
        what = f"actions on items that {logging['run']} never saw (weight {logging['unseen_actions_weigh']})"
        rows.append((what, f"{logging['unseen_actions']:,} of {logging['actions']:,}"))
    return rows


# ---------------------------------------------------------------------- recommended lists


MOST = 10  # lists and ranks shown; `to_frame()` has all


def lists_table(lists: Lists) -> Table:
    """One row per history, best item first."""
    shown = min(MOST, lists.indices.shape[1])
    called = lists.items if lists.names is None else lists.names
    rows = [[str(number), *map(str, items[:shown])] for number, items in enumerate(called[:MOST])]
    left = len(lists.items) - MOST
    note = f"{left:,} more histories: see to_frame()." if left > 0 else ""
    return Table(f"{len(lists.items):,} lists", ["history", *map(str, range(1, shown + 1))], rows, note)
