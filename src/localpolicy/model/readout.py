"""Reads of a batch: the `Readout` with the numbers that an objective declares, computed by a network.

Two passes at most. The first, with dropout, carries gradients: log π(a|x) and the critic that is being fitted. The
second, without dropout and as a constant, gives everything else: the weights' Q and baselines, TD targets, and the
features of the logging and value heads, which are cut from the backbone.

If the log has lists or filters, π and μ̂ are distributions over the items that could be chosen at a position, in value
and gradient (see `catalogue.open_items`): the draw was among these. Over the whole catalogue the likelihood of lists
has another optimum than μ, the items' shares of exposure, which are at most 1/k for lists of k.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from localpolicy.catalogue.open_items import OpenItems
from localpolicy.catalogue.sampled import Sampler
from localpolicy.catalogue.soft_targets import cross_entropy
from localpolicy.logits import LinearLogits, Logits
from localpolicy.model.backbones import Layout
from localpolicy.model.heads import HeadScores
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.runtime.graph_branch import GraphBranch
from localpolicy.types import Batch, Readout, Reads

CONSTANT = {"q", "q_expected", "q_policy", "q_max", "q_sampled", "next_value", "logp_logging", "value"}


def heads_for(reads: Reads, *, logging_given: bool) -> tuple[str, ...]:
    """Names of the heads that a network needs so that `reads` can be read."""
    fields = reads.fields
    if not reads.policy:
        assert reads.critic is not None
        return (reads.critic,)
    heads = ["policy"]
    if "logp_logging" in fields and not logging_given:
        heads.append("logging")
    if any(name.startswith("q") or name == "next_value" for name in fields):
        assert reads.critic is not None
        heads += ["q_a", "q_b"] if reads.critic == "q" else ["reward"]
    if "value" in fields:
        heads.append("value")
    return tuple(heads)


def returns_to_go(batch: Batch, *, gamma: float) -> Tensor:
    """G_t = r_t + Σ_{k>=1} γ^k r_{t+k}, to the end of the sequence: [M], valid at positions.

    A window ends where its history does; rewards of its sequence after that are known (`Batch.beyond`). Context rows
    are no steps. A list is one step: a place earns its own reward and, discounted, all that later lists earn. Lower
    places of the same list are neither later nor its own. If a list has one reward, each of its places has helped to
    earn it: r is the list's, and E[r | x, a] is the value of showing a there with the rest left to μ.
    """
    layout = Layout.of(batch)
    reward, own = layout.pad(batch.reward), layout.pad(batch.credited)
    steps = None if batch.steps is None else layout.pad(batch.steps)
    block = torch.empty_like(reward)
    beyond = batch.beyond(gamma)
    later = torch.zeros_like(reward[:, 0]) if beyond is None else beyond.to(reward.dtype)  # what comes after this step
    earned = torch.zeros_like(later)  # by this list's places from this one on
    for column in range(layout.columns - 1, -1, -1):
        block[:, column] = own[:, column] + gamma * later
        if steps is None:
            later = block[:, column]
            continue
        earned = earned + reward[:, column]
        later = torch.where(steps[:, column], earned + gamma * later, later)
        earned = torch.where(steps[:, column], 0.0, earned)
    return layout.flatten(block)


def critic_targets(batch: Batch, *, gamma: float) -> tuple[Tensor, Tensor]:
    """(r/e + Σ_{k>=1} γ^k r_{t+k}, e²): a critic's target at each position, and the weight of its squared error.

    e is the examination of the item's place (see `data.position_bias`): a critic predicts the reward at the first
    place. With γ = 0 the weighted error is (e q - r)², that of the reward itself.
    """
    returns = returns_to_go(batch, gamma=gamma)[batch.scored]
    if batch.examined is None:
        return returns, torch.ones_like(returns)
    examined, reward = batch.examined[batch.scored], batch.reward[batch.scored]
    return returns + reward / examined - reward, examined**2


def lower_rewards(batch: Batch) -> Tensor:
    """Rewards of the places below a list's first one, summed at the first: [M]. 0 if a list has one reward."""
    assert batch.context is not None
    total = torch.zeros_like(batch.reward).index_add_(0, batch.context, batch.reward)
    return total - batch.credited


def _scored(values: Tensor, batch: Batch) -> Tensor:
    """Values at the positions [N, …], from one value per token."""
    return values if batch.whole else values.index_select(0, batch.scored)


