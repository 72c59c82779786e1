"""Batches, readouts and losses, as they pass from data to network to objective; and the letters of shapes.

Shapes are written with these letters everywhere:

    B sequences   T steps of a window   M tokens of a batch (sum of window lengths, no padding)
    N positions that are scored (N <= M)   V items of the catalogue   D width   K list length

A **token** is one step of a sequence: it holds the item just before (`previous_item`), and the action taken there
(`item`). Its hidden state is the context x_t = (a_1 ... a_{t-1}); its action is a_t. A **position** is a token whose
action counts in the loss or in a metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:  # objectives, whose settings are options of `lpi train`, are read without torch
    import torch
    from torch import Tensor

START = -1  # previous_item of a sequence's first token: the empty context


class ItemFilters(NamedTuple):
    """The distinct filters under which lists were drawn; rows refer to them by number. F filters, L items in all."""

    offsets: Tensor  # [F+1] where each filter's items begin
    items: Tensor  # [L] item indices
    allows: Tensor  # [F] bool: only its items could be shown, rather than all but these

    def to(self, device: torch.device | str) -> ItemFilters:
        """The filters on another device."""
        return ItemFilters(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True, eq=False)
class Following:
    """Rewards of each sequence of a split, step by step, for histories that end before their sequence does.

    L steps in all: a list is one, and context rows are none. H histories.
    """

    earned: Tensor  # [L] the reward of each step, in order
    stop: Tensor  # [L] the first step of the next sequence
    first: Tensor  # [H] the first step after each history; L: none of its sequence
    known: dict[float, Tensor] = field(default_factory=dict)  # discounted sums that were computed before, by γ

    def discounted(self, gamma: float) -> Tensor:
        """Σ_k γ^k r_k over all steps after each history: [H]. Sums over 1, 2, 4, … steps are made of shorter ones."""
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
        """The rewards on another device."""
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
    event: Tensor  # [M] the user's response, as a code of the data set's events
    reward: Tensor  # [M]
    history: Tensor  # [M] how many actions of the whole sequence came before (not only of the window)
    scored: Tensor  # [N] indices of the tokens that are positions
    propensity: Tensor | None = None  # [M] logged probability of the action; NaN where none was logged
    list_reward: Tensor | None = None  # [M] if a list has one reward: the list's, at each of its places
    context: Tensor | None = None  # [M] logs of lists: the token whose context this one shares, its list's first
    examined: Tensor | None = None  # [M] examination of the item's place, relative to the first; None: 1 everywhere
    filter: Tensor | None = None  # [M] number of the filter under which the item was shown
    filters: ItemFilters | None = None  # the filters that these numbers refer to
    counted: Tensor | None = None  # [N] mask of real positions, if the batch is filled up to a fixed size
    owner: Tensor | None = None  # [B] the sequence that each history is part of; None: each is a whole sequence
    following: Following | None = None  # rewards after these histories; None: each is a whole sequence
    ends_only: bool = False  # each sequence's last position alone is scored, so other tokens are not read
    meetings: bool = False  # first meetings are credited: items that came before are not open
    whole: bool = False  # every token is a position: scored = 0 … M - 1
    block: tuple[int, int] | None = None  # rows and columns that hold all tokens, if known beforehand
    bounds: tuple[Tensor, Tensor] | None = None  # first and last index of each row's tokens, if known beforehand

    @property
    def credited(self) -> Tensor:
        """Reward that each action is credited with [M]: that of its place, or the list's if a list has one."""
        return self.reward if self.list_reward is None else self.list_reward

    def scored_after(self, min_history: int) -> Tensor:
        """Positions with at least `min_history` actions before them, not counting places above in the same list."""
        before = self.history if self.context is None else self.history[self.context]
        return self.scored[before[self.scored] >= min_history]

    @property
    def owners(self) -> Tensor:
        """Sequence that each of the B histories belongs to, for clustered errors."""
        return self.sequences if self.owner is None else self.owner

    @property
    def positions(self) -> int:
        """Number of positions, N."""
        return len(self.scored)

    @property
    def size(self) -> int:
        """Number of sequences, B."""
        return len(self.sequences)

    @property
    def steps(self) -> Tensor | None:
        """Mask of the tokens where a step of the log begins [M]: positions, of a list the first; None: every token.

        Context rows were chosen by nobody, so they are no step. Tokens before a window's positions are not marked:
        nobody needs them.
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
        """Discounted rewards of each sequence after its history [B]; None if no sequence continues."""
        return None if self.following is None else self.following.discounted(gamma)[self.sequences]

    def read_alone(self) -> tuple[Batch, Tensor | None]:
        """Batch of the tokens whose context is read alone; and for each token [M] the index of its context among them.

        The places of a sequence's last list share the context of its first, so nobody reads those of the others. A
        batch of a fixed size keeps all its tokens.
        """
        import torch

        if self.context is None or self.block is not None:
            return self, self.context
        last = self.column.new_zeros(self.size).scatter_reduce_(0, self.row, self.column[self.context], "amax")
        kept = self.column <= last[self.row]
        names = ("row", "column", "previous_item", "previous_event")
        read = replace(self, **{name: getattr(self, name)[kept] for name in names})
        return read, (torch.cumsum(kept, 0) - 1)[self.context]

    def next_token(self) -> tuple[Tensor, Tensor]:
        """Index of the next token in the same history for each position [N], and whether there is one."""
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
        """The batch on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device) if hasattr(value, "to") else value for name, value in values.items()
        }
        return Batch(**moved)


