"""The k largest of long rows, found through the maxima of groups of their columns.

The k largest numbers of a row lie in the k groups whose maxima are largest: a number outside them is at most each of
those k maxima. These groups are found in the same way, among the maxima. So one pass takes maxima, which is as fast as
memory, and what is sorted are a few hundred numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 10  # columns of a group
WORTH = 4  # groups per number asked for: below that the whole row is sorted as fast


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row [N, V] and their columns, in falling order, as `scores.topk(k)`."""
    rows, columns = scores.shape
    groups = columns // GROUP
    if groups < WORTH * k or scores.is_cuda:
        return scores.topk(k, dim=1)
    # Group g holds columns g, g + groups, g + 2 groups, …: maxima are then taken over rows of a matrix, side by side.
    whole = scores[:, : groups * GROUP].unflatten(1, (GROUP, groups))
    best = largest(whole.amax(1), k)[1]
    members = best[:, None, :] + torch.arange(0, groups * GROUP, groups, device=scores.device)[None, :, None]
    rest = torch.arange(groups * GROUP, columns, device=scores.device).expand(rows, -1)
    candidates = torch.cat([members.flatten(1), rest], dim=1)
    value, chosen = scores.gather(1, candidates).topk(k, dim=1)
    return value, candidates.gather(1, chosen)
