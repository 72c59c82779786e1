"""Lists from logits: the k best, or k drawn one after another without replacement.

Adding Gumbel noise to log-probabilities and taking the k largest is the same as drawing k items one after another from
the remaining ones (Yellott 1977; Vieira 2014), so a draw costs one pass over the catalogue. The propensity of place j
is then π(a_j) / (1 - Σ_{i<j} π(a_i)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.catalogue.blocks import part_of
from localpolicy.catalogue.capped import is_sharded
from localpolicy.catalogue.chunks import LN2, like_of, scratch, summing_type, to_log2
from localpolicy.catalogue.largest import largest
from localpolicy.catalogue.masked import MaskedLogits, changeable
from localpolicy.data.item_features import kinds_of
from localpolicy.errors import DataError
from localpolicy.logits import Logits
from localpolicy.results import Result

PLAIN = 64  # 2^score up to which (and down to which) sums over a catalogue are as exact as those of shifted scores
SHOWN = 3  # items of a list in a summary
CACHED = 128  # rows that are scored together
AT_ONCE = 1 << 23  # scores (32 MiB) up to which the best are taken from one matrix, formed once: twice as fast


@dataclass(frozen=True, repr=False)
class Lists(Result):
    """Lists for B histories, with their probabilities."""

    items: list[list[Any]]  # item ids, best or first drawn first
    indices: Tensor  # [B, K] the items' indices
    log_probability: Tensor  # [B, K] log π(a|x), over what may be shown
    propensity: Tensor | None  # [B, K] sequential propensity; None where the list was not drawn
    ids: list[Any] | None = None  # sequence id of each list, if histories came as a frame
    names: list[list[str]] | None = None  # names of the items, if the item table has them

    def summary(self) -> str:
        """Number and length of the lists, and the first items of the first list."""
        called = self.items if self.names is None else self.names
        first = ", ".join(str(item) for item in called[0][:SHOWN]) if self.items else ""
        more = ", …" if self.items and len(self.items[0]) > SHOWN else ""
        return f"{len(self.items)} of {self.indices.shape[1]} items; the first: {first}{more}"

    def to_arrow(self) -> pa.Table:
        """One row per history and place: the item, its probability and, if it was drawn, its propensity."""
        histories, places = self.indices.shape
        whose: dict[str, Any] = {"history": range(histories)} if self.ids is None else {"sequence_id": self.ids}
        columns: dict[str, Any] = {
            **{name: [value for value in values for _ in range(places)] for name, values in whose.items()},
            "place": [place for _ in range(histories) for place in range(1, places + 1)],
            "item": [item for items in self.items for item in items],
            **({} if self.names is None else {"name": [name for names in self.names for name in names]}),
            "probability": self.log_probability.double().exp().flatten().tolist(),
        }
        if self.propensity is not None:
            columns["propensity"] = self.propensity.flatten().tolist()
        return pa.table(columns)

    def to_dict(self) -> dict[str, Any]:
        """Items of each list with their probabilities, and propensities if they were drawn."""
        propensity = None if self.propensity is None else self.propensity.tolist()
        named = {} if self.names is None else {"names": self.names}
        probability = self.log_probability.exp().tolist()
        return {"items": self.items, **named, "probability": probability, "propensity": propensity}


def name_column(items: pa.Table) -> str | None:
    """The item table's first column that holds names, or None."""
    return next((name for name, kind in kinds_of(items).items() if kind == "name"), None)


def names_of(items: pa.Table, at: Sequence[int] | None = None) -> list[str] | None:
    """Names of the items (or of those at the indices `at`), by the first column of names; None without one.

    An item without a name is called by its id.
    """
    column = name_column(items)
    if column is None:
        return None
    named = items.select([column, "item_id"])
    named = named if at is None else named.take(pa.array(at, pa.int64()))
    pairs = zip(named[column].to_pylist(), named["item_id"].to_pylist(), strict=True)
    return [str(item) if name is None else name for name, item in pairs]


def with_names(lists: Lists, items: pa.Table) -> Lists:
    """The lists with the names of their items, if the item table has them."""
    if name_column(items) is None:
        return lists
    names, k = names_of(items, lists.indices.flatten().tolist()), lists.indices.shape[1]
    assert names is not None
    return replace(lists, names=[names[start : start + k] for start in range(0, len(names), k)])


