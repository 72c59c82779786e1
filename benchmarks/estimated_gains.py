"""Are estimated gains as large as true ones? Estimated against true relative gains, over many small worlds.

    python benchmarks/estimated_gains.py [--worlds 120] [--seed 0] [--only single lists4 ...] [--markdown FILE]

Each world is a table of numbers (contexts by items), with one log and one candidate that is μ, tilted at random: some
candidates earn less, most earn more. The slope of estimates on true gains is 1 where numbers can be trusted; the
spread is the standard deviation of their difference, in points of the log's own reward. Of the candidates that have a
significant gain, which alone are shown to anybody as a reason to deploy, the means are printed too: they are chosen by
luck too, and estimated too large. No model is trained; none of these worlds chose a constant.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from promises import World, tilted

from localpolicy.data.first_meetings import earned_by_meeting, met_before
from localpolicy.measure.estimators import contributions, logged
from localpolicy.measure.intervals import Contributions, skewed
from localpolicy.measure.returns import ReturnModel, Visits, return_gain


class RelativeGain(NamedTuple):
    """One world: relative gains, as estimated with an interval, and true."""

    estimated: float
    low: float
    high: float
    true: float


def relative(gain: Contributions, old: float, true: float) -> RelativeGain:
    """Estimated gains as shares of what the log earns."""
    low, high = skewed(gain)
    return RelativeGain(gain.mean / old, low / old, high / old, true)


def of_lists(k: int, *, rate: float, count: int, noise: float) -> Callable[[np.random.Generator], RelativeGain]:
    """Lists of k places, as the gate values them; k = 1: single decisions."""

    def draw(rng: np.random.Generator) -> RelativeGain:
        world = World.drawn(rng, k=k, rate=rate)
        toward = rng.uniform(-0.3, 0.9) * world.reward / world.reward.std()
        policy = tilted(world.mu, noise * (rng.standard_normal(world.mu.shape) + toward))
        judged = world.log(count, rng).judged("new", policy)
        assert judged.off_policy is not None
        log = judged.off_policy.log
        gap, base = contributions(log, "snips") - logged(log), float(log.earned.mean())
        return relative(gap, base, world.value(policy) / world.value(world.mu) - 1)

    return draw


def of_visits(count: int, steps: int, *, strength: float) -> Callable[[np.random.Generator], RelativeGain]:
    """Visits in which the item decides what comes next: the return, of visits or of one deviation as the log allows.

    The truth is that of the question that was asked: of one deviation it is Σ over contexts of μ of Q_μ(x, π) - V_μ(x).
    Of several items in a row π draws as many of them.
    """
    states, items = 4, 8

    def draw(rng: np.random.Generator) -> RelativeGain:
        leads = rng.integers(states, size=items)
        pay = np.clip(0.3 + 0.2 * rng.standard_normal((states, items)), 0.02, 0.95)
        pay *= np.linspace(0.5, 1.5, states)[:, None]
        pay = np.minimum(pay, 0.95)
        mu = np.exp(0.7 * rng.standard_normal((states, items)))
        mu /= mu.sum(1, keepdims=True)
        toward = rng.uniform(-0.3, 0.9) * (pay - pay.mean(1, keepdims=True)) / pay.std()
        policy = tilted(mu, strength * (toward + 0.5 * rng.standard_normal(mu.shape)))

        def visits(number: int) -> tuple[Visits, np.ndarray]:
            at, columns = np.zeros(number, np.int64), []
            for _ in range(steps):
                item = (mu[at].cumsum(1) > rng.random((number, 1))).argmax(1)
                columns.append((at, item, (rng.random(number) < pay[at, item]).astype(float)))
                at = leads[item]
            state, item, reward = (np.stack(each, 1).ravel() for each in zip(*columns, strict=True))
            return Visits.of(np.repeat(np.arange(number), steps), item, reward), (policy / mu)[state, item]

        known, (judged, weight) = visits(2 * count)[0], visits(count)
        found = return_gain(judged, weight, None, ReturnModel.fit(known, gamma=1.0, n_items=items))
        later, at, of_visit, deviated = [np.zeros(states)], np.eye(states)[0], np.zeros(states), 0.0
        for _ in range(steps):
            later.append((mu * (pay + later[-1][leads])).sum(1))
            of_visit = (policy * (pay + of_visit[leads])).sum(1)
        for step in range(steps):
            left = steps - step
            drawn, value = min(found.steps, left), later[left - min(found.steps, left)]
            for _ in range(drawn):
                value = (policy * (pay + value[leads])).sum(1)
            deviated += float(at @ (value - later[left])) / steps
            at = np.array([(at[:, None] * mu)[:, leads == state].sum() for state in range(states)])
        true = of_visit[0] / later[-1][0] - 1 if found.asked == "visit" else deviated / found.old.mean
        return relative(found.gain, found.old.mean / found.items, float(true))

    return draw


def second_views(count: int) -> Callable[[np.random.Generator], RelativeGain]:
    """People choose what to view; whoever likes an item views it again, and one in two of these then buys it.

    The estimate is the reward per first meeting, by the exact μ; the truth is all that a first view brings.
    """
    items, view, buy, met = 30, 0.2, 1.0, 4

    def draw(rng: np.random.Generator) -> RelativeGain:
        mu = np.exp(rng.standard_normal(items))
        mu /= mu.sum()
        liked = np.clip(0.2 * np.exp(0.7 * rng.standard_normal(items)), 0.01, 0.9)
        policy = tilted(mu[None], (rng.uniform(-0.3, 0.9) * liked / liked.std())[None])[0]
        item = rng.choice(items, p=mu, size=count * met)  # first views are independent, repeats of an item are dropped
        sequence = np.repeat(np.arange(count), met)
        rows = []
        for person, each in zip(sequence, item, strict=True):
            rows.append((person, each, 0, view))
            if rng.random() < liked[each]:
                rows.append((person, each, 0, view))
                rows += [(person, each, 1, buy)] * int(rng.random() < 0.5)
        columns = [torch.from_numpy(np.array(column)) for column in zip(*rows, strict=True)]
        first = ~met_before(columns[0], columns[1]).numpy()
        reward, taken = earned_by_meeting(*columns).numpy()[first], columns[1].numpy()[first]
        earned = view + liked * (view + 0.5 * buy)
        weight = (policy / mu)[taken]
        value = float(weight @ reward / weight.sum())
        gain = value + weight / weight.mean() * (reward - value) - reward
        found = Contributions(gain, columns[0].numpy()[first], weight / weight.mean() - 1, reward)
        return relative(found, float(reward.mean()), float(policy @ earned / (mu @ earned) - 1))

    return draw


CELLS: dict[str, tuple[str, Callable[[np.random.Generator], RelativeGain]]] = {
    "single": ("2,000 single decisions", of_lists(1, rate=0.3, count=2_000, noise=0.5)),
    "rare": ("5,000 single decisions, rewards of 3 %", of_lists(1, rate=0.03, count=5_000, noise=0.5)),
    "lists4": ("3,000 lists of 4", of_lists(4, rate=0.2, count=3_000, noise=0.2)),
    "lists10": ("3,000 lists of 10", of_lists(10, rate=0.1, count=3_000, noise=0.1)),
    "visits": ("1,500 visits of 4 steps, mostly whole visits", of_visits(1_500, 4, strength=0.3)),
    "deviations": ("800 visits of 8 steps, mostly one deviation", of_visits(800, 8, strength=1.0)),
    "views": ("people's own views, bought after a second one", second_views(1_000)),
}


def line(what: str, found: list[RelativeGain]) -> str:
    """The row of one kind of world."""
    said, low, high, true = np.array(found).T
    centred = true - true.mean()
    slope = float(centred @ said / (centred @ centred))
    left = said - said.mean() - slope * centred
    se = float(np.sqrt(centred**2 @ left**2) / (centred @ centred))
    shown = low > 0
    means = f"{said[shown].mean():+.1%} / {true[shown].mean():+.1%}" if shown.any() else "–"
    covered = int(((low <= true) & (true <= high)).sum())
    return (
        f"| {what} | {len(found)} | {true.min():+.0%} to {true.max():+.0%} | {slope:.2f} ± {se:.2f} | "
        f"{(said - true).mean():+.1%} | {(said - true).std():.1%} | {covered} | {int(shown.sum())}: {means} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    lines = [
        "| log | worlds | true gains | slope | estimated less true | spread | covered | significant: estimated, true |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in asked.only:
        what, draw = CELLS[name]
        rng = np.random.default_rng([list(CELLS).index(name), asked.seed])
        lines.append(line(what, [draw(rng) for _ in range(asked.worlds)]))
        print(lines[-1], flush=True)
    if asked.markdown is not None:
        asked.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
