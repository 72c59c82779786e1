"""J(π) from a log of another policy: every estimator, its intervals, and the overlap that carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from localpolicy.measure.estimate import clustered_se, finite
from localpolicy.measure.off_policy.decisions import Decisions
from localpolicy.measure.off_policy.estimators import ESTIMATORS, NEEDS_REWARD_MODEL, clipped
from localpolicy.measure.off_policy.intervals import Bounds, bootstrap, empirical_bernstein, normal
from localpolicy.measure.off_policy.overlap import Overlap, OverlapRules, overlap

CAP = 30.0  # of clipped weights: the paper's


@dataclass(frozen=True)
class ValueEstimate:
    """One estimator's answer."""

    value: float
    se: float
    intervals: dict[str, Bounds]  # normal, bootstrap; where a range is known also 'empirical Bernstein'

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        named = {name: [finite(bound) for bound in interval] for name, interval in self.intervals.items()}
        return {"value": finite(self.value), "se": finite(self.se), "intervals": named}


@dataclass(frozen=True)
class OffPolicy:
    """All estimates of one policy. Where overlap is too small there is none, and `overlap.refusal` says why."""

    estimates: dict[str, ValueEstimate]
    logged: ValueEstimate  # J(μ): the mean reward of the log itself
    overlap: Overlap
    propensities: str  # 'logged', or the reference they were estimated by

    @property
    def refusal(self) -> str | None:
        """Why there is no estimate."""
        return self.overlap.refusal

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "estimates": {name: value.to_dict() for name, value in self.estimates.items()},
            "logged": self.logged.to_dict(),
            "overlap": self.overlap.to_dict(),
            "propensities": self.propensities,
        }


def off_policy(
    log: Decisions,
    *,
    cap: float = CAP,
    largest_reward: float | None = None,
    confidence: float = 0.95,
    rules: OverlapRules | None = None,
    propensities: str = "logged",
    seed: int = 0,
) -> OffPolicy:
    """Estimate J(π). With rewards from 0 to `largest_reward` clipped IPS has an interval that holds for any sample."""
    support = overlap(log.weight, log.sequence, rules)
    logged = _estimate(log.reward, log.sequence, confidence, seed)
    estimates: dict[str, ValueEstimate] = {}
    if support.refusal is None:
        for name, estimator in ESTIMATORS.items():
            if name not in NEEDS_REWARD_MODEL or log.value_expected is not None:
                estimates[name] = _estimate(estimator(log), log.sequence, confidence, seed)
        # Between 0 and cap times the largest reward: the one estimator whose range is known beforehand.
        bounds = None if largest_reward is None or log.reward.min() < 0 else (0.0, cap * largest_reward)
        estimates["clipped IPS"] = _estimate(clipped(log, cap), log.sequence, confidence, seed, bounds)
    return OffPolicy(estimates, logged, support, propensities)


def _estimate(
    values: np.ndarray, sequence: np.ndarray, confidence: float, seed: int, bounds: tuple[float, float] | None = None
) -> ValueEstimate:
    intervals = {
        "normal": normal(values, sequence, confidence=confidence),
        "bootstrap": bootstrap(values, sequence, confidence=confidence, seed=seed),
    }
    if bounds is not None:
        intervals["empirical Bernstein"] = empirical_bernstein(values, sequence, bounds=bounds, confidence=confidence)
    return ValueEstimate(float(values.mean()), clustered_se(values, sequence), intervals)
