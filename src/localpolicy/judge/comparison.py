"""Policies measured on the same positions: the noise floor, the gains and the leads are computed here, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from localpolicy.data.store import Prepared
from localpolicy.judge.bench import Pair
from localpolicy.measure.candidates import Candidate, family_of
from localpolicy.measure.divergence import beyond_floor, noise_floor
from localpolicy.measure.estimate import Estimate, Interval, Measurement, as_json, finite
from localpolicy.measure.evaluation import Evaluation, deciding_figure
from localpolicy.measure.significance import Bucket, Lead, Paired, breakdown, column_leads, paired_family
from localpolicy.measure.summary import COMPARED
from localpolicy.results import Result

NAMED = 3  # policies in a summary


class FeatureGain(NamedTuple):
    """What item features bring: a run that reads them against one of the same recipe that reads none."""

    policy: str
    against: str
    features: list[str]
    shuffled: bool  # dealt out anew among the items: a control, that should bring nothing
    tests: dict[str, Paired]  # of the figure that decides and of the likelihood; all such tests are one family


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
    pairs: Mapping[str, Pair] = field(default_factory=dict, repr=False)  # what its gain is taken between, by policy
    notes: tuple[str, ...] = ()  # what differs between those compared, in words

    def __getitem__(self, name: str) -> Evaluation:
        return next(evaluation for evaluation in self.evaluations if evaluation.name == name)

    @property
    def measurements(self) -> list[Measurement]:
        """Everything measured: the rows of one long table."""
        return [row for evaluation in self.evaluations for row in evaluation.rows]

    @property
    def figures(self) -> list[str]:
        """What terminal and frame show of each policy, by name in the long table."""
        first = self.evaluations[0]
        known = any(evaluation.truth is not None for evaluation in self.evaluations)
        shown = [name.format(lists=first.lists) for name in COMPARED]
        figures = [*self.columns, *first.rewards, "JS", *shown, *(["true J"] if known else [])]
        return list(dict.fromkeys(figures))  # of ratings a column is a figure of reward too

    @property
    def main(self) -> str:
        """The column that decides."""
        return deciding_figure(self.evaluations[0], self.columns)[0]

    @cached_property
    def leads(self) -> dict[str, Lead]:
        """By column: is the best really better than the second?"""
        return column_leads(self.evaluations, self.columns)

    @cached_property
    def gains(self) -> dict[str, dict[str, Paired]]:
        """By policy and figure: its gain over the baseline; nothing where there is no baseline.

        Figures are the columns and AR@1. All these tests are one family for Holm's correction. A policy has no gain
        where the comparison of the two is refused (`pairs`).
        """
        measured = {name: pair for name, pair in self.pairs.items() if pair.refusal is None}
        return _tests(measured, (*self.columns, "AR@1"))

    @cached_property
    def feature_gains(self) -> list[FeatureGain]:
        """Each run with item features, given or shuffled, against one without: of its seed, where there is one."""
        runs = {
            each.name: each.run.config for each in self.candidates if each.run and each.run.started and not each.beta
        }
        recipe = {name: family_of(config, whatever_features=True) for name, config in runs.items()}
        bare = [name for name, config in runs.items() if not config.model.features]
        rivals: dict[str, str] = {}
        for name, config in runs.items():
            alike = [other for other in bare if recipe[other] == recipe[name]]
            if config.model.features and alike:
                rivals[name] = min(alike, key=lambda other: runs[other].train.seed != config.train.seed)
        tests = _tests({name: Pair(self[name], self[other]) for name, other in rivals.items()}, (self.main, "logp"))
        return [
            FeatureGain(name, other, list(model.features), model.shuffle_features is not None, tests[name])
            for name, other in rivals.items()
            for model in [runs[name].model]
        ]

    @cached_property
    def floor(self) -> Estimate | None:
        """The noise floor: JS between two μ̂ that differ in their seed alone. None where no such pair was measured.

        Pairs are two references, or a reference and a policy of the comparison that was trained as the reference was.
        """
        pairs: dict[frozenset[str], Estimate] = {}
        kinds = {reference.name: reference.origin.kind for reference in self.references}
        for evaluation, candidate in zip(self.evaluations, self.candidates, strict=True):
            if (measured := evaluation.divergence) is None:
                continue
            if measured.floor_js is not None:
                pairs |= {frozenset(pair.split("|")): js for pair, js in measured.floor_js.by_name.items()}
            for name, js in measured.js.by_name.items():
                if kinds[name] == candidate.origin.kind:
                    pairs[frozenset((name, candidate.name))] = js
        return noise_floor(pairs.values())

    @cached_property
    def unseen_by_js(self) -> list[str]:
        """Policies within noise of the log by JS that yet rank significantly better or worse than the baseline.

        JS compares whole distributions: where these are spread over many items, the order of the first few weighs
        little. Popularity alone can be as close to the log as another seed.
        """
        floor = Interval.known(self.floor)
        return [
            evaluation.name
            for evaluation in self.evaluations
            if evaluation.divergence is not None
            and beyond_floor(Interval.from_estimate(evaluation.divergence.js.overall), floor) is False
            and (gain := self.gains.get(evaluation.name, {}).get(self.main)) is not None
            and gain.sign
        ]

    def breakdown(self, event: str, **options: Any) -> list[Bucket]:
        """Sequence-level means by how many such events a sequence has."""
        return breakdown(self.evaluations, event, **options)

    @cached_property
    def predicts_truth(self) -> dict[str, float]:
        """Spearman's correlation over policies of each figure with the true J: would it have picked the best?"""
        value, count = self.evaluations[0].off_policy, len(self.evaluations)
        names = ("true J", *self.columns, "AR@1", "logp", *([] if value is None else value.estimates))
        rows = {name: [row for each in self.evaluations if (row := each.row(name)) is not None] for name in names}
        figures = {name: [row.mean for row in found] for name, found in rows.items() if len(found) == count >= 3}
        truth = figures.pop("true J", [])
        if not truth or np.ptp(truth) == 0:
            return {}
        from scipy import stats  # half a second, for worlds whose truth is known alone

        differing = {name: values for name, values in figures.items() if np.ptp(values) > 0}
        return {name: float(stats.spearmanr(values, truth).statistic) for name, values in differing.items()}

    def summary(self) -> str:
        """The policies in the order of the column that decides."""
        order = sorted(self.evaluations, key=lambda evaluation: -evaluation.estimate(self.main).mean)
        best = ", ".join(f"{evaluation.name} {evaluation.estimate(self.main).mean:.4f}" for evaluation in order[:NAMED])
        more = f" and {len(order) - NAMED} more" if len(order) > NAMED else ""
        return f"{len(order)} policies by {self.main}: {best}{more}"

    def to_arrow(self) -> pa.Table:
        """One row per policy: each figure with its standard error, gains over the baseline, JS, coverage, true J."""
        return pa.Table.from_pylist([self._row(evaluation) for evaluation in self.evaluations])

    def _row(self, evaluation: Evaluation) -> dict[str, Any]:
        row: dict[str, Any] = {"policy": evaluation.name}
        for figure in (*self.figures, *(["true gain"] if "true J" in self.figures else [])):
            known = evaluation.row(figure)
            row[figure] = None if known is None else finite(known.mean)
            if figure in (*self.columns, *evaluation.rewards, "JS"):
                row[f"{figure} se"] = None if known is None else finite(known.se)
            if self.baseline is not None and figure in (*self.columns, "AR@1"):
                gain = self.gains.get(evaluation.name, {}).get(figure)
                row[f"{figure} gain"] = None if gain is None else finite(gain.difference)
                row[f"{figure} gain p"] = None if gain is None else finite(gain.holm_p)
        return row

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "policies": {evaluation.name: evaluation.to_dict() for evaluation in self.evaluations},
            "columns": self.columns,
            "leads": as_json(self.leads),
            "floor": as_json(self.floor),
            "baseline": self.baseline,
            "gains": as_json(self.gains),
            "features": as_json(self.feature_gains),
            "breakdown": {event: as_json(self.breakdown(event)) for event in self.events},
            "predicts_truth": self.predicts_truth,
            "notes": list(self.notes),
        }


def _tests(pairs: Mapping[str, Pair], figures: Sequence[str]) -> dict[str, dict[str, Paired]]:
    """By name of a pair and figure: the new against the old. All of them are one family for Holm's correction."""
    tests = paired_family(
        {
            (name, figure): (pair.new.values(figure)[0], *pair.old.values(figure))
            for name, pair in pairs.items()
            for figure in figures
        }
    )
    return {name: {figure: tests[name, figure] for figure in figures} for name in pairs}
