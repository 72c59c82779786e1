"""How strong a hidden cause must be to undo a gain, and how strong the causes are that a log shows.

Where people chose themselves, something unseen may drive both what they take and what it earns. The marginal
sensitivity model bounds what it can do: given the unseen, the probability of what was taken is within a factor Γ of
the one that the log's contexts give, so that each weight lies in [w/Γ, Γw]. The lowest self-normalised value within
these bounds gives the small weights to the best rewards: a sort finds it. Γ* is where the gain's lower end meets 0.

The yardstick is what leaving out a cause that the log does show amounts to: the factor by which the last item, or the
hour, changes the probability of what was taken. Both are figures for a person to weigh, and decide nothing.

Tan 2006; Zhao, Small and Bhattacharya 2019 (the sort); Kallus and Zhou 2018 (the yardstick). Departure: the factor is
on the probability, not on its odds, as there are many actions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from localpolicy.data.store import Prepared
from localpolicy.measure.estimate import CONFIDENCE, clustered_se, sequences_of, t_reach

STRONGEST = 100.0  # a Γ that is not looked beyond
HALVINGS = 30
WITHIN = 0.9  # share of what was taken that a yardstick covers
BELIEFS = tuple(4.0**power for power in range(12))  # actions, the weight of the belief in an item's share of all
HOUR, HOURS = 3_600_000, 24  # milliseconds


class Sensitivity(NamedTuple):
    """Strength that a hidden cause must have to undo a gain, next to that of an observed one."""

    strength: float  # Γ*; 1 where the gain is not significant anyway, infinite where nothing undoes it
    yardstick: float | None  # Γ of the strongest cause that the log shows; None where it shows none
    cause: str | None  # which one that is

    @property
    def ratio(self) -> float | None:
        """log Γ* over the yardstick's: how many times as strong as the strongest seen cause."""
        if self.yardstick is None or self.yardstick <= 1:
            return None
        return math.log(self.strength) / math.log(self.yardstick)


def lowest_weights(weight: np.ndarray, reward: np.ndarray, strength: float) -> np.ndarray:
    """argmin over v in [w/Γ, Γw] of Σ v r / Σ v: w/Γ for the best rewards, Γw for the rest."""
    order = np.argsort(-reward, kind="stable")
    weighed, earned = weight[order], weight[order] * reward[order]
    small, small_earned = (np.concatenate([[0.0], np.cumsum(each)]) for each in (weighed, earned))
    total = small / strength + strength * (small[-1] - small)
    value = (small_earned / strength + strength * (small_earned[-1] - small_earned)) / total
    factor = np.full(len(weight), strength)
    factor[order[: int(np.argmin(value))]] = 1 / strength
    return np.asarray(weight * factor)


def lowest_gain(
    weight: np.ndarray, reward: np.ndarray, sequence: np.ndarray, old: np.ndarray, strength: float, *,
    confidence: float = CONFIDENCE,
) -> float:  # fmt: skip
    """Lower end of the gain over `old` under the worst hidden cause of this strength, clustered by sequence.

    At the worst weights the value is stationary in which they are, so that they count as given (the delta method).
    """
    worst = lowest_weights(weight, reward, strength)
    value = float((worst * reward).sum() / worst.sum())
    gain = value + worst / worst.mean() * (reward - value) - old
    if (sequences := sequences_of(sequence)) < 2:
        return -math.inf
    return float(gain.mean()) - t_reach(sequences - 1, confidence) * clustered_se(gain, sequence)


def strength_to_undo(
    weight: np.ndarray, reward: np.ndarray, sequence: np.ndarray, old: np.ndarray | None = None, *,
    confidence: float = CONFIDENCE,
) -> float:  # fmt: skip
    """Γ*: the least Γ at which the gain's lower end is no longer above 0.

    `old` [n] is what the value of the deployed policy is the mean of; by default the log's own rewards.
    """
    old = reward if old is None else old

    def low(strength: float) -> float:
        return lowest_gain(weight, reward, sequence, old, strength, confidence=confidence)

    if not low(1.0) > 0:
        return 1.0
    if low(STRONGEST) > 0:
        return math.inf
    least, most = 0.0, math.log(STRONGEST)
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (middle, most) if low(math.exp(middle)) > 0 else (least, middle)
    return math.exp(most)


