"""What would another policy earn? J(π) from a log of propensities: every estimator, its interval, or a plain refusal.

What chooses between policies is a lower confidence bound of the value, by one of the `estimators` that have one. The
default is `snips`: it chose best where the truth is known (docs/results/evaluation.md). β (`training.choice`), epochs
(`value_low` of `train.select`, and with it a sweep and the demo) and the gate (a paired difference of `contributions`)
all come here, so that they agree. Below an effective sample of a tenth of the decisions nothing is chosen: estimates no
longer rank policies as the truth does. All speak of one deviation from μ; where the log has lists, of one whole list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
from localpolicy.measure.estimate import as_json
from localpolicy.measure.estimators import CHOOSING, ESTIMATORS, Estimator, ValueEstimate, by_name, logged
from localpolicy.measure.estimators.ips import CAP as CAP

if TYPE_CHECKING:
    from localpolicy.measure.summary import Scores


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
    estimates = {
        each.title: each.estimate(log, largest_reward=largest_reward)
        for each in ESTIMATORS.values()
        if support.refusal is None and each.listed and each.refusal(log) is None
    }
    return OffPolicy(estimates, ValueEstimate.of(logged(log)), support, log)


# ---------------------------------------------------------------------- what chooses

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
    logs: Sequence[Decisions], estimator: str | Estimator, *, delta: float = DELTA, scale: float = 1.0
) -> list[ValueBound]:
    """Lower bounds for K policies at once: with probability 1 - δ all of them hold, since each does with 1 - δ/K.

    The largest is looked for, so that all must hold: Holm's steps decide tests, and give no bound that is larger.
    Sequences are the independent unit. `scale` is the largest reward.
    """
    by, confidence = by_name(estimator, CHOOSING), 1 - delta / max(len(logs), 1)
    return [
        ValueBound(
            *by.bound(log, confidence=confidence, scale=scale),
            effective_sample(log.whole_weight) / len(log.whole_weight),
        )
        for log in logs
    ]
