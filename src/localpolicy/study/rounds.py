"""What each round of a loop showed: true reward, distance from the round before and from the first policy.

Contexts are the same for every policy and round. In the bandit they are all there are, weighted as they occur, so
every figure is exact; in the store they are those of a few visits under the first logging policy μ, whose own
probabilities the world knows: no estimate of μ, and so no noise floor, stands between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from localpolicy import __version__
from localpolicy.catalogue.logits import DenseLogits
from localpolicy.catalogue.statistics import catalogue_statistics
from localpolicy.data.store import CONTEXT
from localpolicy.measure.estimate import Interval, Measurement, as_json, mean_estimate
from localpolicy.measure.evaluation import as_arrow
from localpolicy.measure.summary import coverage
from localpolicy.measure.truth import bandit_probabilities, rollout, world_probabilities
from localpolicy.model.policy import Policy
from localpolicy.results import Result
from localpolicy.simulation import BanditWorld, StoreWorld
from localpolicy.simulation.truth import STEPS, WORLDS
from localpolicy.study.demo import PolicySpec
from localpolicy.study.measured import over_seeds
from localpolicy.study.settings import LoopConfig

VISITS = 100  # of the store, whose every step is a context
LEAST = 1e-30  # probabilities below this are taken for it: a logarithm must be finite

World = BanditWorld | StoreWorld


@lru_cache(maxsize=1)
def world_of(config: LoopConfig) -> World:
    """The world of a loop; a process builds it once for all its rounds."""
    settings, kind = WORLDS[config.world]
    world: World = kind(settings().with_changes([*config.dials, f"items={config.items}"]), seed=config.world_seed)
    return world


Round = dict[str, Any]  # what one policy of the loop showed, as its file holds it


@dataclass(frozen=True)
class RoundMeasure:
    """Measures the policies of one world, all on the same contexts and (under one seed) the same visits."""

    world: World
    episodes: int
    seed: int

    def of(self, policy: Policy | None, before: Policy | None) -> Round:
        """A policy, and the one whose log it was trained on; None is μ. Figures but two have a mean and an error.

        truth is J; gain is over μ and step over the policy before, both paired; entropy is in nats, and coverage the
        share of the catalogue that is shown first somewhere.
        """
        mine, first = self._rewards(policy), self._rewards(None)
        theirs = first if before is None else self._rewards(before)
        earned = {"truth": mine, "gain": mine - first, "step": mine - theirs}
        return {**{name: _mean(values) for name, values in earned.items()}, **self._distances(policy, before)}

    def _rewards(self, policy: Policy | None) -> np.ndarray:
        """Of each visit, the same shoppers and luck under every policy; in the bandit one number, the exact J."""
        world = self.world
        if isinstance(world, BanditWorld):
            return np.array([world.value(world.logging if policy is None else bandit_probabilities(policy, world))])
        if policy is not None:
            return rollout(policy, world, episodes=self.episodes, seed=self.seed).per_episode
        return world.rollouts(world.logging_agent(), self.episodes, STEPS, self.seed).per_episode

    def _distances(self, policy: Policy | None, before: Policy | None) -> Round:
        columns: dict[str, list[np.ndarray]] = {}
        visits, weights = [], []
        for items, events, weight in self._contexts():
            rows = {
                "policy": self._rows(policy, items, events),
                "before": self._rows(before, items, events),
                "first": self._rows(None, items, events),
            }
            mine = rows.pop("policy")
            nobody = torch.zeros(len(items), dtype=torch.long)
            for name, values in catalogue_statistics(mine, nobody, references=rows, floor=False).items():
                columns.setdefault(name, []).append(values.numpy())
            visits.append(np.arange(len(items)))
            weights.append(weight)
        visit, weight = np.concatenate(visits), np.concatenate(weights)
        statistics = {name: np.concatenate(parts) for name, parts in columns.items()}

        def mean(name: str) -> dict[str, float]:
            exact = isinstance(self.world, BanditWorld)
            se = 0.0 if exact else mean_estimate(statistics[name], visit).se
            return {"mean": float(weight @ statistics[name]), "se": se}

        return {
            "js_before": mean("js:before"),
            "js_first": mean("js:first"),
            "kl_first": mean("kl:first"),
            "entropy": mean("entropy")["mean"],
            "coverage": coverage(np.bincount(statistics["top"], minlength=self.world.n_items)),
        }

    def _contexts(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Histories [B, t], their event codes, and the weight of each; all weights together are 1."""
        world = self.world
        if isinstance(world, BanditWorld):
            codes = np.full(world.contexts.shape, world.events.index(CONTEXT))
            yield world.contexts, codes, world.context_probabilities
            return
        luck, choices = (np.random.default_rng([self.seed, part]) for part in (6, 7))
        visits = world.visits(np.arange(VISITS), np.full(VISITS, STEPS), luck, choices)
        items, events = visits.item.reshape(VISITS, STEPS), visits.event.reshape(VISITS, STEPS)
        for step in range(STEPS):
            yield items[:, :step], events[:, :step], np.full(VISITS, 1 / (VISITS * STEPS))

    def _rows(self, policy: Policy | None, items: np.ndarray, events: np.ndarray) -> DenseLogits:
        """log π(·|h) over the world's items; of μ where there is no policy."""
        world = self.world
        if policy is not None:
            share = world_probabilities(policy, world, items, events)
        elif isinstance(world, BanditWorld):
            share = world.logging
        else:
            share = world.logging_probabilities(items, events)
        return DenseLogits(torch.from_numpy(np.log(np.maximum(share, LEAST))))


