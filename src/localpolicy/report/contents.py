"""What a report says, as plain data: the long table of measurements, and the claims checked on it.

Pages are drawn from it, and the file for machines (`demo.json`) holds it. That file's schema stands here alone:

    title, verdict, next_step, settings          in words
    numbers       [{value, name, meaning}]       two or three behind the verdict
    answer        {}                             in words; of a gate: why, ground, but
    sections      one for each comparison:
      title, about, reference, baseline, facts   in words
      columns, at_k {figure: as people say it};  main: the figure that decides;  ranked: the column of ranks
      unit          decision, or list: what a value is per
      policies      [{name, objective, beta, run, digest, weights, curve, ...}]    who was measured
      measurements  [{policy, seed, split, round, group, figure, mean, se, low, high, n}]    the long table
                                                 (of a true gain the interval that decides: corrected for all policies)
      gains         {policy: {figure: {difference, low, high, holm_p, ...}}}    over the baseline ("true gain": over μ)
      corrected     {figure: for how many comparisons its gains and their intervals are corrected}
      floor, logging_value                       {mean, low, high}, or null
      claims        [{figure, rule, holds, claim, because, ...}]    holds: true, false, or null where nobody can tell;
                                                 judge/claims.py has the others
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from localpolicy.judge.claims import Claim
from localpolicy.measure.divergence import MOST_JS
from localpolicy.measure.estimate import Interval, Measurement, as_json
from localpolicy.measure.significance import Paired
from localpolicy.report.table import Table

JS_SCALE = f"0: it shows the same as before; {MOST_JS:.2f}: nothing in common."  # what JS means


VALIDATION, HALF = "all validation sequences", "every second validation sequence"


class StageCurve(NamedTuple):
    """Validation curve of one network of a closed form, with epochs counted from 1."""

    curve: Sequence[Mapping[str, Any]]
    selected_epoch: int | None
    selected_by: str
    on: str = VALIDATION  # which sequences chose its epoch, and its curve is of


@dataclass(frozen=True)
class PolicyInfo:
    """Description of a measured policy: objective, β, weights and training curve."""

    name: str  # as people call it: "lpi_cb β=0.1"
    objective: str
    beta: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)  # of the selected epoch: effective_share, ...
    curve: Sequence[Mapping[str, Any]] = ()  # one entry per epoch: epoch, losses, weights, validation, selected_by
    selected_epoch: int | None = None
    selected_by: str = ""  # the rule whose largest value picked the epoch: "AR@1", "logp"
    on: str = VALIDATION  # which sequences picked it, and the curve is of
    stages: Mapping[str, StageCurve] = field(default_factory=dict)  # of a closed form: "logging", "critic-1", ...
    js_histogram: Sequence[tuple[float, float, int]] = ()  # (from, to, contexts)
    run: str | None = None  # its folder, relative to the report
    digest: str | None = None  # of its weights


@dataclass(frozen=True)
class SampleLists:
    """Lists of two policies after the same history."""

    history: Sequence[str]
    lists: Mapping[str, Sequence[tuple[str, float]]]  # policy -> (item, probability)


OF_PAGES = ("segments", "moved", "checks", "traded")  # fields of a section that `to_dict` leaves out, or puts elsewhere


@dataclass(frozen=True)
class Section:
    """Report section of one comparison: policies on the same data, with their long table and charts."""

    title: str
    about: str  # what the data is, in two sentences
    policies: Sequence[PolicyInfo] = ()
    measurements: Sequence[Measurement] = ()  # the long table
    segments: Sequence[Measurement] = ()  # a figure by segment of the positions: rows of it too
    columns: Mapping[str, str] = field(default_factory=dict)  # the figures compared -> as people say them
    at_k: Mapping[str, str] = field(default_factory=dict)  # the same at every k; none is tested
    main: str = ""  # the figure that decides, charted where no truth is known; the first column if empty
    ranked: str = ""  # the column of ranks, of which the segments are; `main` if empty
    gains: Mapping[str, Mapping[str, Paired]] = field(default_factory=dict)  # by policy and figure, over the baseline
    traded: Sequence[str] = ()  # one metric of each event, where there are several: what is gained may be lost there
    corrected: Mapping[str, int] = field(default_factory=dict)  # by figure: for how many comparisons its gains are
    unseen_by_js: Collection[str] = ()  # policies within noise by JS that rank otherwise than the baseline
    likeliest: Sequence[str] = ()  # gains between weights of the best likelihood, not between the figures shown
    logging_value: Interval | None = None  # J(μ)
    reference: str = ""  # which μ̂ divergences are taken against
    baseline: str = ""  # the policy that gains are taken over
    floor: Interval | None = None  # JS between two μ̂ of different seeds
    claims: Sequence[Claim] = ()
    checks: Sequence[Claim] = ()  # of a gate, apart from the findings
    samples: Sequence[SampleLists] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # counts, settings, digests
    lists: int = 20  # K of the lists behind coverage@K
    unit: str = "decision"  # what a value is per; or a list
    value: str = "SNIPS"  # the estimated value, by its name in the long table
    amount: str = ""  # the log's name of what a sale brought, if rewards are such amounts
    moved: Table | None = None  # items that the judged policy shows more and less, for readers alone

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Interval]:
        return {(row.policy, row.name): row.interval for row in self.measurements if row.round is None}

    def figure(self, policy: str, name: str) -> Interval | None:
        """A policy's metric (`purchase.nDCG@20`, `JS`, `coverage@20`) with its interval; None if not measured."""
        return self._by_name.get((policy, name.removeprefix("all.")))

    def mean(self, policy: str, name: str) -> float | None:
        """Mean of a policy's metric, without its interval; None if it was not measured."""
        figure = self.figure(policy, name)
        return None if figure is None else figure.mean

    def true_share(self, policy: str) -> float | None:
        """True relative gain of a policy over the logging policy; None if the truth is not known."""
        gain, level = self.mean(policy, "true gain"), self.logging_value
        return None if gain is None or level is None or not level.mean else gain / level.mean

    def said(self, name: str) -> str:
        """Display name of a metric: purchase nDCG@20."""
        return self.columns.get(name, name)

    @property
    def metric(self) -> str:
        return self.said(self.main)

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]

    def decisive(self, policy: str) -> float:
        """A policy's mean of the deciding metric; -inf if it was not measured."""
        mean = self.mean(policy, self.main)
        return mean if mean is not None and math.isfinite(mean) else -math.inf

    def best(self, among: Iterable[str]) -> str:
        return max(among, key=self.decisive)

    def to_dict(self) -> dict[str, Any]:
        content = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in OF_PAGES}
        content["measurements"] = [*self.measurements, *self.segments]
        return {name: as_json(value) for name, value in content.items()}


@dataclass(frozen=True)
class KeyNumber:
    """A number on the first screen of a report, with its name and meaning."""

    value: str
    name: str
    meaning: str


@dataclass(frozen=True)
class Contents:
    """Content of a whole report; without sections only its first screen."""

    title: str
    verdict: str  # the answer, in a sentence or two
    sections: Sequence[Section] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[KeyNumber] = ()  # two or three
    next_step: str = ""  # what to do now
    answer: Mapping[str, str] = field(default_factory=dict)  # of a gate: why, ground, but

    def to_dict(self) -> dict[str, Any]:
        return {name: as_json(value) for name, value in vars(self).items()}
