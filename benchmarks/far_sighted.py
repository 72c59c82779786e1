"""Does `lpi_rl` choose a good β where what pays comes a step later? Its gain next to that of the best β on its dial.

    python benchmarks/far_sighted.py [--worlds 10] [--first 100] [--gammas 0.5,0.9] [--processes 4]

30 items in 6 groups; the state is the group of the item taken last, a visit has 8 steps. Items of three groups pay a
little at once. In the last state everything pays .6 to .9, but the step that leads there pays nothing. An impression
log of 2,500 visits with its propensities; gains are those of 3,000 simulated visits over the log's exact value. The
verdict is the gate's on the log's own policy. These worlds chose no constant: seeds 2, 3 and 4 did.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

import localpolicy as lp
from localpolicy.measure.truth import batch_of_arrays
from localpolicy.model.catalogue_mapping import context_length
from localpolicy.model.policy import Policy

ITEMS, GROUPS, STEPS, VISITS, SIMULATED = 30, 6, 8, 2_500, 3_000
SETTINGS: dict[str, Any] = {
    "width": 32,
    "blocks": 1,
    "epochs": 8,
    "batch_size": 64,
    "learning_rate": 0.003,
    "device": "cpu",
}
DIAL = (4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)  # β, in spreads of the advantage


class World(NamedTuple):
    """The group of each item, what each item pays in each state, and μ of each state."""

    group: np.ndarray
    pay: np.ndarray
    mu: np.ndarray

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> World:
        group = rng.permutation(ITEMS) % GROUPS
        pay = np.full((GROUPS, ITEMS), 0.02)
        bait = np.isin(group, (0, 1, 2))
        pay[:, bait] += 0.12 * rng.random((GROUPS, int(bait.sum())))
        pay[:5, np.isin(group, (3, 4, 5))] = 0.0
        pay[5] = 0.6 + 0.3 * rng.random(ITEMS)
        mu = np.exp(0.8 * rng.standard_normal((GROUPS, ITEMS)))
        return cls(group, pay, mu / mu.sum(1, keepdims=True))

    @property
    def value(self) -> float:
        """Expected reward of a visit under μ."""
        value = np.zeros(GROUPS)
        for _ in range(STEPS):
            value = (self.mu * (self.pay + value[self.group])).sum(1)
        return float(value.mean())

    def log(self, rng: np.random.Generator) -> pa.Table:
        """Visits of μ; the first row of each shows the state, and never pays."""
        rows = []
        for visit, state in enumerate(rng.integers(GROUPS, size=VISITS)):
            members = np.flatnonzero(self.group == state)
            rows.append((visit, int(rng.choice(members)), "none", 1 / len(members) / GROUPS, visit * 60))
            for step in range(STEPS):
                item = int((self.mu[state].cumsum() > rng.random()).argmax())
                event = "click" if rng.random() < self.pay[state, item] else "none"
                rows.append((visit, item, event, self.mu[state, item], visit * 60 + step + 1))
                state = self.group[item]
        names = ("sequence_id", "item_id", "event", "propensity", "timestamp")
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))

    def simulated(self, policy: Policy, rng: np.random.Generator) -> float:
        """Simulated mean reward of a visit in which the policy draws every item."""
        ids = policy.items["item_id"].to_numpy().astype(int)
        place = np.full(ITEMS, -1)
        place[ids] = np.arange(len(ids))
        click, none = (policy.origin.events.index(each) for each in ("click", "none"))
        state, total = rng.integers(GROUPS, size=SIMULATED), np.zeros(SIMULATED)
        items, events = np.zeros((SIMULATED, STEPS + 1), int), np.full((SIMULATED, STEPS + 1), none)
        items[:, 0] = [place[rng.choice(np.flatnonzero(self.group == each))] for each in state]
        for step in range(STEPS):
            known = np.broadcast_to(np.arange(STEPS + 1) <= step, items.shape)
            with torch.no_grad():
                rows = policy.logits(batch_of_arrays(items, events, known, length=context_length(policy)))
                shown = torch.softmax(rows.chunk(0, rows.shape[1]).double(), 1).numpy()
            taken = (shown.cumsum(1) > rng.random((SIMULATED, 1))).argmax(1)
            paid = rng.random(SIMULATED) < self.pay[state, ids[taken]]
            total += paid
            items[:, step + 1], events[:, step + 1] = taken, np.where(paid, click, none)
            state = self.group[ids[taken]]
        return float(total.mean())


class Found(NamedTuple):
    """One world and objective: the gain of the β that was chosen, that of the best on the dial, and the verdict."""

    what: str
    seed: int
    chosen: float
    best: float
    answer: str


def measured(seed: int, gammas: tuple[float, ...]) -> list[Found]:
    """`lpi_cb`, and `lpi_rl` at each γ."""
    torch.set_num_threads(1)
    rng, found = np.random.default_rng([seed, 99]), []
    world = World.drawn(rng)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = lp.prepare(world.log(rng), out=folder / "data", rewards={"click": 1.0, "none": 0.0})
        mle = lp.train(data, "mle", out=folder / "mle", seed=seed + 1_000, **SETTINGS)
        policies: list[tuple[str, dict[str, Any]]] = [("lpi_cb", {})]
        for what, more in (*policies, *((f"lpi_rl, γ {each:g}", {"gamma": each}) for each in gammas)):
            run = lp.train(data, what.partition(",")[0], out=folder / what, seed=seed, **SETTINGS, **more)
            spread = run.manifest["improvement"]["calibration"]["spread"]

            def gain(policy: Policy) -> float:
                return world.simulated(policy, np.random.default_rng([seed, 5])) / world.value - 1

            dial = [gain(run.policy().dialled(each * spread)) for each in DIAL]
            answer = lp.gate(run, against=["log", mle]).answer
            found.append(Found(what, seed, gain(run.policy()), max(0.0, *dial), answer))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--first", type=int, default=100, help="seed of the first world")
    parser.add_argument("--gammas", default="0.5,0.9")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    gammas = tuple(map(float, asked.gammas.split(",")))
    seeds, found = range(asked.first, asked.first + asked.worlds), []
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for each in pool.map(measured, seeds, [gammas] * len(seeds)):
            found += each
            for one in each:
                print(f"world {one.seed}, {one.what}: {one.chosen:+.0%} of at best {one.best:+.0%}, {one.answer}")
    print("\n| policy | worlds | gain | share of the best β's | gains: deployed | losses: deployed |")
    print("|---|--:|--:|--:|--:|--:|")
    for what in dict.fromkeys(one.what for one in found):
        here = [one for one in found if one.what == what]
        gains, losses = ([one for one in here if (one.chosen > 0) == wins] for wins in (True, False))
        share = sum(one.chosen for one in here) / max(sum(one.best for one in here), 1e-9)
        counts = " | ".join(f"{sum(one.answer == 'deploy' for one in each)} of {len(each)}" for each in (gains, losses))
        mean = np.mean([one.chosen for one in here])
        print(f"| {what} | {len(here)} | {mean:+.0%} | {share:.0%} | {counts} |")


if __name__ == "__main__":
    main()
