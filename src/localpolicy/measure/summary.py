"""From values per position to figures with errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from localpolicy.measure.estimate import Estimate, mean_estimate
from localpolicy.measure.score import Scores
from localpolicy.measure.segments import answered, groups

WEIGHTED = "reward-weighted"  # group of a figure over all events, weighted by their rewards
DEFAULT_METRICS = ("HR@5", "HR@10", "HR@20", "nDCG@5", "nDCG@10", "nDCG@20", "MRR")


def ranking(scores: Scores, metrics: Iterable[str] = DEFAULT_METRICS) -> dict[str, dict[str, Estimate]]:
    """Metric figures by group of positions; and of all together weighted by reward, where rewards differ."""
    metrics = tuple(metrics)
    figures = {
        group: {name: mean_estimate(scores.metric(name)[here], scores.sequence[here]) for name in metrics}
        for group, here in groups(scores).items()
    }
    if len(np.unique(scores.reward[answered(scores)])) > 1:
        figures[WEIGHTED] = {name: mean_estimate(*reward_weighted(scores, name)) for name in metrics}
    return figures


def reward_weighted(scores: Scores, name: str) -> tuple[np.ndarray, np.ndarray]:
    """r m / mean(|r|) at what was answered, m being a metric such as nDCG@20; and the sequence of each [n].

    Its mean is Σ r m / Σ |r|: one figure for events of different worth, at the prices of the rewards.
    """
    here = answered(scores)
    reward = scores.reward[here].astype(np.float64)
    scale = float(np.abs(reward).mean()) if len(reward) else 1.0
    return scores.metric(name)[here] * reward / (scale or 1.0), scores.sequence[here]


def reward_at_1(scores: Scores) -> np.ndarray:
    """r · 1[the policy's first item is the one taken], at each position (section 4.1)."""
    return np.asarray(scores.reward * (scores.top == scores.item), dtype=np.float64)


LIKED, AGREEMENT = "liked@1", "agreement"  # figures of how well what is ranked high was liked


def liking_values(scores: Scores, name: str) -> np.ndarray:
    """Values of `liked@1` or `agreement` at each position; NaN where there is nothing to compare."""
    values = {LIKED: scores.liked, AGREEMENT: scores.agreement}[name]
    assert values is not None, "a log of ratings"
    return values


def average_reward(scores: Scores) -> Estimate:
    """AR@1 = mean of r · 1[a = argmax π]."""
    return mean_estimate(reward_at_1(scores), scores.sequence)


def likelihood(scores: Scores) -> Estimate:
    """Mean log π(a|x) of what was logged, among what could be chosen as far as the log says what that was."""
    logp = scores.logp
    if scores.logp_open is not None:
        logp = np.where(np.isnan(scores.logp_open), logp, scores.logp_open)
    return mean_estimate(logp, scores.sequence)


def entropy(scores: Scores) -> Estimate:
    """Mean -Σ_a π log π: a policy that has collapsed has nearly none."""
    return mean_estimate(scores.entropy, scores.sequence)


def coverage(shown: np.ndarray) -> float:
    """Share of the catalogue that is in some list."""
    return float((shown > 0).mean())


def popularity(shown: np.ndarray, counts: np.ndarray) -> float:
    """E[count of a shown item] / E[count of a logged item]: 1 where lists are as popular as the log."""
    logged = (counts.astype(np.float64) ** 2).sum() / max(counts.sum(), 1)
    return float(shown @ counts / max(shown.sum(), 1) / logged) if logged else float("nan")


def flat(scores: Scores, metrics: Iterable[str] = DEFAULT_METRICS) -> dict[str, float]:
    """`purchase.nDCG@20`, ..., `AR@1`, `logp` as plain numbers, for selection and logs."""
    named = {
        f"{group}.{name}": value.mean
        for group, values in ranking(scores, metrics).items()
        for name, value in values.items()
    }
    return {**named, "AR@1": average_reward(scores).mean, "logp": likelihood(scores).mean}


def as_json(figures: dict[str, dict[str, Estimate]]) -> dict[str, Any]:
    """Nested figures for `--json`."""
    return {group: {name: value.to_dict() for name, value in values.items()} for group, values in figures.items()}
