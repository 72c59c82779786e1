"""Worlds small enough to enumerate, and tables for policies: every expectation below is an exact sum in float64.

`Bandit` is contexts and actions. `World` is the project's own setting in small: a context is the history of items,
and its log holds every sequence that can happen, once, with its probability. So Σ_n chance_n term_n is the
expectation of an objective under μ, computed by the project's own Batch, Network, NetworkReader and formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import torch
from forms import weighted
from torch import Tensor, nn

from localpolicy.catalogue import dense
from localpolicy.model.backbones import Layout
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.model.readout import NetworkReader, heads_for
from localpolicy.objectives import objective_of
from localpolicy.types import START, Batch, Readout, Terms

CONSTANTS = ("q", "q_expected", "q_policy", "q_max", "next_value")
UNCAPPED = 1e12


def draws(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normalised(weights: Tensor) -> Tensor:
    """Logits that sum to 1."""
    return weights / weights.sum(-1, keepdim=True)


def formula(name: str, readout: Readout, **settings: object) -> Terms:
    """The terms of the objective `name`, its config made as a user's would be."""
    return objective_of(weighted({"name": name, **settings})).terms(readout)


# ---------------------------------------------------------------------- a bandit


@dataclass(frozen=True)
class Bandit:
    """d(x) [X], μ(a|x) [X, A] and r(x,a) [X, A]."""

    d: Tensor
    mu: Tensor
    r: Tensor

    def J(self, pi: Tensor) -> Tensor:
        """E_x E_{a~π}[r]."""
        return (self.d[:, None] * pi * self.r).sum()

    def kl(self, pi: Tensor) -> Tensor:
        """E_x KL(π‖μ)."""
        return (self.d[:, None] * pi * (pi.log() - self.mu.log())).sum()

    def expected(self, terms: Tensor) -> Tensor:
        """E_x E_{a~μ} of one number per (x,a), given in the order of `logp`."""
        return (self.d[:, None] * self.mu * terms.reshape(self.mu.shape)).sum()

    def readout(self, logits: Tensor, **fields: Tensor) -> Readout:
        """One position per (x,a). `fields` [X, A], or [X, 1] where they depend on x alone."""
        spread = {name: value.expand(self.r.shape).reshape(-1) for name, value in fields.items()}
        return Readout(logp=torch.log_softmax(logits, -1).expand(self.r.shape).reshape(-1),
                       reward=self.r.reshape(-1), **spread)  # fmt: skip

    def critic_fields(self, pi: Tensor) -> dict[str, Tensor]:
        """What a perfect critic r̂ = r says, for every baseline."""
        return {
            "q": self.r,
            "q_fit": self.r,
            "q_expected": (self.mu * self.r).sum(1, keepdim=True),
            "q_policy": (pi.detach() * self.r).sum(1, keepdim=True),
            "q_max": self.r.amax(1, keepdim=True),
            "value": (self.mu * self.r).sum(1, keepdim=True),
        }


def bandit(seed: int = 0, *, contexts: int = 3, items: int = 5) -> Bandit:
    """A random one with r in (0, 3), and one reward that is 0."""
    r = 3 * torch.sigmoid(draws(contexts, items, seed=seed))
    r[0, 0] = 0.0
    return Bandit(
        torch.softmax(draws(contexts, seed=seed + 1), 0), torch.softmax(draws(contexts, items, seed=seed + 2), 1), r
    )


