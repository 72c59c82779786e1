"""The k largest of long rows, found through the maxima of groups of their columns.

The k-th largest of the groups' maxima is a border: k numbers reach it, so the k largest do. Few others do, and all of
them lie in groups whose maximum reaches it. So one pass takes maxima, which is as fast as memory, and what is sorted
are a few dozen numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GROUP = 10  # columns of a group
WORTH = 4  # groups per requested number: below that the whole row is sorted as fast


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row [N, V] and their columns, in falling order, like `scores.topk(k)`."""
    rows, columns = scores.shape
    groups = columns // GROUP
    if groups < WORTH * k or scores.is_cuda:
        return scores.topk(k, dim=1)
    fine = coarse = _maxima(scores, groups)
    while coarse.shape[1] >= GROUP * WORTH * k:
        coarse = _maxima(coarse, coarse.shape[1] // GROUP)
    border = np.partition(coarse.numpy(), -k, axis=1)[:, -k, None]
    row, group = np.divmod(np.flatnonzero(fine.numpy() >= border), groups)
    members = group[:, None] + np.arange(0, columns, groups)
    value = scores.numpy().reshape(-1).take(row[:, None] * columns + members, mode="clip")
    reach = np.flatnonzero((value >= border[row]) & (members < columns))
    row, column, value = row[reach // members.shape[1]], members.take(reach), value.take(reach)
    count = np.bincount(row, minlength=rows)
    if count.min() < k or count.max() > WORTH * k:  # NaN reaches no border; many equal numbers do
        return scores.topk(k, dim=1)
    side_by_side = np.arange(count.max()) < count[:, None]
    found, where = np.full(side_by_side.shape, -np.inf, value.dtype), np.zeros(side_by_side.shape, np.int64)
    found[side_by_side], where[side_by_side] = value, column
    best, order = torch.from_numpy(found).topk(k, dim=1)
    return best, torch.from_numpy(where).gather(1, order)


def _maxima(scores: Tensor, groups: int) -> Tensor:
    """Maxima of column groups: group g holds columns g, g + groups, g + 2 groups, … (as rows of a matrix)."""
    whole = scores.shape[1] // groups * groups
    maxima: Tensor = scores[:, :whole].unflatten(1, (-1, groups)).amax(1)
    rest = scores[:, whole:]
    torch.maximum(maxima[:, : rest.shape[1]], rest, out=maxima[:, : rest.shape[1]])
    return maxima
