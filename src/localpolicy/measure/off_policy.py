"""What would another policy earn? J(π) from a log of propensities: every estimator, its interval, or a plain refusal.

What chooses between policies is a lower confidence bound of the value, by one of three estimators:

- `snips`: self-normalised importance weights, with the bound of a normal mean. The default: it chose best where the
  truth is known (docs/results/evaluation.md).
- `dr`: doubly robust, with items' mean rewards as r̂; the same bound.
- `log_smoothing`: a bound that holds for any number of sequences and any tails of the weights, for rewards >= 0 (see
  `smoothed_lower_bound`).

β (`training.choice`), epochs (`value_low` of `train.select`, and with it a sweep and the demo) and the gate (a paired
difference of `contributions`) all come here, so that they agree. Below an effective sample of a tenth of the decisions
nothing is chosen: estimates no longer rank policies as the truth does. All speak of one deviation from μ; where the log
has lists, of one whole list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from localpolicy.measure import estimators
from localpolicy.measure.decisions import (
    LEAST_EFFECTIVE,
    Decisions,
    Estimand,
    Overlap,
    OverlapRules,
    decisions,
    effective_sample,
    estimand_of,
    overlap,
)
from localpolicy.measure.estimate import as_json, clustered_se

if TYPE_CHECKING:
    from localpolicy.measure.summary import Scores
    from localpolicy.types import Estimator

CAP = 30.0  # of clipped weights: the paper's
INTERVAL = "skewness corrected"


@dataclass(frozen=True)
class ValueEstimate:
    """One estimator's answer."""

    value: float
    se: float  # NaN where nothing says how far it is off
    intervals: dict[str, estimators.Bounds]  # of J, by how they were made; none where none is valid

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        intervals = {name: list(interval) for name, interval in self.intervals.items()}
        return {name: as_json(value) for name, value in {**vars(self), "intervals": intervals}.items()}


@dataclass(frozen=True)
class OffPolicy:
    """All estimates of one policy. Where overlap is too small there is none, and `overlap.refusal` says why."""

    estimates: dict[str, ValueEstimate]
    logged: ValueEstimate  # J(μ): the mean reward of the log itself
    overlap: Overlap
    log: Decisions = field(repr=False, compare=False)  # what all are made of
    propensities: str = "logged"  # or the reference they were estimated by
    estimand: Estimand = "decision"  # what is estimated: per decision, or per list
    beside: dict[str, OffPolicy] = field(default_factory=dict)  # of a log of lists: other questions, by their estimand

    @property
    def unit(self) -> Literal["lists", "decisions"]:
        """What is counted."""
        return "lists" if self.estimand == "whole list" else "decisions"

    @property
    def refusal(self) -> str | None:
        """Why there is no estimate."""
        return self.overlap.refusal

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        left_out = ("log",) if self.beside else ("log", "beside")
        return {name: as_json(value) for name, value in vars(self).items() if name not in left_out}


def value_of_scores(
    scores: Scores,
    *,
    propensities: str | None = None,
    largest_reward: float | None = None,
    rules: OverlapRules | None = None,
) -> OffPolicy | None:
    """What a scored policy earns: per decision, or per list where the log has lists, beside the two other questions.

    None where the log has no propensities. Where a list has one reward, there are no other questions.
    """
    asked: list[Estimand] = [estimand_of(scores.above)]
    if asked == ["whole list"] and not scores.one_reward:
        asked += ["first place", "one place changed"]
    found = {}
    for estimand in asked:
        log = decisions(scores, propensities=propensities, estimand=estimand)
        if log is None:
            return None
        value = off_policy(log, largest_reward=largest_reward, rules=rules)
        found[estimand] = replace(value, propensities=propensities or "logged", estimand=estimand)
    first, *others = asked
    return replace(found[first], beside={other: found[other] for other in others})


def off_policy(log: Decisions, *, largest_reward: float | None = None, rules: OverlapRules | None = None) -> OffPolicy:
    """Estimate J(π). With rewards from 0 to `largest_reward` clipped IPS has a bound that holds for any sample."""
    support = overlap(log, rules)
    estimates: dict[str, ValueEstimate] = {}
    if support.refusal is None:
        for name, estimator in estimators.ESTIMATORS.items():
            if estimator.applies(log):
                found = estimators.contributions(log, name)
                estimates[name] = _estimate(found) if estimator.has_error else ValueEstimate(found.mean, math.nan, {})
        estimates["clipped IPS"] = _clipped(log, largest_reward)
    return OffPolicy(estimates, _estimate(estimators.logged(log)), support, log)


def _estimate(found: estimators.Contributions) -> ValueEstimate:
    return ValueEstimate(found.mean, found.se, {INTERVAL: estimators.skewed(found)})


def _clipped(log: Decisions, largest_reward: float | None) -> ValueEstimate:
    """Between 0 and `CAP` times the largest reward: the one estimator whose range is known beforehand.

    What is clipped off is missing above, so that its interval bounds J from below alone.
    """
    values = estimators.importance(log, CAP)
    intervals = {}
    if largest_reward is not None and log.reward.min() >= 0:
        reach = CAP * largest_reward * (int(log.places.max(initial=0)) + 1)
        found = estimators.empirical_bernstein(values, log.clusters, bounds=(0.0, reach))
        intervals["empirical Bernstein"] = found if (log.weight <= CAP).all() else found._replace(high=math.inf)
    return ValueEstimate(float(values.mean()), clustered_se(values, log.clusters), intervals)


# ---------------------------------------------------------------------- what chooses

Additive = Literal["snips", "dr"]  # a mean of contributions, of which differences can be taken
DELTA = 0.05  # of all bounds together


class ValueBound(NamedTuple):
    """An estimate of J(π), its lower bound, and the effective sample as a share of the decisions (or whole lists)."""

    value: float
    low: float
    effective: float

    @property
    def enough(self) -> bool:
        """Whether the log says enough of the policy to choose it."""
        return self.effective >= LEAST_EFFECTIVE


def value_bounds(
    logs: Sequence[Decisions], estimator: Estimator, *, delta: float = DELTA, scale: float = 1.0
) -> list[ValueBound]:
    """Lower bounds for K policies at once: with probability 1 - δ all of them hold, since each does with 1 - δ/K.

    The largest is looked for, so that all must hold: Holm's steps decide tests, and give no bound that is larger.
    Sequences are the independent unit. `scale` is the largest reward, for `log_smoothing`.
    """
    bounds, confidence = [], 1 - delta / max(len(logs), 1)
    for log in logs:
        if estimator == "log_smoothing":
            value = float(estimators.importance(log).mean())
            low = estimators.smoothed_lower_bound(log, confidence=confidence, scale=scale)
        else:
            found = estimators.contributions(log, estimator)
            value = found.mean
            low = estimators.lower_bound(found.values, found.clusters, confidence=confidence) - found.unknown
        bounds.append(ValueBound(value, low, effective_sample(log.whole_weight) / len(log.whole_weight)))
    return bounds
