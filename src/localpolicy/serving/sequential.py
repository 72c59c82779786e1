"""Tests that may be looked at at any time, as often as one likes, without raising more false alarms.

Each is a betting game against a hypothesis (Shafer 2021; Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting"): wealth starts at 1, and is a nonnegative supermartingale while the hypothesis holds. By
Ville's inequality it ever reaches 1/α with probability at most α, at whatever moment one looks or stops. Nothing is
asymptotic: the bound holds from the first unit on.

Unit i is given the candidate (A = 1) with known probability p, and brings R. With m, a guess of the mean made before R
is known,

    E[(A - p)(R - m) | past] = p (1 - p) (E[R | A = 1] - E[R | A = 0]),

so betting a share λ of the wealth on y = ±(A - p)(R - m) gains only where the arms differ in that direction. The
mixture over several λ needs no guess of how much. A changing p (a ramp) is no problem: units weigh as they should,
p (1 - p). What is bet on rewards is in `reward_tests`.

The share of units in each arm is tested by the Dirichlet mixture of Lindon and Malek 2022, "Anytime-valid inference
for multinomial count data".
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln

MOST = 0.9  # of the wealth that one unit may take
SHARES = np.geomspace(0.004, 0.9, 12)  # of the wealth, bet on outcomes within [0, 1]
PRIOR = 100.0  # pseudo-counts of the Dirichlet prior around the planned share


def log_wealth(y: np.ndarray, bets: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """log mean_j Π_i (1 + λ_ij y_i) after each unit [n], λ = min(bet, 0.9 / -lowest), so that no factor is below 0.1.

    y [n] is at least `lowest` [n] < 0, and bets [n, J] are at least 0.
    """
    share = np.minimum(np.ascontiguousarray(bets.T), MOST / -lowest)  # [J, n]: sums run over adjacent numbers
    logs = np.log1p(y * share).cumsum(1)
    top = logs.max(0)
    return np.asarray(top + np.log(np.exp(logs - top).mean(0)))


def falls(arm: np.ndarray, probability: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """log wealth [n] against "the candidate's outcomes, within [0, 1], are no lower", after each unit."""
    counted = np.arange(1, len(outcome) + 1)
    mean = (0.5 + before(outcome)) / counted  # ½ before the first
    return log_wealth(-(arm - probability) * (outcome - mean), SHARES[None], np.full(len(outcome), -1.0))


def before(values: np.ndarray, start: float = 0.0) -> np.ndarray:
    """Return `start` plus the sum of all values before each one."""
    return start + np.concatenate([[0.0], np.cumsum(values)[:-1]])[: len(values)]


def ratio(candidates: int, others: int, share: float) -> float:
    """log evidence against "units are given the candidate with probability `share`", from the counts of both arms."""
    if not 0 < share < 1:
        return 0.0 if (others if share == 1 else candidates) == 0 else float("inf")
    a, b = PRIOR * share, PRIOR * (1 - share)
    mixed = betaln(a + candidates, b + others) - betaln(a, b)
    return float(mixed - candidates * np.log(share) - others * np.log1p(-share))