def maximise(parameters: list[Tensor], value: Callable[[], Tensor]) -> None:
    """Climb value() by L-BFGS until its gradient is nothing."""
    solver = torch.optim.LBFGS(
        parameters, max_iter=200, tolerance_grad=1e-11, tolerance_change=1e-17, history_size=30,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        solver.zero_grad()
        loss = -value()
        loss.backward()
        return loss

    solver.step(closure)


# ---------------------------------------------------------------------- a log of sequences


@dataclass(frozen=True)
class World:
    """Items 0..V-1. After action a in context x (a history shorter than `steps`) the sequence ends with ends[x,a]."""

    steps: int
    mu: Tensor  # [S, V]
    reward: Tensor  # [S, V] mean
    ends: Tensor  # [S, V], 1 where the history would become `steps` long
    outcomes: tuple[tuple[int, float, float], ...] = ()  # of a one-step world: (item, reward, probability given item)

    @property
    def n_items(self) -> int:
        """Number of items, V."""
        return self.mu.shape[1]

    @cached_property
    def contexts(self) -> list[tuple[int, ...]]:
        """Every history, shorter ones first."""
        return [x for length in range(self.steps) for x in product(range(self.n_items), repeat=length)]

    @cached_property
    def number(self) -> dict[tuple[int, ...], int]:
        """The place of each context."""
        return {context: place for place, context in enumerate(self.contexts)}

    def child(self, x: int, a: int) -> int | None:
        """The context after a in x."""
        return self.number.get((*self.contexts[x], a))

    def backward(self, state_value: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Q(x,a) = r(x,a) + (1 - ends) · state_value(x', Q(x',·)), from the longest histories to the empty one."""
        q = self.reward.clone()
        for x in reversed(range(len(self.contexts))):
            for a in range(self.n_items):
                after = self.child(x, a)
                if after is not None:
                    q[x, a] += (1 - self.ends[x, a]) * state_value(after, q[after])
        return q

    def q_of(self, pi: Tensor, gamma: float) -> Tensor:
        """Q_π."""
        return self.backward(lambda x, row: gamma * (pi[x] * row).sum())

    def q_best(self, gamma: float) -> Tensor:
        """Optimal values Q* of every context and item."""
        return self.backward(lambda x, row: gamma * row.max())

    def J(self, pi: Tensor, gamma: float) -> Tensor:
        """The discounted reward of a sequence under π."""
        return (pi[0] * self.q_of(pi, gamma)[0]).sum()

    def exponential_moment(self, scale: float, gamma: float) -> Tensor:
        """E_μ[exp(scale · G)|x,a], G = r + γ G'."""
        return torch.stack([self._moment_at(x, scale, gamma) for x in range(len(self.contexts))])

    def _moment_at(self, x: int, scale: float, gamma: float) -> Tensor:
        rest = torch.ones_like(self.mu[x])
        for a in range(self.n_items):
            after = self.child(x, a)
            if after is not None:
                later = (self.mu[after] * self._moment_at(after, scale * gamma, gamma)).sum()
                rest[a] = self.ends[x, a] + (1 - self.ends[x, a]) * later
        return (scale * self.reward[x]).exp() * rest

    @cached_property
    def sequences(self) -> list[tuple[tuple[int, ...], tuple[float, ...], float]]:
        """(items, rewards, probability) of every sequence that can happen."""
        if self.outcomes:
            return [((item,), (reward,), float(self.mu[0, item]) * chance) for item, reward, chance in self.outcomes]
        found = []
        for length in range(1, self.steps + 1):
            for items in product(range(self.n_items), repeat=length):
                chance, rewards = 1.0, []
                for step, a in enumerate(items):
                    x = self.number[items[:step]]
                    end = float(self.ends[x, a])
                    chance *= float(self.mu[x, a]) * (end if step == length - 1 else 1 - end)
                    rewards.append(float(self.reward[x, a]))
                if chance > 0:
                    found.append((items, tuple(rewards), chance))
        return found

    @cached_property
    def log(self) -> tuple[Batch, Tensor, Tensor]:
        """Every sequence once; for each position, the probability of its sequence, and its context."""
        batch = batch_of([(items, rewards) for items, rewards, _ in self.sequences])
        chance = torch.tensor([chance for *_, chance in self.sequences], dtype=torch.float64)
        context = [self.number[items[:step]] for items, *_ in self.sequences for step in range(len(items))]
        return batch, chance[batch.row], torch.tensor(context)

    @cached_property
    def visits(self) -> Tensor:
        """Σ_t P(x_t = x) under μ: [S]."""
        visits = torch.zeros(len(self.contexts), dtype=torch.float64)
        for items, _, chance in self.sequences:
            for step in range(len(items)):
                visits[self.number[items[:step]]] += chance
        return visits


def world(seed: int = 0, *, items: int = 3, steps: int = 3) -> World:
    """A random one: rewards in (0, 1), sequences of one to `steps` actions."""
    count = sum(items**length for length in range(steps))
    ends = torch.sigmoid(draws(count, items, seed=seed + 7) - 0.5)
    ends[count - items ** (steps - 1) :] = 1.0
    return World(
        steps,
        torch.softmax(draws(count, items, seed=seed), 1),
        torch.sigmoid(1.5 * draws(count, items, seed=seed + 5)),
        ends,
    )


def batch_of(sequences: list[tuple[tuple[int, ...], tuple[float, ...]]]) -> Batch:
    """Whole sequences as a batch; every token is a position."""
    flat = [(row, column, item, reward)
            for row, (items, rewards) in enumerate(sequences)
            for column, (item, reward) in enumerate(zip(items, rewards, strict=True))]  # fmt: skip
    *whole, rewards = zip(*flat, strict=True)
    row, column, item = (torch.tensor(values) for values in whole)
    previous = torch.where(column == 0, START, item.roll(1))
    nothing = torch.zeros_like(item)
    return Batch(
        sequences=torch.arange(len(sequences)), row=row, column=column, previous_item=previous, previous_event=nothing,
        item=item, event=nothing, reward=torch.tensor(rewards, dtype=torch.float64), history=column,
        scored=torch.arange(len(item)),
    )  # fmt: skip


class Table(nn.Module):
    """A backbone with one hidden unit per context, so that heads are tables. Items must be embedded as one-hots."""

    def __init__(self, world: World, width: int) -> None:
        super().__init__()
        self.base, self.width = world.n_items + 1, width
        place = torch.zeros(self.base**world.steps, dtype=torch.long)
        for context, number in world.number.items():
            place[self._code(context)] = number
        self.register_buffer("place", place)

    def _code(self, context: tuple[int, ...]) -> int:
        code = 0
        for item in context:
            code = code * self.base + item + 1
        return code

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        """[M, D] -> [M, D]: onehot(history)."""
        digits = layout.pad(
            (embedded[:, : self.base - 1].detach() @ torch.arange(1.0, self.base).double()).round().long()
        )
        code, codes = torch.zeros_like(digits[:, 0]), []
        for column in range(layout.columns):
            code = code * self.base + digits[:, column]
            codes.append(code)
        place = self.place[layout.flatten(torch.stack(codes, 1)).clamp(max=len(self.place) - 1)]
        return nn.functional.one_hot(place, self.width).double()


def tabular(world: World, heads: tuple[str, ...]) -> Network:
    """A network whose heads are free tables over contexts: weight[a, x]."""
    width = max(len(world.contexts), world.n_items)
    config = ModelConfig(width=width, dropout=0.0, tied=False)
    network = Network(config, items=world.n_items, events=1, length=world.steps,
                      heads=heads, backbone=Table(world, width)).double()  # fmt: skip
    with torch.no_grad():
        network.embedding.copy_(torch.eye(world.n_items, width))
        network.start.zero_()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.endswith(".weight"))  # a table needs no bias
    return network


