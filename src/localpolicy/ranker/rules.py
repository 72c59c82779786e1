"""Rules of a list: boosts, pins, limits per group, rest after showing. All act before the draw.

Boosts are terms of the logits. The others close items before each place, so that every propensity is still that of a
draw among the open items: exponential clocks have no memory, and a closed item's clock is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from localpolicy.errors import ConfigError, DataError, nearest, shown
from localpolicy.plackett_luce import Ranked, clocks
from localpolicy.settings import Settings

LONGEST_REST = 24 * 366 * 10.0  # hours: ten years
MOST_OF_A_GROUP = 1_000_000  # more than any list holds; numpy counts in 64 bits


class Boost(Settings):
    """Boost of an item or a group: its weight is multiplied."""

    times: float = Field(gt=0, description="factor of the weight: 2 makes an item twice as likely at the first place")
    item: str | None = Field(None, description="the item's id; or a group, by a column and its value")
    column: str | None = Field(None, description="the candidates' column that names groups")
    value: str | bool | float | None = Field(None, description="the group: a text, a number, true or false")

    @model_validator(mode="after")
    def _one_of_both(self) -> Boost:
        if (self.item is None) == (self.column is None) or (self.column is None) != (self.value is None):
            raise ValueError("a boost names an item, or a column and its value")
        return self


class Rules(Settings):
    """Rules for every list of a layer, or for the list of one request."""

    boost: tuple[Boost, ...] = Field((), description="items or groups whose weight is multiplied")
    pin: dict[int, str] = Field({}, description="items by place, from 1: they stand there, the others are drawn")
    group: str | None = Field(None, description="the candidates' column whose groups are limited")
    at_most: int = Field(
        1, ge=1, le=MOST_OF_A_GROUP, description="most items of one group in a list, if `group` names a column"
    )
    rest_hours: float = Field(0, ge=0, le=LONGEST_REST, description="hours without an item that this person was shown")
    weights: dict[str, float] = Field({}, description="weight of each event, if there is a critic for each")

    @model_validator(mode="after")
    def _limits_a_group(self) -> Rules:
        if self.group is None and self.at_most != 1:
            raise ValueError("at_most limits the items of a group: name its column as group")
        return self


class Openings(NamedTuple):
    """Rules applied to n candidates: logits, pins and groups by their positions."""

    logits: np.ndarray  # [n] with boosts; -inf for items closed from the start
    pins: Mapping[int, int]  # place, from 0 -> position
    groups: np.ndarray | None = None  # [n] codes
    at_most: int = 1


def openings(
    logits: np.ndarray,
    k: int,
    rules: Rules,
    items: Sequence[str],
    columns: Mapping[str, Any],
    resting: Sequence[str] = (),
) -> Openings:
    """Apply rules to one request's candidates; raise DataError if they leave no list of k items."""
    position = {item: number for number, item in enumerate(items)}
    logits = logits.copy()
    for boost in rules.boost:
        if boost.item is not None:
            if boost.item in position:
                logits[position[boost.item]] += np.log(boost.times)
            continue
        logits[_of_group(boost, columns)] += np.log(boost.times)
    pins: dict[int, int] = {}
    for place, item in sorted(rules.pin.items()):
        if not 1 <= place <= k:
            raise ConfigError(f"pin: place {place} is not between 1 and k = {k}.")
        if item not in position:
            raise DataError(f"pin: {shown(item)} is none of the candidates. Add it, or leave the pin out.")
        if position[item] in pins.values():
            raise ConfigError(f"pin: {shown(item)} is pinned to two places.")
        pins[place - 1] = position[item]
    resting_ = [position[item] for item in resting if item in position and position[item] not in pins.values()]
    logits[resting_] = -np.inf
    groups = None
    if rules.group is not None:
        groups = np.unique(group_of(rules.group, columns), return_inverse=True)[1].reshape(-1)
    found = Openings(logits, pins, groups, rules.at_most)
    if (most := longest(found)) < k:
        raise DataError(f"the rules leave {most} of {len(items)} candidates for a list of {k}: send more candidates, "
                        "ask for a shorter list, or relax the rules.")  # fmt: skip
    return found


class Stated(NamedTuple):
    """The law of one list under rules, as a log of requests states it."""

    probabilities: list[float]  # [n] at the first place that is drawn
    pinned: int  # places from the top


def stated_law(opened: Openings) -> Stated | None:
    """Return boosts and resting items as probabilities, pins as places from the top; None with groups or lower pins."""
    if opened.groups is not None or sorted(opened.pins) != list(range(len(opened.pins))):
        return None
    weight = np.exp(opened.logits - opened.logits.max())
    return Stated((weight / weight.sum()).tolist(), len(opened.pins))


def group_of(column: str, columns: Mapping[str, Any]) -> np.ndarray:
    """Return the groups of all candidates, as texts."""
    return np.array([str(value) for value in _column(column, columns)])


