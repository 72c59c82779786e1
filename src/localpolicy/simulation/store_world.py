"""Store as a Markov decision process: tiny for a test or 70,000 items wide, at the same cost per event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localpolicy.data.store import NO_ANSWER
from localpolicy.errors import ConfigError
from localpolicy.simulation.assortment import stock
from localpolicy.simulation.distributions import PopularityLaw
from localpolicy.simulation.events import CLICK, EPOCH, LEAST_SUPPORT, PURCHASE, SEQUENCE_GAP, Agent, Contexts, Events
from localpolicy.simulation.shop_logging import ShopLogging
from localpolicy.simulation.shoppers import Shoppers
from localpolicy.simulation.store_config import StoreConfig

CHUNK = 16_384  # sequences made at once; part of the definition of a log, since each chunk has its own stream
EPISODES = 4_096  # rollouts made at once
REWARDS = np.array([0.0, 0.2, 1.0])  # of none, click, purchase


Choice = np.ndarray | tuple[np.ndarray, np.ndarray]  # items [B], or items and their probabilities
Chooser = Callable[[np.ndarray, np.ndarray, np.random.Generator], Choice]  # (items [B, t], events [B, t], rng)


class Oracle(Protocol):
    """Agent that sees the hidden state: a reference, which cannot be deployed."""

    def choose(self, shoppers: Shoppers, remaining: int) -> np.ndarray:
        """Choose items [B] for these shoppers, with `remaining` impressions to come, this one included."""
        ...


@dataclass(frozen=True)
class RolloutValue:
    """J by simulated visits: the mean reward per impression of an episode, with its standard error."""

    mean: float
    se: float
    per_episode: np.ndarray  # [n]; episode i has the same shopper and luck under every agent


class StoreWorld:
    """Shop with `goods` (its items), `policy` (μ), and shoppers that come and answer."""

    name = "store"
    events = [NO_ANSWER, CLICK, PURCHASE]  # noqa: RUF012
    exact = False

    def __init__(self, config: StoreConfig | None = None, seed: int = 0) -> None:
        self.config = config = config or StoreConfig()
        self.seed = seed
        self.goods = stock(
            config.items,
            config.categories,
            law=PopularityLaw(config.popularity, config.popularity_scale * config.temperature),
            category_tail=config.category_tail,
            bait=config.bait,
            rng=np.random.default_rng([seed, 0]),
        )
        self.policy = ShopLogging(config, self.goods)
        least = (1 - config.repeats) * config.exploration * self.goods.share[self.goods.category] * self.goods.within
        if least.min() < LEAST_SUPPORT:
            raise ConfigError(
                f"the logging policy may give some item probability {least.min():.0e}; every item needs at least "
                f"{LEAST_SUPPORT:.0e}. Raise 'temperature', 'popularity_scale' or 'exploration'."
            )

    @property
    def about(self) -> str:
        """Description of the world in one line."""
        return f"a store of {self.n_items} items whose shoppers change with what they are shown"

    @property
    def n_items(self) -> int:
        """Number of items, V."""
        return self.config.items

    def item_table(self, round_number: int | None = None) -> None:
        """None: the shop has no item table, and no item is new."""

    @property
    def rewards(self) -> dict[str, float]:
        """Reward of each event."""
        return dict(zip(self.events, REWARDS.tolist(), strict=True))

    def logging_probabilities(self, items: np.ndarray, events: np.ndarray) -> np.ndarray:
        """μ(·|h) [B, V] after B histories of t impressions and their answers, both [B, t]."""
        return self.policy.rows(self.policy.replay(np.asarray(items), np.asarray(events)))

    def logging_value(self) -> None:
        """None: J(μ) can only be estimated from visits."""

    def optimum(self) -> None:
        """None: the best policy is unknown."""

    def logging_agent(self) -> Chooser:
        """Logging policy μ as an agent that states its probabilities."""
        return lambda items, events, rng: self.policy.choose(self.policy.replay(items, events), rng)

    def log_by(self, agent: Agent, sequences: int, seed: int) -> Iterator[Events]:
        """Draw an impression log of an agent, in chunks."""
        return self.log(sequences, seed, agent=agent)

    def log(self, sequences: int, seed: int, *, agent: Chooser | None = None) -> Iterator[Events]:
        """Draw an impression log of μ, or of `agent` (which should state its probabilities), in chunks."""
        for number, first in enumerate(range(0, sequences, CHUNK)):
            world, choices = (np.random.default_rng([seed, part, number]) for part in (1, 2))
            size = min(CHUNK, sequences - first)
            lengths = np.minimum(world.geometric(1 / self.config.mean_length, size), self.config.max_length)
            yield self.visits(np.arange(first, first + size, dtype=np.int64), lengths, world, choices, agent)

    def visits(
        self,
        sequence: np.ndarray,
        lengths: np.ndarray,
        world: np.random.Generator,
        choices: np.random.Generator,
        agent: Chooser | None = None,
    ) -> Events:
        """Simulate one visit per sequence, of the given lengths: all visitors take each step together."""
        # Longest first: those still here are then always the first few, and views replace masks.
        order = np.argsort(-lengths, kind="stable")
        start = (np.cumsum(lengths) - lengths)[order]
        staying = np.searchsorted(-lengths[order], -np.arange(lengths.max()), "left")
        item = np.empty(lengths.sum(), np.int32)
        event = np.empty(len(item), np.uint8)
        propensity = np.full(len(item), np.nan)
        shoppers = Shoppers.arrive(len(lengths), self.config, self.goods, world)
        chooser = (
            _Remembering(self.policy, len(lengths)) if agent is None else _Rereading(agent, lengths.max(), self.n_items)
        )
        for step, here in enumerate(staying):
            shoppers.leave(here)
            chosen, probability = chooser.choose(here, choices)
            answer = shoppers.answer(chosen, world)
            chooser.observe(chosen, answer)
            row = start[:here] + step
            item[row], event[row], propensity[row] = chosen, answer, probability
        gaps = world.integers(5_000, 60_000, len(item))
        return Events(sequence, lengths, item, event, REWARDS[event], propensity, _times(sequence, lengths, gaps))

    def rollouts(self, agent: Chooser | Oracle, n: int, steps: int, seed: int) -> RolloutValue:
        """J(agent) from n episodes of `steps` impressions, with the same shoppers and luck for every agent."""
        if n < 2 or steps < 1:
            raise ConfigError(f"rollouts need at least 2 episodes of 1 step, got n={n}, steps={steps}.")
        values = []
        for number, first in enumerate(range(0, n, EPISODES)):
            world, choices = (np.random.default_rng([seed, part, number]) for part in (3, 4))
            size = min(EPISODES, n - first)
            shoppers = Shoppers.arrive(size, self.config, self.goods, world)
            items, events = np.empty((size, steps), np.int32), np.empty((size, steps), np.uint8)
            for step in range(steps):
                if callable(agent):
                    choice = agent(items[:, :step], events[:, :step], choices)
                else:
                    choice = agent.choose(shoppers, steps - step)
                chosen, _ = _choice(choice, size, self.n_items)
                items[:, step] = chosen
                events[:, step] = shoppers.answer(items[:, step], world)
            values.append(REWARDS[events].mean(1))
        per_episode = np.concatenate(values)
        se = float(per_episode.std(ddof=1) / np.sqrt(n))
        return RolloutValue(float(per_episode.mean()), se, per_episode)

    def visit_rewards(self, agent: Agent | None, episodes: int, steps: int, seed: int) -> np.ndarray:
        """Reward per impression of each visit under π, or μ's."""
        return self.rollouts(self.logging_agent() if agent is None else agent, episodes, steps, seed).per_episode

    def contexts_of(self, visits: int, steps: int, seed: int) -> Iterator[Contexts]:
        """Contexts at every step of `visits` visits under μ."""
        luck, choices = (np.random.default_rng([seed, part]) for part in (6, 7))
        shown = self.visits(np.arange(visits), np.full(visits, steps), luck, choices)
        items, events = shown.item.reshape(visits, steps), shown.event.reshape(visits, steps)
        for step in range(steps):
            yield items[:, :step], events[:, :step], np.full(visits, 1 / (visits * steps))

    def arrays(self) -> dict[str, np.ndarray]:
        """Empty: a shop follows from its settings and seed."""
        return {}

    def hidden(self) -> dict[str, np.ndarray]:
        """Traits of the items, and their popularity."""
        goods = self.goods
        return {
            "within": goods.within,
            "appeal": goods.appeal,
            "quality": goods.quality,
            "depth": goods.depth,
        }