def together(parts: Sequence[Lists], ids: list[Any] | None = None) -> Lists:
    """Lists of several blocks as one object."""
    if not parts:
        nothing = torch.zeros(0, 0)
        return Lists([], nothing.long(), nothing, None)
    propensity = [part.propensity for part in parts if part.propensity is not None]
    named = [names for part in parts if part.names is not None for names in part.names]
    return Lists(
        [items for part in parts for items in part.items],
        torch.cat([part.indices for part in parts]),
        torch.cat([part.log_probability for part in parts]),
        torch.cat(propensity) if propensity else None,
        ids,
        named or None,
    )


class Perturbed:
    """Logits plus independent Gumbel noise: -log(-log u)."""

    def __init__(self, rows: Logits, generator: torch.Generator | None) -> None:
        self.rows = rows
        self.generator = generator

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.rows.shape

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Perturbed logits of items start:stop: [N, stop - start]."""
        chunk = changeable(self.rows.chunk(start, stop, out=out), out)
        # Exponential noise is -log u; float32 would round a uniform number to 0 or 1 too often.
        noise = torch.empty(chunk.shape, dtype=torch.float64).exponential_(generator=self.generator)
        return chunk.sub_(noise.log_().to(chunk))

    def at(self, items: Tensor) -> Tensor:
        """Not supported: every chunk draws new noise."""
        raise NotImplementedError


def _best(rows: Logits, k: int, forbidden: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The k best items of each row, and their log-probabilities; a few rows at a time stay in the cache."""
    bits, factor = to_log2(rows)
    parts = []
    for start in range(0, rows.shape[0], CACHED):
        stop = min(rows.shape[0], start + CACHED)
        part, gone = part_of(bits, start, stop), forbidden[start:stop]
        part = MaskedLogits.of_lists(part, gone) if any(gone) else part
        room = scratch(0, *part.shape, like_of(part))
        scores = changeable(part.chunk(0, part.shape[1], out=room), room).to(summing_type(room))
        best, index = largest(scores, k)
        top = best[:, :1]
        # log π(a) = s_a - log Σ e^s; with s - max s, where powers of the scores themselves might overflow, or vanish.
        if factor != 1 or top.abs().amax() > PLAIN:
            scores.sub_(top).mul_(factor)
            best = (best - top) * factor
        parts.append((index, (best - scores.exp2_().sum(1, keepdim=True).log2()) * LN2))
    index, log_probability = map(torch.cat, zip(*parts, strict=True))
    return index, log_probability


@torch.no_grad()
def draw_lists(
    rows: Logits,
    k: int,
    *,
    ids: Any,
    forbidden: Sequence[Sequence[int]],
    sample: bool,
    generator: torch.Generator | None,
    catalogue: ModuleType,
) -> Lists:
    """The k best items of each row, or k drawn without replacement."""
    left = rows.shape[1] - max((len(items) for items in forbidden), default=0)
    if not 1 <= k <= left:
        raise DataError(f"k must be between 1 and {left} (items left after exclusions), got {k}.")
    propensity = None
    if not sample and 0 < min(rows.shape[0], CACHED) * rows.shape[1] <= AT_ONCE and not is_sharded(rows):
        index, log_probability = _best(rows, k, forbidden)
    else:
        allowed: Logits = MaskedLogits.of_lists(rows, forbidden) if any(forbidden) else rows
        _, index = catalogue.top(Perturbed(allowed, generator) if sample else allowed, k)
        normaliser = catalogue.logsumexp(allowed)
        log_probability = torch.stack([rows.at(index[:, rank]) - normaliser for rank in range(k)], dim=1)
    if sample:
        # The mass left at place j is that of undrawn items plus that of places from j on. 1 - Σ π would cancel: for a
        # peaked policy nothing would seem left after the first place.
        share = log_probability.double().exp()
        drawn = [[*gone, *taken] for gone, taken in zip(forbidden, index.tolist(), strict=True)]
        undrawn = (catalogue.logsumexp(MaskedLogits.of_lists(rows, drawn)) - normaliser).double().exp()
        propensity = share / (undrawn[:, None] + share.flip(1).cumsum(1).flip(1))
    flat = ids.take(pa.array(index.flatten().cpu().numpy())).to_pylist()
    items = [flat[start : start + k] for start in range(0, len(flat), k)]
    return Lists(items, index, log_probability, propensity)
