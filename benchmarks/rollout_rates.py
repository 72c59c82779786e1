"""How often a rollout is done, rolled back or unproven, how far its candidate got, and how many persons that took.

    python benchmarks/rollout_rates.py [--repeats 200] [--seed 0] [--worlds lists prices baskets] [--truths 0 -0.1 -0.3]

Every look is the product's own `decide`, with the default rules and stages of 1, 5, 25, 50 and 100 %, on persons of a
simulated shop whose log of 5,000 persons was read before. Persons differ by a log-normal factor, come back by a
geometric number of lists, and buy more in the evening; a candidate multiplies the chance of each answer by 1 + truth.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from localpolicy.serving.experiment_units import Units
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.past import Past, known
from localpolicy.serving.reward_tests import level
from localpolicy.serving.rollout_decision import decide
from localpolicy.serving.rollout_rules import RolloutRules
from localpolicy.serving.sample_size import RolloutSize, rollout_size

STAGES = {"1": 0.01, "5": 0.05, "25": 0.25, "50": 0.5, "100": 1.0}
LOG, DAY, LOOKS = 5_000, 2_000, 24  # persons of the log, persons of a day, looks of a stage
Draw = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]  # of lists and chances: sums of rewards


class World(NamedTuple):
    """A shop: the chance of an answer at a place, places, spread of persons, and what answers bring."""

    chance: float
    places: int
    spread: float  # of the log of a person's factor
    worth: Draw
    rewards: str
    largest: float | None = None

    def rewards_of(self, rng: np.random.Generator, start: int, change: np.ndarray) -> np.ndarray:
        """Mean reward of a list, of persons from number `start` on; `change` [n]: of their chance."""
        n = len(change)
        lists = rng.geometric(0.6, n)
        factor = rng.lognormal(-(self.spread**2) / 2, self.spread, n)
        evening = 1 + 0.5 * np.sin(2 * np.pi * (start + np.arange(n)) / DAY)
        chance = np.minimum(self.chance * factor * evening, 0.6) * (1 + change)
        return self.worth(rng, self.places * lists, chance) / lists


def clicks(rng: np.random.Generator, shown: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Draw the number of clicks of each unit."""
    return rng.binomial(shown, chance).astype(float)