def table(network: Network, head: str, contexts: int) -> Tensor:
    """A head's numbers, [S, V]."""
    numbers = network.head(head)
    return (numbers.weight[:, :contexts].T + numbers.bias).detach()


class Learner:
    """The project's reader and formula on the whole log of a world, in expectation under μ."""

    def __init__(self, world: World, name: str, *, shared: bool = False, **settings: object) -> None:
        self.world = world
        self.objective = objective_of(weighted({"name": name, **settings}))
        reads = self.objective.reads()
        self.network = tabular(world, heads_for(reads, logging_given=False))
        if shared:  # one Q instead of two
            self.network.heads["q_b"] = self.network.heads["q_a"]
        self.reader = NetworkReader(self.network, reads, dense)

    def terms(self, batch: Batch, *, coin: bool, constants: dict[str, Tensor] | None = None) -> Terms:
        """The objective's terms, its constants as given where they are."""
        readout = self.reader.read(batch, step=10**9, coin=coin)
        return self.objective.terms(replace(readout, **(constants or {})))

    def expected_loss(self, *names: str, coin: bool = True, constants: dict[str, Tensor] | None = None) -> Tensor:
        """Σ_x E_μ[terms|x]: each context counts once, which moves no optimum of a table and helps the solver."""
        batch, chance, context = self.world.log
        losses = self.terms(batch, coin=coin, constants=constants).losses
        return (sum(losses[name] for name in names or losses) * chance / self.world.visits[context]).sum()

    def converge(self, sweeps: int = 1) -> Learner:
        """Fit the critics to the constants of the moment, again and again, then the policy to their weights.

        A sweep is one step of value iteration for one of the two heads, so 2 · `steps` of them reach the fixed point.
        """
        parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        others = [name for name in self.terms(self.world.log[0], coin=True).losses if name != "policy"]
        for sweep in range(sweeps if others else 0):
            coin = sweep % 2 == 0
            constants = self._constants(coin)
            maximise(parameters, lambda: -self.expected_loss(*others, coin=coin, constants=constants))  # noqa: B023
        constants = self._constants(True)
        maximise(parameters, lambda: -self.expected_loss("policy", constants=constants))
        return self

    @torch.no_grad()
    def _constants(self, coin: bool) -> dict[str, Tensor]:
        """What a step holds fixed: q_policy moves with the policy, targets with the critics."""
        now = self.reader.read(self.world.log[0], step=10**9, coin=coin)
        return {name: value for name in CONSTANTS if (value := getattr(now, name)) is not None}

    @property
    def pi(self) -> Tensor:
        """The learned policy, [S, V]."""
        return torch.softmax(self.scores("policy"), 1)

    def scores(self, head: str) -> Tensor:
        """A head's numbers, [S, V]."""
        return table(self.network, head, len(self.world.contexts))
