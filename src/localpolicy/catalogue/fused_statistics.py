"""All that evaluation asks, from fused tiles: the columns of `statistics` where whole logits need not be formed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from localpolicy.catalogue import fused
from localpolicy.catalogue.logits import LinearLogits, Logits


def serves(*every: Logits | None) -> bool:
    """Whether the kernels know all of these logits."""
    return all(one is None or fused.evaluates(one) for one in every)


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
    from localpolicy.catalogue.kernels.divergence import divergence_sums
    from localpolicy.catalogue.kernels.largest import largest
    from localpolicy.catalogue.kernels.ranking import counts, scores_at
    from localpolicy.catalogue.kernels.softmax import softmax_sums

    exact = fused.EXACT
    own = scores_at(rows, items, precision=exact)
    above, tied = counts(rows, items, own, precision=exact)
    _, first = largest(rows, precision=exact)
    sums = softmax_sums(rows, own_values=True, precision=exact)
    assert sums.mean is not None
    found = {
        "rank": 1 + above + tied / 2,
        "top": first,
        "lists": first[:, None],
        "logp": own - sums.normaliser,
        "entropy": sums.normaliser - sums.mean,
    }
    if values is not None:
        found["value_taken"] = values.at(items)
        expected = softmax_sums(rows, values=values, precision=exact).mean
        assert expected is not None
        found["value_expected"] = expected
    normalisers = {"": sums.normaliser}
    for name, other in references.items():
        normalisers[name] = softmax_sums(other, precision=exact).normaliser
        found[f"logp:{name}"] = scores_at(other, items, precision=exact) - normalisers[name]
    every = {"": rows, **references}
    pairs = [("", name) for name in references] + list(combinations(references if floor else (), 2))
    for one, two in pairs:
        mixed, kl = divergence_sums(every[one], every[two], normalisers[one], normalisers[two], precision=exact)
        label = two if one == "" else f"{one}|{two}"
        found[f"js:{label}"], found[f"kl:{label}"] = (math.log(2) - mixed / 2).clamp_(min=0.0), kl.clamp_(min=0.0)
    return found
