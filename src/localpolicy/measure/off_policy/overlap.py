"""Does the log cover this policy's actions? Effective sample, largest weight, and the mean weight, which must be 1."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from pydantic import Field

from localpolicy.measure.estimate import clustered_se
from localpolicy.measure.off_policy.decisions import Decisions
from localpolicy.settings import Settings

LEAST_EFFECTIVE = 0.1  # share of the decisions: below it, estimates no longer rank policies as the truth does


class OverlapRules(Settings):
    """When an estimate is refused."""

    min_effective: float = Field(100.0, ge=1, description="smallest effective sample, in decisions (or whole lists)")
    max_share: float = Field(0.1, gt=0, le=1, description="largest share of all weight on one decision")
    min_rewarded: int = Field(
        10, ge=0, description="fewest decisions (or lists) that earned anything: intervals hold from here on"
    )
    max_bias: float = Field(0.1, gt=0, description="how far the mean weight may be from 1 (beyond 4 standard errors)")


class Overlap(NamedTuple):
    """How well the log's decisions cover the policy."""

    n: int  # decisions, or whole lists
    effective: float  # (Σ w)² / Σ w²: as many decisions of π itself would say as much
    largest: float
    largest_share: float  # of Σ w
    mean_weight: float  # E_μ[π/μ] = 1 where μ supports π and the propensities are right
    mean_weight_se: float
    unseen: float  # share of decisions that π would practically never have taken (w < 0.01)
    near: float  # effective share of single decisions, whatever stands above: how near π is to μ
    rewarded: int  # that earned more than the least
    refusal: str | None  # why no estimate is given, or None
    needed: int | None  # decisions, or lists, with which there might be one


def effective_sample(weight: np.ndarray) -> float:
    """(Σ w)² / Σ w²."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def overlap(log: Decisions, rules: OverlapRules | None = None) -> Overlap:
    """Diagnostics of importance weights, and whether anything may be concluded from them."""
    rules = rules or OverlapRules()
    weight, what = log.whole_weight, "lists" if log.lists else "decisions"
    total = float(weight.sum())
    effective, largest = effective_sample(weight), float(weight.max())
    share = largest / total if total > 0 else 1.0
    mean, se = float(weight.mean()), clustered_se(weight, log.clusters)
    earned = log.earned
    rewarded = int((earned > earned.min()).sum())
    refusal, needed = None, None
    if effective < rules.min_effective:
        refusal = (
            f"effective sample {effective:.1f} of {len(weight):,} {what}; {rules.min_effective:g} are needed; the "
            f"largest weight is {largest:,.0f}"
        )
        needed = math.ceil(len(weight) * rules.min_effective / effective) if effective > 0 else None
    elif share > rules.max_share:
        refusal = f"one of the {what} carries {share:.0%} of all weight (most: {rules.max_share:.0%})"
    elif abs(mean - 1) > max(rules.max_bias, 4 * se):
        cause = "the policy shows what the log never did" if mean < 1 else "the propensities are too small"
        refusal = f"the mean weight is {mean:.3f} ± {se:.3f} and should be 1: {cause}"
    elif rewarded < rules.min_rewarded:
        few = f"only {rewarded}" if rewarded else "none"
        refusal = f"{few} of {len(weight):,} {what} earned anything; {rules.min_rewarded} are needed"
        needed = math.ceil(len(weight) * rules.min_rewarded / rewarded) if rewarded else None
    unseen = float((log.one_place < 0.01).mean())
    near = effective_sample(log.one_place) / len(log.one_place)
    return Overlap(len(weight), effective, largest, share, mean, se, unseen, near, rewarded, refusal, needed)