class _Remembering:
    """Chooser for μ, step by step: it keeps a summary, and never rereads a history."""

    def __init__(self, policy: ShopLogging, size: int) -> None:
        self.policy, self.memory = policy, policy.start(size)

    def choose(self, here: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        self.memory.leave(here)
        return self.policy.choose(self.memory, rng)

    def observe(self, item: np.ndarray, event: np.ndarray) -> None:
        self.policy.observe(self.memory, item, event)


class _Rereading:
    """Chooser for any agent, which gets the whole histories at each step."""

    def __init__(self, agent: Chooser, longest: int, catalogue: int) -> None:
        self.agent, self.longest, self.catalogue, self.step = agent, longest, catalogue, 0
        self.items, self.events = np.empty((0, longest), np.int32), np.empty((0, longest), np.uint8)

    def choose(self, here: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        if self.step == 0:
            self.items, self.events = (
                np.empty((here, self.longest), np.int32),
                np.empty((here, self.longest), np.uint8),
            )
        self.items, self.events = self.items[:here], self.events[:here]
        choice = self.agent(self.items[:, : self.step], self.events[:, : self.step], rng)
        return _choice(choice, here, self.catalogue)

    def observe(self, item: np.ndarray, event: np.ndarray) -> None:
        self.items[:, self.step], self.events[:, self.step] = item, event
        self.step += 1


def _choice(choice: Choice, size: int, catalogue: int) -> tuple[np.ndarray, np.ndarray]:
    items, probability = choice if isinstance(choice, tuple) else (choice, np.full(size, np.nan))
    items = np.asarray(items)
    if items.shape != (size,) or items.min() < 0 or items.max() >= catalogue:
        raise ConfigError(
            f"an agent must choose one item from 0 to {catalogue - 1} for each of {size} histories; "
            f"got shape {items.shape}, values from {items.min()} to {items.max()}."
        )
    return items.astype(np.int32), probability


def _times(sequence: np.ndarray, lengths: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Times of the events: each sequence begins at a time of its own, then its gaps add up; its first gap is unused."""
    elapsed = np.cumsum(gaps)
    first = np.cumsum(lengths) - lengths
    return np.asarray(np.repeat(EPOCH + SEQUENCE_GAP * sequence - elapsed[first], lengths) + elapsed)
