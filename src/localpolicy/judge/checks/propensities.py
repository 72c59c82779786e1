"""Are the logged propensities those of what was shown?

The mean of π(a|x)/p is 1 for every π if p is μ. If p is another law it is above 1 for any good estimate of μ: for μ
itself Σ_a μ²/p ≥ 1, with equality for p = μ alone. So the new policy and each estimate of the log are asked whether
their mean is significantly above 1. A mean below 1 has a second cause, a policy that shows what the log never did.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from localpolicy.judge.case import Case
from localpolicy.judge.claims import Claim, check
from localpolicy.measure.decisions import ratios
from localpolicy.measure.estimate import mean_estimate, sequences_of, t_quantile
from localpolicy.measure.position_metrics import Scores

LEVEL = 0.01  # of all policies together, one-sided
LEAST_EXCESS = 0.01  # above 1: less does no harm
WRONG = "the logged propensities do not fit what was shown"


def propensity_check(weights: Mapping[str, np.ndarray], sequence: np.ndarray) -> Claim:
    """Claim that no mean of π/p is significantly above 1, by one-sided tests that share one error level."""
    found, worst = [], ("", 0.0)
    for name, weight in weights.items():
        known = ~np.isnan(weight)
        if sequences_of(sequence[known]) < 2:
            continue
        mean = mean_estimate(weight[known], sequence[known])
        found.append(f"{name} {mean.mean:.3f} ± {mean.se:.3f}")
        least = t_quantile(1 - LEVEL / len(weights), sequences_of(sequence[known]) - 1)
        excess = mean.mean - 1
        if excess > max(LEAST_EXCESS, least * mean.se) and excess > worst[1]:
            worst = name, excess
    reason = f"mean of π/p, which should be 1: {', '.join(found)}"
    if worst[0]:
        return check("propensities", "cannot tell", f"{reason}. {WRONG}", 1 + worst[1], n=len(sequence), plain=WRONG)
    return check("propensities", "yes", reason, n=len(sequence))


def weights_of(name: str, scores: Scores) -> dict[str, np.ndarray]:
    """π/p of the scored policy and of each reference, at single places."""
    found = {name: ratios(scores)}
    propensity = scores.propensity
    assert propensity is not None
    for reference, logp in (scores.logp_open_reference or scores.logp_reference).items():
        found[reference] = np.exp(logp.astype(np.float64) - np.log(propensity.astype(np.float64)))
    return {each: weight for each, weight in found.items() if weight is not None}


def true_propensities(case: Case) -> list[Claim]:
    """Claim that the logged propensities are those of what was shown; none if the log states no propensities."""
    scores = case.evaluation.scores
    if scores.propensity is None or not case.rules.reference_fit:
        return []
    return [propensity_check(weights_of(case.evaluation.name, scores), scores.sequence)]
