"""`compare`: runs side by side on the same positions, with significance, beside simple baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from localpolicy.data.store import NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.evaluation.baselines import BASELINES
from localpolicy.evaluation.breakdown import Bucket, Valued, breakdown
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
from localpolicy.evaluation.divergence import Reference
from localpolicy.evaluation.estimate import finite
from localpolicy.evaluation.evaluation import EvaluateConfig, Evaluation, evaluate_policy, paid_events
from localpolicy.evaluation.imputation import imputation_at
from localpolicy.evaluation.metrics import metric
from localpolicy.evaluation.run import settings_of, world_of
from localpolicy.evaluation.segments import WHATEVER_EVENT
from localpolicy.evaluation.significance import Paired, holm, paired, paired_bootstrap, stars
from localpolicy.evaluation.truth import EPISODES, true_value
from localpolicy.runs.run import Run
from localpolicy.simulation.truth import load_world


class Lead(NamedTuple):
    """The best of a column against the second best, as in the paper's tables."""

    best: str
    second: str
    test: Paired
    bootstrap_p: float
    holm_p: float  # over the columns of the table

    @property
    def stars(self) -> str:
        """How sure the lead is, corrected for the number of columns."""
        return stars(self.holm_p)

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        rest = {"bootstrap_p": self.bootstrap_p, "holm_p": finite(self.holm_p), "stars": self.stars}
        return {"best": self.best, "second": self.second, **self.test.json(), **rest}


def leads(policies: Sequence[Valued], columns: Sequence[str]) -> dict[str, Lead]:
    """By column: the best against the second best on the same positions."""
    if len(policies) < 2:
        return {}
    found = {}
    for column in columns:
        order = sorted(policies, key=lambda one: -one.estimate(column).mean)
        (best, clusters), (second, _) = order[0].values(column), order[1].values(column)
        if len(best):
            p = paired_bootstrap(best, second, clusters)
            found[column] = Lead(order[0].name, order[1].name, paired(best, second, clusters), p, np.nan)
    corrected = holm([lead.test.p for lead in found.values()])
    return {name: lead._replace(holm_p=p) for (name, lead), p in zip(found.items(), corrected, strict=True)}


@dataclass(frozen=True)
class Comparison:
    """Policies measured on the same positions."""

    evaluations: list[Evaluation]
    columns: list[str]  # as purchase.nDCG@20
    events: list[str]
    data: Prepared = field(repr=False)
    candidates: list[Candidate] = field(repr=False)  # who was measured, in the order of `evaluations`
    references: list[Candidate] = field(repr=False)  # whom divergence is taken from

    def __getitem__(self, name: str) -> Evaluation:
        return next(evaluation for evaluation in self.evaluations if evaluation.name == name)

    @property
    def main(self) -> str:
        """The column that decides: the first nDCG that has positions (the best paid event's), else the first column."""
        filled = [column for column in self.columns if self.evaluations[0].estimate(column).n]
        ranked = [column for column in filled if column.rpartition(".")[2].startswith("nDCG")]
        return (ranked or filled or self.columns)[0]

    @cached_property
    def leads(self) -> dict[str, Lead]:
        """By column: is the best really better than the second?"""
        return leads(self.evaluations, self.columns)

    def against(self, baseline: str) -> dict[str, dict[str, tuple[Paired, float]]]:
        """By policy and column: its gain over `baseline`, and the p-value corrected for all tests made here."""
        base = self[baseline]
        tests = {
            (one.name, column): paired(one.values(column)[0], *base.values(column))
            for one in self.evaluations
            if one.name != baseline
            for column in self.columns
        }
        corrected = holm([test.p for test in tests.values()])
        found: dict[str, dict[str, tuple[Paired, float]]] = {}
        for ((name, column), test), p in zip(tests.items(), corrected, strict=True):
            found.setdefault(name, {})[column] = (test, p)
        return found

    def breakdown(self, event: str, **options: Any) -> list[Bucket]:
        """Sequence-level means by how many such events a sequence has."""
        return breakdown(self.evaluations, event, **options)

    @cached_property
    def predicts_truth(self) -> dict[str, float]:
        """Spearman's correlation over policies of each figure with the true J: would it have picked the best?"""
        if len(self.evaluations) < 3 or any(one.truth is None for one in self.evaluations):
            return {}
        truth = [one.truth.value for one in self.evaluations if one.truth is not None]
        figures = {column: [one.estimate(column).mean for one in self.evaluations] for column in self.columns}
        figures["AR@1"] = [one.rewards["AR@1"].mean for one in self.evaluations]
        figures["logp"] = [one.estimate("logp").mean for one in self.evaluations]
        estimates = [one.off_policy.estimates for one in self.evaluations if one.off_policy is not None]
        if len(estimates) == len(self.evaluations):
            for name in estimates[0]:
                if all(name in each for each in estimates):
                    figures[name] = [each[name].value for each in estimates]
        return {
            name: float(stats.spearmanr(values, truth).statistic)
            for name, values in figures.items()
            if np.ptp(values) > 0 and np.ptp(truth) > 0
        }

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "policies": {one.name: one.json() for one in self.evaluations},
            "columns": self.columns,
            "leads": {column: lead.json() for column, lead in self.leads.items()},
            "breakdown": {event: [bucket.json() for bucket in self.breakdown(event)] for event in self.events},
            "predicts_truth": self.predicts_truth,
        }


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
    baselines: bool = True,
    imputation: Path | str | None = None,
    episodes: int = EPISODES,
    device: str = "auto",
) -> Comparison:
    """Measure runs on the same positions, beside simple baselines, with significance.

    Divergence is taken from the runs `against`, or else from the `mle` runs among those compared (the configuration
    with most seeds, where there are several); a run is never its own reference. `columns` are the figures tested
    (default: HR@20 and nDCG@20 of each paid event). `episodes` is the number of a store's rollouts behind the truth.
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
    if baselines:
        candidates += [Candidate(name, fit(prepared), Reference(name, name)) for name, fit in BASELINES.items()]
    place = world_of(prepared, world)
    built = None if place is None else load_world(place)
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
    return Comparison(found, chosen, events, prepared, candidates, references)
