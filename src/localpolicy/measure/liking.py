"""How well what is ranked high was liked: of logs whose rewards are ratings, or numbers of many values.

Where people rated what they chose themselves, the nDCG of everything taken asks whether a policy shows what people
took, liked or not: it refuses a policy for burying what they disliked. What the log does know is how they liked what
they rated. So at each position the next few rated items are candidates, all scored in the same context, and

    top         reward of the candidate that the policy ranks first: the value at the top, among what people rated
    agreement   share of pairs of candidates of different reward that the policy orders as the person did

Ties count by their expectation. Both speak of items that people chose to rate; how they would like the others is not
known, and the notes beside the figures say so.

Rank correlation with the true mean rating of what a policy shows (and shows first), 24 policies in 8 simulated worlds:
nDCG .60 (.62), weighted by reward .73 (.77), top .87 (.98), agreement .87 (.98).
"""

from __future__ import annotations

import torch
from torch import Tensor

from localpolicy.catalogue.logits import Logits
from localpolicy.types import Batch

CANDIDATES = 10  # rated items from a position on, itself included
SELF_CHOSEN = "people chose themselves what to rate: how they would like other items is not known"


def liking(scores: Tensor, reward: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Top and agreement of each row, from scores, rewards and which candidates there are: all [N, J].

    NaN where there are fewer than two candidates, or none of different reward.
    """
    scores = scores.double().masked_fill(~valid, -torch.inf)
    first = (scores == scores.amax(1, keepdim=True)) & valid
    reward = reward.double()
    top = (reward * first).sum(1) / first.sum(1)
    top = top.masked_fill(valid.sum(1) < 2, torch.nan)
    pairs = valid[:, :, None] & valid[:, None, :] & (reward[:, :, None] > reward[:, None, :])
    above = scores[:, :, None] > scores[:, None, :]
    equal = scores[:, :, None] == scores[:, None, :]
    agreed = ((above.double() + 0.5 * equal.double()) * pairs).sum((1, 2))
    return top, agreed / pairs.sum((1, 2))  # 0/0 is NaN


def liking_of(rows: Logits, batch: Batch, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a policy's rows at the batch's positions; `chosen` [M] says which tokens are ratings."""
    steps = torch.arange(CANDIDATES, device=batch.scored.device)
    at = batch.scored[:, None] + steps
    inside = at < len(batch.row)
    at = at.clamp(max=max(len(batch.row) - 1, 0))
    valid = inside & (batch.row[at] == batch.row[batch.scored][:, None]) & chosen[at]
    scores = torch.stack([rows.at(batch.item[at[:, step]]) for step in range(CANDIDATES)], 1)
    return liking(scores, batch.reward[at], valid)
