"""One pass over a split: every position gets its rank, its likelihood, and its divergence from each reference.

One value per position is kept, so that standard errors, tests and breakdowns need no second pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from localpolicy.catalogue import chunked, sharded
from localpolicy.catalogue.capped import is_sharded
from localpolicy.catalogue.masked import MaskedLogits
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.catalogue.statistics import Scratch, catalogue_statistics
from localpolicy.data.batches import Windows
from localpolicy.data.first_meetings import met_before
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.logits import Logits
from localpolicy.measure.position_metrics import Scores
from localpolicy.model.policy import Policy
from localpolicy.runtime.progress import progress
from localpolicy.runtime.ranks import ALONE, Ranks
from localpolicy.types import Batch


class Scorer(Protocol):
    """Anything with rows over the catalogue: a policy, or a simple baseline."""

    def logits(self, batch: Batch) -> Logits:
        """Unnormalised log-probabilities at the batch's positions."""


def seen_pairs(windows: Windows, window: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
    """(position, item) pairs of the items before each position in its window, `history` of them each."""
    position = torch.repeat_interleave(torch.arange(len(history), device=history.device), history)
    step = torch.arange(len(position), device=history.device) - (history.cumsum(0) - history)[position]
    return position, windows.arrays["item"][windows.offsets[window][position] + step].long()


BY_REFERENCE = {  # a statistic of the catalogue, as `js:mle`, and where `Scores` has it
    "js": "js", "kl": "kl", "logp": "logp_reference", "logp_open": "logp_open_reference",
    "logp_unseen": "logp_unseen_reference",
}  # fmt: skip


@torch.no_grad()
def score(
    policy: Scorer,
    windows: Windows,
    *,
    events: list[str],
    references: Mapping[str, Scorer] | None = None,
    reward_model: Scorer | None = None,
    min_history: int = 1,
    exclude_seen: bool = False,
    unseen: bool = False,
    lists: int = 1,
    floor: bool = True,
    liked: bool = False,
    batch_size: int = 256,
    description: str = "scoring",
    ranks: Ranks = ALONE,
) -> Scores:
    """Score every position of `windows` with at least `min_history` actions before it.

    In a list what stands above is no such action: a list is scored whole or not at all.

    `references` are measured against; `reward_model` gives r̂ for off-policy estimates. With `exclude_seen` what a
    sequence held before may not be shown: a repeated item ranks last, and the value is that of the policy so served.
    `unseen` also asks for ranks and likelihoods among the rest. `lists` is the K of the lists counted.
    `floor` also measures the references against each other; `liked` how well what is ranked high was liked. Several
    ranks share the sequences, and all get all scores.
    """
    references = references or {}
    settings = {
        "min_history": min_history,
        "length": windows.config.length,
        "last": windows.config.last,
        "beyond_length": windows.beyond(min_history),
        "exclude_seen": exclude_seen,
        "lists": lists,
        **({"list_reward": "whole"} if windows.one_reward else {}),
    }
    again = met_before(windows.history_of_rows, windows.arrays["item"])
    scratch, shown = Scratch(), np.zeros(0, np.int64)
    columns: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    with progress(description, len(windows)) as advance:
        for batch in windows.in_order(batch_size, rank=ranks.rank, ranks=ranks.total):
            at = batch.scored_after(min_history)
            part = replace(batch, scored=at)
            window = part.sequences[part.row[at]]
            found = {"sequence": part.owners[part.row[at]], "window": window}
            for name in ("history", "item", "event", "reward", "propensity"):
                if (column := getattr(part, name)) is not None:
                    found[name] = column[at]
            if part.context is not None:
                found["above"] = at - part.context[at]
                if (place := windows.places_at(window, part.history[at])) is not None:
                    found["place"] = place
            found["repeat"] = again[windows.offsets[window] + part.history[at]]
            rows, open_items = policy.logits(part), OpenItems.of(part)
            if is_sharded(rows):
                assert not references and reward_model is None and not exclude_seen and lists == 1, "validation alone"
                statistics = sharded.catalogue_statistics(rows, part.item[at])
                if open_items is not None:
                    among = sharded.log_prob(rows, part.item[at], open_items)
                    statistics["logp_open"] = among.masked_fill(open_items.unknown, torch.nan)
            else:
                others = {name: reference.logits(part) for name, reference in references.items()}
                values = None if reward_model is None else reward_model.logits(part)
                seen = seen_pairs(windows, window, part.history[at]) if exclude_seen or unseen else None
                statistics = catalogue_statistics(
                    rows, part.item[at], references=others, values=values, excluded=seen if exclude_seen else None,
                    seen=seen if unseen else None, open_items=open_items, lists=lists, floor=floor, scratch=scratch,
                )  # fmt: skip
                if seen is not None and (unseen or values is not None):
                    allowed = {"": rows, **({f":{key}": other for key, other in others.items()} if unseen else {})}
                    unknown = torch.zeros_like(at, dtype=torch.bool) if open_items is None else open_items.unknown
                    for name, logits in allowed.items():
                        logp = chunked.log_prob(MaskedLogits(logits, *seen), part.item[at], open_items)
                        statistics[f"logp_unseen{name}"] = logp.masked_fill(unknown, torch.nan)
                    if exclude_seen and values is not None:
                        statistics["value_expected"] = chunked.mean(MaskedLogits(rows, *seen), values, open_items)
                if liked:
                    chosen = part.event != (-1 if windows.context is None else windows.context)
                    statistics["liked"], statistics["agreement"] = liking_of(rows, part, chosen)
            listed = torch.bincount(statistics.pop("lists").flatten(), minlength=rows.shape[1]).cpu().numpy()
            shown = listed + shown if len(shown) else listed
            for name, column in (found | statistics).items():
                columns[name].append(column.cpu().numpy())
            advance(batch.size * ranks.total)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    if not ranks.alone:  # the columns of all ranks, in the order of the split
        joined = {name: ranks.gathered(column) for name, column in joined.items()}
        order = np.lexsort((joined["history"], joined["window"]))
        joined = {name: column[order] for name, column in joined.items()}
        shown = ranks.reduced(torch.from_numpy(shown)).numpy()
    fields: dict[str, Any] = {name: column for name, column in joined.items() if ":" not in name and name != "window"}
    for statistic, field in BY_REFERENCE.items():
        start = f"{statistic}:"
        fields[field] = {name.removeprefix(start): each for name, each in joined.items() if name.startswith(start)}
    scores = Scores(**fields, events=events, settings=settings, shown=shown)
    if not len(scores):
        raise DataError(
            f"no position has {min_history} actions before it, so none can be measured. Where every sequence has one "
            "action, count empty histories: train with --set train.min_history=0, evaluate with --min-history 0."
        )
    return scores


# ---------------------------------------------------------------------- how was what is ranked high liked?

# Of logs whose rewards are ratings, or numbers of many values. Where people rated what they chose themselves, the nDCG
# of everything taken asks whether a policy shows what people took, liked or not: it refuses a policy for burying what
# they disliked. What the log does know is how they liked what they rated. So at each position the next few rated items
# are candidates, all scored in the same context, and
#
#     top         reward of the candidate that the policy ranks first: the value at the top, among what people rated
#     agreement   share of pairs of candidates of different reward that the policy orders as the person did
#
# Ties count by their expectation. Both speak of items that people chose to rate; how they would like the others is not
# known, and the notes say so.
#
# Rank correlation with the true mean rating of what a policy shows (and shows first), 24 policies in 8 simulated
# worlds: nDCG .60 (.62), weighted by reward .73 (.77), top .87 (.98), agreement .87 (.98).

CANDIDATES = 10  # rated items from a position on, itself included


def liking(scores: Tensor, reward: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Reward of the candidate scored highest, and share of pairs that scores order as rewards do, by row of [N, J].

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
    """`liking` by a policy's logits among the ratings from each position on; `chosen` [M] masks the ratings."""
    steps = torch.arange(CANDIDATES, device=batch.scored.device)
    at = batch.scored[:, None] + steps
    inside = at < len(batch.row)
    at = at.clamp(max=max(len(batch.row) - 1, 0))
    valid = inside & (batch.row[at] == batch.row[batch.scored][:, None]) & chosen[at]
    scores = torch.stack([rows.at(batch.item[at[:, step]]) for step in range(CANDIDATES)], 1)
    return liking(scores, batch.reward[at], valid)


# ---------------------------------------------------------------------- r̂, for the direct and doubly robust estimates


PRIOR = 20.0  # decisions, the weight of the belief in the mean of all items


@dataclass(frozen=True)
class ItemMeans:
    """r̂(x, a) = (Σ r of a + 20 r̄) / (n_a + 20), whatever x.

    Fitted on training decisions and used on held-out ones, so the doubly robust estimate stays unbiased however poor.
    """

    mean: Tensor  # [V]

    @classmethod
    def fit(cls, data: Prepared) -> ItemMeans:
        """Mean rewards in the training split."""
        train, chosen = data["train"].arrays, data.chosen("train")
        item, reward = train["item"][chosen], train["reward"][chosen].astype(np.float64)
        counts = np.bincount(item, minlength=data.n_items)
        total = np.bincount(item, weights=reward, minlength=data.n_items)
        mean = (total + PRIOR * (reward.mean() if len(reward) else 0.0)) / (counts + PRIOR)
        return cls(torch.from_numpy(mean.astype(np.float32)))

    def logits(self, batch: Batch) -> Logits:
        """Mean reward of each item, equal at every position."""
        return SparseLogits.constant(self.mean, batch)


@dataclass(frozen=True)
class RewardHead:
    """r̂(x, a) of a policy that was trained with one."""

    policy: Policy

    def logits(self, batch: Batch) -> Logits:
        """The reward head's rows at the positions."""
        network = self.policy.network
        return network.head("reward").detach().logits(network.hidden_without_dropout(batch)[batch.scored])


def reward_model(policy: Scorer, data: Prepared) -> Scorer:
    """The policy's own r̂ if it has a reward head, else items' mean rewards."""
    if isinstance(policy, Policy) and "reward" in policy.network.heads:
        return RewardHead(policy)
    return ItemMeans.fit(data)
