"""True distribution of lists that are drawn place by place without replacement (Plackett and Luce): exact, at any
length.

Give item a a clock that rings after an exponential time of rate π(a). The order in which clocks ring is the list's: the
next to ring is a with probability π(a) / Σ of those still to ring. So a stands below exactly j others with probability
∫ π(a) e^{-π(a) t} P(j of the others rang before t) dt. Under the integral is a Poisson binomial distribution; the
integral is a sum over log t, which converges faster than any power of the step.
"""

from __future__ import annotations

import numpy as np

STEP, FIRST, LAST = 0.25, -36.0, 6.0  # of log t; before and after, less than 1e-15 is missing


def place_chances(policy: np.ndarray, places: int) -> np.ndarray:
    """P(item a stands at place j) of lists drawn from π: [V, k], of π [V]."""
    policy = np.asarray(policy, np.float64) / np.sum(policy)
    likely = policy[policy > 0]
    last = LAST - min(0.0, float(np.log(likely.min())))  # until the rarest item has rung
    time = np.exp(np.arange(FIRST, last, STEP))
    rang = -np.expm1(-time[:, None] * likely)  # [T, V]
    rate = time[:, None] * likely * np.exp(-time[:, None] * likely) * STEP
    above = np.zeros((len(time), len(likely), places))  # how many of the others rang: [T, V, k]
    above[:, :, 0] = 1.0
    for other in range(len(likely)):
        chance = np.broadcast_to(rang[:, other, None], rang.shape).copy()
        chance[:, other] = 0.0  # nobody stands above themselves
        moved = above * chance[:, :, None]
        above -= moved
        above[:, :, 1:] += moved[:, :, :-1]
    found = np.zeros((len(policy), places))
    found[policy > 0] = np.einsum("tv,tvk->vk", rate, above)
    return found


def list_value(policy: np.ndarray, reward: np.ndarray, examined: np.ndarray) -> np.ndarray:
    """Σ_j e_j Σ_a P(a at j) r(a) of every context: [X], of π and r [X, V] and e [k]."""
    return np.array(
        [
            float(place_chances(law, len(examined)).T @ worth @ examined)
            for law, worth in zip(policy, reward, strict=True)
        ]
    )
