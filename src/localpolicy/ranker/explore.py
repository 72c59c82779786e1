"""Plan of a draw of a ranker's lists: its cost, and the number of drawn lists that the verdict on a layer then needs.

For some requests of a log, lists are drawn at every setting, and noise of a size κ stands in for a layer: so large that
it exchanges as many items of a list as a layer with this gain, about the gain's share of them. Rewards follow
E r = exp(e(place) + b · standardised score), fitted to the log's answers; without any, b lies between 0.5 and 1.
A list's part in the verdict is D = Σ_j (min(W_j, 10) - U_j) r_j, W of the layer and U of the list
that is never drawn. A gain of x is detected with 80 % power at a one-sided level of 5 % once

    lists >= (z_.95 + z_.8)² Var(D) / (x · reward of a list)².

An A/B test of two laws, half of the lists each, needs 4 Var(R) in the place of Var(D); interleaving needs E Σ r², and
shows which is better, not by how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, field_validator
from scipy import optimize, stats

from localpolicy.errors import DataError
from localpolicy.limits import LARGEST_SEED
from localpolicy.measure.estimate import clustered_se
from localpolicy.plackett_luce import clocks
from localpolicy.ranker.improve import FEWEST, SHARES
from localpolicy.ranker.law import Law, standard_scores
from localpolicy.ranker.log import Answers, Padded, RequestLog
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import CAP, ListValues, spread_of
from localpolicy.results import Result
from localpolicy.settings import Settings

LEVEL, POWER = 0.05, 0.8
EXCHANGED = 1.2  # items that a layer exchanges, as a share of the drawn places, over its gain (docs/results/ranker.md)
SIZES = np.array([0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # κ of noise that is tried; below, what it exchanges is as κ²
CUT = 1.3  # correction of b fitted to shown items, whose scores are truncated from below
STEEP = (0.5, 1.0)  # range of b for a log without answers
OFF = 2.0  # estimates lie within this factor of what is needed (docs/results/ranker.md)
SAMPLED = 400  # requests whose lists are drawn
DRAWS = 16  # draws of each, to estimate the cost
DAY = 86_400.0


class ExploreConfig(Settings):
    """Settings of `explore plan`: the draws to compare, and the gain to detect."""

    gain: float = Field(0.05, gt=0, le=10, description="the gain to be detected, as a share of what a list earns now")
    temperatures: tuple[float, ...] = Field(
        (0.1, 0.2, 0.3), description="τ of the draw, of scores standardised per request"
    )
    pins: tuple[int, ...] = Field((0, 1), description="places from the top that are not drawn")
    shares: tuple[float, ...] = Field((1.0,), description="shares of the requests whose list is drawn")
    per_day: float | None = Field(None, gt=0, description="requests per day; default: from the log's times")
    reward: float | None = Field(None, gt=0, description="what a list earns on average, if the log has no answers")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="seed of the draws that are tried")

    @field_validator("temperatures", "pins", "shares", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Parse lists given as a,b on the command line."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("temperatures", "shares")
    @classmethod
    def _above_0(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or not all(0 < one < math.inf for one in value):
            raise ValueError("numbers greater than 0, such as 0.1,0.2")
        return value

    @field_validator("pins")
    @classmethod
    def _places(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 0:
            raise ValueError("whole numbers of 0 or more, such as 0,1")
        return value

    @field_validator("shares")
    @classmethod
    def _at_most_all(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if max(value) > 1:
            raise ValueError("shares between 0 and 1")
        return value


@dataclass(frozen=True)
class Draw:
    """One way to draw lists, with its cost and the lists and days until the gain is detected."""

    temperature: float
    pinned: int
    share: float  # share of the requests
    cost: float  # share of the reward of all lists
    overlap: float  # share of shown items that are in the undrawn list too, over all requests
    lists: int  # drawn lists until the verdict detects the gain
    days: float | None

    @property
    def price(self) -> float:
        """What the draw costs until the gain is detected, as a number of lists that earn as much."""
        return self.cost * self.lists / self.share


@dataclass(frozen=True, repr=False)
class ExplorePlan(Result):
    """Result of `explore plan`: a table of draws, and the sizes of online tests without a draw."""

    gain: float
    reward: float  # of a list
    steepness: tuple[float, float]  # range of b
    fitted: bool  # whether b was fitted to answers
    per_day: float | None
    draws: tuple[Draw, ...]
    ab_test: int  # lists
    interleaving: int  # lists

    @property
    def best(self) -> Draw:
        """The draw that costs least until the gain is detected, by cost × days with equal requests per day."""
        return min(self.draws, key=lambda one: one.price)

    @property
    def paid_back(self) -> float:
        """Number of lists in which a layer with this gain earns what the cheapest draw costs until it is detected."""
        return self.best.price / self.gain

    def summary(self) -> str:
        """Return a sentence on the cheapest draw."""
        best = self.best
        return (f"temperature {best.temperature:g} costs {best.cost:.1%} and detects a gain of {self.gain:.0%} after "
                f"about {best.lists:,} drawn lists")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict: the gain, the reward of lists, and the cost and days of every draw."""
        return {
            "gain": self.gain, "reward": self.reward, "steepness": list(self.steepness), "fitted": self.fitted,
            "per_day": self.per_day, "ab_test": self.ab_test, "interleaving": self.interleaving, "factor": OFF,
            "price": self.best.price, "paid_back": self.paid_back,
            "draws": [vars(one) for one in self.draws],
        }  # fmt: skip

    def to_arrow(self) -> Any:
        """Return a table with one row per draw."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.to_dict()["draws"])


class Rate(NamedTuple):
    """Model of expected rewards: E r = exp(e(place) + b · standardised score)."""

    places: np.ndarray  # e [K]
    slope: float  # b

    def of(self, score: np.ndarray, place: np.ndarray) -> np.ndarray:
        """E r of items with standardised scores, at places counted from 0."""
        return np.asarray(np.exp(self.places[np.minimum(place, len(self.places) - 1)] + self.slope * score))


class Rewards(NamedTuple):
    """Moments of the rewards of a log's lists."""

    mean: float  # of a list
    variance: float  # of a list, for the mean over persons
    square: float  # Σ r² / Σ r: the size of one reward


