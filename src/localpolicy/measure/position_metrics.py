"""Values per position, groups of positions (by their outcome, and by what is known before), and their figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.data.store import NO_ANSWER
from localpolicy.measure.estimate import Estimate, mean_estimate
from localpolicy.measure.metrics import DEFAULT_METRICS, metric


@dataclass(frozen=True)
class Scores:
    """Scores of one policy at every position of a split; arrays [positions] unless stated otherwise."""

    sequence: np.ndarray
    history: np.ndarray  # actions before this one in its whole sequence
    item: np.ndarray
    event: np.ndarray  # code
    reward: np.ndarray
    repeat: np.ndarray  # bool: the item came earlier in its sequence
    rank: np.ndarray  # the middle of the places that the item shares with those it ties with
    tied: np.ndarray  # how many others it ties with
    logp: np.ndarray
    top: np.ndarray  # the item the policy would show first
    entropy: np.ndarray
    events: list[str]
    settings: dict[str, Any]
    shown: np.ndarray  # [V] how often each item was in a list of the `settings['lists']` best
    propensity: np.ndarray | None = None  # as logged; NaN where none was
    above: np.ndarray | None = None  # places above this one in its list, where the log has lists
    place: np.ndarray | None = None  # as the log states it; other than `above` where rows of the list are missing
    liked: np.ndarray | None = None  # reward of what is ranked first among the next rated items; NaN: of one alone
    agreement: np.ndarray | None = None  # share of pairs of these that it orders as the person did; NaN: no such pair
    value_taken: np.ndarray | None = None  # r̂(x, a)
    value_expected: np.ndarray | None = None  # Σ_a π(a|x) r̂(x, a), over what could be chosen
    logp_open: np.ndarray | None = None  # log π(a|x) among what could be chosen, where the log has lists or filters
    rank_unseen: np.ndarray | None = None  # `rank` and `tied` among what its sequence did not hold before
    tied_unseen: np.ndarray | None = None
    logp_unseen: np.ndarray | None = None  # log π(a|x) among what its sequence did not hold before; no use at repeats
    js: dict[str, np.ndarray] = field(default_factory=dict)  # by reference, or by pair 'x|y' of references
    kl: dict[str, np.ndarray] = field(default_factory=dict)
    logp_reference: dict[str, np.ndarray] = field(default_factory=dict)
    logp_open_reference: dict[str, np.ndarray] = field(default_factory=dict)
    logp_unseen_reference: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rank)

    def metric(self, name: str, *, unseen: bool = False) -> np.ndarray:
        """Values of a metric such as nDCG@20 at each position; with `unseen` among items new to the sequence."""
        if unseen:
            return metric(name)(self.rank_unseen, self.tied_unseen, self.reward)
        return metric(name)(self.rank, self.tied, self.reward)

    @property
    def list_number(self) -> np.ndarray:
        """Index of the list that each position belongs to; without lists every position is its own.

        Lists lie together, in the order of their places. A list has a position with `above` = 0 unless
        `settings['last']` cut it off.
        """
        if self.above is None:
            return np.arange(len(self))
        begins = self.history - self.above  # where in its sequence the list begins
        goes_on = (self.sequence[1:] == self.sequence[:-1]) & (begins[1:] == begins[:-1])
        goes_on &= self.above[1:] > self.above[:-1]  # two histories of one sequence may be equally long
        return np.concatenate([np.zeros(min(len(self), 1), np.int64), np.cumsum(~goes_on)])

    @property
    def one_reward(self) -> bool:
        """Whether a list has one reward, on its last row, so that single places have none."""
        return self.settings.get("list_reward") == "whole"

    def to_arrow(self) -> pa.Table:
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        columns = {name: value for name, value in arrays.items() if name != "shown"}  # which has one entry per item
        columns["event"] = pa.DictionaryArray.from_arrays(columns["event"].astype(np.int16), self.events)
        for prefix, values in (("js", self.js), ("kl", self.kl), ("logp", self.logp_reference)):
            columns |= {f"{prefix}:{name}": value for name, value in values.items()}
        return pa.table(columns)


WHATEVER_EVENT = ("all", "repeat", "new")  # groups that every log has
LENGTHS = (5, 10, 15)  # the paper's bins of sequences, <= 5, 6-10, 11-15 and > 15; and ours of histories
HEAD, MIDDLE = 1 / 3, 2 / 3  # shares of all events: the most popular items that make up the first third are the head


def answered(scores: Scores) -> np.ndarray:
    """Mask of the positions that someone answered: all of them if the log holds actions alone."""
    if NO_ANSWER not in scores.events:
        return np.ones(len(scores), dtype=bool)
    return np.asarray(scores.event != scores.events.index(NO_ANSWER))


COLD = "cold items"  # positions at which an item was taken that training never shows


def groups(scores: Scores, known: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Masks of the positions that ranking metrics average over: by event, all, repeats and new items.

    With `known` [V], which says what training shows, also those at which a cold item was taken.
    """
    masks = {name: scores.event == code for code, name in enumerate(scores.events) if name != NO_ANSWER}
    masks, every = {name: here for name, here in masks.items() if here.any()}, answered(scores)
    others = (every, every & scores.repeat, every & ~scores.repeat)
    masks |= dict(zip(WHATEVER_EVENT, others, strict=True))
    if known is not None and (cold := every & ~known[scores.item]).any():
        masks[COLD] = cold
    return masks


