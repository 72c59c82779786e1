"""`compare`: runs side by side on the same positions, with significance, beside simple baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localpolicy.data.store import NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.evaluation.baselines import BASELINES
from localpolicy.evaluation.candidates import (
    Candidate,
    RunLike,
    as_run,
    names_of,
    open_data,
    open_run,
    refuse_incomparable,
    window_of,
)
from localpolicy.evaluation.comparison import Comparison
from localpolicy.evaluation.divergence import Reference
from localpolicy.evaluation.evaluation import EvaluateConfig, evaluate_policy, paid_events
from localpolicy.evaluation.imputation import imputation_at
from localpolicy.evaluation.metrics import metric
from localpolicy.evaluation.run import settings_of, world_of
from localpolicy.evaluation.segments import WHATEVER_EVENT
from localpolicy.evaluation.truth import EPISODES, true_value
from localpolicy.runs.run import Run
from localpolicy.simulation.truth import load_world


def _named(candidate: Candidate, runs: Sequence[Run]) -> bool:
    assert candidate.run is not None
    return candidate.run.folder.resolve() in {run.folder.resolve() for run in runs}


def refuse_unknown(columns: Sequence[str], groups: Collection[str], metrics: Sequence[str]) -> None:
    """Raise where a column is not one of these groups of positions, a dot and a metric."""
    for column in columns:
        group, _, name = column.rpartition(".")
        if group not in groups:
            known = [f"{each}.{one}" for each in groups for one in metrics]
            raise ConfigError(
                f"columns: expected an event (or all, repeat, new), a dot and a metric, got '{column}'"
                f"{nearest(column, known)}"
            )
        metric(name)


def compare(
    runs: Sequence[RunLike],
    *,
    against: Sequence[RunLike] = (),
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
) -> Comparison:
    """Measure runs on the same positions, beside simple baselines, with significance.

    Divergence is taken from the runs `against`, or else from the `mle` runs among those compared (the configuration
    with most seeds, where there are several); a run is never its own reference. `columns` are the figures tested
    (default: HR@20 and nDCG@20 of each paid event). Gains are taken over the policy called `baseline` (default: the
    first `mle` run). `baselines` adds the simple ones. `episodes` is the number of a store's rollouts behind the truth.
    `dials` are runs of `runs` at another β, which needs no training.
    """
    opened = [as_run(run) for run in runs]
    if not opened:
        raise RunError("nothing to compare: name at least one run.")
    others = [as_run(run) for run in against]
    extra = [run for run in others if run.folder.resolve() not in {one.folder.resolve() for one in opened}]
    names = names_of([*opened, *extra], taken=BASELINES if baselines else ())
    every = [open_run(run, name, device=device) for run, name in zip([*opened, *extra], names, strict=True)]
    refuse_incomparable(every)
    references = [one for one in every if _named(one, others)]
    if not others:
        estimates = [one for one in every if one.estimates_logging]
        # Of μ̂s trained in different ways those with most seeds are meant: they have a floor.
        seeds = Counter(one.about.family for one in estimates)
        references = [one for one in estimates if one.about.family == max(seeds, key=lambda each: seeds[each])]
    prepared = open_data(opened[0], data)
    settings = settings_of(config, every[0].facts["train.min_history"])
    metrics = ("HR@20", "nDCG@20") if config is None else settings.metrics
    if columns:
        refuse_unknown(columns, {*prepared.events, *WHATEVER_EVENT} - {NO_ANSWER}, metrics)
        metrics = tuple(dict.fromkeys([*metrics, *(column.rpartition(".")[2] for column in columns)]))
    settings = settings.model_copy(update={"metrics": metrics})
    candidates = every[: len(opened)]
    for run, beta in dials:
        name = next(one.name for one in every if _named(one, [as_run(run)]))
        candidates.append(open_run(as_run(run), name, beta=beta, device=device))
    if baselines:
        candidates += [Candidate(name, fit(prepared), Reference(name, name)) for name, fit in BASELINES.items()]
    baseline = baseline_of(candidates, baseline)
    world_folder = world_of(prepared, world)
    built = None if world_folder is None else load_world(world_folder)
    imputed = None if imputation is None else imputation_at(imputation, prepared)
    found = []
    for candidate in candidates:
        mine = [reference for reference in references if reference.name != candidate.name]
        evaluation = evaluate_policy(
            candidate.policy,
            prepared,
            name=candidate.name,
            window=window_of(every[0]),
            config=settings,
            references={reference.name: reference.policy for reference in mine},
            described=[reference.about for reference in mine],
            imputation=imputed,
        )
        refuse_unknown(columns or (), evaluation.metrics, metrics)  # an event may have no position in this split
        truth = None if built is None else true_value(candidate.policy, built, episodes=episodes)
        found.append(replace(evaluation, truth=truth))
    events = [event for event in paid_events(prepared) if event in found[0].metrics]
    chosen = list(columns or (f"{group}.{name}" for group in events or ["all"] for name in settings.metrics))
    return Comparison(found, chosen, events, prepared, candidates, references, baseline)


def baseline_of(candidates: Sequence[Candidate], name: str | None) -> str | None:
    """The policy that gains are taken over: the one named, else the first μ̂, else none."""
    names = [candidate.name for candidate in candidates]
    if name is not None and name not in names:
        raise ConfigError(f"no policy '{name}' in this comparison{nearest(name, names)}")
    return name or next((one.name for one in candidates if one.estimates_logging), None)
