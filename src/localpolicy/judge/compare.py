"""`compare`: runs side by side on the same positions, with significance and with simple baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.data.store import NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.judge.comparison import BY_COLUMNS, Comparison
from localpolicy.judge.findings import findings
from localpolicy.judge.harness import Harness, Pair
from localpolicy.judge.rules import GateRules, rules_of
from localpolicy.measure.candidates import Candidate, RunLike, as_list, as_run
from localpolicy.measure.divergence import floor_between
from localpolicy.measure.evaluate import world_of
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.imputation import imputation_at
from localpolicy.measure.load_candidates import open_candidate
from localpolicy.measure.metrics import AT_20, AT_K, EvaluateConfig, metric, paid_events, question_of
from localpolicy.measure.position_metrics import WEIGHTED, WHATEVER_EVENT
from localpolicy.measure.truth import true_value
from localpolicy.simulation.truth import EPISODES, load_world


def refuse_unknown(columns: Sequence[str], groups: Collection[str], metrics: Sequence[str]) -> None:
    """Raise ConfigError for a column that is not `group.metric` with a known group of positions."""
    for column in columns:
        group, _, name = column.rpartition(".")
        if group not in groups:
            known = [f"{each}.{metric_name}" for each in groups for metric_name in metrics]
            raise ConfigError(
                f"columns: expected an event (or all, repeat, new), a dot and a metric, got '{column}'"
                f"{nearest(group, groups) if group else nearest(column, known)}"
            )
        metric(name)  # raises where there is none


def compare(
    runs: Sequence[RunLike] | RunLike,
    *,
    against: Sequence[RunLike] | RunLike = (),
    data: Prepared | Path | str | None = None,
    world: Path | str | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    baseline: str | None = None,
    baselines: bool = True,
    imputation: Path | str | None = None,
    episodes: int = EPISODES,
    device: str = "auto",
    dials: Sequence[tuple[RunLike, float]] = (),
    rules: GateRules | Mapping[str, Any] | Path | str | None = None,
) -> Comparison:
    """Measure runs on the same positions, with significance and with simple baselines.

    A saved baseline and a CSV or Parquet file of lists are measured like a run. All are measured on `data`, or else on
    the rows of the first run's data; what differs between them is in `notes`. Divergence is taken from the runs
    `against`, or else from the `mle` runs among those compared (the configuration with most seeds, where there are
    several); a run is never its own reference. `columns` are the figures tested (default: HR@20 and nDCG@20 of each
    paid event). Gains are taken over the policy called `baseline` (default: the first `mle` run), between weights that
    one figure kept. What decides is what the log can answer, as in the gate, or else one of `columns`. `baselines` adds
    the simple ones. `episodes` is the number of a store's rollouts behind the truth. `dials` are runs of `runs` at
    another β, which needs no training. Values are estimated, and refused, by the gate's `rules`.
    """
    compared_runs, others = [as_run(run) for run in as_list(runs)], [as_run(run) for run in as_list(against)]
    if not compared_runs:
        raise RunError("nothing to compare: name at least one run.")
    rules = rules_of(rules)
    folders, named = ([run.folder.resolve() for run in these] for these in (compared_runs, others))
    extra = [run for run, folder in zip(others, named, strict=True) if folder not in folders]
    harness = Harness.of(
        [*compared_runs, *extra], data, config, baselines=baselines, rules=rules.refusals, device=device
    )
    every = harness.opened
    candidates, references = every[: len(compared_runs)], every[len(compared_runs) :]
    references += [each for folder, each in zip(folders, candidates, strict=True) if folder in named]
    for run, beta in dials:
        name = candidates[folders.index(as_run(run).folder.resolve())].name
        opened = open_candidate(run, name, harness.data, split=harness.config.split, beta=beta, device=device)
        candidates.append(opened)
    candidates += harness.simple() if baselines else []
    return compared(
        harness, candidates, references if others else estimates_among(every), rules=rules,
        tested=AT_20 if config is None else harness.config.metrics,
        world=world, columns=columns, baseline=baseline, imputation=imputation, episodes=episodes,
    )  # fmt: skip


def estimates_among(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The estimates of the log among the candidates; if trained in several ways, those with most seeds."""
    estimates = [candidate for candidate in candidates if candidate.estimates_logging]
    seeds = Counter(estimate.origin.family for estimate in estimates)
    return [each for each in estimates if each.origin.family == max(seeds, key=lambda family: seeds[family])]


