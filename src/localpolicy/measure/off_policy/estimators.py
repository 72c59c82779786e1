"""Estimators of J(π) = E_x E_{a~π}[r] from decisions of μ, each as one contribution per decision.

An estimate is the mean of its contributions, and their spread is its error. Contexts are those that μ met: where
showing an item changes what comes next, this is the value of one deviation from μ, not of a whole visit under π.

Dudík et al. 2011 (direct, doubly robust); Swaminathan and Joachims 2015 (self-normalised); Ionides 2008 (clipped);
Sakhi et al. 2024 (logarithmic smoothing).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from localpolicy.measure.off_policy.decisions import Decisions


def importance(log: Decisions) -> np.ndarray:
    """w r."""
    return np.asarray(log.weight * log.reward)


def clipped(log: Decisions, cap: float) -> np.ndarray:
    """min(w, cap) r: for r >= 0 its mean is below J, by what the clipped weights would have added."""
    return np.asarray(np.minimum(log.weight, cap) * log.reward)


def smoothed(log: Decisions, strength: float) -> np.ndarray:
    """log(1 + λ w r) / λ: for r >= 0 below w r, and the less so the smaller λ is."""
    return np.asarray(np.log1p(strength * log.weight * log.reward) / strength)


def self_normalised(log: Decisions) -> np.ndarray:
    """J + w (r - J) / mean(w), with J = Σ w r / Σ w: its mean is J, its spread the delta method's."""
    total = log.weight.sum()
    value = log.weight @ log.reward / total if total > 0 else np.nan
    return np.asarray(value + log.weight * (log.reward - value) / log.weight.mean())


def direct(log: Decisions) -> np.ndarray:
    """Σ_a π(a|x) r̂(x, a): as good as r̂, and blind to what r̂ gets wrong."""
    assert log.value_expected is not None
    return log.value_expected


def doubly_robust(log: Decisions) -> np.ndarray:
    """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)): unbiased for any r̂ not fitted on these decisions."""
    assert log.value_expected is not None and log.value_taken is not None
    return np.asarray(log.value_expected + log.weight * (log.reward - log.value_taken))


ESTIMATORS: dict[str, Callable[[Decisions], np.ndarray]] = {
    "IPS": importance,
    "SNIPS": self_normalised,
    "DM": direct,
    "DR": doubly_robust,
}
NEEDS_REWARD_MODEL = ("DM", "DR")
