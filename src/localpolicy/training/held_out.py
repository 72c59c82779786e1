"""Held-out sequences in one pass: the numbers that choose the slope and β of a closed form.

The positions are those that the gate judges by: with as many actions before them as training requires.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from localpolicy.catalogue import backend, sharded
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.data.batches import Windows
from localpolicy.measure.decisions import Decisions, estimand_of, whole_lists
from localpolicy.measure.returns import Visits, of_lists
from localpolicy.model.policy import Policy
from localpolicy.model.readout import critic_targets
from localpolicy.model.towers import Towers
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.validation import batch_size


class HeldOut(NamedTuple):
    """Numbers of the held-out positions, all [n]."""

    sequence: np.ndarray
    reward: np.ndarray
    returns: np.ndarray  # G, as the critic's targets: discounted, and as at a list's first place
    weight: np.ndarray  # weight of the critic's squared error
    taken: np.ndarray  # Q(x, a)
    expected: np.ndarray  # Σ_a μ̂(a|x) Q(x, a), over what could be chosen
    item: np.ndarray
    place: np.ndarray  # place in the list: the number of items above
    log_mu: np.ndarray  # log μ(a|x) among what could be chosen: as logged, or μ̂'s; NaN where it is unknown
    known: bool  # whether the log states μ
    begins: np.ndarray  # step of the sequence at which the list begins
    stated: np.ndarray | None = None  # place that the log states

    def decisions(self, logp: np.ndarray, taken: np.ndarray | None, expected: np.ndarray | None) -> Decisions:
        """Decisions for a policy with these log π(a|x); whole lists if the log has lists."""
        log = Decisions(np.exp(logp - self.log_mu), self.reward, self.sequence, taken, expected)
        if estimand_of(self.place) == "decision":
            return log.at(~np.isnan(log.weight))
        return whole_lists(log, self.place, self.list_number, place=self.stated)

    def visits(self, logp: np.ndarray) -> tuple[Visits, np.ndarray]:
        """Visits for a policy with these log π(a|x): decisions by visit, and π/μ of each; a list is one decision."""
        columns = (self.sequence, self.item, self.reward, np.exp(logp - self.log_mu))
        if estimand_of(self.place) == "decision":
            return Visits.of(*columns[:3]), columns[3]
        return of_lists(*columns, self.list_number, self.place, self.stated)

    @property
    def list_number(self) -> np.ndarray:
        """Number of the list that each position belongs to."""
        another = (np.diff(self.sequence, prepend=-1) != 0) | (np.diff(self.begins, prepend=-1) != 0)
        another |= np.diff(self.place, prepend=-1) <= 0  # two histories of one sequence may be equally long
        return np.cumsum(another)


@torch.no_grad()
def read_held_out(policy: Policy, windows: Windows, *, gamma: float, config: Config, ranks: Ranks) -> HeldOut:
    """Read the numbers for calibration and estimates, in one pass over the sequences."""
    network = policy.network
    assert isinstance(network, Towers)
    catalogue = backend(config.train.catalogue) if network.shard is None else sharded
    logging, critic = network.head("logging").detach(), network.head(network.critic).detach()
    columns: list[tuple[Tensor, ...]] = []
    for batch in windows.in_order(batch_size(config), rank=ranks.rank, ranks=ranks.total):
        at = batch.scored_after(config.train.min_history)
        hidden = network.hidden_without_dropout(batch)[at]
        q, item = critic.logits(hidden), batch.item[at]
        part = replace(batch, scored=at)
        estimate, open_items = logging.logits(hidden), OpenItems.of(part)
        log_mu, mean_q = catalogue.log_prob_and_mean(estimate, item, q, open_items)
        if open_items is not None:
            log_mu = log_mu.masked_fill(open_items.unknown, torch.nan)
        log_propensity = torch.full_like(log_mu, torch.nan) if batch.propensity is None else batch.propensity[at].log()
        above = torch.zeros_like(at) if batch.context is None else at - batch.context[at]
        window = batch.sequences[batch.row[at]]
        place = windows.places_at(window, batch.history[at]) if batch.context is not None else None
        columns.append(
            (batch.owners[batch.row[at]], item, above, batch.history[at] - above, above if place is None else place,
             batch.reward[at], *critic_targets(part, gamma=gamma), q.at(item), mean_q, log_mu, log_propensity)
        )  # fmt: skip
    gathered = [ranks.all_gather(torch.cat(column))[0].cpu().numpy() for column in zip(*columns, strict=True)]
    (sequences, items, above_each, begins, places), numbers = (
        gathered[:5],
        [column.astype(np.float64) for column in gathered[5:]],
    )
    reward, returns, weight, q_taken, q_mean, estimated, stated = numbers
    known = bool(len(stated)) and not np.isnan(stated).any()
    log_mu = np.where(np.isnan(estimated), np.nan, stated) if known else estimated
    return HeldOut(
        sequences, reward, returns, weight, q_taken, q_mean, items, above_each, log_mu, known, begins, places
    )
