"""Tests that may be looked at at any time, as often as one likes, without raising more false alarms.

Each is a betting game against a hypothesis (Shafer 2021; Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting"): wealth starts at 1, and is a nonnegative supermartingale while the hypothesis holds. By
Ville's inequality it ever reaches 1/α with probability at most α, at whatever moment one looks or stops. Nothing is
asymptotic: the bound holds from the first unit on, for any distribution of bounded rewards.

Unit i is given the candidate (A = 1) with known probability p, and brings R in [smallest, largest]. With m, a guess of
the mean made before R is known,

    x = (A - p)(R - m),     E[x | past] = p (1 - p) (E[R | A = 1] - E[R | A = 0]),

so betting a share λ of the wealth on x < 0 gains only where the candidate is worse. The mixture over several λ needs
no guess of how much worse. A changing p (a ramp) is no problem: units weigh as they should, p (1 - p).

The share of units in each arm is tested by the Dirichlet mixture of Lindon and Malek 2022, "Anytime-valid inference
for multinomial count data".
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln

BETS = np.geomspace(0.004, 0.9, 12)  # shares of wealth, in units of 1/(largest - smallest)
PRIOR = 100.0  # pseudo-counts of the Dirichlet prior around the planned share


def harm(
    arm: np.ndarray, probability: np.ndarray, reward: np.ndarray, *, largest: float, smallest: float = 0.0
) -> np.ndarray:
    """log wealth [n] against "the candidate is not worse", after each unit."""
    reward = (np.asarray(reward, np.float64) - smallest) / (largest - smallest)
    if len(reward) and not (reward.min() >= 0 and reward.max() <= 1):  # cut off, they would be another question
        raise ValueError(f"rewards must lie within [{smallest:g}, {largest:g}]")
    counted = np.arange(1, len(reward) + 1)
    mean = (0.5 + np.concatenate([[0.0], np.cumsum(reward)[:-1]])) / counted  # of those before; ½ before the first
    x = (arm - probability) * (reward - mean)  # within [-1, 1]
    wealth = np.log1p(-x[:, None] * BETS).cumsum(0)
    top = wealth.max(1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(wealth - top).mean(1)))


def benefit(
    arm: np.ndarray, probability: np.ndarray, reward: np.ndarray, *, largest: float, smallest: float = 0.0
) -> np.ndarray:
    """log wealth [n] against "the candidate is not better"."""
    return harm(arm, probability, smallest + largest - reward, largest=largest, smallest=smallest)


def ratio(candidates: int, others: int, share: float) -> float:
    """log evidence against "units are given the candidate with probability `share`", from the counts of both arms."""
    if not 0 < share < 1:
        return 0.0 if (others if share == 1 else candidates) == 0 else float("inf")
    a, b = PRIOR * share, PRIOR * (1 - share)
    mixed = betaln(a + candidates, b + others) - betaln(a, b)
    return float(mixed - candidates * np.log(share) - others * np.log1p(-share))