def segments(
    scores: Scores, counts: np.ndarray | None = None, known: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Masks of the positions of each segment: by history length, item popularity, repeat or new.

    `counts` [V] says how popular each item is; without it there are no segments by popularity. `known` [V] says which
    items training shows; without it nothing is called cold.
    """
    masks = bins("history", scores.history, LENGTHS)
    if counts is not None:
        for name, band in popularity_bands(counts).items():
            masks[f"popularity {name}"] = band[scores.item]
    if known is not None:
        masks[COLD] = ~known[scores.item]
    masks |= {"repeat": scores.repeat, "new": ~scores.repeat}
    return {name: here for name, here in masks.items() if here.any()}


def bins(name: str, values: np.ndarray, bounds: tuple[int, ...]) -> dict[str, np.ndarray]:
    """≤ b_1, b_1+1 to b_2, ..., > b_last."""
    labels = [f"≤ {bounds[0]}", *(f"{low + 1}-{high}" for low, high in pairwise(bounds)), f"> {bounds[-1]}"]
    ranges = zip(labels, pairwise((-np.inf, *bounds, np.inf)), strict=True)
    return {f"{name} {label}": (values > low) & (values <= high) for label, (low, high) in ranges}


def popularity_bands(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of the items [V] in the head, middle and tail, cut where popular items reach fixed shares of all events."""
    order = np.argsort(-counts, kind="stable")
    reached = np.empty(len(counts))
    # The share of events before an item, so that the most popular item is in the head however popular it is.
    reached[order] = (np.cumsum(counts[order]) - counts[order]) / max(counts.sum(), 1)
    return {"head": reached < HEAD, "middle": (reached >= HEAD) & (reached < MIDDLE), "tail": reached >= MIDDLE}


# ---------------------------------------------------------------------- values per position, and figures


WEIGHTED = "reward-weighted"  # group of a figure over all events, weighted by their rewards
LIKED, AGREEMENT = "liked@1", "agreement"  # figures of how well what is ranked high was liked
REWARDS = ("AR@1", LIKED, AGREEMENT, "iAR@1")  # figures in units of reward, where they are measured


def values_of(scores: Scores, name: str, within: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Values whose mean is `purchase.nDCG@20`, `AR@1` or `logp` [n], and a mask of their positions [N].

    Of the positions `within` [N] alone, where these are given.
    """
    group, _, metric_name = name.rpartition(".")
    asked = np.ones(len(scores), dtype=bool) if within is None else within
    if group == WEIGHTED:
        here = answered(scores) & asked
        return reward_weighted(scores, metric_name, here), here
    if group:
        here = groups(scores)[group] & asked
        return scores.metric(metric_name)[here], here
    if name in (LIKED, AGREEMENT):
        values = {LIKED: scores.liked, AGREEMENT: scores.agreement}[name]
        assert values is not None, "a log of ratings"
        asked = asked & ~np.isnan(values)
    else:
        values = scores.entropy if name == "entropy" else {"AR@1": reward_at_1, "logp": likelihood}[name](scores)
    return values[asked], asked


def reward_weighted(scores: Scores, name: str, here: np.ndarray) -> np.ndarray:
    """r m / mean(|r|) at the positions `here` [n], m being a metric such as nDCG@20.

    Its mean is Σ r m / Σ |r|: one figure for events of different rewards, at the prices of the rewards. The mean of |r|
    is that of these positions: of a part of them the figure is again at most 1.
    """
    reward = scores.reward[here].astype(np.float64)
    scale = float(np.abs(reward).mean()) if len(reward) else 1.0
    return np.asarray(scores.metric(name)[here] * reward / (scale or 1.0))


def reward_at_1(scores: Scores) -> np.ndarray:
    """r · 1[the policy's first item is the one taken], at each position (section 4.1)."""
    return np.asarray(scores.reward * (scores.top == scores.item), dtype=np.float64)


def likelihood(scores: Scores) -> np.ndarray:
    """log π(a|x) of what was logged, among what could be chosen as far as the log says what that was."""
    return (
        scores.logp if scores.logp_open is None else np.where(np.isnan(scores.logp_open), scores.logp, scores.logp_open)
    )


def figure(scores: Scores, name: str) -> Estimate:
    """Mean of the metric `purchase.nDCG@20`, `AR@1` (r · 1[a = argmax π]), `logp` or `entropy`."""
    values, here = values_of(scores, name)
    return mean_estimate(values, scores.sequence[here])


def ranking(
    scores: Scores, metrics: Iterable[str] = DEFAULT_METRICS, *, known: np.ndarray | None = None
) -> dict[str, Estimate]:
    """Ranking metrics such as `purchase.nDCG@20` by group of positions; all together weighted by reward."""
    metrics = tuple(metrics)
    figures = {
        f"{group}.{name}": mean_estimate(scores.metric(name)[here], scores.sequence[here])
        for group, here in groups(scores, known).items()
        for name in metrics
    }
    if len(np.unique(scores.reward[answered(scores)])) > 1:
        figures |= {f"{WEIGHTED}.{name}": figure(scores, f"{WEIGHTED}.{name}") for name in metrics}
    return figures


def coverage(shown: np.ndarray) -> float:
    """Share of the catalogue that is in some list."""
    return float((shown > 0).mean())


def popularity(shown: np.ndarray, counts: np.ndarray) -> float:
    """E[count of a shown item] / E[count of a logged item]: 1 if lists are as popular as the log."""
    logged = (counts.astype(np.float64) ** 2).sum() / max(counts.sum(), 1)
    return float(shown @ counts / max(shown.sum(), 1) / logged) if logged else float("nan")


COMPARED = ("entropy", "coverage@{lists}")  # of these figures, what a comparison shows of every policy


def shown_figures(scores: Scores, counts: np.ndarray, lists: int) -> dict[str, Estimate | float]:
    """Metrics of what a policy would show, by name: coverage, entropy, popularity and likelihood."""
    return {
        "logp": figure(scores, "logp"),
        "entropy": figure(scores, "entropy"),
        "coverage@1": coverage(np.bincount(scores.top, minlength=len(counts))),
        f"coverage@{lists}": coverage(scores.shown),
        f"popularity@{lists}": popularity(scores.shown, counts),
    }


def flat(scores: Scores, metrics: Iterable[str] = DEFAULT_METRICS) -> dict[str, float]:
    """`purchase.nDCG@20`, ..., `AR@1`, `logp` as plain numbers, for selection and logs."""
    named = ranking(scores, metrics) | {name: figure(scores, name) for name in ("AR@1", "logp")}
    return {name: value.mean for name, value in named.items()}
