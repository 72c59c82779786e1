"""Comparison of policies on the same positions: the question that the log can answer, and every test, made once.

The question is the gate's (`measure.metrics.question_of`). Where propensities were logged the estimated value decides,
by the estimator and the intervals of `judge.checks.value`; else a column of ranks, or how well what is ranked first was
liked. Each pair of policies is tested once: all tests by ranks are one family for Holm's correction, all tests by value
are another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import pyarrow as pa

from localpolicy.data.store import Prepared
from localpolicy.judge.checks.gains import too_few
from localpolicy.judge.checks.value import Valued, value_tests, valued
from localpolicy.judge.claims import Claim
from localpolicy.judge.harness import Pair
from localpolicy.judge.rules import GateRules
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Estimate, Interval, Measurement, as_json, finite, sequences_of
from localpolicy.measure.estimators import by_name
from localpolicy.measure.evaluation import Evaluation, deciding_figure, rank_correlations
from localpolicy.measure.gains import Exchange, FeatureGain, exchanged, feature_gains
from localpolicy.measure.metrics import AT_K, Question
from localpolicy.measure.position_metrics import AGREEMENT, COMPARED, LIKED
from localpolicy.measure.significance import (
    Bucket,
    Lead,
    Paired,
    Values,
    breakdown,
    paired_bootstrap,
    paired_family,
)
from localpolicy.measure.truth import true_gains
from localpolicy.model.baselines import BASELINES
from localpolicy.results import Result

NAMED = 3  # policies in a summary
TRUE_GAIN = "true gain"
BY_COLUMNS = Question("metric", "the columns name the figure")


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Result of `compare`: policies measured on the same positions, and the paired tests between them."""

    evaluations: list[Evaluation]
    columns: list[str]  # as purchase.nDCG@20
    events: list[str]
    data: Prepared = field(repr=False)
    candidates: list[Candidate] = field(repr=False)  # who was measured, in the order of `evaluations`
    references: list[Candidate] = field(repr=False)  # divergence is taken from these
    baseline: str | None = None  # the policy that gains are taken over
    pairs: Mapping[str, Pair] = field(default_factory=dict, repr=False)  # what its gain is taken between, by policy
    notes: tuple[str, ...] = ()  # what must be known of them, in words
    differences: tuple[str, ...] = ()  # those of the notes that say what differs between the policies
    question: Question = BY_COLUMNS  # what the log is asked
    findings: tuple[Claim, ...] = ()  # what was found (see `judge.findings`)
    rules: GateRules = field(default_factory=GateRules)  # values are estimated, and refused, as the gate does

    @property
    def value(self) -> str:
        """Name of the value estimate in the long table (`SNIPS`)."""
        return by_name(self.rules.estimator).title

    def __getitem__(self, name: str) -> Evaluation:
        return next(evaluation for evaluation in self.evaluations if evaluation.name == name)

    @property
    def names(self) -> list[str]:
        """Names of the policies, in the order of `evaluations`."""
        return [each.name for each in self.evaluations]

    def candidate(self, name: str) -> Candidate:
        return next(each for each in self.candidates if each.name == name)

    def renamed(self, names: Mapping[str, str]) -> Comparison:
        """The same policies by other names, such as those of a page."""

        def called(name: str) -> str:
            return names.get(name, name)

        def of(each: Any) -> Any:
            return replace(each, name=called(each.name))

        return replace(
            self,
            evaluations=[of(each) for each in self.evaluations],
            candidates=[of(each) for each in self.candidates],
            references=[of(each) for each in self.references],
            baseline=self.baseline and called(self.baseline),
            pairs={
                called(name): replace(pair, new=of(pair.new), old=of(pair.old)) for name, pair in self.pairs.items()
            },
        )

    @property
    def best_new(self) -> str:
        """Name of the best new policy by the deciding metric; without any, of the best policy."""
        order = self.order(self.main)
        rivals = [name for name in (*order, *self.rivals) if name in self.rivals]
        return (rivals or order or self.names)[0]

    def said(self, figure: str) -> str:
        """Display name of a metric: purchase nDCG@20."""
        return f"estimated reward per {self.unit}" if figure == self.value else figure.replace(".", " ", 1)

    def interval(self, name: str, figure: str) -> Interval | None:
        """A policy's metric with its interval; None if it was not measured."""
        row = self[name].row(figure)
        return None if row is None else row.interval

    @property
    def measurements(self) -> list[Measurement]:
        return [row for evaluation in self.evaluations for row in evaluation.rows]

    @property
    def figures(self) -> list[str]:
        """Names of the metrics that the terminal and `to_frame` show of each policy."""
        first = self.evaluations[0]
        known = any(evaluation.truth is not None for evaluation in self.evaluations)
        shown = [name.format(lists=first.lists) for name in COMPARED]
        value = [] if first.off_policy is None else [self.value]
        figures = [*value, *self.columns, *first.rewards, "JS", *shown, *(["true J"] if known else [])]
        return list(dict.fromkeys(figures))  # of ratings a column is a figure of reward too

    @property
    def tested(self) -> list[str]:
        """Names of the metrics by which policies are tested against each other."""
        first = self.evaluations[0]
        values = [] if first.off_policy is None else [self.value]
        rewards = [name for name in ("AR@1", LIKED, AGREEMENT) if name in first.rewards]
        return list(dict.fromkeys([*values, *self.columns, *rewards]))

    @property
    def ranked(self) -> str:
        """Name of the rank metric that decides if the value does not."""
        return deciding_figure(self.evaluations[0], self.columns, weighted=not self.question.amount)

    @property
    def main(self) -> str:
        """Name of the metric that decides, as in the gate: the value if propensities were logged, else `ranked`."""
        return self.value if self.question.kind == "value" else self.ranked

    @property
    def unit(self) -> str:
        """Unit of the deciding metric: position, decision or list."""
        return self.evaluations[0].unit if self.main == self.value else "position"

    @property
    def simple(self) -> list[str]:
        return [each.name for each in self.candidates if each.origin.objective in BASELINES]

    @property
    def rivals(self) -> list[str]:
        """Names of the new policies: neither simple baselines nor estimates of the log, nor the baseline itself."""
        known = {*self.simple, self.baseline, *(each.name for each in self.candidates if each.estimates_logging)}
        return [each.name for each in self.candidates if each.name not in known]

    @cached_property
    def values(self) -> dict[str, Valued]:
        """Estimated value of each policy by name, or the reason why there is none."""
        return {each.name: valued(each.off_policy, self.rules) for each in self.evaluations}

    def level(self, name: str, figure: str) -> float:
        """A policy's mean of a metric; NaN if it was not measured."""
        if figure == self.value:
            found = self.values[name].found
            return math.nan if found is None else found.mean
        row = self[name].row(figure)
        return math.nan if row is None else row.mean

    def order(self, figure: str) -> list[str]:
        """Names of the policies that have the metric, the largest first."""
        levels = {each.name: self.level(each.name, figure) for each in self.evaluations}
        return sorted((name for name, level in levels.items() if level == level), key=lambda name: -levels[name])

    @property
    def strongest(self) -> str | None:
        """Name of the simple baseline that is best by the deciding metric; None without any."""
        return next((name for name in self.order(self.main) if name in self.simple), None)

    def _pairs(self, figure: str) -> list[tuple[str, str]]:
        """Pairs of policies that are tested by a metric, each pair once.

        All against the baseline, the best against the second best, and by the figure that decides each policy that is
        meant to be better against the strongest of the simple ones.
        """
        order = self.order(figure)
        pairs = [(name, self.baseline) for name in order if self.baseline in order]
        pairs += [(order[0], order[1])] if len(order) > 1 and figure in (self.value, *self.columns) else []
        if figure == self.main and (strongest := self.strongest) is not None:
            pairs += [(name, strongest) for name in self.rivals if name in order]
        once: dict[frozenset[str], tuple[str, str]] = {}
        for new, old in pairs:
            if old is not None and new != old:
                once.setdefault(frozenset((new, old)), (new, old))  # a lead over the baseline is a gain already
        return list(once.values())

    def _behind(self, new: str, old: str, figure: str) -> Values | None:
        """Paired values of two policies for a metric, with clusters; None if the two cannot be compared."""
        if figure == self.value:
            mine, theirs = self.values[new].found, self.values[old].found
            return None if mine is None or theirs is None else (mine.values, theirs.values, mine.clusters)
        pair = Pair(self[new], self[old])
        if old == self.baseline:
            pair = self.pairs.get(new, pair)
        return None if pair.refusal else (pair.new.values(figure)[0], *pair.old.values(figure))

    @cached_property
    def tests(self) -> dict[tuple[str, str, str], Paired]:
        """Paired test of each (policy, policy, metric): first minus second, corrected for all tests of its family."""
        ranks = {
            (new, old, figure): values
            for figure in self.tested
            for new, old in self._pairs(figure)
            if figure != self.value and (values := self._behind(new, old, figure)) is not None
        }
        gaps = {
            (new, old, self.value): mine - theirs
            for new, old in (self._pairs(self.value) if self.value in self.tested else ())
            if (mine := self.values[new].found) is not None and (theirs := self.values[old].found) is not None
        }
        return {**paired_family(ranks), **value_tests(gaps, self.rules.confidence)}

    def test(self, new: str, old: str | None, figure: str) -> Paired | None:
        """Paired test of a metric, `new` minus `old`; None if the two were not tested."""
        turned = self.tests.get((old or "", new, figure))
        return self.tests.get((new, old or "", figure)) if turned is None else -turned

    def comparisons(self, figure: str) -> int:
        """Number of tests that a metric's p-values and intervals are corrected for."""
        if figure == TRUE_GAIN:
            return len(self.true_gains)
        return sum((name == self.value) == (figure == self.value) for _, _, name in self.tests)

    @property
    def too_few(self) -> str | None:
        """Sentence that too few sequences have the deciding metric to compare policies; None if there are enough.

        Whether a value may be estimated has rules of its own.
        """
        if self.main == self.value or too_few(clusters := self.evaluations[0].values(self.main)[1], self.rules) is None:
            return None
        return f"{sequences_of(clusters)} held-out sequences are too few to tell (least: {self.rules.min_sequences})"

    @cached_property
    def leads(self) -> dict[str, Lead]:
        """Paired test of the best against the second best policy, by column."""
        found = {}
        for figure in self.tested:
            best, second, *_ = (*self.order(figure), "", "")
            if figure in (self.value, *self.columns) and (test := self.test(best, second, figure)) is not None:
                values = self._behind(*((second, best) if best == self.baseline else (best, second)), figure)
                assert values is not None
                found[figure] = Lead(best, second, test, paired_bootstrap(*values))
        return found

    @cached_property
    def gains(self) -> dict[str, dict[str, Paired]]:
        """Gain of each policy over the baseline, by policy and metric; empty without a baseline.

        A policy has no gain in ranks where the comparison of the two is refused (`pairs`), and none in value where one
        of the two values is.
        """
        found = {
            each.name: {name: test for name in self.tested if (test := self.test(each.name, self.baseline, name))}
            for each in self.evaluations
        }
        return {name: gains for name, gains in found.items() if gains}

    @property
    def traded(self) -> list[str]:
        """Deciding rank metric of each event, such as purchase.nDCG@20 and click.nDCG@20; empty for fewer than two."""
        metric = self.ranked.rpartition(".")[2]
        figures = [figure for event in self.events if (figure := f"{event}.{metric}") in self.columns]
        return figures if len(figures) > 1 else []

    @cached_property
    def frontier(self) -> list[Exchange]:
        """Gains and losses over the baseline by event, per policy; empty with fewer than two events."""
        figures = self.traded
        known = {name: each for name, each in self.gains.items() if figures and each.keys() >= set(figures)}
        return exchanged([(name, {figure: each[figure] for figure in figures}) for name, each in known.items()])

    @cached_property
    def true_gains(self) -> dict[str, Paired]:
        """True gain of each policy over the logging policy; empty unless the data are simulated."""
        known = {each.name: each.truth for each in self.evaluations if each.truth is not None}
        return true_gains(known, self.rules.confidence)

    @cached_property
    def feature_gains(self) -> list[FeatureGain]:
        return feature_gains(self.candidates, self.evaluations, (self.ranked, "logp"))

    @property
    def floor(self) -> Estimate | None:
        """Noise floor of JS, the same for all evaluations; None without two estimates of the log."""
        floors = [each.divergence.floor_js for each in self.evaluations if each.divergence is not None]
        return next((floor.overall for floor in floors if floor is not None), None)

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
            and (gain := self.gains.get(evaluation.name, {}).get(self.ranked)) is not None
            and gain.sign
        ]

    def breakdown(self, event: str, **options: Any) -> list[Bucket]:
        """Sequence-level means by the number of positions of `event` in a sequence."""
        return breakdown(self.evaluations, event, **options)

    @cached_property
    def predicts_truth(self) -> dict[str, float]:
        """Spearman's correlation of each metric with the true J over policies; empty without the truth."""
        value = self.evaluations[0].off_policy
        figures = (*self.columns, "AR@1", "logp", *([] if value is None else value.estimates))
        return rank_correlations(self.evaluations, figures)

    def summary(self) -> str:
        """One line: the policies in the order of the deciding metric."""
        order, every = self.order(self.main), len(self.evaluations)
        best = ", ".join(f"{name} {self.level(name, self.main):.4f}" for name in order[:NAMED])
        more = f" and {len(order) - NAMED} more" if len(order) > NAMED else ""
        without = f", {every - len(order)} without it" if order and every > len(order) else ""
        policies = f"{every} {'policy' if every == 1 else 'policies'}"
        return f"{policies} by {self.main}: {best or 'the log carries no estimate'}{more}{without}"

    def to_arrow(self) -> pa.Table:
        """Table with one row per policy: metrics with standard errors, gains, JS, coverage, true J.

        Last come the columns' groups at every k.
        """
        return pa.Table.from_pylist([self._row(evaluation) for evaluation in self.evaluations])

    def _row(self, evaluation: Evaluation) -> dict[str, Any]:
        row: dict[str, Any] = {"policy": evaluation.name}
        for figure in (*self.figures, *([TRUE_GAIN] if "true J" in self.figures else [])):
            known = evaluation.row(figure)
            row[figure] = None if known is None else finite(known.mean)
            if figure in (self.value, *self.columns, *evaluation.rewards, "JS"):
                row[f"{figure} se"] = None if known is None else finite(known.se)
            if self.baseline is not None and figure in self.tested:
                gain = self.gains.get(evaluation.name, {}).get(figure)
                row[f"{figure} gain"] = None if gain is None else finite(gain.difference)
                row[f"{figure} gain p"] = None if gain is None else finite(gain.holm_p)
        groups = dict.fromkeys(group for group, _, _ in (column.rpartition(".") for column in self.columns) if group)
        for group, name in product(groups, AT_K):
            if f"{group}.{name}" not in row and (known := evaluation.row(f"{group}.{name}")) is not None:
                row[f"{group}.{name}"] = finite(known.mean)
        return row

    def to_dict(self) -> dict[str, Any]:
        return {
            "policies": {evaluation.name: evaluation.to_dict() for evaluation in self.evaluations},
            "question": self.question._asdict(),
            "columns": self.columns,
            "main": self.main,
            "leads": as_json(self.leads),
            "floor": as_json(self.floor),
            "baseline": self.baseline,
            "gains": as_json(self.gains),
            "frontier": as_json(self.frontier),
            "features": as_json(self.feature_gains),
            "breakdown": {event: as_json(self.breakdown(event)) for event in self.events},
            "predicts_truth": self.predicts_truth,
            "notes": list(self.notes),
            "claims": as_json(self.findings),
        }