@dataclass(frozen=True)
class NetworkReader:
    """Reader of the numbers that an objective declared, from `network`."""

    network: Network
    reads: Reads
    catalogue: ModuleType
    logging_policy: Policy | None = None  # μ̂ if it is not a head
    sampler: Sampler | None = None  # draws the items that training sums over; None: all items

    @property
    def critic(self) -> str | None:
        """Name of the critic that is read, or None."""
        return self.reads.critic if any(name.startswith("q") for name in self.reads.fields) else None

    def read(self, batch: Batch, *, step: int, coin: bool, generator: torch.Generator | None = None) -> Readout:
        """The readout of a batch. `coin` picks the Q head that is fitted."""
        network, at = self.network, batch.scored
        items, open_items = _scored(batch.item, batch), OpenItems.of(batch)
        same = not network.training or (network.config.dropout == 0 and not network.own_backbone)
        branch = GraphBranch(items.device)
        hidden = network.hidden(batch)
        constants: dict[str, Tensor] = {}
        if self.reads.fields & CONSTANT:
            branch = GraphBranch(items.device) if same else branch  # without dropout both passes are one
            with branch.on_side_stream():
                following = batch.next_token() if "next_value" in self.reads.fields else None
                frozen = GraphBranch(items.device)  # a frozen μ̂ needs nothing of this network
                hidden_eval = hidden.detach() if same else network.hidden_without_dropout(batch)
                constants = self._constants(batch, hidden_eval, open_items, coin, following, frozen)
                frozen.join([])
                if "q_sampled" in self.reads.fields:
                    constants["q_sampled"] = self._sampled(constants, items, generator)
                del constants["features"]
        numbers: dict[str, Tensor] = {}
        current = _scored(hidden, batch)
        if "q_fit" in self.reads.fields:
            numbers["q_fit"] = network.scores(self._fitted(coin)[0], current).at(items)
        if "return_to_go" in self.reads.fields:
            numbers["return_to_go"] = returns_to_go(batch, gamma=self.reads.gamma)[at]
        if "logged_propensity" in self.reads.fields:
            assert batch.propensity is not None, "checked before training"
            stated = batch.propensity[at]  # unknown, where the items that could be chosen are
            numbers["logged_propensity"] = (
                stated if open_items is None else stated.masked_fill(open_items.unknown, torch.nan)
            )
        if batch.examined is not None:
            numbers["examined"] = batch.examined[at]
        if "cross_entropy" in self.reads.fields:
            assert self.logging_policy is not None, "a teacher is given"
            student = network.head("policy").logits(current)
            assert isinstance(student, LinearLogits), "refused before training: the catalogue is split over ranks"
            numbers["cross_entropy"] = cross_entropy(student, self.logging_policy.rows_at(batch, at))
        if self.reads.policy:
            logp = self._log_prob(network.head("policy").logits(current), items, open_items)
        else:
            logp = numbers["q_fit"].new_zeros(len(at))
        branch.join(constants.values())
        return Readout(
            logp=logp, reward=_scored(batch.credited, batch).to(logp.dtype), step=step, **constants, **numbers
        )

    def _log_prob(self, rows: Logits, items: Tensor, open_items: OpenItems | None) -> Tensor:
        """log π of the taken items; in training over a sample of the catalogue if there is a sampler."""
        if self.sampler is None or not (self.network.training and isinstance(rows, LinearLogits)):
            return self.catalogue.log_prob(rows, items, open_items)  # type: ignore[no-any-return]
        return self.sampler.log_prob(rows, items)

    def _mean(self, rows: Logits, values: Logits) -> Tensor:
        """Σ_a softmax(row)_a value_a, over the items that `_log_prob` sums over."""
        if self.sampler is None or not (self.network.training and isinstance(rows, LinearLogits)):
            return self.catalogue.mean(rows, values)  # type: ignore[no-any-return]
        assert isinstance(values, LinearLogits), "the catalogue is not split over ranks: refused before training"
        return self.sampler.mean(rows, values)

    def _fitted(self, coin: bool) -> tuple[str, str]:
        """Names of the head that is fitted, and of the one that evaluates it."""
        if self.critic == "reward":
            return "reward", "reward"
        if not self.reads.policy:  # an expectation has no maximum to be biased: one head is enough
            return "q", "q"
        return ("q_a", "q_b") if coin else ("q_b", "q_a")

    @torch.no_grad()
    def _critic(self, hidden: Tensor) -> HeadScores:
        return self.network.scores("reward" if self.critic == "reward" else "q", hidden)

    def _logging(self, batch: Batch, hidden_eval: Tensor, tokens: Tensor, frozen: GraphBranch) -> Logits:
        """μ̂'s logits at these tokens, up to a constant of each context, on which a softmax does not depend.

        `frozen` is the side stream that a frozen μ̂ may use: it starts once batch and tokens are known.
        """
        if self.logging_policy is None:
            return self.network.scores("logging", hidden_eval.index_select(0, tokens)).logits
        if len(self.logging_policy.network.towers) > 1:
            return self.logging_policy.rows_at(batch, tokens)
        with frozen.on_side_stream():
            rows = self.logging_policy.rows_at(batch, tokens)
        frozen.join([rows.hidden] if isinstance(rows, LinearLogits) else [])
        return rows

    def _constants(
        self,
        batch: Batch,
        hidden_eval: Tensor,
        open_items: OpenItems | None,
        coin: bool,
        following: tuple[Tensor, Tensor] | None,
        frozen: GraphBranch,
    ) -> dict[str, Tensor]:
        at, reads, catalogue = batch.scored, self.reads.fields, self.catalogue
        items, here = _scored(batch.item, batch), _scored(hidden_eval, batch)
        numbers: dict[str, Tensor] = {"features": here}
        critic = self._critic(here) if self.critic is not None else None
        if critic is not None and reads & {"q", "q_sampled"}:
            numbers["q"] = critic.at(items)
        if critic is not None and "q_expected" in reads:
            # One pass gives both: the logging head's likelihood, and the critic's mean under it.
            logging = self._logging(batch, hidden_eval, at, frozen)
            numbers["logp_logging"], mean = catalogue.log_prob_and_mean(logging, items, critic.logits, open_items)
            numbers["q_expected"] = critic.shifted(mean)
        elif "logp_logging" in reads:
            logging = self._logging(batch, hidden_eval, at, frozen)
            numbers["logp_logging"] = catalogue.log_prob(logging, items, open_items)
        if critic is not None and "q_policy" in reads:
            policy = self.network.head("policy").detach().logits(here)
            numbers["q_policy"] = critic.shifted(catalogue.mean(policy, critic.logits, open_items))
        if critic is not None and "q_max" in reads:
            numbers["q_max"] = critic.shifted(catalogue.maximum(critic.logits)[0])
        if "value" in reads:
            numbers["value"] = self.network.value(here)
        if following is not None:
            numbers["next_value"] = self._next_value(batch, hidden_eval, coin, following, frozen)
        return numbers

    @torch.no_grad()
    def _next_value(
        self, batch: Batch, hidden_eval: Tensor, coin: bool, following_token: tuple[Tensor, Tensor], frozen: GraphBranch
    ) -> Tensor:
        """max: Q_B(x', argmax_a Q_A(x',a)); expected: Σ_a μ̂(a|x') Q_B(x',a); 0 at a sequence's end.

        If the sequence continues in another history, its context lies in another window: the rewards from there on are
        an unbiased estimate of V_μ(x').

        If the next step is a list, this is its first place's value: with what comes after the list, and without the
        rewards of the lower places, which are added from the log.
        """
        after, exists = following_token
        # Where sizes are fixed, every position is computed: how many have a next one is known to the device alone.
        tokens = after[exists] if batch.counted is None else after
        fitted, other = self._fitted(coin)
        following_hidden = hidden_eval.index_select(0, tokens)
        evaluated = self.network.scores(other, following_hidden)
        if self.reads.target == "max":
            _, best = self.catalogue.maximum(self.network.scores(fitted, following_hidden).logits)
            following = evaluated.at(best)
        else:
            logging = self._logging(batch, hidden_eval, tokens, frozen)
            following = evaluated.shifted(self._mean(logging, evaluated.logits))
        if batch.context is not None:
            following = following + lower_rewards(batch)[tokens]
        if batch.counted is not None:
            return torch.where(exists, following, 0.0)
        beyond = batch.beyond(self.reads.gamma)
        ended = following.new_zeros(len(after)) if beyond is None else beyond[batch.row[batch.scored]].to(following)
        return ended.index_put((exists.nonzero().squeeze(1),), following)

    @torch.no_grad()
    def _sampled(self, numbers: dict[str, Tensor], items: Tensor, generator: torch.Generator | None) -> Tensor:
        """Mean of Q over the taken item and `negatives` uniformly drawn ones."""
        critic = self._critic(numbers["features"])
        device = items.device if generator is None else generator.device
        shape = (len(items), self.reads.negatives)
        drawn = torch.randint(self.network.n_items, shape, generator=generator, device=device).to(items.device)
        total = numbers["q"].clone()
        for column in range(self.reads.negatives):
            total += critic.at(drawn[:, column])
        return total / (1 + self.reads.negatives)
