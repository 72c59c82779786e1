"""Does the log cover this policy's actions? Effective sample, largest weight, and the mean weight, which must be 1."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from localpolicy.measure.estimate import clustered_se, finite
from localpolicy.settings import Settings

LEAST_EFFECTIVE = 0.1  # share of the decisions: below it, estimates no longer rank policies as the truth does


class OverlapRules(Settings):
    """When an estimate is refused."""

    min_effective: float = Field(100.0, ge=1, description="smallest effective sample, in decisions")
    max_share: float = Field(0.1, gt=0, le=1, description="largest share of all weight on one decision")
    max_bias: float = Field(0.1, gt=0, description="how far the mean weight may be from 1 (beyond 4 standard errors)")


class Overlap(NamedTuple):
    """How well the log's decisions cover the policy."""

    n: int
    effective: float  # (Σ w)² / Σ w²: as many decisions of π itself would say as much
    largest: float
    largest_share: float  # of Σ w
    mean_weight: float  # E_μ[π/μ] = 1 where μ supports π and the propensities are right
    mean_weight_se: float
    unseen: float  # share of decisions that π would practically never have taken (w < 0.01)
    refusal: str | None  # why no estimate is given, or None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {name: finite(value) for name, value in self._asdict().items()}


def effective_sample(weight: np.ndarray) -> float:
    """(Σ w)² / Σ w²."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def overlap(weight: np.ndarray, sequence: np.ndarray, rules: OverlapRules | None = None) -> Overlap:
    """Diagnostics of importance weights, and whether anything may be concluded from them."""
    rules = rules or OverlapRules()
    total = float(weight.sum())
    effective, largest = effective_sample(weight), float(weight.max())
    share = largest / total if total > 0 else 1.0
    mean, se = float(weight.mean()), clustered_se(weight, sequence)
    refusal = None
    if effective < rules.min_effective:
        refusal = (
            f"the {len(weight):,} decisions are worth {effective:.1f} of this policy's own (least: "
            f"{rules.min_effective:g}); the largest weight is {largest:,.0f}"
        )
    elif share > rules.max_share:
        refusal = f"one decision carries {share:.0%} of all weight (most: {rules.max_share:.0%})"
    elif abs(mean - 1) > max(rules.max_bias, 4 * se):
        cause = "the policy shows what the log never did" if mean < 1 else "the propensities are too small"
        refusal = f"the mean weight is {mean:.3f} ± {se:.3f} and should be 1: {cause}"
    return Overlap(len(weight), effective, largest, share, mean, se, float((weight < 0.01).mean()), refusal)
