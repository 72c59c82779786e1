"""Items in one order for everybody: by popularity, mean reward, price, or recent answers.

An order is a policy once it has probabilities. The shares of popularity are permuted into that order: the first item
has the share of the most popular one. So likelihood, divergence and value are as spread as popularity's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.data.column_names import MONEY, plain
from localpolicy.data.item_features import kinds_of
from localpolicy.data.reward_kind import reward_kind, reward_ranges
from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.limits import SMOOTHING
from localpolicy.logits import Logits
from localpolicy.model.counts import events_but, popularity
from localpolicy.model.deployable import Origin
from localpolicy.types import Batch

DAMPING = 5.0  # rewards at the mean of all, which each item has in addition to its own: as in LensKit's Bias
LATELY = 0.1  # share of the log's time after which an answer counts e times less


@dataclass(frozen=True)
class ItemOrder:
    """Base of policies that ignore the history: popularity's shares, the largest for the item of the highest score."""

    share: Tensor  # [V]
    origin: Origin
    items: pa.Table
    name: ClassVar[str]

    @classmethod
    def scores(cls, data: Prepared) -> np.ndarray | None:
        """Scores that order the items, [V]; None for popularity itself."""
        raise NotImplementedError

    @classmethod
    def lacks(cls, data: Prepared) -> str | None:
        """Reason why the log gives no such order, or None if it does."""
        return None

    @classmethod
    def fit(cls, data: Prepared) -> Self:
        """Build the policy from the popularity and the `scores` of the items in the training split."""
        share, scores = popularity(data), cls.scores(data)
        if scores is not None:
            share = permuted_shares(share, scores)
        return cls(share, Origin(cls.name, data.kind, data.events, None), data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """log share of each item, whatever the history."""
        return SparseLogits.constant(self.share.log(), batch)


def permuted_shares(share: Tensor, scores: np.ndarray) -> Tensor:
    """The shares permuted into the order of the scores; of equal scores the more popular item first."""
    popular = share.numpy()
    order = np.lexsort((-popular, -scores))
    permuted = np.empty_like(popular)
    permuted[order] = np.sort(popular)[::-1]
    return torch.from_numpy(permuted)


class Popularity(ItemOrder):
    """The most popular items first."""

    name = "popularity"

    @classmethod
    def scores(cls, data: Prepared) -> None:
        """None: the order is that of popularity."""
        return None


class ItemMean(ItemOrder):
    """(Σ r + κ r̄) / (n + κ): items by their mean reward, few rewards shrunk towards the mean of all."""

    name = "item mean"

    @classmethod
    def scores(cls, data: Prepared) -> np.ndarray:
        """(Σ r + κ r̄) / (n + κ) over all rows that the deployed policy chose: [V]."""
        arrays = data["train"].arrays
        chosen = np.isin(arrays["event"], events_but(data, CONTEXT))
        item, reward = arrays["item"][chosen], arrays["reward"][chosen].astype(np.float64)
        count = np.bincount(item, minlength=data.n_items)
        total = np.bincount(item, weights=reward, minlength=data.n_items)
        return np.asarray((total + DAMPING * reward.mean()) / (count + DAMPING))

    @classmethod
    def lacks(cls, data: Prepared) -> str | None:
        """Reason "all rewards are equal" if they are, else None."""
        values = {value for span in reward_ranges(data).values() for value in span}
        return None if len(values) > 1 else "all rewards are equal"


class Dearest(ItemOrder):
    """Items by their price: a column of the item table, or the average reward of a sale of them."""

    name = "dearest"

    @classmethod
    def scores(cls, data: Prepared) -> np.ndarray:
        """Price of each item [V]; -inf without one, so that it comes last."""
        column = price_column(data)
        if column is not None:
            prices = pc.cast(data.catalogue[column], pa.float64()).to_numpy(zero_copy_only=False)
            return np.asarray(np.where(np.isnan(prices), -np.inf, prices))
        arrays = data["train"].arrays
        sold = np.isin(arrays["event"], events_but(data, CONTEXT, NO_ANSWER)) & (arrays["reward"] > 0)
        item, reward = arrays["item"][sold], arrays["reward"][sold].astype(np.float64)
        count = np.bincount(item, minlength=data.n_items)
        total = np.bincount(item, weights=reward, minlength=data.n_items)
        return np.asarray(np.where(count > 0, total / np.maximum(count, 1), -np.inf))

    @classmethod
    def lacks(cls, data: Prepared) -> str | None:
        """Reason why the log has no prices, or None if it has."""
        kind = reward_kind(data)
        if price_column(data) is not None or (kind is not None and kind.kind == "amount"):
            return None
        return "no column of the item table is called a price, and rewards are no amounts"


class MostRecent(ItemOrder):
    """Σ e^{-(t_end - t)/τ} + ½: recent answers count most; τ is a tenth of the log's time.

    As in Ji et al. 2020, "A re-visit of the popularity baseline".
    """

    name = "most recent"

    @classmethod
    def scores(cls, data: Prepared) -> np.ndarray:
        """Σ e^{-(t_end - t)/τ} + ½ over each item's answers: [V]."""
        arrays = data["train"].arrays
        wanted = np.isin(arrays["event"], events_but(data, CONTEXT, NO_ANSWER))
        time = arrays["time"][wanted].astype(np.float64)
        since = (time.max() - time) / (LATELY * (time.max() - time.min()))
        taken = np.bincount(arrays["item"][wanted], weights=np.exp(-since), minlength=data.n_items)
        return np.asarray(taken + SMOOTHING)

    @classmethod
    def lacks(cls, data: Prepared) -> str | None:
        """Reason "the log has no times" if it has none or all are equal, else None."""
        time = data["train"].arrays.get("time")
        return None if time is not None and np.ptp(time) > 0 else "the log has no times"


def price_column(data: Prepared) -> str | None:
    """Name of the item table's column that holds prices, recognised by its name; None without one."""
    names = [name for name, kind in kinds_of(data.catalogue).items() if kind == "number"]
    return next((name for name in names if any(part in plain(name) for part in MONEY[-1])), None)
