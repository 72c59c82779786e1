"""What passes from data to network to objective, and the letters of shapes.

Shapes are written with these letters everywhere:

    B sequences   T steps of a window   M tokens of a batch (sum of window lengths, no padding)
    N positions that are scored (N <= M)   V items of the catalogue   D width   K list length

A **token** is one step of a sequence: it holds what came just before (`previous_item`), and the action taken
there (`item`). Its hidden state is the context x_t = (a_1 ... a_{t-1}); its action is a_t.
A **position** is a token whose action counts in the loss or in a metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:  # objectives, whose settings are options of `lpi train`, are read without torch
    import torch
    from torch import Tensor

START = -1  # previous_item of a sequence's first token: the empty context


class ItemFilters(NamedTuple):
    """The distinct filters under which lists were drawn; rows refer to them by number. F filters, L items in all."""

    offsets: Tensor  # [F+1] where each filter's items begin
    items: Tensor  # [L] item indices
    allows: Tensor  # [F] bool: its items alone could be shown, rather than all but these

    def to(self, device: torch.device | str) -> ItemFilters:
        """The same filters on another device."""
        return ItemFilters(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True, eq=False)
class Following:
    """What each sequence of a split earned, step by step, for histories that end before their sequence does.

    L steps in all: a list is one, and context rows are none. H histories.
    """

    earned: Tensor  # [L] the reward of each step, in order
    stop: Tensor  # [L] the first step of the next sequence
    first: Tensor  # [H] the first step after each history; L: none of its sequence
    known: dict[float, Tensor] = field(default_factory=dict)  # by γ

    def discounted(self, gamma: float) -> Tensor:
        """Σ_k γ^k r_k over all steps after each history: [H]. Sums of 1, 2, 4, … steps are made of each other."""
        import torch

        if gamma not in self.known:
            total, step = self.earned.double(), torch.arange(len(self.earned), device=self.earned.device)
            reach = 1
            while gamma**reach > 0 and bool((inside := step + reach < self.stop).any()):
                later = total[torch.where(inside, step + reach, 0)]
                total, reach = total + gamma**reach * torch.where(inside, later, 0.0), 2 * reach
            self.known[gamma] = torch.cat([total, total.new_zeros(1)])[self.first].to(self.earned.dtype)
        return self.known[gamma]

    def to(self, device: torch.device | str) -> Following:
        """The same on another device."""
        return Following(self.earned.to(device), self.stop.to(device), self.first.to(device))


@dataclass(frozen=True)
class Batch:
    """Windows of B sequences, laid out flat: only real tokens, in sequence order."""

    sequences: Tensor  # [B] index of each history in its split: a sequence, or a part of one (see `data.store`)
    row: Tensor  # [M] which of the B sequences a token belongs to
    column: Tensor  # [M] its step within the window
    previous_item: Tensor  # [M] item before this step, or START
    previous_event: Tensor  # [M] event of that item (0 at START)
    item: Tensor  # [M] action taken
    event: Tensor  # [M] what came of it, as a code of the data set's events
    reward: Tensor  # [M]
    history: Tensor  # [M] how many actions of the whole sequence came before (not only of the window)
    scored: Tensor  # [N] indices of the tokens that are positions
    propensity: Tensor | None = None  # [M] logged probability of the action; NaN where none was logged
    list_reward: Tensor | None = None  # [M] where a list has one reward: the list's, at each of its places
    context: Tensor | None = None  # [M] logs of lists: the token whose context this one shares, its list's first
    examined: Tensor | None = None  # [M] how much the item's place is looked at, against the first; None: alike
    filter: Tensor | None = None  # [M] number of the filter under which the item was shown
    filters: ItemFilters | None = None  # what these numbers refer to
    counted: Tensor | None = None  # [N] which positions are real, where the batch is filled up to a fixed size
    owner: Tensor | None = None  # [B] the sequence that each history is part of; None: each is one
    following: Following | None = None  # what their sequences earned after these histories; None: each is one
    ends_only: bool = False  # each sequence's last position alone is scored, so other tokens are not read
    meetings: bool = False  # first meetings are credited: of the items, those that came before are not open
    whole: bool = False  # every token is a position: scored = 0 … M - 1
    block: tuple[int, int] | None = None  # rows and columns that hold all tokens, where they are known beforehand
    bounds: tuple[Tensor, Tensor] | None = None  # where each row's tokens begin and end, where that is known already

    @property
    def credited(self) -> Tensor:
        """[M] what an action is credited with: the reward of its place, or the list's where a list has one."""
        return self.reward if self.list_reward is None else self.list_reward

    def scored_after(self, min_history: int) -> Tensor:
        """The positions with so many actions before them. What stands above in a list is no such action."""
        before = self.history if self.context is None else self.history[self.context]
        return self.scored[before[self.scored] >= min_history]

    @property
    def owners(self) -> Tensor:
        """Whose each of the B histories is: what errors are clustered by."""
        return self.sequences if self.owner is None else self.owner

    @property
    def positions(self) -> int:
        """N."""
        return len(self.scored)

    @property
    def size(self) -> int:
        """B."""
        return len(self.sequences)

    @property
    def steps(self) -> Tensor | None:
        """[M] where a step of the log begins: at positions, and of a list at the first; None: at every token.

        Context rows were chosen by nobody, so they are no step. Before the positions of a window nothing is asked.
        """
        import torch

        if self.whole:
            return None
        counted = torch.ones_like(self.scored) if self.counted is None else self.counted.to(self.scored.dtype)
        steps = torch.zeros_like(self.row).index_add_(0, self.scored, counted) > 0
        if self.context is None:
            return steps
        return steps & (self.context == torch.arange(len(self.row), device=self.row.device))

    def beyond(self, gamma: float) -> Tensor | None:
        """What follows each of the B histories in its sequence, discounted; None where nothing does."""
        return None if self.following is None else self.following.discounted(gamma)[self.sequences]

    def next_token(self) -> tuple[Tensor, Tensor]:
        """For each position [N]: where the next step begins, and whether there is one in the same history."""
        import torch

        after = self.scored + 1
        if (steps := self.steps) is not None:
            here = torch.arange(len(self.row), device=self.row.device)
            begins = torch.where(steps, here, len(here))
            coming = torch.cat([begins.flip(0).cummin(0).values.flip(0), here.new_full((1,), len(here))])
            after = coming[after]
        inside = after < len(self.row)
        after = torch.where(inside, after, self.scored)
        return after, inside & (self.row[after] == self.row[self.scored])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device) if hasattr(value, "to") else value for name, value in values.items()
        }
        return Batch(**moved)


