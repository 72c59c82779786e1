"""What the gate, its intervals, the audit and the rollout promise, measured on worlds whose truth is known.

    python benchmarks/promises.py [--repeats 200] [--seed 0] [--only lists rare ...] [--markdown FILE]

Worlds are tables of numbers (contexts by items), logs are drawn from them, and the gate's own checks are asked: no
model is trained. Each cell gives rows: promise, world, how often it happened, of how many, what is promised, refused.
Seeds are fixed, and none of these worlds chose a constant: intervals were designed on other worlds (10 contexts of 30
items, seeds 0, 5 and 11), the gate's rules on the enumerated world of tests/measure/test_list_values.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from localpolicy.judge.checks.gains import gain_check
from localpolicy.judge.checks.losses import agreement_check
from localpolicy.judge.checks.value import value_check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import Scores
from localpolicy.measure.score import CANDIDATES, liking
from localpolicy.measure.value import value_of_scores
from localpolicy.simulation.lists import list_value

RULES = GateRules()


class Row(NamedTuple):
    """One measured rate."""

    promise: str
    world: str
    times: int
    of: int
    promised: str
    refused: int = 0  # of all logs: those of which the gate gave no estimate


# ---------------------------------------------------------------------- lists of k places, k = 1 among them


@dataclass(frozen=True)
class World:
    """Contexts by items: what μ shows, what each item earns, and how much of that each place gets."""

    mu: np.ndarray  # [X, V]
    reward: np.ndarray  # [X, V]
    attention: np.ndarray  # [k]

    @classmethod
    def drawn(cls, rng: np.random.Generator, *, k: int, rate: float, contexts: int = 6, items: int = 25) -> World:
        """Rewards have about this mean under μ; attention falls from place to place."""
        mu = np.exp(rng.standard_normal((contexts, items)))
        mu /= mu.sum(1, keepdims=True)
        worth = np.exp(0.8 * rng.standard_normal((contexts, items)))
        reward = np.clip(rate * worth / (mu * worth).sum(1).mean(), 0, 0.95)
        return cls(mu, reward, 0.9 ** np.arange(k))

    def lists(self, policy: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The context of each request, and the items it was shown [count, k]."""
        context = rng.integers(len(policy), size=count)
        order = np.log(policy)[context] + rng.gumbel(size=(count, policy.shape[1]))
        return context, np.argsort(-order, axis=1)[:, : len(self.attention)]

    def value(self, policy: np.ndarray) -> float:
        """Exact expected reward of a list of the policy."""
        return float(list_value(policy, self.reward, self.attention).mean())

    def log(self, count: int, rng: np.random.Generator) -> Log:
        """Lists of μ and what was earned."""
        context, shown = self.lists(self.mu, count, rng)
        chance = self.reward[context[:, None], shown] * self.attention
        return Log(self, context, shown, (rng.random(shown.shape) < chance).astype(float))


@dataclass(frozen=True)
class Log:
    """Lists of μ."""

    world: World
    context: np.ndarray
    shown: np.ndarray
    reward: np.ndarray

    def chances(self, policy: np.ndarray) -> np.ndarray:
        """π(a|x, open) of each place."""
        chosen = policy[self.context[:, None], self.shown]
        return np.asarray(chosen / (1 - np.cumsum(chosen, 1) + chosen))

    def judged(self, name: str, policy: np.ndarray) -> Evaluation:
        """A policy as the gate reads it."""
        count, k = self.shown.shape
        model = self.world.reward.mean() * np.ones(count * k)
        places = {"above": np.tile(np.arange(k), count)} if k > 1 else {}
        return evaluation(
            name, np.repeat(np.arange(count), k), self.reward.ravel(), item=self.shown.ravel(),
            history=np.tile(np.arange(1, k + 1), count), propensity=self.chances(self.world.mu).ravel(),
            logp_open=np.log(self.chances(policy)).ravel(), value_taken=model, value_expected=model, **places,
        )  # fmt: skip


def evaluation(name: str, sequence: np.ndarray, reward: np.ndarray, **columns: np.ndarray) -> Evaluation:
    """Scores of a policy, with what the gate's checks read of them."""
    count, none = len(sequence), np.zeros(len(sequence))
    made = {name: none for name in ("logp", "entropy")} | {
        "rank": np.ones(count),
        "tied": np.zeros(count),
        "repeat": none.astype(bool),
    }
    made |= {each: none.astype(np.int64) for each in ("item", "top", "event", "history")} | columns
    scores = Scores(sequence=sequence, reward=reward, events=["shown"], settings={}, shown=np.zeros(1), **made)
    value = value_of_scores(scores, largest_reward=1.0) if scores.propensity is not None else None
    return Evaluation(
        name=name, figures={}, divergence=None, scores=scores, counts=np.ones(1), settings={},
        off_policy=value,
    )  # fmt: skip


