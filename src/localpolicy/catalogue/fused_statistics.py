"""All that evaluation asks, from fused tiles: the columns of `statistics` where whole logits need not be formed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from localpolicy.catalogue import fused
from localpolicy.catalogue.chunked import divergences
from localpolicy.catalogue.logits import LinearLogits, Logits


def serves(*every: Logits | None) -> bool:
    """Whether the kernels know all of these logits."""
    return all(logits is None or fused.evaluates(logits) for logits in every)


@torch.no_grad()
def fused_statistics(
    rows: LinearLogits,
    items: Tensor,
    *,
    references: Mapping[str, LinearLogits],
    values: LinearLogits | None = None,
    floor: bool = True,
) -> dict[str, Tensor]:
    """What `catalogue_statistics` gives for lists of one and nothing excluded."""
    from localpolicy.catalogue.kernels.ranking import ranked

    own = fused.at(rows, items)
    above, tied, best, normaliser, mean = ranked(rows, items, own, everything=True, precision=fused.EXACT)
    assert best is not None and normaliser is not None and mean is not None
    columns = {
        "rank": 1 + above + tied / 2,
        "top": best,
        "lists": best[:, None],
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