class Reads(NamedTuple):
    """What an objective asks of the network."""

    fields: frozenset[str] = frozenset()  # of the Readout, beyond logp and reward
    critic: Literal["reward", "q"] | None = None  # r̂ (one head) or double Q; a critic alone has one head
    gamma: float = 0.0  # discount of returns and TD targets
    target: Literal["max", "expected"] = "max"  # value of the next state in the TD target
    negatives: int = 10  # random items of the sampled advantage
    logging: str = "head"  # μ̂: a head of its own, or the folder of a run
    policy: bool = True  # False: a critic alone, in a network of its own
    teacher: bool = False  # the run at `logging` is a policy to imitate, not an estimate of μ
    beta: float | None = None  # the teacher's dial
    meetings: bool = False  # first meetings are credited (see `data.first_meetings`)


@dataclass(frozen=True)
class Readout:
    """What an objective may read: one number per position, never a row over the catalogue. All [N].

    π and μ̂ are over what could be chosen at the position: all items, unless the log has lists or filters.

    Fields an objective did not ask for are absent. "constant" fields carry no gradient and are read without
    dropout. `q` speaks of whichever critic the objective has: r̂(x,a) for bandits, Q(x,a) otherwise.
    """

    logp: Tensor  # log π(a|x), with gradient (0 where a critic is alone)
    reward: Tensor  # r
    logp_logging: Tensor | None = None  # log μ̂(a|x), -inf where a frozen μ̂ lacks the item; gradient: its head alone
    logged_propensity: Tensor | None = None  # μ(a|x) as the log states it; NaN where it does not
    examined: Tensor | None = None  # e(place): how much the item's place is looked at; None: all alike
    return_to_go: Tensor | None = None  # G_t = Σ_k γ^k r_{t+k}
    q: Tensor | None = None  # Q(x,a), constant (the mean of both heads where there are two)
    q_fit: Tensor | None = None  # Q(x,a) of the head being fitted, with gradient
    q_expected: Tensor | None = None  # Σ_a μ̂(a|x) Q(x,a), constant
    q_policy: Tensor | None = None  # Σ_a π(a|x) Q(x,a), constant
    q_max: Tensor | None = None  # max_a Q(x,a), constant
    q_sampled: Tensor | None = None  # mean of Q over the taken and some random items, constant
    next_value: Tensor | None = None  # value of x_{t+1} for the TD target, constant; 0 at a sequence's end
    cross_entropy: Tensor | None = None  # -Σ_a π*(a|x) log π(a|x) for a teacher π*, with gradient
    value: Tensor | None = None  # V(x); gradient reaches the value head alone
    step: int = 0  # optimiser steps taken so far

    def need(self, name: str) -> Tensor:
        """The field `name`, which the objective declared that it reads."""
        value = getattr(self, name)
        assert value is not None, f"the readout has no '{name}': the objective did not declare it"
        return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Terms:
    """An objective's named, unreduced losses per position, and the weights that made them. All [N]."""

    losses: Mapping[str, Tensor]
    weight: Tensor  # the constant factor of -log π
    clipped: Tensor | None = None  # where the weight met its cap or its floor

    def masked(self, counted: Tensor) -> Terms:
        """The same with no loss, weight or cap where a position does not count."""
        losses = {name: loss.where(counted, 0.0) for name, loss in self.losses.items()}
        clipped = None if self.clipped is None else self.clipped & counted
        return Terms(losses, self.weight.where(counted, 0.0), clipped)

    def detached(self) -> Terms:
        """The same numbers without their graph."""
        clipped = None if self.clipped is None else self.clipped.detach()
        return Terms({name: loss.detach() for name, loss in self.losses.items()}, self.weight.detach(), clipped)