# ---------------------------------------------------------------------- the causes that a log shows


def sensitivity(
    data: Prepared, split: str, weight: np.ndarray, reward: np.ndarray, sequence: np.ndarray,
    old: np.ndarray | None = None, *, confidence: float = CONFIDENCE,
) -> Sensitivity:  # fmt: skip
    """Compute how strong a hidden cause must be to undo a gain on a split, next to an observed one there."""
    strength = strength_to_undo(weight, reward, sequence, old, confidence=confidence)
    seen = seen_causes(data, split)
    cause = max(seen, key=seen.__getitem__, default=None)
    return Sensitivity(strength, None if cause is None else seen[cause], cause)


def seen_causes(data: Prepared, split: str) -> dict[str, float]:
    """Factor by which leaving out the last item, or the hour, changes probabilities, by observed cause."""
    rows = {name: _choices(data, name) for name in ("train", split)}
    causes = {"the last item": ("last", data.n_items + 1)}
    if "time" in data["train"].arrays:
        causes["the hour"] = ("hour", HOURS)
    return {
        name: seen_factor(rows["train"][column], rows["train"]["item"], rows[split][column], rows[split]["item"],
                          n_causes=count, n_items=data.n_items)
        for name, (column, count) in causes.items()
    }  # fmt: skip


def seen_factor(
    cause: np.ndarray, item: np.ndarray, held_out_cause: np.ndarray, held_out_item: np.ndarray, *, n_causes: int,
    n_items: int,
) -> float:  # fmt: skip
    """The `WITHIN` quantile of max(ρ, 1/ρ), ρ = p(a | cause) / p(a) of what was taken on held-out rows.

    p(a) = (n_a + 1) / (n + V), and p(a | c) = (n_ca + κ p(a)) / (n_c + κ). κ maximises the
    likelihood of each row given all the others: pairs that are rare by chance must not look like a cause.
    """
    if not (len(item) and len(held_out_item)):
        return 1.0
    share = (np.bincount(item, minlength=n_items) + 1) / (len(item) + n_items)
    pairs, counts = np.unique(cause.astype(np.int64) * n_items + item, return_counts=True)
    alone = np.bincount(cause, minlength=n_causes)
    causes, known = pairs // n_items, share[pairs % n_items]

    def likelihood(belief: float) -> float:
        return float(counts @ np.log((counts - 1 + belief * known) / (alone[causes] - 1 + belief)))

    belief = max(BELIEFS, key=likelihood)
    asked = held_out_cause.astype(np.int64) * n_items + held_out_item
    at = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
    together, expected = np.where(pairs[at] == asked, counts[at], 0), belief * share[held_out_item]
    ratio = (together + expected) / (alone[held_out_cause] + belief) / share[held_out_item]
    return float(np.quantile(np.maximum(ratio, 1 / ratio), WITHIN))


def _choices(data: Prepared, name: str) -> dict[str, np.ndarray]:
    """Item, previous item in the history (V: none) and hour of each row that a policy chose."""
    split = data[name]
    starts, item = split.histories[0][:-1], np.asarray(split.arrays["item"]).astype(np.int64)
    last = np.concatenate([[data.n_items], item[:-1]])[: len(item)]
    last[starts[starts < len(item)]] = data.n_items
    columns = {"item": item, "last": last}
    if "time" in split.arrays:
        columns["hour"] = np.asarray(split.arrays["time"]) // HOUR % HOURS
    chosen = data.chosen(name)
    return {column: values[chosen] for column, values in columns.items()}
