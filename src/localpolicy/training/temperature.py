"""The temperature at which a policy's held-out likelihood is largest (Guo et al. 2017), folded into its weights.

A network becomes overconfident long before its ranking stops to improve. One number, by which all logits are
multiplied, corrects much of that and leaves every ranking as it is. Departures: the number is sought by bisection (the
likelihood is concave in it), on the first held-out positions alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from localpolicy.catalogue.open_items import OpenItems
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.logits import Logits
from localpolicy.model.network import Network
from localpolicy.runtime.ranks import Ranks
from localpolicy.types import Batch

POSITIONS = 2_000  # held-out positions that the temperature is fitted to
LOWEST, HIGHEST = 1 / 16, 4.0  # range of the inverse temperature
STEPS = 12  # halvings of its logarithm: to 0.1 %


class _Held(NamedTuple):
    """Hidden states and taken items of some held-out positions."""

    hidden: Tensor  # [N, D]
    items: Tensor  # [N]
    open_items: OpenItems | None  # items that the likelihood is among


@torch.no_grad()
def sharpness(
    network: Network, windows: Windows, data: Prepared, catalogue: ModuleType, *, batch_size: int, ranks: Ranks
) -> float:
    """argmax over s of the mean of log softmax(s z)_a over held-out positions whose item the training split shows."""
    parts, count = [], 0.0
    for batch in windows.in_order(batch_size, rank=ranks.rank, ranks=ranks.total):
        parts.append(_known(network, batch, data))
        count += ranks.summed(len(parts[-1].items))[0]
        if count >= POSITIONS:
            break
    if not count:
        return 1.0
    plain = [_scaled(network, part.hidden, 1.0) for part in parts]
    taken = sum(float(rows.at(part.items).double().sum()) for rows, part in zip(plain, parts, strict=True))

    def rises(s: float) -> bool:
        """Whether d/ds Σ log softmax(s z)_a = Σ (z_a − Σ_b softmax(s z)_b z_b) > 0."""
        expected = sum(
            float(catalogue.mean(_scaled(network, part.hidden, s), rows, part.open_items).double().sum())
            for rows, part in zip(plain, parts, strict=True)
        )
        return ranks.summed(taken - expected)[0] > 0

    low, high = math.log(LOWEST), math.log(HIGHEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(math.exp(middle)) else (low, middle)
    return math.exp((low + high) / 2)


def _known(network: Network, batch: Batch, data: Prepared) -> _Held:
    known = torch.from_numpy(data.known_items).to(batch.item.device)
    before = batch.history if batch.context is None else batch.history[batch.context]
    at = batch.scored[(before[batch.scored] > 0) & known[batch.item[batch.scored]]]
    return _Held(network.hidden_without_dropout(batch)[at], batch.item[at], OpenItems.of(replace(batch, scored=at)))


def _scaled(network: Network, hidden: Tensor, s: float) -> Logits:
    head = network.head("policy")
    assert head.bias is not None
    return head.replaced(head.weight, head.bias * s).logits(hidden * s)


def scales(network: Network) -> list[Tensor] | None:
    """Parameters that logits are linear in, but for the item embeddings: the final norm and biases. None: unknown."""
    norm = getattr(network.backbone, "norm", None)
    if network.own_backbone or list(network.heads) != ["policy"] or not isinstance(norm, nn.LayerNorm):
        return None
    head = network.heads["policy"]
    biases = [head.bias] if network.features is None else [head.bias, head.features]
    return [norm.weight, norm.bias, *biases]  # type: ignore[list-item]


@contextmanager
def sharpened(network: Network, s: float) -> Iterator[None]:
    """Context manager: multiply the policy's logits by s; restore the weights on exit."""
    parameters = scales(network)
    assert parameters is not None
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(s)
        try:
            yield
        finally:
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