def plan(
    requests: Any,
    outcomes: Any = None,
    *,
    columns: Mapping[str, str] | None = None,
    config: ExploreConfig | None = None,
    **settings: Any,
) -> ExplorePlan:
    """Estimate what drawing the lists of a log would cost, and how many drawn lists would then detect a gain.

    The log is one that `improve` reads; its lists need not have been drawn. Settings are those of `ExploreConfig`.
    """
    config = config or ExploreConfig.parse(settings)
    log = read_requests(requests, outcomes, columns=columns)
    if max(config.pins) >= (longest := int(log.length.max())):
        raise DataError(f"pins: {max(config.pins)} pinned places leave nothing to draw in lists of {longest}.")
    rates, rewards = _rates(log, config.reward), _rewards(log, config.reward)
    rng = np.random.default_rng(config.seed)
    sample = log.taken(np.sort(rng.permutation(len(log))[:SAMPLED]))
    per_day = config.per_day or _per_day(log)
    lists_per_variance = ((stats.norm.ppf(1 - LEVEL) + stats.norm.ppf(POWER)) / (config.gain * rewards.mean)) ** 2
    draws = []
    for pinned, temperature in product(config.pins, config.temperatures):
        costs, overlap = zip(*(_costs(sample, rate, temperature, pinned, rng) for rate in rates), strict=True)
        exchanged = EXCHANGED * config.gain / _drawn_reward(sample, rates[0], pinned)
        kappa = _size(_exchanged(sample, temperature, pinned, rng), exchanged)
        spreads = [_spread(sample, rate, temperature, pinned, kappa, rewards.square, rng) for rate in rates]
        cost, spread = _between(costs), _between(spreads)
        lists = max(math.ceil(lists_per_variance * spread / SHARES[-1]), FEWEST)
        for share in config.shares:
            days = None if per_day is None else lists / (share * per_day)
            draws.append(Draw(temperature, pinned, share, share * cost, 1 - share * (1 - overlap[0]), lists, days))
    return ExplorePlan(
        gain=config.gain, reward=rewards.mean, steepness=(rates[0].slope, rates[-1].slope), fitted=len(rates) == 1,
        per_day=per_day, draws=tuple(draws), ab_test=math.ceil(4 * lists_per_variance * rewards.variance),
        interleaving=math.ceil(lists_per_variance * rewards.square * rewards.mean),
    )  # fmt: skip


