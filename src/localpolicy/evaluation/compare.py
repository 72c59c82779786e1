"""`compare`: runs side by side on the same positions, with significance, beside simple baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
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
from localpolicy.evaluation.divergence import Reference, beyond_floor
from localpolicy.evaluation.estimate import Estimate, Interval, finite
from localpolicy.evaluation.evaluation import EvaluateConfig, Evaluation, evaluate_policy, paid_events
from localpolicy.evaluation.imputation import imputation_at
from localpolicy.evaluation.metrics import metric
from localpolicy.evaluation.run import settings_of, world_of
from localpolicy.evaluation.segments import WHATEVER_EVENT
from localpolicy.evaluation.significance import Paired, holm, paired, paired_bootstrap, stars
from localpolicy.evaluation.truth import EPISODES, true_value
from localpolicy.results import Result
from localpolicy.runs.run import Run
from localpolicy.simulation.truth import load_world

NAMED = 3  # policies in a summary
SURE = 0.05  # largest corrected p-value of a difference that is called significant


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

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        rest = {"bootstrap_p": self.bootstrap_p, "holm_p": finite(self.holm_p), "stars": self.stars}
        return {"best": self.best, "second": self.second, **self.test.to_dict(), **rest}


@dataclass(frozen=True)
class Gain:
    """A policy's mean minus the baseline's on the same positions."""

    mean: float
    low: float  # 95 % interval of this difference alone
    high: float
    se: float  # clustered by sequence
    p: float
    holm_p: float  # corrected for all gains of the comparison
    n: int

    @classmethod
    def of(cls, test: Paired, holm_p: float) -> Gain:
        """The gain that a paired test measured."""
        return cls(test.difference, test.low, test.high, test.se, test.p, holm_p, test.n)

    @property
    def sign(self) -> int:
        """+1 or -1 where the corrected test is significant at 5 %, else 0."""
        return int(np.sign(self.mean)) if self.holm_p < SURE else 0

    @property
    def stars(self) -> str:
        """How sure the gain is, corrected for all gains of the comparison."""
        return stars(self.holm_p)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**{name: finite(value) for name, value in vars(self).items()}, "stars": self.stars}


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


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Policies measured on the same positions."""

    evaluations: list[Evaluation]
    columns: list[str]  # as purchase.nDCG@20
    events: list[str]
    data: Prepared = field(repr=False)
    candidates: list[Candidate] = field(repr=False)  # who was measured, in the order of `evaluations`
    references: list[Candidate] = field(repr=False)  # whom divergence is taken from
    baseline: str | None = None  # the policy that gains are taken over

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

    @cached_property
    def gains(self) -> dict[str, dict[str, Gain]]:
        """By policy and figure: its gain over the baseline; nothing where there is no baseline.

        Figures are the columns and AR@1. All these tests are one family for Holm's correction.
        """
        if self.baseline is None:
            return {}
        base = self[self.baseline]
        tests = {
            (policy.name, figure): paired(policy.values(figure)[0], *base.values(figure))
            for policy in self.evaluations
            if policy.name != self.baseline
            for figure in (*self.columns, "AR@1")
        }
        corrected = holm([test.p for test in tests.values()])
        gains: dict[str, dict[str, Gain]] = {}
        for ((name, figure), test), holm_p in zip(tests.items(), corrected, strict=True):
            gains.setdefault(name, {})[figure] = Gain.of(test, holm_p)
        return gains

    @cached_property
    def floor(self) -> Estimate | None:
        """The noise floor: JS between two μ̂ that differ in their seed alone. None where no such pair was measured.

        Pairs are two references, or a reference and a policy of the comparison that was trained as the reference was.
        Of several the largest counts, so that noise is not mistaken for movement.
        """
        measured = [one.divergence for one in self.evaluations if one.divergence is not None]
        floors = [each.floor_js.overall for each in measured if each.floor_js is not None]
        families = {(one.about.objective, one.about.family) for one in self.references}
        for evaluation, candidate in zip(self.evaluations, self.candidates, strict=True):
            if evaluation.divergence is not None and (candidate.about.objective, candidate.about.family) in families:
                floors.append(evaluation.divergence.js.overall)
        return max(floors, key=lambda floor: floor.mean, default=None)

    @cached_property
    def unseen_by_js(self) -> list[str]:
        """Policies that are within noise of the log by JS, and yet rank surely better or worse than the baseline.

        JS compares whole distributions: where these are spread over many items, the order of the first few weighs
        little. Popularity alone can be as close to the log as another seed.
        """
        floor = None if self.floor is None else Interval.from_estimate(self.floor)
        return [
            one.name
            for one in self.evaluations
            if one.divergence is not None
            and beyond_floor(Interval.from_estimate(one.divergence.js.overall), floor) is False
            and (gain := self.gains.get(one.name, {}).get(self.main)) is not None
            and gain.sign
        ]

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

    def summary(self) -> str:
        """The policies in the order of the column that decides."""
        order = sorted(self.evaluations, key=lambda one: -one.estimate(self.main).mean)
        best = ", ".join(f"{one.name} {one.estimate(self.main).mean:.4f}" for one in order[:NAMED])
        more = f" and {len(order) - NAMED} more" if len(order) > NAMED else ""
        return f"{len(order)} policies by {self.main}: {best}{more}"

    def to_arrow(self) -> pa.Table:
        """One row per policy: each figure with its standard error, gains over the baseline, JS, coverage, true J."""
        return pa.Table.from_pylist([self._row(evaluation) for evaluation in self.evaluations])

    def _row(self, evaluation: Evaluation) -> dict[str, Any]:
        row: dict[str, Any] = {"policy": evaluation.name}
        for figure in (*self.columns, *evaluation.rewards):
            value = evaluation.estimate(figure)
            row |= {figure: finite(value.mean), f"{figure} se": finite(value.se)}
            if self.baseline is not None and figure in (*self.columns, "AR@1"):
                gain = self.gains.get(evaluation.name, {}).get(figure)
                row |= {f"{figure} gain": None if gain is None else finite(gain.mean)}
                row |= {f"{figure} gain p": None if gain is None else finite(gain.holm_p)}
        divergence, truth = evaluation.divergence, evaluation.truth
        js = None if divergence is None else divergence.js.overall
        row |= {"JS": None if js is None else finite(js.mean), "JS se": None if js is None else finite(js.se)}
        row |= {"entropy": evaluation.estimate("entropy").mean, f"coverage@{evaluation.lists}": evaluation.coverage}
        if any(one.truth is not None for one in self.evaluations):
            row |= {
                "true J": None if truth is None else truth.value,
                "true gain": None if truth is None else truth.gain,
            }
        return row

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "policies": {one.name: one.to_dict() for one in self.evaluations},
            "columns": self.columns,
            "leads": {column: lead.to_dict() for column, lead in self.leads.items()},
            "floor": None if self.floor is None else self.floor.to_dict(),
            "baseline": self.baseline,
            "gains": {
                name: {figure: gain.to_dict() for figure, gain in gains.items()} for name, gains in self.gains.items()
            },
            "breakdown": {event: [bucket.to_dict() for bucket in self.breakdown(event)] for event in self.events},
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