def _mean(values: np.ndarray) -> dict[str, float]:
    n = len(values)
    return {"mean": float(values.mean()), "se": float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0}


# ---------------------------------------------------------------------- over seeds


FIGURES = {  # of the long table -> of a round's file
    "J(π)": "truth", "gain": "gain", "step": "step", "JS from the round before": "js_before",
    "JS from the first μ": "js_first", "KL from the first μ": "kl_first", "entropy": "entropy", "coverage": "coverage",
}  # fmt: skip
SHARES = {"effective share": "effective_share", "clipped share": "clipped_share"}  # of an epoch's weights

Figures = Mapping[str, Interval]  # of one round, by name
OfSeed = Mapping[str, tuple[float, float]]  # the same of one seed: mean and standard error


def figures_of(entry: Round) -> OfSeed:
    """The figures of one seed's round. A closed form weighs nothing."""
    weights = entry.get("weights", {})
    values = {name: entry[key] for name, key in FIGURES.items()}
    values |= {name: weights[key] for name, key in SHARES.items() if key in weights}
    return {
        name: (value["mean"], value["se"]) if isinstance(value, dict) else (value, 0.0)
        for name, value in values.items()
    }


def over_all_seeds(seeds: Sequence[OfSeed]) -> Figures:
    """The figures of one round that all seeds have."""
    shared = [name for name in seeds[0] if all(name in seed for seed in seeds)]
    return {name: over_seeds(*zip(*(seed[name] for seed in seeds), strict=True)) for name in shared}


@dataclass(frozen=True, repr=False)
class Loop(Result):
    """A loop that has come to its end."""

    config: LoopConfig
    world: World
    arms: list[PolicySpec]
    first: list[Round]  # μ's figures, by seed
    rounds: dict[str, list[list[Round]]]  # by arm, by seed: one entry per round, fewer where it had to stop

    def by_round(self, arm: str) -> list[dict[int, OfSeed]]:
        """What the seeds that got there showed, by round (the 0th is μ) and seed."""
        rounds: defaultdict[int, dict[int, OfSeed]] = defaultdict(dict)
        for seed, first, entries in zip(self.config.seeds, self.first, self.rounds[arm], strict=True):
            for number, entry in enumerate([first, *entries]):
                if "stopped" not in entry:
                    rounds[number][seed] = figures_of(entry)
        return list(rounds.values())

    def figures(self, arm: str) -> list[Figures]:
        """One objective's figures by round, over seeds."""
        return [over_all_seeds([*seeds.values()]) for seeds in self.by_round(arm)]

    def stopped(self, arm: str) -> dict[int, str]:
        """Rounds in which a seed could not be trained, and why."""
        entries = [(number, entry) for seed in self.rounds[arm] for number, entry in enumerate(seed, start=1)]
        return {number: entry["stopped"] for number, entry in entries if "stopped" in entry}

    def summary(self) -> str:
        """Where each objective ended."""
        ends = {arm.name: self.figures(arm.name)[-1]["J(π)"].mean for arm in self.arms}
        order = ", ".join(f"{name} {value:.4f}" for name, value in sorted(ends.items(), key=lambda end: -end[1]))
        last = max(len(seed) for seeds in self.rounds.values() for seed in seeds)
        return f"{self.config.world}, {last} rounds; J at the end: {order}"

    @property
    def measurements(self) -> list[Measurement]:
        """The long table: every figure of every objective and round, over seeds (seed null) and of each."""
        rows = []
        for arm in self.arms:
            for number, seeds in enumerate(self.by_round(arm.name)):
                together = over_all_seeds([*seeds.values()]).items()
                rows += [Measurement.of(arm.name, name, value, round=number) for name, value in together]
                rows += [
                    Measurement.of(arm.name, name, Interval.of(mean, se), se=se, seed=seed, round=number)
                    for seed, figures in seeds.items()
                    for name, (mean, se) in figures.items()
                ]
        return rows

    def to_arrow(self) -> pa.Table:
        """The long table."""
        return as_arrow(self.measurements)

    def to_dict(self) -> dict[str, Any]:
        """Settings, objectives and the long table."""
        return {
            "localpolicy": __version__,
            "settings": self.config.model_dump(mode="json"),
            "optimum": self.world.optimum() if isinstance(self.world, BanditWorld) else None,
            "arms": {arm.name: {"objective": arm.objective, "stopped": self.stopped(arm.name)} for arm in self.arms},
            "measurements": as_json(self.measurements),
        }
