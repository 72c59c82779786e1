"""Contextual bandit with known numbers: X contexts, V items, r(x,a), μ(a|x) and d(x).

A context is a short item history. Its taste is a function of that history's items, so a network that reads the history
can learn r; and X and V are small enough that J, its optimum and every divergence are exact sums.

With `features` the items have a table: its true columns carry a share of their taste and appeal, its false ones
nothing. With `new_items` some items come later, a part each round: μ never showed them, but the truth has their
rewards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pydantic import Field

from localpolicy.data.store import CONTEXT, NO_ANSWER
from localpolicy.errors import ConfigError
from localpolicy.settings import Settings
from localpolicy.simulation.events import CLICK, EPOCH, LEAST_SUPPORT, SEQUENCE_GAP, Agent, Contexts, Events

CHUNK = 65_536  # sequences made at once; part of the definition of a log, since each chunk has its own stream
MOST_CELLS = 50_000_000  # X times V: the truth is held as whole matrices


class BanditConfig(Settings):
    """Settings of a bandit world."""

    contexts: int = Field(200, ge=1, description="X, distinct contexts")
    items: int = Field(100, ge=2, description="V, items of the catalogue")
    history: int = Field(3, ge=1, description="items of each context's history")
    context_tail: float = Field(0.5, ge=0, description="d(x) falls with its rank to this power")
    rank: int = Field(8, ge=1, description="dimensions of taste")
    base: float = Field(-1.5, description="logit of a typical reward")
    taste: float = Field(1.0, ge=0, description="spread of r's logit due to taste")
    appeal: float = Field(0.7, ge=0, description="spread of r's logit due to the item alone")
    quality: float = Field(0.5, description="how far the logging policy follows its estimate of r (0: not at all)")
    estimate_noise: float = Field(1.0, ge=0, description="error of that estimate, in logits")
    popularity: float = Field(0.5, ge=0, description="strength of the logging policy's popularity bias")
    temperature: float = Field(1.0, gt=0, description="entropy of the logging policy: higher is flatter")
    noise: float = Field(1.0, ge=0, le=1, description="ν of R = (1-ν) r + ν Bernoulli(r); 1 is clicks")
    features: int = Field(0, ge=0, description="true columns of the item table; it has as many false ones")
    feature_values: int = Field(8, ge=2, description="values of each column")
    told: float = Field(0.8, ge=0, le=1, description="share of an item's taste and appeal that the true columns tell")
    new_items: float = Field(0.0, ge=0, lt=1, description="share of the items that come after the first log")
    new_rounds: int = Field(5, ge=1, description="rounds over which they come")


class BanditWorld:
    """The true bandit: `contexts` [X, H], `context_probabilities` d [X], `reward` r [X, V], `logging` μ [X, V]."""

    name = "bandit"
    events = [NO_ANSWER, CLICK, CONTEXT]  # noqa: RUF012
    exact = True

    def __init__(self, config: BanditConfig | None = None, seed: int = 0) -> None:
        self.config = config = config or BanditConfig()
        self.seed = seed
        if config.contexts * config.items > MOST_CELLS:
            raise ConfigError(
                f"contexts x items = {config.contexts * config.items:,}: a bandit world holds at most "
                f"{MOST_CELLS:,} pairs. Lower one of them, or simulate 'store', whose cost does not grow so."
            )
        rng = np.random.default_rng([seed, 0])
        self.features = np.random.default_rng([seed, 2]).integers(
            config.feature_values, size=(2 * config.features, config.items)
        )
        self.contexts = _distinct_histories(config, self.on_sale(0), rng)
        ranks = 1.0 + np.arange(config.contexts)
        self.context_probabilities = _normalised(ranks**-config.context_tail)
        logit = self._reward_logit(rng)
        self.reward = 1 / (1 + np.exp(-logit))
        self.logging = self._logging_policy(logit, rng)

    def _reward_logit(self, rng: np.random.Generator) -> np.ndarray:
        """b + taste <u(x), v_a>/√k + appeal q_a, with u(x) = Σ_{a in x} v_a / √H."""
        config = self.config
        factors = self._explained(rng.standard_normal((config.items, config.rank)), 0)
        tastes = factors[self.contexts].sum(1) / np.sqrt(config.history)
        affinity = tastes @ factors.T / np.sqrt(config.rank)
        appeal = self._explained(rng.standard_normal((config.items, 1)), 1)[:, 0]
        return np.asarray(config.base + config.taste * affinity + config.appeal * appeal)

    def _explained(self, own: np.ndarray, which: int) -> np.ndarray:
        """√s Σ_j t_j(value of column j) / √F + √(1 - s) own, over the F true columns, s = `told`; spread as `own`."""
        config = self.config
        if not config.features:
            return own
        rng = np.random.default_rng([self.seed, 3, which])
        tells = rng.standard_normal((config.features, config.feature_values, own.shape[1]))
        true = sum(tells[column, self.features[column]] for column in range(config.features))
        return np.asarray(np.sqrt(config.told / config.features) * true + np.sqrt(1 - config.told) * own)

    def _logging_policy(self, logit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """softmax((quality · (logit r + error) + popularity · log p_a) / temperature) over μ's items."""
        config = self.config
        log_popularity = -np.log(1.0 + rng.permutation(config.items))
        estimate = logit + config.estimate_noise * rng.standard_normal(logit.shape)
        scores = (config.quality * estimate + config.popularity * log_popularity) / config.temperature
        first = self.on_sale(0)
        scores[:, first:] = -np.inf
        probabilities = _normalised(np.exp(scores - scores.max(1, keepdims=True)))
        least = probabilities[:, :first].min()
        if least < LEAST_SUPPORT:
            raise ConfigError(
                f"the logging policy gives some item probability {least:.0e}; every item needs "
                f"at least {LEAST_SUPPORT:.0e}. Raise 'temperature', or lower 'quality' or 'popularity'."
            )
        return probabilities

    @property
    def about(self) -> str:
        """Description of the world in one line."""
        return f"a bandit of {self.config.contexts} contexts and {self.n_items} items"

    @property
    def n_items(self) -> int:
        """Number of items, V."""
        return self.config.items

    def on_sale(self, round_number: int) -> int:
        """Number of items on sale when a round's policy serves (μ's round is 0): the first ones in the catalogue."""
        config = self.config
        come = min(round_number / config.new_rounds, 1.0)
        return max(config.items - round(config.items * config.new_items * (1 - come)), 2)

    def item_table(self, round_number: int | None = None) -> pa.Table | None:
        """Item table of the items on sale in a round (None: of all); None without features and new items."""
        config = self.config
        if not config.features and not config.new_items:
            return None
        items = config.items if round_number is None else self.on_sale(round_number)
        table = {"item_id": np.arange(items, dtype=np.int64)}
        for column, values in enumerate(self.features[:, :items]):
            name, number = divmod(column, max(config.features, 1))
            table[f"{('true', 'false')[name]}_{number + 1}"] = pa.array([f"value {value}" for value in values])
        return pa.table(table)

    @property
    def rewards(self) -> dict[str, float]:
        """Rewards of the events: click 1, none 0; empty if `noise` makes rewards differ within an event."""
        return {NO_ANSWER: 0.0, CLICK: 1.0} if self.config.noise == 1 else {}

    def value(self, probabilities: np.ndarray) -> float:
        """J(π) = Σ_x d(x) Σ_a π(a|x) r(x,a)."""
        self._check(probabilities)
        return float(self.context_probabilities @ (probabilities * self.reward).sum(1))

    def logging_value(self) -> float:
        """J(μ)."""
        return self.value(self.logging)

    def tilted(self, beta: float) -> np.ndarray:
        """π_β(a|x) ∝ μ(a|x) exp(r(x,a)/β): the maximum of J(π) − β KL(π‖μ)."""
        if not beta > 0:
            raise ConfigError(f"beta must be above 0, got {beta}.")
        exponent = self.reward / beta
        return _normalised(self.logging * np.exp(exponent - exponent.max(1, keepdims=True)))

    def optimum(self) -> float:
        """max_π J(π) = Σ_x d(x) max_a r(x,a)."""
        return float(self.context_probabilities @ self.reward.max(1))

    def contexts_of(self, visits: int, steps: int, seed: int) -> Iterator[Contexts]:
        """Yield all contexts with their probabilities; the arguments are ignored."""
        yield self.contexts, np.full(self.contexts.shape, self.events.index(CONTEXT)), self.context_probabilities

    def table(self, agent: Agent) -> np.ndarray:
        """π(a|x) for every context and every item: [X, V]."""
        return np.concatenate([agent.probabilities(items, events) for items, events, _ in self.contexts_of(0, 0, 0)])

    def logging_probabilities(self, items: np.ndarray, events: np.ndarray) -> np.ndarray:
        """μ(·|x) [B, V] of the contexts that have these histories [B, H]."""
        number = {tuple(history): row for row, history in enumerate(self.contexts.tolist())}
        return np.asarray(self.logging[[number[tuple(history)] for history in items.tolist()]])

    def visit_rewards(self, agent: Agent | None, episodes: int, steps: int, seed: int) -> np.ndarray:
        """J(π), or J(μ) without an agent: one exact number, which needs no visit."""
        return np.array([self.value(self.logging if agent is None else self.table(agent))])

    def log_by(self, agent: Agent, sequences: int, seed: int) -> Iterator[Events]:
        """Draw an impression log of an agent, in chunks."""
        return self.log(sequences, seed, probabilities=self.table(agent))

    def log(self, sequences: int, seed: int, *, probabilities: np.ndarray | None = None) -> Iterator[Events]:
        """Draw an impression log of μ, or of a π given as `probabilities` [X, V]: one decision per sequence."""
        policy_XV = self.logging if probabilities is None else probabilities
        self._check(policy_XV)
        # One sorted line of all rows' distributions, row x between x and x+1: a draw is one binary search.
        line = (np.cumsum(policy_XV, 1) / policy_XV.sum(1, keepdims=True) + self._rows[:, None]).ravel()
        arrivals = np.cumsum(self.context_probabilities)
        for number, first in enumerate(range(0, sequences, CHUNK)):
            rng = np.random.default_rng([seed, 1, number])
            size = min(CHUNK, sequences - first)
            context = np.minimum(np.searchsorted(arrivals, rng.random(size), "right"), self.config.contexts - 1)
            action = np.searchsorted(line, context + rng.random(size), "right") - context * self.n_items
            yield self._decisions(first, context, action.clip(0, self.n_items - 1), policy_XV, rng)

    def _decisions(
        self,
        first: int,
        context: np.ndarray,
        action: np.ndarray,
        policy_XV: np.ndarray,
        rng: np.random.Generator,
    ) -> Events:
        """Events of each sequence: the history's rows, then one row for the action."""
        expected = self.reward[context, action]
        clicked = rng.random(len(context)) < expected
        reward = (1 - self.config.noise) * expected + self.config.noise * clicked
        length = self.config.history + 1
        sequence = np.arange(first, first + len(context), dtype=np.int64)
        event = np.full((len(context), length), self.events.index(CONTEXT), np.uint8)
        event[:, -1] = np.where(reward >= 0.5, self.events.index(CLICK), self.events.index(NO_ANSWER))
        time = EPOCH + SEQUENCE_GAP * sequence[:, None] + 1000 * np.arange(length)
        return Events(
            sequence=sequence,
            lengths=np.full(len(context), length),
            item=np.column_stack([self.contexts[context], action]).ravel(),
            event=event.ravel(),
            reward=_last_of(length, reward, 0.0),
            propensity=_last_of(length, policy_XV[context, action], np.nan),
            time=time.ravel(),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays r, μ and d, and the histories."""
        return {
            "reward": self.reward,
            "logging": self.logging,
            "context_probabilities": self.context_probabilities,
            "contexts": self.contexts,
        }

    hidden = arrays

    @property
    def _rows(self) -> np.ndarray:
        return np.arange(self.config.contexts)

    def _check(self, probabilities: np.ndarray) -> None:
        expected = (self.config.contexts, self.config.items)
        if probabilities.shape != expected:
            raise ConfigError(
                f"expected one row per context and one column per item {expected}, got {probabilities.shape}."
            )
        if probabilities.min() < 0 or abs(probabilities.sum(1) - 1).max() > 1e-4:
            raise ConfigError("a policy's rows must be probabilities: none below 0, each row's sum 1.")


def _last_of(length: int, values: np.ndarray, elsewhere: float) -> np.ndarray:
    rows = np.full((len(values), length), elsewhere)
    rows[:, -1] = values
    return rows.ravel()


def _normalised(weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _distinct_histories(config: BanditConfig, items: int, rng: np.random.Generator) -> np.ndarray:
    """X different histories [X, H] of the first `items` items, drawn uniformly."""
    if config.contexts > items**config.history:
        raise ConfigError(
            f"{config.contexts} distinct contexts cannot be drawn from {items} items in histories of "
            f"{config.history}: lower 'contexts', or raise 'items' or 'history'."
        )
    histories = rng.integers(items, size=(0, config.history))
    while len(histories) < config.contexts:
        more = rng.integers(items, size=(2 * config.contexts, config.history))
        histories = np.concatenate([histories, more])
        _, first = np.unique(histories, axis=0, return_index=True)
        histories = histories[np.sort(first)]
    return histories[: config.contexts]