def _between(values: Any) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(float(np.mean(np.log(np.maximum(values, 1e-12)))))


def _per_day(log: RequestLog) -> float | None:
    """Return the requests per day by the log's times; None without times, or if all are equal."""
    if log.time is None or not (span := float(np.ptp(log.time))) > 0:
        return None
    return float(log.weight.sum()) / max(span / DAY, 1.0)


def _rewards(log: RequestLog, stated: float | None) -> Rewards:
    """Compute the moments from the log's answers, or if it has none from the stated mean, with rewards of 1."""
    if not len(log.answers.row):
        assert stated is not None
        return Rewards(stated, stated, 1.0)
    reward = log.reward()
    of_list = np.bincount(log.request, weights=reward, minlength=len(log)) * log.weight / log.weight.mean()
    variance = max(float(of_list.var()), clustered_se(of_list, log.clusters) ** 2 * len(log))
    return Rewards(float(of_list.mean()), variance, float((reward**2).sum() / reward.sum()))


def _rates(log: RequestLog, stated: float | None) -> list[Rate]:
    """Return the reward model fitted to the answers; without answers the two models at the ends of b's range."""
    reward = log.reward()
    if (reward < 0).any():
        raise DataError("a reward is below 0. Capped weights err on the safe side only where rewards are 0 or more: "
                        "state them so, such as 1 - cost.")  # fmt: skip
    if reward.any():
        return [_fitted(log, reward)]
    if stated is None:
        raise DataError(f"{log.label} has no answers: give --outcomes, or --reward, what a list earns on average.")
    score, rows = _scores(log), log.shown
    places = -np.log(np.log2(2 + np.arange(int(log.place.max()))))
    found = []
    for slope in STEEP:
        earned = Rate(places, slope).of(score[rows], log.place[rows] - 1).sum() / len(log)
        found.append(Rate(places + math.log(stated / earned), slope))
    return found


def _fitted(log: RequestLog, reward: np.ndarray) -> Rate:
    """Fit the reward model to the shown items by Poisson likelihood, with a dummy per place."""
    rows = log.shown
    score, place, y, weight = _scores(log)[rows], log.place[rows] - 1, reward[rows], log.weight[log.request[rows]]
    count = int(place.max()) + 1

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        odds = np.minimum(theta[place] + theta[-1] * score, 50.0)
        rate = np.exp(odds)
        error = weight * (rate - y)
        gradient = np.append(np.bincount(place, error, count), error @ score)
        return float((weight * (rate - y * odds)).sum()) / len(rows), gradient / len(rows)

    start = np.append(np.full(count, math.log(np.average(y, weights=weight))), 0.0)
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-30.0, 10.0)] * count + [(0.0, 5.0)])
    return Rate(found.x[:-1], CUT * float(found.x[-1]))


def _scores(log: RequestLog) -> np.ndarray:
    """Return the scores [M], standardised per request."""
    found = np.empty(len(log.item))
    for block in log.padded():
        found[block.rows[block.real]] = standard_scores(log, block)[block.real]
    return found


