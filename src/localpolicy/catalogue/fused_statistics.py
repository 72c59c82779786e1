"""Columns of `statistics` from fused tiles, for logits that need not be formed as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from localpolicy.catalogue import fused
from localpolicy.catalogue.chunked import divergences
from localpolicy.catalogue.masked import MaskedLogits
from localpolicy.catalogue.ties import tie_bounds
from localpolicy.logits import LinearLogits, Logits


def serves(*every: Logits | None) -> bool:
    """Whether the kernels support all of these logits."""
    return all(logits is None or fused.evaluates(logits) for logits in every)


@torch.no_grad()
def fused_statistics(
    rows: LinearLogits,
    items: Tensor,
    *,
    references: Mapping[str, LinearLogits],
    values: LinearLogits | None = None,
    excluded: tuple[Tensor, Tensor] | None = None,
    seen: tuple[Tensor, Tensor] | None = None,
    lists: int = 1,
    floor: bool = True,
) -> dict[str, Tensor]:
    """Columns of `catalogue_statistics`, if all items are open."""
    from localpolicy.kernels.ranking import ranked

    own = fused.at(rows, items)
    above, tied, best, normaliser, mean = ranked(
        rows, items, tie_bounds(rows, own), everything=True, precision=fused.EXACT
    )
    assert best is not None and normaliser is not None and mean is not None
    shown = best[:, None]
    columns = {}
    if seen is not None:
        among, ties = _among_allowed(rows, items, own, above, tied, seen)
        columns = {"rank_unseen": 1 + among + ties / 2, "tied_unseen": ties}
    if excluded is not None:
        above, tied = _among_allowed(rows, items, own, above, tied, excluded)
    if lists > 1 or excluded is not None:
        _, shown = fused.top(rows if excluded is None else MaskedLogits(rows, *excluded), lists)
    columns |= {
        "rank": 1 + above + tied / 2,
        "tied": tied,
        "top": shown[:, 0],
        "lists": shown,
        "logp": own - normaliser,
        "entropy": normaliser - mean,
    }
    if values is not None:
        expected = fused.sums(rows, values).mean
        assert expected is not None
        columns |= {"value_taken": values.at(items), "value_expected": expected}
    normalisers = {"": normaliser}
    for name, reference in references.items():
        normalisers[name] = fused.logsumexp(reference)
        columns[f"logp:{name}"] = fused.at(reference, items) - normalisers[name]
    logits = {"": rows, **references}
    pairs = [("", name) for name in references] + list(combinations(references if floor else (), 2))
    for p, q in pairs:
        js, kl = divergences(fused.divergence_sums(logits[p], logits[q], normalisers[p], normalisers[q]))
        label = q if p == "" else f"{p}|{q}"
        columns |= {f"js:{label}": js, f"kl:{label}": kl}
    return columns


def _among_allowed(
    rows: LinearLogits, items: Tensor, own: Tensor, above: Tensor, tied: Tensor, excluded: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Counts of `ranked` if excluded items come last, tied with each other."""
    catalogue = rows.shape[1]
    pair = (excluded[0] * catalogue + excluded[1]).unique()  # an item that was seen twice is excluded once
    row, item = pair // catalogue, pair % catalogue
    score = fused.at(LinearLogits(rows.hidden[row], rows.head), item)

    def count(which: Tensor) -> Tensor:
        return torch.zeros_like(above).index_add_(0, row, which.to(above.dtype))

    itself = item == items[row]
    many, last = count(torch.ones_like(itself)), count(itself).bool()
    low, high = (bound[row] for bound in tie_bounds(rows, own))
    higher = (score > high) & ~itself
    above = above - count(higher)
    tied = tied - count((score >= low) & ~higher & ~itself)
    return torch.where(last, catalogue - many, above), torch.where(last, many - 1, tied)
