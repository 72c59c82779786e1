"""A shop whose log holds views and purchases alone, and whose truth is what showing an item brings.

A recommender shows one product at a time. Of a product that is new to the visitor the page is opened with a probability
that depends on its appeal and on the visitor's taste; then the log has a view. A view leads to a purchase with a
probability that depends on the product's quality and on the visitor; the purchase is a row of its own, at once or
`later` views on. A product that was met before is opened more rarely (`again_view`) and leads to a purchase more rarely
(`again_buy`; 0: who has decided, has decided). Nothing else is logged: no row says what was shown and passed over.

What a policy earns, J, is the mean reward per product shown over visits of `steps` products, purchases that were still
to come included: it is simulated, the same visitors and luck for every policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from localpolicy.measure.truth import batch_of_arrays, world_numbers
from localpolicy.model.catalogue_mapping import context_length
from localpolicy.model.policy import Policy

VIEW, PURCHASE = 0, 1
NAMES, REWARDS = ("view", "purchase"), np.array([0.2, 1.0])
Agent = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # items, events, kept [B, t], luck [B]


@dataclass(frozen=True)
class Shelves:
    """The settings of such a shop."""

    products: int = 60
    steps: int = 12  # products shown in a visit
    appeal: float = 0.7  # spread of products, in logits of a view
    taste: float = 0.7  # spread of visitors' tastes, likewise
    quality: float = 1.2  # spread of products, in logits of a purchase
    person: float = 0.7  # spread of visitors, likewise
    bait: float = 0.0  # correlation of appeal and quality, taken negative
    view_base: float = 0.0
    buy_base: float = -1.5
    later: int = 0  # views between a view and its purchase
    again: float = 0.2  # share of what the log's recommender shows that was viewed before
    again_view: float = 0.5
    again_buy: float = 0.0
    popularity: float = 1.0  # spread of log-popularity in what it shows
    near: float = 0.3  # share of what it shows that is next to the last view

    def at(self, seed: int) -> Shop:
        """One shop of this kind."""
        return Shop(self, seed)


class Shop:
    """A simulated shop with shelves, drawn from a seed."""

    def __init__(self, config: Shelves, seed: int) -> None:
        self.config, rng = config, np.random.default_rng([seed, 41])
        count = config.products
        first, second = rng.standard_normal((2, count))
        self.appeal = config.appeal * first
        self.quality = config.quality * (-config.bait * first + (1 - config.bait**2) ** 0.5 * second)
        self.traits = rng.standard_normal((count, 4)) / 2
        popular = np.exp(config.popularity * rng.standard_normal(count))
        self.popular, self.neighbour = popular / popular.sum(), rng.permutation(count)

    def logging(self, items: np.ndarray, events: np.ndarray, kept: np.ndarray, luck: np.ndarray) -> np.ndarray:
        """Items that the log's recommender shows, one per row."""
        config, rng = self.config, np.random.default_rng(int(luck[0] * 2**53))
        count = len(luck)
        shown = rng.choice(config.products, size=count, p=self.popular)
        there = kept.any(1)
        if kept.shape[1]:
            last = items[np.arange(count), kept.shape[1] - 1 - kept[:, ::-1].argmax(1)]
            how = rng.random(count)
            shown = np.where(there & (how < config.near), self.neighbour[last], shown)
            weight = np.where(kept, rng.random(kept.shape), -1.0)
            seen = items[np.arange(count), weight.argmax(1)]
            shown = np.where(there & (how > 1 - config.again), seen, shown)
        return shown

    def visits(self, agent: Agent, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Items, events and which are rows, [B, t] each in order; and the reward per product shown, [B]."""
        config, rows = self.config, np.arange(count)
        world, choices = (np.random.default_rng([seed, part]) for part in (5, 6))
        taste, person = world.standard_normal((count, 4)), config.person * world.standard_normal(count)
        most = 3 * config.steps
        items, events = np.zeros((count, most), np.int64), np.zeros((count, most), np.int64)
        kept, at = np.zeros((count, most), bool), np.zeros(count, np.int64)
        met, views = np.zeros((count, config.products), bool), np.zeros(count, np.int64)
        due: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # visits, items, and the number of views at which

        def write(who: np.ndarray, what: np.ndarray, event: int) -> None:
            items[who, at[who]], events[who, at[who]], kept[who, at[who]] = what, event, True
            at[who] += 1

        def fall_due(*, all_of_them: bool = False) -> None:
            for number, (who, what, when) in enumerate(due):
                now = np.ones(len(who), bool) if all_of_them else views[who] >= when
                write(who[now], what[now], PURCHASE)
                due[number] = (who[~now], what[~now], when[~now])

        for _ in range(config.steps):
            longest = int(at.max())
            shown = agent(items[:, :longest], events[:, :longest], kept[:, :longest], choices.random(count))
            again, luck = met[rows, shown], world.random((2, count))
            affinity = config.taste * (taste * self.traits[shown]).sum(1)
            viewed = 1 / (1 + np.exp(-config.view_base - self.appeal[shown] - affinity))
            bought = 1 / (1 + np.exp(-config.buy_base - self.quality[shown] - person))
            looks = luck[0] < viewed * np.where(again, config.again_view, 1.0)
            buys = looks & (luck[1] < bought * np.where(again, config.again_buy, 1.0))
            write(rows[looks], shown[looks], VIEW)
            views[looks] += 1
            met[rows[looks], shown[looks]] = True
            due.append((rows[buys], shown[buys], views[buys] + config.later))
            fall_due()
        fall_due(all_of_them=True)
        return items, events, kept, (REWARDS[events] * kept).sum(1) / config.steps

    def write(self, path: Path, sessions: int, seed: int) -> None:
        """Draw a log of this number of visits."""
        items, events, kept, _ = self.visits(self.logging, sessions, seed)
        session = np.repeat(np.arange(sessions), kept.sum(1))
        table = {
            "session_id": session, "item_id": items[kept], "event": np.array(NAMES)[events[kept]],
            "timestamp": 1_600_000_000 + np.arange(len(session)) * 60,
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), path)

    def value(self, policy: Policy | None, visits: int, seed: int, *, unmet: bool = False) -> np.ndarray:
        """Reward per product shown in each visit, by a policy or by the log's own; `unmet`: it shows nothing twice."""
        agent = self.logging if policy is None else self._agent(policy, unmet=unmet)
        return self.visits(agent, visits, seed)[3]

    def _agent(self, policy: Policy, *, unmet: bool) -> Agent:
        number = world_numbers(policy, self.config.products)
        index = np.full(self.config.products, -1)
        index[number] = np.arange(len(number))
        code = np.array([policy.origin.events.index(name) for name in NAMES])

        def choose(items: np.ndarray, events: np.ndarray, kept: np.ndarray, luck: np.ndarray) -> np.ndarray:
            known = kept & (index[items] >= 0)
            batch = batch_of_arrays(index[items], code[events], known, length=context_length(policy))
            with torch.no_grad():
                rows = policy.logits(batch)
                scores = rows.chunk(0, rows.shape[1]).double().numpy().copy()
            if unmet:
                row, column = known.nonzero()
                scores[row, index[items[row, column]]] = -np.inf
            chance = np.exp(scores - scores.max(1, keepdims=True)).cumsum(1)
            drawn = (chance < luck[:, None] * chance[:, -1:]).sum(1)
            return np.asarray(number[np.minimum(drawn, len(number) - 1)])

        return choose
