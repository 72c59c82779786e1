"""Do the signs of collapse of `lpi loop` say what they mean? How often each is shown, in loops whose future is known.

    python benchmarks/collapse.py [--loops 500]

Small bandits with settings drawn at random; no network stands between the log and the policy. Each round
π ∝ π exp(r̂/β), r̂ the mean reward of an item in a context, believed as far as its count goes. Ten rounds are judged as
`lpi loop` judges them, ten more say what became of it: *stuck* ends more than a tenth of the first gap below the
optimum and closes less than a tenth of what is left; *at the optimum* is nearer than that; others *still rise*.

The second table is of falls where J is not exact: a loop that rises for five rounds and then stays, with the error of J
over visits that it shares from round to round, as measured in the store (correlation 0.6), so that every fall is false.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from localpolicy.measure.estimate import Interval
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.study.measured import over_seeds
from localpolicy.worlds.trajectory import Figures, Trajectory

ROUNDS = 10
BELIEF = 3.0  # decisions that r̂ of an item must outweigh


def exact(**values: float) -> Figures:
    """Figures of a round that nothing is uncertain about."""
    named = {"true J": values["value"], "true gain": values["gain"], "entropy": values["entropy"], "JS": 0.0}
    return {name: Interval(value, value, value) for name, value in named.items()}


def played(seed: int) -> tuple[str, list[str], float]:
    """What became of a loop, the signs it showed after ten rounds, and its deepest fall in them."""
    rng = np.random.default_rng([seed, 9])
    contexts, items, temperature = int(rng.integers(10, 40)), int(rng.integers(10, 60)), float(rng.uniform(0.5, 2))
    world = BanditWorld(BanditConfig(contexts=contexts, items=items, temperature=temperature), seed=seed)
    decisions, beta, pi = int(10 ** rng.uniform(2, 4)), 10 ** rng.uniform(-2, 0), world.logging
    values, rounds = [], []
    for _ in range(2 * ROUNDS + 1):
        values.append(world.value(pi))
        entropy = float(-(pi * np.log(np.maximum(pi, 1e-300))).sum(1) @ world.context_probabilities)
        rounds.append(exact(value=values[-1], gain=values[-1] - values[0], entropy=entropy))
        context = rng.choice(contexts, decisions, p=world.context_probabilities)
        action = (rng.random(decisions)[:, None] > np.cumsum(pi[context], 1)).sum(1).clip(max=items - 1)
        reward = (rng.random(decisions) < world.reward[context, action]).astype(float)
        count, earned = np.zeros_like(pi), np.zeros_like(pi)
        np.add.at(count, (context, action), 1)
        np.add.at(earned, (context, action), reward)
        usual = (earned.sum(1, keepdims=True) + reward.mean()) / (count.sum(1, keepdims=True) + 1)
        estimate = (earned + BELIEF * usual) / (count + BELIEF)
        pi = pi * np.exp((estimate - estimate.max(1, keepdims=True)) / beta)
        pi /= pi.sum(1, keepdims=True)
    gap, first = world.optimum() - values[ROUNDS], world.optimum() - values[0]
    stuck = "stuck" if values[-1] - values[ROUNDS] < gap / 10 else "still rise"
    best = np.maximum.accumulate(values[1 : ROUNDS + 1])
    fall = float((1 - np.array(values[1 : ROUNDS + 1]) / best).max())
    signs = [sign.kind for sign in Trajectory("", rounds[: ROUNDS + 1]).symptoms]
    return ("at the optimum" if gap <= first / 10 else stuck), signs, fall


def falls(seeds: int, rounds: int, drop: float, loops: int) -> float:
    """Share of loops that are reported to fall, if J drops by this share after half of the rounds (0: never)."""
    rng, said, error, shared = np.random.default_rng(seeds), 0, 0.01, 0.0122
    for _ in range(loops):
        visits, course = rng.normal(0, shared, seeds), []
        for number in range(rounds + 1):
            level = 0.5 + 0.01 * min(number, 5)
            level *= 1 - drop * (number > rounds / 2)
            means = level + visits + rng.normal(0, error, seeds)
            value = over_seeds(means.tolist(), [float(np.hypot(error, shared))] * seeds)
            course.append({**exact(value=0.0, gain=1.0, entropy=1.0), "true J": value})
        said += "fell" in [sign.kind for sign in Trajectory("", course).symptoms]
    return said / loops


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--loops", type=int, default=500)
    given = parser.parse_args()
    found = [played(seed) for seed in range(given.loops)]
    print("| loops | how many | no exploration | fell | fell at all |\n|---|--:|--:|--:|--:|")
    for kind, many in Counter(kind for kind, _, _ in found).items():
        signs = [(signs, fall) for each, signs, fall in found if each == kind]
        shares = [np.mean([sign in shown for shown, _ in signs]) for sign in ("no exploration", "fell")]
        shares.append(np.mean([fall > 0 for _, fall in signs]))
        print(f"| {kind} | {many} | {' | '.join(f'{share:.0%}' for share in shares)} |")
    print("\n| seeds | rounds | no fall | a fall of 5 % | of 10 % |\n|--:|--:|--:|--:|--:|")
    for seeds in (1, 3, 5):
        for rounds in (10, 20):
            rates = " | ".join(f"{falls(seeds, rounds, drop, given.loops):.1%}" for drop in (0.0, 0.05, 0.1))
            print(f"| {seeds} | {rounds} | {rates} |")


if __name__ == "__main__":
    main()