def check_groups(column: str, columns: Mapping[str, Any]) -> None:
    """Raise DataError for a candidate whose group is not stated."""
    for item, value in zip(columns["item"], _column(column, columns), strict=True):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise DataError(
                f"candidate {shown(item)} has no '{column}', by which the rules limit the list: state it, or leave "
                "the candidate out."
            )


def _column(column: str, columns: Mapping[str, Any]) -> Any:
    if column not in columns:
        raise ConfigError(f"no column '{column}' of candidates{nearest(column, columns)}")
    return columns[column]


def _of_group(boost: Boost, columns: Mapping[str, Any]) -> np.ndarray:
    """Return a mask of the candidates of a boost's group."""
    wanted = _name(boost.value)
    return np.array([wanted in (str(value), _name(value)) for value in _column(boost.column or "", columns)])


def _name(value: Any) -> str:
    """Return a group's name: 5 and 5.0 are one group, and so are true and True."""
    if isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, float | np.floating) and value == round(float(value), 0):
        return str(int(value))
    return str(value)


def longest(rules: Openings) -> int:
    """Return the length of the longest list under the rules, which no draw changes."""
    pins = np.array(list(rules.pins.values()), np.int64)
    if rules.groups is None:
        return int(np.isfinite(rules.logits).sum() + np.isneginf(rules.logits[pins]).sum())
    held = np.bincount(rules.groups[pins], minlength=int(rules.groups.max()) + 1)
    if (held > rules.at_most).any():
        raise ConfigError(f"pin: more than {rules.at_most} pinned items are of one group.")
    open_ = np.isfinite(rules.logits)
    open_[pins] = False
    free = np.bincount(rules.groups[open_], minlength=len(held))
    return len(pins) + int(np.minimum(free, rules.at_most - held).sum())


def draw_under(rules: Openings, k: int, *, rng: np.random.Generator | None = None) -> Ranked:
    """Fill k places: pinned items at theirs, the others drawn among the items open before each."""
    closed = np.zeros(len(rules.logits), bool)
    closed[list(rules.pins.values())] = True
    keys = clocks(len(rules.logits), rng) - rules.logits
    queue = iter(np.argsort(keys, kind="stable"))
    order, propensities = np.empty(k, np.int64), np.ones(k)
    left = _Left(rules, closed)
    for place in range(k):
        if place in rules.pins:
            order[place] = rules.pins[place]
            continue
        item = next(item for item in queue if not left.closed[item])
        order[place], propensities[place] = item, left.take(item)
    return Ranked(order, propensities)


def propensities_under(rules: Openings, order: np.ndarray) -> np.ndarray:
    """Return the propensities with which `draw_under` would have drawn a list: for audits."""
    closed = np.zeros(len(rules.logits), bool)
    closed[list(rules.pins.values())] = True
    left = _Left(rules, closed)
    return np.array([1.0 if rules.pins.get(place) == item else left.take(item) for place, item in enumerate(order)])


def transforms_under(rules: Openings, order: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Randomised probability integral transforms [2, k] of a list, and whether each place took the best left [k].

    The items before the one that was taken, the more probable first and by index, plus a uniform share of its own; a
    pinned place has a uniform number. If and only if `draw_under` drew the list, they are independent and uniform.
    """
    closed = np.zeros(len(rules.logits), bool)
    closed[list(rules.pins.values())] = True
    left = _Left(rules, closed)
    uniform, best = rng.random((2, len(order))), np.zeros(len(order), bool)
    for place, item in enumerate(order):
        if rules.pins.get(place) == item:
            continue
        share = left.shares()
        own = share[item]
        before = np.array([share[share > own].sum(), share[:item].sum()])
        uniform[:, place] = before + uniform[:, place] * np.array([share[share == own].sum(), own])
        best[place] = own == share.max()
        left.take(item)
    return uniform.clip(0, 1), best


class _Left:
    """Open items and full groups, place by place."""

    def __init__(self, rules: Openings, closed: np.ndarray) -> None:
        self.rules = rules
        self.closed = closed | np.isneginf(rules.logits)
        self.count: dict[int, int] = {}
        for item in rules.pins.values() if rules.groups is not None else ():
            self._count(item)

    def shares(self) -> np.ndarray:
        """Return the probability of every item among the open ones."""
        logits = np.where(self.closed, -np.inf, self.rules.logits)
        weight = np.exp(logits - logits.max())
        return np.asarray(weight / weight.sum())

    def take(self, item: int) -> float:
        """Close an item, and its group if it is full; return the probability that the item had among the open ones."""
        chance = float(self.shares()[item])
        self.closed[item] = True
        self._count(item)
        return chance

    def _count(self, item: int) -> None:
        groups = self.rules.groups
        if groups is None:
            return
        group = int(groups[item])
        self.count[group] = self.count.get(group, 0) + 1
        if self.count[group] >= self.rules.at_most:
            self.closed |= groups == group