def compared(
    harness: Harness,
    candidates: Sequence[Candidate],
    references: Sequence[Candidate],
    *,
    rules: GateRules,
    tested: Sequence[str] = AT_20,
    world: Path | str | None = None,
    columns: Sequence[str] | None = None,
    baseline: str | None = None,
    imputation: Path | str | None = None,
    episodes: int = EPISODES,
) -> Comparison:
    """Compare the candidates of a harness; `tested` are the metrics of the ranks that are tested."""
    prepared, split = harness.data, harness.config.split
    refuse_unknown(columns or (), {*prepared.events, *WHATEVER_EVENT, WEIGHTED} - {NO_ANSWER}, tested)
    # Every k is measured, and few are tested: with more columns each would need a larger difference.
    metrics = dict.fromkeys([*tested, *(column.rpartition(".")[2] for column in columns or ()), *AT_K])
    harness = harness.asking([*metrics])
    names = [candidate.name for candidate in candidates]
    if baseline is not None and baseline not in names:
        raise ConfigError(f"no policy '{baseline}' in this comparison{nearest(baseline, names)}")
    baseline = baseline or next((each.name for each in candidates if each.estimates_logging), None)
    world_folder = world_of(prepared, world)
    built = None if world_folder is None else load_world(world_folder)
    imputed = None if imputation is None else imputation_at(imputation, prepared)
    evaluations = []
    for candidate in candidates:
        evaluation = harness.measured(candidate, references, imputation=imputed)
        refuse_unknown(columns or (), evaluation.metrics, tested)  # an event may have no position in this split
        truth = None if built is None else true_value(candidate.policy, built, episodes=episodes)
        evaluations.append(replace(evaluation, truth=truth))
    evaluations = with_one_floor(evaluations, candidates)
    pairs: dict[str, Pair] = {}
    if baseline is not None:
        base = names.index(baseline)
        pairs = {
            each.name: harness.like_with_like(each, candidates[base], (found, evaluations[base]), imputation=imputed)
            for each, found in zip(candidates, evaluations, strict=True)
            if each.name != baseline
        }
    chosen_by = _selection_notes(pairs, baseline)
    events = [event for event in paid_events(prepared) if event in evaluations[0].metrics]
    chosen = list(columns or (f"{group}.{name}" for group in events or ["all"] for name in tested))
    group, _, name = evaluations[0].main.rpartition(".")
    main = f"{group}.{name if name in tested else tested[0]}" if group else name
    if not columns and main not in chosen:
        chosen.append(main)  # of all that was taken, where it holds several events
    comparison = Comparison(
        evaluations, chosen, events, prepared, list(candidates), list(references), baseline, pairs,
        notes=(*harness.notes(candidates, references, evaluations[0]), *chosen_by),
        differences=(*harness.differences(candidates, references), *chosen_by),
        question=BY_COLUMNS if columns else question_of(prepared, split),
        rules=rules,
    )  # fmt: skip
    return replace(comparison, findings=tuple(findings(comparison)))


def with_one_floor(evaluations: Sequence[Evaluation], candidates: Sequence[Candidate]) -> list[Evaluation]:
    """The evaluations with one common noise floor, from all pairs of estimates that differ in their seed alone.

    Pairs are two references, or a reference and a policy of the comparison that was trained as the reference was. No
    single evaluation has measured all of them.
    """
    js: dict[str, np.ndarray] = {}
    kl: dict[str, np.ndarray] = {}
    seen: set[frozenset[str]] = set()
    for evaluation, candidate in zip(evaluations, candidates, strict=True):
        if (found := evaluation.divergence) is None:
            continue
        alike = [each.name for each in found.references if each.kind == candidate.origin.kind]
        pairs = {name: frozenset((name, candidate.name)) for name in alike}
        pairs |= {} if found.floor_js is None else {pair: frozenset(pair.split("|")) for pair in found.floor_js.by_name}
        for name, pair in pairs.items():
            if pair not in seen:
                seen.add(pair)
                called = "|".join(sorted(pair))
                js[called], kl[called] = evaluation.scores.js[name], evaluation.scores.kl[name]
    sequence = evaluations[0].scores.sequence
    floor_js, floor_kl = (floor_between(each, list(each), sequence) for each in (js, kl))
    return [
        replace(each, divergence=each.divergence and replace(each.divergence, floor_js=floor_js, floor_kl=floor_kl))
        for each in evaluations
    ]


def _selection_notes(pairs: Mapping[str, Pair], baseline: str | None) -> list[str]:
    """Notes on gains between other weights than those kept: one for all that are measured, one per refusal."""
    likeliest = [name for name, pair in pairs.items() if pair.note]
    note = (
        f"the epochs of {', '.join(likeliest)} and {baseline} were chosen by different figures, and choosing by a "
        f"figure raises it. So gains over {baseline} are between the weights of the best held-out likelihood"
    )
    return [*([note] if likeliest else []), *(pair.refusal for pair in pairs.values() if pair.refusal)]