def tilted(mu: np.ndarray, by: np.ndarray) -> np.ndarray:
    """μ exp(by), normalised."""
    policy = mu * np.exp(by)
    return np.asarray(policy / policy.sum(1, keepdims=True))


def at_gain(world: World, noise: np.ndarray, gain: float) -> np.ndarray | None:
    """The policy μ exp(noise + c r) whose true value is (1 + gain) of μ's; None where no c reaches it."""
    aim, scale = (1 + gain) * world.value(world.mu), world.reward.std()
    low, high = -6.0, 6.0
    for _ in range(14):
        middle = (low + high) / 2
        reached = world.value(tilted(world.mu, noise + middle * world.reward / scale))
        low, high = (middle, high) if reached < aim else (low, middle)
    found = tilted(world.mu, noise + high * world.reward / scale)
    return found if abs(world.value(found) / aim - 1) < 0.001 else None


class Tally:
    """Answers of the gate, log after log."""

    def __init__(self) -> None:
        self.logs = self.refused = self.deployed = self.told = self.held = 0

    def add(self, log: Log, policy: np.ndarray, truth: float) -> None:
        check = value_check(log.judged("new", policy), None, RULES)
        self.logs += 1
        self.deployed += check.outcome == "yes"
        if check.low is None or check.high is None:
            self.refused += 1
        else:
            self.told += 1
            self.held += check.low <= truth <= check.high


Cell = Callable[[int, int], Iterator[Row]]  # repeats, seed