def prices(rng: np.random.Generator, shown: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """What was paid: log-normal, with a heavy tail."""
    bought = rng.binomial(shown, chance)
    paid = rng.lognormal(2.0, 1.0, bought.sum())
    return np.bincount(np.repeat(np.arange(len(shown)), bought), paid, minlength=len(shown))


def baskets(rng: np.random.Generator, shown: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Clicks, one in ten of them a purchase."""
    clicked = rng.binomial(shown, chance)
    return np.asarray(0.2 * clicked + 0.8 * rng.binomial(clicked, 0.1))


WORLDS = {
    "lists": World(0.06, 10, 0.8, clicks, "click=1"),
    "single": World(0.12, 1, 0.6, clicks, "click=1"),
    "baskets": World(0.05, 10, 1.0, baskets, "purchase=1,click=0.2"),
    "prices": World(0.03, 10, 0.7, prices, "purchase=1", 1000.0),
}


class Outcome(NamedTuple):
    """How a rollout ended."""

    decision: str
    stage: str
    persons: int
    shown: int  # of these, with the candidate


def past_of(world: World, rng: np.random.Generator, rules: RolloutRules) -> Past:
    """The log of the current policy."""
    rewards = world.rewards_of(rng, 0, np.zeros(LOG))
    return Past.of(rewards, days=LOG / DAY, most=rules.range[1])


def size_of(past: Past, rules: RolloutRules) -> RolloutSize:
    """Size of a rollout, as `lpi rollout size` computes it."""
    cv2 = level(np.zeros(0), known(rules, past)).cv2
    assert cv2 is not None
    margins = {stage: (share, rules.margin_at(share)) for stage, share in STAGES.items()}
    least = {stage: rules.least_persons(share) for stage, share in STAGES.items()}
    return rollout_size(cv2, margins, persons_a_day=DAY, wait_days=0.0, least=least, at_hand=28 * DAY)


def rollout(world: World, truth: float, rng: np.random.Generator, rules: RolloutRules) -> tuple[Outcome, RolloutSize]:
    """One rollout from the first stage until it ends."""
    past = past_of(world, rng, rules)
    planned, names, at = size_of(past, rules), list(STAGES), 0
    units = Units._make([*(np.zeros(0) for _ in range(6)), np.zeros(0, object)])
    while True:
        stage = names[at]
        step = -(-planned.stages[stage].most // LOOKS)
        arm = (rng.random(step) < STAGES[stage]).astype(float)
        reward = world.rewards_of(rng, len(units.arm), truth * arm)
        more = Units(arm, np.full(step, STAGES[stage]), reward, np.zeros(step), np.ones(step), np.zeros(step),
                     np.full(step, stage, object))  # fmt: skip
        units = Units._make(np.concatenate(both) for both in zip(units, more, strict=True))
        said = decide(units, rules, past, stage=stage, stages=names, shadow=(0, 0), at=rules.ripe_ms)
        if said.decision == "advance":
            at += 1
        elif said.decision != "hold":
            return Outcome(said.decision, stage, len(units.arm), int(units.arm.sum())), planned


def outcomes(name: str, truth: float, repeats: int, *, seed: int = 0, margin: float = 0.1) -> Iterator[Outcome]:
    """Outcomes of many rollouts in one world."""
    world = WORLDS[name]
    rules = RolloutRules(margin=margin, places=world.places, answers=JoinConfig(rewards=world.rewards),
                         largest_reward=world.largest)  # fmt: skip
    for repeat in range(repeats):
        rng = np.random.default_rng([7, seed, list(WORLDS).index(name), round(1000 * (1 + truth)), repeat])
        yield rollout(world, truth, rng, rules)[0]


def summary(name: str, truth: float, found: list[Outcome]) -> str:
    """A row of the table."""
    ends, n = Counter(one.decision for one in found), len(found)
    order = list(STAGES)
    reached = " / ".join(f"{sum(order.index(one.stage) >= order.index(s) for one in found)}" for s in order[1:])
    persons, most = np.quantile([one.persons for one in found], (0.5, 0.95))
    shown = np.median([one.shown for one in found])
    return (f"| {name} | {truth:+.0%} | {n} | {ends['done']} | {ends['roll back']} | {ends['unproven']} | {reached} | "
            f"{persons:,.0f} ({most:,.0f}) | {shown:,.0f} |")  # fmt: skip


def main() -> None:
    """Run the rollouts and print their rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--margin", type=float, default=0.1)
    parser.add_argument("--worlds", nargs="*", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--truths", nargs="*", type=float, default=[0.0, 0.05, -0.05, -0.1, -0.3])
    given = parser.parse_args()
    print("| world | truth | rollouts | done | rolled back | unproven | reached 5 / 25 / 50 / 100 % | persons, median "
          "(95 %) | shown the candidate |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for name in given.worlds:
        world, rng = WORLDS[name], np.random.default_rng([8, given.seed])
        rules = RolloutRules(margin=given.margin, places=world.places, largest_reward=world.largest,
                             answers=JoinConfig(rewards=world.rewards))  # fmt: skip
        sizes = [size_of(past_of(world, rng, rules), rules) for _ in range(20)]
        cv2, persons, most = (np.median([getattr(one, part) for one in sizes]) for part in ("cv2", "persons", "most"))
        for truth in given.truths:
            print(summary(name, truth, list(outcomes(name, truth, given.repeats, seed=given.seed,
                                                     margin=given.margin))), flush=True)  # fmt: skip
        print(f"| {name}, as planned | | | | | | CV² {cv2:.1f} | {persons:,.0f} ({most:,.0f}) | |", flush=True)


if __name__ == "__main__":
    main()
