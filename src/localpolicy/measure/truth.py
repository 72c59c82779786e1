"""The true value of a policy in a simulated world: an exact sum in the bandit, paired rollouts in the store.

A policy reads histories as its own log held them: one trained on interactions sees answered items alone, one
trained on impressions sees all that was shown with its outcome. Items it never saw in its log are left out of
its histories, and it shows them with probability 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from scipy.special import ndtri

from localpolicy.catalogue.blocks import blocks_of
from localpolicy.data.batches import batch_of_flat
from localpolicy.data.store import NO_ANSWER
from localpolicy.errors import DataError
from localpolicy.measure.estimate import standard_error
from localpolicy.measure.significance import Paired, holm_steps
from localpolicy.model.catalogue_mapping import context_length, device_of
from localpolicy.model.deployable import Deployable
from localpolicy.simulation.events import World
from localpolicy.simulation.truth import EPISODES, STEPS
from localpolicy.types import START, Batch


@dataclass(frozen=True)
class Truth:
    """True J(π) and J(μ). `se` is 0 if J is exact; `gain` is paired, so its error is smaller than either's."""

    value: float
    se: float
    logging: float
    gain: float
    gain_se: float
    optimum: float | None = None  # where it is known


def true_value(
    policy: Deployable, world: World, *, episodes: int = EPISODES, steps: int = STEPS, seed: int = 0
) -> Truth:
    """J(π): exact in the bandit; in the store the mean reward per impression of `episodes` visits of `steps`."""
    mine, logged = (world.visit_rewards(each, episodes, steps, seed) for each in (PolicyAgent(policy, world), None))
    value, gain = mean_and_se(mine), mean_and_se(mine - logged)
    return Truth(value["mean"], value["se"], float(logged.mean()), gain["mean"], gain["se"], world.optimum())


def true_gains(truths: Mapping[str, Truth], confidence: float) -> dict[str, Paired]:
    """True gain J(π) - J(μ) of each policy with its normal interval, Holm-corrected over the policies."""
    clear = {name: abs(truth.gain) / (truth.gain_se or 1e-300) for name, truth in truths.items()}

    def around(name: str, confidence: float) -> tuple[float, float]:
        reach = float(ndtri((1 + confidence) / 2)) * truths[name].gain_se
        return truths[name].gain - reach, truths[name].gain + reach

    bounds, none = holm_steps(clear, around, confidence), math.nan
    return {
        name: Paired(truth.gain, truth.gain_se, *bounds[name], none, none, 0, none) for name, truth in truths.items()
    }


def mean_and_se(values: np.ndarray) -> dict[str, float]:
    """Mean of independent values with its standard error; 0 for a single, exact one."""
    return {"mean": float(values.mean()), "se": standard_error(values) if len(values) > 1 else 0.0}


@dataclass(frozen=True)
class PolicyAgent:
    """π as an agent of a world: it draws one item per history, and tells the probability it had.

    `greedy` shows the most probable item instead, with probability 1.
    """

    policy: Deployable
    world: World
    greedy: bool = False

    def probabilities(self, items: np.ndarray, events: np.ndarray) -> np.ndarray:
        """π(a|h) for every item of the world after B histories of t items and event codes, both [B, t]: [B, V]."""
        policy, world = self.policy, self.world
        batch = histories(policy, items, events, world.events, world.n_items)
        probabilities = np.zeros((len(items), world.n_items))
        probabilities[:, world_numbers(policy, world.n_items)] = _probabilities(policy, batch).double().cpu().numpy()
        return probabilities

    def __call__(
        self, items: np.ndarray, events: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw an item after each of B histories (the best if `greedy`); return items and probabilities, [B] each."""
        policy, world, number = self.policy, self.world, world_numbers(self.policy, self.world.n_items)
        luck = rng.random(len(items))
        chosen, probability = np.empty(len(items), np.int64), np.ones(len(items))
        for start, stop in blocks_of((len(items), len(number)), device_of(policy).type):
            part = slice(start, stop)
            batch = histories(policy, items[part], events[part], world.events, world.n_items)
            share = _probabilities(policy, batch)
            if self.greedy:
                chosen[part] = share.argmax(1).cpu().numpy()
                continue
            line = share.double().cumsum(1)
            aim = line[:, -1:] * torch.from_numpy(luck[part])[:, None].to(line)
            drawn = torch.searchsorted(line, aim, right=True).clamp_(max=len(number) - 1)
            chosen[part] = drawn.squeeze(1).cpu().numpy()
            probability[part] = (share.gather(1, drawn).double() / line[:, -1:]).squeeze(1).cpu().numpy()
        return number[chosen], probability


def world_numbers(policy: Deployable, items: int) -> np.ndarray:
    """Index in the world's catalogue of each item of the policy: [V]."""
    ids = policy.items["item_id"]
    number = ids.combine_chunks().cast(pa.int64()).to_numpy() if pa.types.is_integer(ids.type) else None
    if number is None or number.min(initial=0) < 0 or number.max(initial=0) >= items:
        raise DataError(
            f"the policy's items are not those of this world (numbers 0 to {items - 1}): it was trained on another log."
        )
    return np.asarray(number)


def histories(policy: Deployable, items: np.ndarray, events: np.ndarray, names: list[str], total: int) -> Batch:
    """B histories [B, t] of world items and event codes (`names` of the world) as this policy would read them.

    One position each: the context that follows all of the history's items.
    """
    index = np.full(total, START, np.int64)
    index[world_numbers(policy, total)] = np.arange(policy.items.num_rows)
    known = {name: code for code, name in enumerate(policy.origin.events)}
    # A log of interactions has no code for an item that was passed over: such items are not in its histories.
    code = np.array([known.get(name, -1 if name == NO_ANSWER else 0) for name in names], np.int64)
    item, event = index[items], code[events]
    return batch_of_arrays(item, event, (item >= 0) & (event >= 0), length=context_length(policy)).to(device_of(policy))


def batch_of_arrays(item: np.ndarray, event: np.ndarray, kept: np.ndarray, *, length: int) -> Batch:
    """Batch with one position per row: the context after the row's items [B, t] where `kept`, cut to `length`."""
    items, events = (torch.from_numpy(part[kept].astype(np.int64)) for part in (item, event))
    return batch_of_flat(items, events, torch.from_numpy(kept.sum(1)), length=length)


@torch.no_grad()
def _probabilities(policy: Deployable, batch: Batch) -> torch.Tensor:
    rows = policy.logits(batch)
    return torch.softmax(rows.chunk(0, rows.shape[1]), dim=1)