def value_cell(name: str, *, k: int, rate: float, count: int, noise: float, effective: int | None = 500) -> Cell:
    """False deploys of policies that gain nothing, coverage, and how often a gain of 20 % is detected."""

    def cell(repeats: int, seed: int = 0) -> Iterator[Row]:
        rng = np.random.default_rng([k, round(1000 * rate), count, seed])
        null, gain = Tally(), Tally()
        worlds = max(2, repeats // 10)
        for _ in range(worlds):
            world = World.drawn(rng, k=k, rate=rate)
            around = noise * rng.standard_normal(world.mu.shape)
            base = world.value(world.mu)
            same = at_gain(world, around, -0.002)
            better = None if effective is None else at_gain(world, 0.3 * around, 0.2)
            lists = None if better is None or effective is None else enough(world, better, effective, rng)
            truths = [0.0 if policy is None else world.value(policy) - base for policy in (same, better)]
            for _ in range(repeats // worlds):
                if same is not None and truths[0] <= 0:
                    null.add(world.log(count, rng), same, truths[0])
                if better is not None and lists is not None:
                    gain.add(world.log(lists, rng), better, truths[1])
        size = f"{name}: {count:,} {'decisions' if k == 1 else f'lists of {k}'}"
        yield Row("deploys what gains nothing", size, null.deployed, null.logs, "≤ 5 %", null.refused)
        yield Row("interval holds the truth", size, null.held, null.told, "≥ 93 %", null.refused)
        if gain.logs:
            size = f"{name}: effective sample ≥ {effective}"
            yield Row("detects a gain of 20 %", size, gain.deployed, gain.logs, "≥ 80 %", gain.refused)
            yield Row("interval holds the truth", size, gain.held, gain.told, "≥ 93 %", gain.refused)

    return cell


def enough(world: World, policy: np.ndarray, effective: int, rng: np.random.Generator) -> int | None:
    """Lists with which the effective sample is about a fifth above this; None where it would take too many."""
    log = world.log(4_000, rng)
    weight = (log.chances(policy) / log.chances(world.mu)).prod(1)
    share = weight.sum() ** 2 / (weight**2).sum() / len(weight)
    lists = int(1.2 * effective / share)
    return lists if lists <= 40_000 else None


# ---------------------------------------------------------------------- a deployed policy far from the log


def far(repeats: int, seed: int = 0) -> Iterator[Row]:
    """100 items at random; the deployed policy stakes .95 on the best: .87 against .38 of the candidate."""
    rng, items = np.random.default_rng([1, seed]), 100
    deploys = refused = 0
    for _ in range(repeats):
        worth = np.clip(0.3 + 0.12 * rng.standard_normal(items), 0.02, 0.6)
        worth[7] = 0.9
        world = World(np.full((1, items), 1 / items), worth[None], np.ones(1))
        staked = np.full((1, items), 0.05 / (items - 1))
        staked[0, 7] = 0.95
        log = world.log(3_000, rng)
        check = value_check(log.judged("X", tilted(world.mu, world.reward / 0.25)), log.judged("D", staked), RULES)
        deploys += check.outcome == "yes"
        refused += check.low is None
    yield Row("deploys what is worse", "deployed policy far from the log", deploys, repeats, "≤ 5 %", refused)


# ---------------------------------------------------------------------- visits of several steps


def visits(repeats: int, seed: int = 0) -> Iterator[Row]:
    """What is shown decides what comes next: does a gain of one step stand for a gain of whole visits?"""
    rng, states, items, steps, count = np.random.default_rng([2, seed]), 5, 12, 5, 800
    false = worse = told = better = refused = 0
    for _ in range(repeats):
        mu = np.exp(rng.standard_normal((states, items)))
        mu /= mu.sum(1, keepdims=True)
        reward = np.clip(0.25 + 0.15 * rng.standard_normal((states, items)), 0.01, 0.95)
        reward *= np.linspace(0.6, 1.4, states)[:, None]  # some states are better to be in
        leads = rng.integers(states, size=(states, items))
        ahead = (reward - reward.mean(1, keepdims=True)) / 0.15
        policy = tilted(mu, rng.uniform(-0.6, 0.6) * ahead + 0.5 * rng.standard_normal(mu.shape))

        def earns(law: np.ndarray, reward: np.ndarray = reward, leads: np.ndarray = leads) -> float:
            at, total = np.full(states, 1 / states), 0.0
            for _ in range(steps):
                total += float(at @ (law * reward).sum(1))
                at = np.array([(at[:, None] * law)[leads == state].sum() for state in range(states)])
            return total / steps

        state = rng.integers(states, size=count)
        columns: list[tuple[np.ndarray, ...]] = []
        for _ in range(steps):
            item = (rng.random(count)[:, None] > np.cumsum(mu[state], 1)).sum(1).clip(max=items - 1)
            columns.append((mu[state, item], policy[state, item], rng.random(count) < reward[state, item]))
            state = leads[state, item]
        stated, chosen, got = (np.stack(each, 1).ravel().astype(float) for each in zip(*columns, strict=True))
        new = evaluation(
            "new", np.repeat(np.arange(count), steps), got, propensity=stated, logp_open=np.log(chosen),
            value_taken=np.zeros(len(got)), value_expected=np.zeros(len(got)),
        )  # fmt: skip
        check, truth = value_check(new, None, RULES), earns(policy) / earns(mu) - 1
        refused += check.low is None
        false += check.outcome == "yes" and truth <= 0
        worse += truth <= 0
        better += truth >= 0.1
        told += check.outcome == "yes" and truth >= 0.1
    yield Row("deploys what gains nothing", f"{count} visits of {steps} steps", false, worse, "≤ 5 %", refused)
    yield Row("detects a gain of 10 % of whole visits", f"{count} visits of {steps} steps", told, better, "–", refused)


# ---------------------------------------------------------------------- ratings


def ratings(repeats: int, seed: int = 0) -> Iterator[Row]:
    """People rate what they choose; what counts is how they would like what a policy shows first, rated or not."""
    rng, people, films, rated, factors = np.random.default_rng([3, seed]), 300, 80, 12, 5
    false = worse = told = better = 0
    for _ in range(repeats):
        taste, trait = rng.standard_normal((people, factors)), rng.standard_normal((films, factors))
        affinity = 0.9 * taste @ trait.T / factors**0.5 + 0.7 * rng.standard_normal(films)
        fame, mean = rng.standard_normal(films), 1 / (1 + np.exp(-affinity))
        taking = 0.8 * fame + 0.6 * affinity
        chosen = np.argsort(-(taking + rng.gumbel(size=taking.shape)), axis=1)[:, :rated]
        liked = np.take_along_axis(mean, chosen, 1) + 0.15 * rng.standard_normal(chosen.shape)
        stars = np.clip(np.round(4 * liked) / 4, 0, 1)
        scores = [
            rng.uniform(0, 1.2) * taking
            + rng.uniform(-3, 4) * mean
            + rng.uniform(0, 1.5) * rng.standard_normal(mean.shape)
            for _ in range(2)
        ]
        truth = [float(mean[np.arange(people), each.argmax(1)].mean()) for each in scores]
        old, new = (_rated(name, each, chosen, stars) for name, each in zip(("old", "new"), scores, strict=True))
        outcome = {gain_check(new, old, "liked@1", RULES).outcome, agreement_check(new, old, RULES).outcome}
        gain = truth[1] / truth[0] - 1
        worse += gain <= 0
        false += gain <= 0 and outcome == {"yes"}
        better += gain >= 0.2
        told += gain >= 0.2 and outcome == {"yes"}
    yield Row("deploys what is liked no better", f"ratings of {people} people", false, worse, "≤ 5 %")
    yield Row("detects a gain of 20 %", f"ratings of {people} people", told, better, "≥ 80 %")


def _rated(name: str, scores: np.ndarray, chosen: np.ndarray, stars: np.ndarray) -> Evaluation:
    people, rated = chosen.shape
    at = np.minimum(np.arange(rated)[:, None] + np.arange(CANDIDATES), rated - 1)
    valid = np.broadcast_to(np.arange(rated)[:, None] + np.arange(CANDIDATES) < rated, (people, *at.shape))
    given = np.take_along_axis(scores, chosen, 1)
    flat = [
        torch.from_numpy(np.ascontiguousarray(each)).reshape(-1, CANDIDATES)
        for each in (given[:, at], stars[:, at], valid)
    ]
    top, agreement = liking(*flat)
    rank = (scores[:, None, :] > given[:, :, None]).sum(2).ravel() + 1.0
    sequence = np.repeat(np.arange(people), rated)
    return evaluation(name, sequence, stars.ravel(), rank=rank, liked=top.numpy(), agreement=agreement.numpy())


# ---------------------------------------------------------------------- all of them


def serving(repeats: int, seed: int = 0) -> Iterator[Row]:
    """The audit and the rollout."""
    sys.path.insert(0, str(Path(__file__).parent))
    from promises_serving import rows

    for row in rows(max(1, repeats // 2), seed):
        yield Row(*row[:5])


def in_logs(name: str) -> Cell:
    """A cell of `promises_logs`, which is built on this module."""

    def cell(repeats: int, seed: int = 0) -> Iterator[Row]:
        sys.path.insert(0, str(Path(__file__).parent))
        from promises_logs import CELLS as HARDER

        yield from (Row(*row) for row in HARDER[name](repeats, seed))

    return cell


HARDER = ("intent", "chosen", "second", "repeats", "amounts", "prices", "persons", "drift", "clones", "temperatures",
          "below", "luce4", "luce4keen", "luce10", "delayed")  # fmt: skip
CELLS: dict[str, Cell] = {
    "single": value_cell("single items", k=1, rate=0.3, count=2_000, noise=0.6),
    "lists4": value_cell("lists", k=4, rate=0.2, count=3_000, noise=0.25),
    "lists10": value_cell("lists", k=10, rate=0.1, count=3_000, noise=0.12),
    "rare": value_cell("rare rewards, 1.4 %", k=1, rate=0.014, count=1_000, noise=0.8, effective=None),
    "rare3": value_cell("rare rewards, 3 %", k=1, rate=0.03, count=1_000, noise=0.8, effective=None),
    "small": value_cell("small logs", k=1, rate=0.3, count=200, noise=0.6, effective=None),
    "tiny": value_cell("tiny logs", k=1, rate=0.3, count=60, noise=0.6, effective=None),
    "far": far,
    "visits": visits,
    "ratings": ratings,
    **{name: in_logs(name) for name in HARDER},
    "serving": serving,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    lines = ["| promise | world | promised | measured | refused |", "|---|---|--:|--:|--:|"]
    for name in asked.only:
        began = time.perf_counter()
        for row in CELLS[name](asked.repeats, asked.seed):
            rate = f"{row.times / row.of:.1%}" if row.of else "–"
            cells = (row.promise, row.world, row.promised, f"{rate} ({row.times:,} of {row.of:,})", f"{row.refused:,}")
            line = f"| {' | '.join(cells)} |"
            print(line, flush=True)
            lines.append(line)
        print(f"  {name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    if asked.markdown is not None:
        asked.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
