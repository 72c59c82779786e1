"""Statistics of logits over the catalogue for evaluation: ranks, lists, likelihood, entropy, divergences, values.

The backends of `localpolicy.catalogue` compute one statistic per pass over V, which is right for training, which needs
one or two. Evaluation needs six and more, so it takes a block of positions small enough to stay in cache, forms its
whole rows once for each policy, and reads all statistics off them: memory does not grow with N x V, and the matrix
product, which costs most, is done once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from localpolicy.catalogue.blocks import blocks_of, part_of
from localpolicy.catalogue.chunked import divergences
from localpolicy.catalogue.fused_statistics import fused_statistics, serves
from localpolicy.catalogue.open_items import OpenItems, masked
from localpolicy.catalogue.ties import tie_bounds
from localpolicy.logits import LinearLogits, Logits

Columns = dict[str, Tensor]


class LogDistribution(NamedTuple):
    """Probabilities of a block of positions, and their logarithms."""

    log_p: Tensor  # [n, V]
    p: Tensor  # [n, V]


class Scratch:
    """Reusable blocks: page faults of fresh ones would cost more than the arithmetic."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def like(self, name: str, block: Tensor) -> Tensor:
        """Uninitialised tensor in the shape of `block`."""
        return self.block(name, block.shape[0], block.shape[1], block)

    def block(self, name: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """Uninitialised tensor of shape [rows, columns]."""
        kept = self.kept.get(name)
        if kept is None or kept.numel() < rows * columns or (kept.dtype, kept.device) != (like.dtype, like.device):
            self.kept[name] = kept = like.new_empty(rows * columns)
        return kept[: rows * columns].view(rows, columns)

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ_a left_a right_a of each row."""
        return torch.mul(left, right, out=self.like("product", left)).sum(1)


def rank(scores: Tensor, bounds: tuple[Tensor, Tensor], scratch: Scratch) -> tuple[Tensor, Tensor]:
    """1 + items strictly above + half of the others tied; and the number of others tied. `bounds` [n]: see `ties`."""
    low, high = bounds
    block = scratch.like("product", scores)
    above = torch.gt(scores, high[:, None], out=block).sum(1)
    tied = torch.ge(scores, low[:, None], out=block).sum(1) - above - 1
    return 1 + above + tied / 2, tied


def distribution(name: str, scores: Tensor, largest: Tensor, scratch: Scratch) -> LogDistribution:
    """log softmax and softmax of `scores`, which becomes the log softmax; `largest` [n] holds the row maxima."""
    log_p = scores.sub_(largest[:, None])
    p = torch.exp(log_p, out=scratch.like(f"p:{name}", scores))
    total = p.sum(1, keepdim=True)
    return LogDistribution(log_p.sub_(total.log()), p.div_(total))


def among_open(log_p: Tensor, open_items: OpenItems) -> Tensor:
    """log π(·|x, open) [n, V], from log π(·|x)."""
    among = masked(log_p, open_items)
    return among.sub_(among.logsumexp(1, keepdim=True)).masked_fill_(open_items.unknown[:, None], torch.nan)


def divergence(p: LogDistribution, q: LogDistribution, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """JS = log 2 - ½ Σ [p softplus(d) + q softplus(-d)] with d = log q - log p; and KL(p‖q) = -Σ p d."""
    gap = torch.sub(q.log_p, p.log_p, out=scratch.like("gap", p.p))
    soft = torch.ops.aten.softplus.out(gap, 1.0, 40.0, out=scratch.like("soft", p.p))
    mixed = scratch.dot(p.p, soft)
    mixed += scratch.dot(q.p, soft.sub_(gap))
    return divergences((mixed, -scratch.dot(p.p, gap)))


@torch.no_grad()
def catalogue_statistics(
    rows: Logits,
    items: Tensor,
    *,
    references: Mapping[str, Logits] | None = None,
    values: Logits | None = None,
    excluded: tuple[Tensor, Tensor] | None = None,
    seen: tuple[Tensor, Tensor] | None = None,
    open_items: OpenItems | None = None,
    lists: int = 1,
    floor: bool = True,
    scratch: Scratch | None = None,
) -> Columns:
    """Statistics of logits as named columns, [N] each (`lists` [N, K]).

    rank, tied, logp, entropy    of the policy: its rank of the item, and how many others tie with it (see `ties`)
    top, lists                   its first item, and its K best
    js:x, kl:x, logp:x           against each reference x
    js:x|y, kl:x|y               between references, with `floor`: how far noise alone goes
    value_taken, value_expected  of `values` at the item, and on average over the policy
    logp_open, logp_open:x       of the policy and each reference among the `open_items`, over which `value_expected`
                                 is then taken; NaN where nobody can say which these were

    `excluded` holds (position, item) pairs that may not be shown: they rank last and enter no list. Divergence
    and likelihood speak of the policy as it was trained, and ignore them. `seen` holds such pairs too: with them
    rank_unseen and tied_unseen are the item's rank and ties among the others, whatever is `excluded`.
    """
    references = references or {}
    if open_items is None and serves(rows, values, *references.values()):
        # The kernels know linear logits alone, as `serves` has found these to be.
        linear: Any = {"rows": rows, "references": references, "values": values}
        return fused_statistics(items=items, excluded=excluded, seen=seen, lists=lists, floor=floor, **linear)
    scratch = scratch or Scratch()
    blocks = []
    for start, stop in blocks_of(rows.shape, items.device.type):
        question = BlockRequest(
            rows=part_of(rows, start, stop),
            items=items[start:stop],
            references={name: part_of(other, start, stop) for name, other in references.items()},
            values=None if values is None else part_of(values, start, stop),
            excluded=_pairs_in(excluded, start, stop),
            seen=_pairs_in(seen, start, stop),
            open_items=None if open_items is None else open_items.part(start, stop),
            lists=lists,
            floor=floor,
        )
        blocks.append(_block_statistics(question, scratch))
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def _pairs_in(pairs: tuple[Tensor, Tensor] | None, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
    if pairs is None:
        return None
    here = (pairs[0] >= start) & (pairs[0] < stop)
    return pairs[0][here] - start, pairs[1][here]


class BlockRequest(NamedTuple):
    """Arguments of `catalogue_statistics` for one block."""

    rows: Logits
    items: Tensor
    references: Mapping[str, Logits]
    values: Logits | None
    excluded: tuple[Tensor, Tensor] | None
    seen: tuple[Tensor, Tensor] | None
    open_items: OpenItems | None
    lists: int
    floor: bool


def _block_statistics(asked: BlockRequest, scratch: Scratch) -> Columns:
    # Ranks and lists come first: they read the scores themselves, before these are turned into log-probabilities.
    scores = _formed("policy", asked.rows, scratch)
    largest, first = scores.max(1)
    columns: Columns = {}
    # Not -inf: the difference of two would not be a number, and two excluded items must tie.
    least = scores.new_tensor(torch.finfo(scores.dtype).min)
    if asked.seen is not None:
        before = scores[asked.seen]
        scores.index_put_(asked.seen, least)
        bounds = tie_bounds(asked.rows, _at(scores, asked.items))
        columns["rank_unseen"], columns["tied_unseen"] = rank(scores, bounds, scratch)
        scores.index_put_(asked.seen, before)
    if asked.excluded is not None:
        before = scores[asked.excluded]
        scores.index_put_(asked.excluded, least)
        first = scores.argmax(1)
    columns["rank"], columns["tied"] = rank(scores, tie_bounds(asked.rows, _at(scores, asked.items)), scratch)
    columns["top"] = first
    many = asked.lists > 1
    columns["lists"] = scores.topk(min(asked.lists, scores.shape[1]), dim=1).indices if many else first[:, None]
    if asked.excluded is not None:
        scores.index_put_(asked.excluded, before)

    policy = distribution("policy", scores, largest, scratch)
    columns["logp"] = _at(policy.log_p, asked.items)
    columns["entropy"] = -scratch.dot(policy.p, policy.log_p)
    choosing = policy.p  # distribution among the items that could be chosen
    if asked.open_items is not None:
        log_open = among_open(policy.log_p, asked.open_items)
        columns["logp_open"], choosing = _at(log_open, asked.items), log_open.exp()
    if asked.values is not None:
        values = _formed("values", asked.values, scratch)
        columns["value_taken"] = _at(values, asked.items)
        columns["value_expected"] = scratch.dot(choosing, values)
    others = {}
    for name, rows in asked.references.items():
        other = _formed(f"reference {name}", rows, scratch)
        others[name] = distribution(f"reference {name}", other, other.amax(1), scratch)
        columns[f"logp:{name}"] = _at(others[name].log_p, asked.items)
        if asked.open_items is not None:
            columns[f"logp_open:{name}"] = _at(among_open(others[name].log_p, asked.open_items), asked.items)
        columns[f"js:{name}"], columns[f"kl:{name}"] = divergence(policy, others[name], scratch)
    for p, q in combinations(others if asked.floor else (), 2):
        columns[f"js:{p}|{q}"], columns[f"kl:{p}|{q}"] = divergence(others[p], others[q], scratch)
    return columns


def _formed(name: str, rows: Logits, scratch: Scratch) -> Tensor:
    like = rows.hidden if isinstance(rows, LinearLogits) else rows.chunk(0, 0)
    formed = rows.chunk(0, rows.shape[1], out=scratch.block(f"scores:{name}", *rows.shape, like))
    return formed.float() if formed.dtype.itemsize < 4 else formed


def _at(formed: Tensor, items: Tensor) -> Tensor:
    return formed.gather(1, items[:, None]).squeeze(1)


def pairs_of(names: Sequence[str]) -> list[str]:
    """Names under which `catalogue_statistics` returns the divergences between references."""
    return [f"{p}|{q}" for p, q in combinations(names, 2)]
