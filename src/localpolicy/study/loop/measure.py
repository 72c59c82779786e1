"""What one round of the loop is measured by: true reward, distance from the round before and from the first policy.

Contexts are the same for every policy and round. In the bandit they are all there are, weighted as they occur, so
every figure is exact; in the store they are those of a few visits under the first logging policy μ, whose own
probabilities the world knows: no estimate of μ, and so no noise floor, stands between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from localpolicy.catalogue.logits import DenseLogits
from localpolicy.catalogue.statistics import catalogue_statistics
from localpolicy.data.store import CONTEXT
from localpolicy.measure.estimate import mean_estimate
from localpolicy.measure.summary import coverage
from localpolicy.measure.truth import STEPS, bandit_probabilities, rollout, world_probabilities
from localpolicy.model.policy import Policy
from localpolicy.simulation import BanditWorld, StoreWorld
from localpolicy.simulation.truth import WORLDS
from localpolicy.study.loop.config import LoopConfig

VISITS = 100  # of the store, whose every step is a context
LEAST = 1e-30  # probabilities below this are taken for it: a logarithm must be finite

World = BanditWorld | StoreWorld


@lru_cache(maxsize=1)
def world_of(config: LoopConfig) -> World:
    """The world of a loop; a process builds it once for all its rounds."""
    settings, kind = WORLDS[config.world]
    world: World = kind(settings().with_changes([*config.dials, f"items={config.items}"]), seed=config.world_seed)
    return world


@dataclass(frozen=True)
class Mean:
    """A figure and its standard error, 0 where it is exact."""

    mean: float
    se: float = 0.0


@dataclass(frozen=True)
class Round:
    """What one policy of the loop showed."""

    truth: Mean  # J
    gain: Mean  # over the first policy μ, paired
    step: Mean  # over the policy before, paired
    js_before: Mean  # from the policy before
    js_first: Mean  # from μ
    kl_first: Mean
    entropy: float  # nats
    coverage: float  # share of the catalogue shown first somewhere

    def to_dict(self) -> dict[str, Any]:
        """For the round's file."""
        return asdict(self)


class RoundMeasure:
    """Measures the policies of one world, all on the same contexts and (under one seed) the same visits."""

    def __init__(self, world: World, *, episodes: int, seed: int) -> None:
        self.world, self.episodes, self.seed = world, episodes, seed

    def first(self) -> Round:
        """μ itself: the round before the first."""
        return Round(_mean(self._rewards(None)), Mean(0.0), Mean(0.0), *self._distances(None, None))

    def of(self, policy: Policy, before: Policy | None) -> Round:
        """A policy, and the one whose log it was trained on (None: μ)."""
        mine, first = self._rewards(policy), self._rewards(None)
        theirs = first if before is None else self._rewards(before)
        return Round(_mean(mine), _mean(mine - first), _mean(mine - theirs), *self._distances(policy, before))

    def _rewards(self, policy: Policy | None) -> np.ndarray:
        """Of each visit, the same shoppers and luck under every policy; in the bandit one number, the exact J."""
        world = self.world
        if isinstance(world, BanditWorld):
            return np.array([world.value(world.logging if policy is None else bandit_probabilities(policy, world))])
        if policy is not None:
            return rollout(policy, world, episodes=self.episodes, seed=self.seed).per_episode
        return world.rollouts(world.logging_agent(), self.episodes, STEPS, self.seed).per_episode

    def _distances(self, policy: Policy | None, before: Policy | None) -> tuple[Mean, Mean, Mean, float, float]:
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

        def mean(name: str) -> Mean:
            average = float(weight @ statistics[name])
            return Mean(
                average, 0.0 if isinstance(self.world, BanditWorld) else mean_estimate(statistics[name], visit).se
            )

        shown = coverage(np.bincount(statistics["top"], minlength=self.world.n_items))
        return mean("js:before"), mean("js:first"), mean("kl:first"), mean("entropy").mean, shown

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


def _mean(values: np.ndarray) -> Mean:
    n = len(values)
    return Mean(float(values.mean()), float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0)
