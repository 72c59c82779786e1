"""Events of the simulated worlds: whole sequences, laid out flat, in bounded chunks.

Two readings of one log, never mixed. *Impressions*: every shown item with its response, the propensity and the policy
that chose it. *Interactions*: users' actions, as in public data sets, where neither the items that were passed over nor
any propensity is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from localpolicy.data.store import CONTEXT, NO_ANSWER
from localpolicy.settings import Settings

CLICK, PURCHASE = "click", "purchase"
EVENTS = [NO_ANSWER, CLICK, PURCHASE, CONTEXT]  # a world's codes are the places of its events in this order
LOGGING = "logging"  # the version name of a world's own logging policy
EPOCH = 1_704_067_200_000  # 2024-01-01, where simulated time begins
LEAST_SUPPORT = 1e-12  # smallest μ(a|x) that 4-byte logs and importance weights can still carry
SEQUENCE_GAP = 10_000  # ms between the beginnings of two sequences

Progress = Callable[[int], None]  # called with the number of sequences that were finished since the last call


@dataclass(frozen=True)
class Events:
    """S whole sequences one after another: `sequence`, `lengths` [S], everything else [E]."""

    sequence: np.ndarray  # sequence_id
    lengths: np.ndarray
    item: np.ndarray  # the world's item number
    event: np.ndarray  # code: place in the world's `events`
    reward: np.ndarray
    propensity: np.ndarray  # NaN where no policy chose the item
    time: np.ndarray  # ms

    def __len__(self) -> int:
        return len(self.item)

    def sequences(self, chosen: np.ndarray) -> Events:
        """Events of the sequences that the mask `chosen` [S] selects."""
        return self._keep(np.repeat(chosen, self.lengths), chosen)

    def interactions(self, events: list[str]) -> Events:
        """Events with a response: unanswered rows go, then sequences without any answer; no propensity is kept."""
        wanted = [code for code, name in enumerate(events) if name not in (NO_ANSWER, CONTEXT)]
        answered = np.isin(self.event, wanted)
        chosen = np.add.reduceat(answered, self._starts()) > 0
        kept = self._keep((self.event != events.index(NO_ANSWER)) & np.repeat(chosen, self.lengths), chosen)
        return replace(kept, propensity=np.full(len(kept), np.nan))

    def _starts(self) -> np.ndarray:
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    def _keep(self, rows: np.ndarray, chosen: np.ndarray) -> Events:
        return Events(
            self.sequence[chosen],
            np.add.reduceat(rows, self._starts(), dtype=np.int64)[chosen],
            *(array[rows] for array in (self.item, self.event, self.reward, self.propensity, self.time)),
        )


class Agent(Protocol):
    """Policy that serves in a world: it reads B histories of t items and event codes, both [B, t]."""

    def __call__(
        self, items: np.ndarray, events: np.ndarray, rng: np.random.Generator, /
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw an item for each history, and give its probability: both [B]."""
        ...

    def probabilities(self, items: np.ndarray, events: np.ndarray) -> np.ndarray:
        """π(a|h) of every item of the world [B, V]."""
        ...


Contexts = tuple[np.ndarray, np.ndarray, np.ndarray]  # histories [B, t], their event codes, and the weight of each


class World(Protocol):
    """Simulated world, with its log and its truth."""

    name: str
    seed: int
    events: list[str]
    exact: bool  # whether J and divergences are sums over all contexts there are, and no means over visits

    @property
    def config(self) -> Settings:
        """Settings of the world."""
        ...

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue, V."""
        ...

    @property
    def rewards(self) -> dict[str, float]:
        """Reward of each event; empty if rewards differ within an event."""
        ...

    def log(self, sequences: int, seed: int) -> Iterator[Events]:
        """Draw an impression log of the logging policy, in chunks."""
        ...

    def log_by(self, agent: Agent, sequences: int, seed: int) -> Iterator[Events]:
        """Draw an impression log of `agent`, in chunks."""
        ...

    def logging_probabilities(self, items: np.ndarray, events: np.ndarray) -> np.ndarray:
        """μ(a|h) of every item [B, V] after histories and their event codes, both [B, t]."""
        ...

    def logging_value(self) -> float | None:
        """J(μ), or None if only visits can estimate it."""
        ...

    def optimum(self) -> float | None:
        """Largest J of any policy, or None if it is unknown."""
        ...

    def visit_rewards(self, agent: Agent | None, episodes: int, steps: int, seed: int) -> np.ndarray:
        """Reward per impression of each visit under π (None: μ); J itself, a single number, if it is exact.

        All policies meet the same shoppers and luck: differences between policies owe nothing to them.
        """
        ...

    def contexts_of(self, visits: int, steps: int, seed: int) -> Iterator[Contexts]:
        """Yield all contexts, or those of some visits under μ, with weights that sum to 1."""
        ...

    @property
    def about(self) -> str:
        """Description of the world in one line."""
        ...

    def item_table(self, round_number: int | None = None) -> pa.Table | None:
        """Item table of the items on sale in a round (None: of all), or None if the world has none."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the truth, by name."""
        ...

    def hidden(self) -> dict[str, np.ndarray]:
        """Arrays that identify this world (a superset of `arrays`)."""
        ...


class Tally:
    """Counts of the events that pass: rows of each event, of each item, and the mean reward per impression."""

    def __init__(self, events: list[str], items: int) -> None:
        self.names = events
        self.sequences = 0
        self.events = np.zeros(len(events), dtype=np.int64)
        self.items = np.zeros(items, dtype=np.int64)
        self.reward = 0.0

    def add(self, chunk: Events) -> Events:
        """Count a chunk and return it."""
        self.sequences += len(chunk.sequence)
        self.events += np.bincount(chunk.event, minlength=len(self.events))
        self.items += np.bincount(chunk.item, minlength=len(self.items))
        self.reward += float(chunk.reward.sum())
        return chunk

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows of each event, by name."""
        return {name: int(count) for name, count in zip(self.names, self.events, strict=True)}

    @property
    def impressions(self) -> int:
        """Number of rows that a policy chose."""
        return int(self.events.sum()) - self.counts.get(CONTEXT, 0)

    @property
    def answered(self) -> int:
        """Number of rows that a user answered."""
        return self.impressions - self.counts[NO_ANSWER]