def _lists(
    log: RequestLog, block: Padded, temperature: float, pinned: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of a block's candidates in the order of a draw, and in the order of scores [B, C]."""
    scores = standard_scores(log, block)
    own = np.argsort(-scores, axis=1, kind="stable")
    keys = clocks(scores.size, rng).reshape(scores.shape) - scores / temperature
    np.put_along_axis(keys, own[:, :pinned], np.arange(-pinned, 0) * 1e200, 1)
    return np.argsort(keys, axis=1), own


def _costs(
    log: RequestLog, rate: Rate, temperature: float, pinned: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the share of the reward that drawn lists lose, and the share of their items that undrawn lists hold."""
    earned, shared, places = {"drawn": 0.0, "own": 0.0}, 0.0, 0.0
    for block in log.padded():
        length = log.length[block.requests, None]
        at = np.arange(int(length.max()))
        scores = standard_scores(log, block)
        for _ in range(DRAWS):
            drawn, own = _lists(log, block, temperature, pinned, rng)
            for name, order in (("drawn", drawn), ("own", own)):
                expected = rate.of(np.take_along_axis(scores, order[:, : len(at)], 1), at)
                earned[name] += float(expected[at < length].sum())
            held = np.take_along_axis(np.argsort(own, axis=1), drawn[:, : len(at)], 1) < length
            shared, places = shared + float((held & (at < length)).sum()), places + float(length.sum())
    return 1 - earned["drawn"] / earned["own"], shared / places


def _drawn_reward(log: RequestLog, rate: Rate, pinned: int) -> float:
    """Return the share of a list's reward earned below the pinned places, which is all that a layer can raise."""
    rows = log.shown
    place = log.place[rows] - 1
    expected = rate.of(_scores(log)[rows], place)
    return float(expected[place >= pinned].sum() / expected.sum())


def _exchanged(log: RequestLog, temperature: float, pinned: int, rng: np.random.Generator) -> np.ndarray:
    """Return the share of the drawn places whose items noise of each of SIZES exchanges, beyond what the draw does."""
    outside, places = np.zeros(1 + len(SIZES)), 0.0
    law = Law("scores", temperature, standardise=True)
    for block in log.padded():
        scores, length = standard_scores(log, block), log.length[block.requests, None]
        own = np.argsort(-scores, axis=1, kind="stable")
        rank = np.argsort(own, axis=1)
        at = np.arange(int(length.max()))
        drawn = (at >= np.minimum(pinned, length - 1)) & (at < length)
        for _ in range(DRAWS // 4):
            noise = rng.normal(size=scores.shape)
            noise /= math.sqrt(spread_of(law.logits(log, block), np.where(block.real, noise, 0.0)) / len(scores))
            keys = clocks(scores.size, rng).reshape(scores.shape) - scores / temperature
            np.put_along_axis(keys, own[:, :pinned], np.arange(-pinned, 0) * 1e200, 1)
            for number, kappa in enumerate((0.0, *SIZES)):
                order = np.argsort(keys - kappa * noise, axis=1)[:, : len(at)]
                outside[number] += float((drawn & (np.take_along_axis(rank, order, 1) >= length)).sum())
            places += float(drawn.sum())
    return np.asarray((outside[1:] - outside[0]) / places)


def _size(exchanged: np.ndarray, aim: float) -> float:
    """Return κ of the noise that exchanges a share `aim`, between those of SIZES."""
    known = np.maximum.accumulate(np.maximum(exchanged, 1e-9))
    if aim < known[0]:
        return float(SIZES[0] * math.sqrt(aim / known[0]))
    return float(np.exp(np.interp(math.log(aim), np.log(known), np.log(SIZES))))


def _spread(
    log: RequestLog, rate: Rate, temperature: float, pinned: int, kappa: float, square: float, rng: np.random.Generator
) -> float:
    """Estimate Var(D) of a list's part in the verdict on a layer whose Â is noise."""
    place = np.zeros(len(log.item), np.int64)
    for block in log.padded():
        drawn, _ = _lists(log, block, temperature, pinned, rng)
        for request, number in enumerate(block.requests):
            order = drawn[request, : log.length[number]]
            place[block.rows[request, order]] = 1 + np.arange(len(order))
    nothing = Answers(np.empty(0, np.int64), np.empty(0, np.int64), (), np.empty(0))
    pins = np.minimum(pinned, log.length - 1)
    tried = replace(log, place=place, pinned=pins, answers=nothing, temperature=None, probability=None)
    law = Law("scores", temperature, standardise=True)
    examined = np.exp(rate.places - rate.places[0])
    values = ListValues(tried, law, np.arange(len(log)), examined, np.zeros(len(log.item)))
    noise = rng.normal(size=len(log.item))
    scale = kappa / values.spread(noise)
    change = np.minimum(values.weights(lambda block: scale * block.of(noise, 0.0)), CAP) - values.undrawn
    row = values.shown.row
    expected = rate.of(_scores(tried)[row], place[row] - 1)

    def of_lists(parts: np.ndarray) -> np.ndarray:
        return np.bincount(values.shown.request, parts, len(log))

    mean = of_lists(change * expected)
    squares = of_lists(change**2 * (square * expected - expected**2)) + mean**2
    return float(squares.mean() - mean.mean() ** 2)