class Reads(NamedTuple):
    """Numbers that an objective needs of the network, and options for reading them."""

    fields: frozenset[str] = frozenset()  # fields of the Readout, beyond logp and reward
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
    """Numbers that an objective reads: one per position, never a row over the catalogue. All [N].

    π and μ̂ are over the items that could be chosen at the position: all items, unless the log has lists or filters.

    Fields that an objective did not declare are absent. "constant" fields carry no gradient and are read without
    dropout. `q` is that of the objective's critic: r̂(x,a) for bandits, Q(x,a) otherwise.
    """

    logp: Tensor  # log π(a|x), with gradient (0 if a critic is trained alone)
    reward: Tensor  # r
    logp_logging: Tensor | None = None  # log μ̂(a|x), -inf where a frozen μ̂ lacks the item; gradient: its head alone
    logged_propensity: Tensor | None = None  # μ(a|x) as the log states it; NaN where it does not
    examined: Tensor | None = None  # e(place), the examination of the item's place; None: 1 everywhere
    return_to_go: Tensor | None = None  # G_t = Σ_k γ^k r_{t+k}
    q: Tensor | None = None  # Q(x,a), constant (the mean of both heads if there are two)
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
        """Return the field `name`, which the objective declared that it reads; raise an error if it is missing."""
        value = getattr(self, name)
        assert value is not None, f"the readout has no '{name}': the objective did not declare it"
        return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Terms:
    """Named, unreduced losses of an objective per position, and the weights that made them. All [N]."""

    losses: Mapping[str, Tensor]
    weight: Tensor  # the constant factor of -log π
    clipped: Tensor | None = None  # mask of the positions whose weight met its cap or its floor

    def masked(self, counted: Tensor) -> Terms:
        """The terms with no loss, weight or cap at positions that are not `counted`."""
        losses = {name: loss.where(counted, 0.0) for name, loss in self.losses.items()}
        clipped = None if self.clipped is None else self.clipped & counted
        return Terms(losses, self.weight.where(counted, 0.0), clipped)

    def detached(self) -> Terms:
        """Copy of the terms without gradients."""
        clipped = None if self.clipped is None else self.clipped.detach()
        return Terms({name: loss.detach() for name, loss in self.losses.items()}, self.weight.detach(), clipped)
