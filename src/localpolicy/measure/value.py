"""What would another policy earn? J(π) from a log of propensities: every estimator, its interval, or a plain refusal.

What chooses between policies is a lower confidence bound of the value, by one of the `estimators` that have one. The
default is `snips`: it chose best where the truth is known (docs/results/evaluation.md). β (`training.beta_selection`),
epochs (`value_low` of `train.select`, and with it a sweep and the demo) and the gate (a paired difference of
`contributions`) all come here. Below an effective sample of a tenth of the decisions nothing is
chosen: estimates no longer rank policies as the truth does. All speak of one deviation from μ.

Where the log has lists, a value is of one whole list and assumes nothing: every reward is weighted by the ratio of its
whole list. A choice takes the cascade's smaller weights unless the log refutes a cascade (`list_tests`). A verdict must
not: a test that picks the estimate on the same rows passes just where it errs most. With standard errors σ of the
cascade, 1.5 σ of whole lists and independent errors of the cascade and of their difference, a 95 % interval holds the
truth in as few as 68 % of logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from localpolicy.measure.decisions import (
    CASCADE,
    LEAST_EFFECTIVE,
    OF_LISTS,
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
from localpolicy.measure.estimators import CHOOSING, ESTIMATORS, INTERVAL, Estimator, ValueEstimate, by_name, logged
from localpolicy.measure.intervals import Bounds
from localpolicy.measure.list_tests import Checked, by_whole_lists, cascade_test
from localpolicy.results import Result

if TYPE_CHECKING:
    from localpolicy.measure.position_metrics import Scores


@dataclass(frozen=True, repr=False)
class OffPolicy(Result):
    """Off-policy estimates of one policy by estimator; none if `overlap.refusal` gives a reason."""

    estimates: dict[str, ValueEstimate]  # by estimator, as tables call it
    logged: ValueEstimate  # J(μ): the mean reward of the log itself
    overlap: Overlap
    log: Decisions = field(repr=False, compare=False)  # what all are made of
    propensities: str = "logged"  # or the reference they were estimated by
    estimand: Estimand = "decision"  # what is estimated: per decision, or per list
    beside: dict[str, OffPolicy] = field(default_factory=dict)  # of a log of lists: other questions, by their estimand
    refusals: dict[str, str] = field(default_factory=dict)  # estimators that were asked for and say nothing, and why
    cascade: Checked | None = None  # of lists: whether a reward depends on the items below
    notes: tuple[str, ...] = ()  # notes about the policy on these rows

    @property
    def unit(self) -> Literal["lists", "decisions"]:
        """Unit of the sample size: lists or decisions."""
        return "lists" if self.log.lists else "decisions"

    @property
    def refusal(self) -> str | None:
        """Reason why there is no estimate; None if there is one."""
        return self.overlap.refusal

    def summary(self) -> str:
        """One line: each estimate with its interval, or the reason why there is none."""
        if self.refusal is not None:
            return f"no estimate: {self.refusal}"
        said = [f"{name} {each.value:.4f}{_around(each)}" for name, each in self.estimates.items()]
        return f"value per {self.unit.removesuffix('s')}: {', '.join([*said, *self.refusals.values()])}"

    def to_dict(self) -> dict[str, Any]:
        """Content of the JSON output."""
        left_out = {"log", *(name for name in ("beside", "refusals", "notes", "cascade") if not getattr(self, name))}
        return {name: as_json(value) for name, value in vars(self).items() if name not in left_out}

    def to_arrow(self) -> pa.Table:
        """One row per estimand and estimator, with a refusal in place of numbers if it does not apply."""
        rows = []
        for each in (self, *self.beside.values()):
            for name, found in {"the log itself": each.logged, **each.estimates}.items():
                low, high = _ends(found)
                about = {"estimand": each.estimand, "estimator": name, "value": found.value, "se": found.se}
                rows.append({**about, "low": low, "high": high, "n": each.overlap.n, "refusal": None})
            refused = {"all": each.refusal} if each.refusal else each.refusals
            rows += [{"estimand": each.estimand, "estimator": name, "refusal": why} for name, why in refused.items()]
        return pa.Table.from_pylist(as_json(rows), schema=SCHEMA)


SCHEMA = pa.schema(
    [("estimand", pa.string()), ("estimator", pa.string())]
    + [(name, pa.float64()) for name in ("value", "se", "low", "high")] + [("n", pa.int64()), ("refusal", pa.string())]
)  # fmt: skip


def _ends(found: ValueEstimate) -> Bounds:
    """Ends of the deciding interval, or of the only one."""
    nothing = Bounds(math.nan, math.nan)
    return found.intervals.get(INTERVAL, next(iter(found.intervals.values()), nothing))


def _around(found: ValueEstimate) -> str:
    low, high = _ends(found)
    if math.isnan(low):
        return ""
    return f" ({low:.4f} to {high:.4f})" if math.isfinite(high) else f" (at least {low:.4f})"


def value_of_scores(
    scores: Scores,
    *,
    propensities: str | None = None,
    largest_reward: float | None = None,
    rules: OverlapRules | None = None,
    estimators: Sequence[Estimator] | None = None,
) -> OffPolicy | None:
    """Estimated value of a scored policy per decision, or per list of a log of lists: then others in `beside`.

    None where the log has no propensities. Where a list has one reward, there are no other questions.
    """
    asked: list[Estimand] = [estimand_of(scores.above)]
    if asked == ["whole list"] and not scores.one_reward:
        asked += OF_LISTS[1:]
    logs = {each: decisions(scores, propensities=propensities, estimand=each) for each in asked}
    found = value_of_questions(logs, largest_reward=largest_reward, rules=rules, estimators=estimators)
    return found and replace(found, propensities=propensities or "logged", beside={
        name: replace(other, propensities=propensities or "logged") for name, other in found.beside.items()
    })  # fmt: skip


def value_of_questions(
    logs: Mapping[Estimand, Decisions | None],
    *,
    largest_reward: float | None = None,
    rules: OverlapRules | None = None,
    estimators: Sequence[Estimator] | None = None,
) -> OffPolicy | None:
    """Estimated value for the first estimand, with the others in its `beside`; None if one of them has no decisions."""
    found = []
    for estimand, log in logs.items():
        if log is None:
            return None
        found.append(value_of(log, estimand, largest_reward=largest_reward, rules=rules, estimators=estimators))
    return replace(found[0], beside={each.estimand: each for each in found[1:]})


def value_of(
    log: Decisions,
    estimand: Estimand = "decision",
    *,
    largest_reward: float | None = None,
    rules: OverlapRules | None = None,
    estimators: Sequence[Estimator] | None = None,
) -> OffPolicy:
    """Estimate J(π) by all estimators that apply, or by the given ones, with a refusal for those that do not.

    Of whole lists by their own ratios; under a cascade, where that is asked and the log does not refute it, by those of
    the places down to each. With rewards from 0 to `largest_reward` clipped IPS has a bound that holds for any sample.
    """
    support, cascade = overlap(log, rules), cascade_test(log) if log.lists else None
    if estimand != CASCADE:
        log = by_whole_lists(log) if log.lists else log
    elif cascade is not None and cascade.fails and support.refusal is None:
        support = support._replace(refusal=f"rewards depend on the items below them (p = {cascade.p:.1g})", needed=None)
    asked = [each for each in ESTIMATORS.values() if each.listed] if estimators is None else estimators
    refused = {each.title: why for each in asked if (why := each.refusal(log)) is not None}
    estimates = {
        each.title: each.estimate(log, largest_reward=largest_reward)
        for each in asked
        if support.refusal is None and each.title not in refused
    }
    said = refused if estimators is not None else {}
    return OffPolicy(estimates, ValueEstimate.of(logged(log)), support, log, estimand=estimand, refusals=said,
                     cascade=cascade)  # fmt: skip


def as_tested(log: Decisions) -> Decisions:
    """The log, with whole-list weights if the test refutes a cascade."""
    found = cascade_test(log) if log.lists else None
    return by_whole_lists(log) if found is not None and found.fails else log


# ---------------------------------------------------------------------- what chooses

DELTA = 0.05  # of all bounds together


class ValueBound(NamedTuple):
    """Estimate of J(π), its lower bound, and the effective sample as a share of the decisions (or whole lists)."""

    value: float
    low: float
    effective: float

    @property
    def enough(self) -> bool:
        """Whether the effective sample is large enough for this policy to be chosen."""
        return self.effective >= LEAST_EFFECTIVE


def value_bounds(
    logs: Sequence[Decisions], estimator: str | Estimator, *, delta: float = DELTA, scale: float = 1.0
) -> list[ValueBound]:
    """Lower bounds of the values of K policies that all hold at once with probability 1 - δ.

    The largest is looked for, so that all must hold: Holm's steps decide tests, and give no bound that is larger.
    Sequences are the independent unit. `scale` is the largest reward.
    """
    by, confidence = by_name(estimator, CHOOSING), 1 - delta / max(len(logs), 1)
    return [
        ValueBound(
            *by.bound(log, confidence=confidence, scale=scale),
            effective_sample(log.whole_weight) / len(log.whole_weight),
        )
        for log in map(as_tested, logs)
    ]
