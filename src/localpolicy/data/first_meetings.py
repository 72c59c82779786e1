"""First meetings: in a log of actions, the rows at which a sequence takes an item for the first time.

Who buys what they have just viewed does so whatever is shown: the purchase is a result of the view. So the choices of a
log of actions are its first meetings, each credited with the rewards of its item per meeting: all rewards that it ever
earned, over the number of times it was met (a row of the first one's kind is a meeting). So a purchase after a second
view is credited too, and popular items, which are met more often, are no better for that. Moving rewards to the row
that caused them is the idea of RUDDER (Arjona-Medina et al. 2019), which learns where they belong; here the item
identifies the row.

The reward of showing an item again is not in such a log. A critic that learns nothing of repeats credits them as if the
item were new; so they are credited with the mean of all first meetings: no reason to show again, or not to.
"""

from __future__ import annotations

import torch
from torch import Tensor


def met_before(sequence: Tensor, item: Tensor) -> Tensor:
    """Whether each row's item came earlier in its sequence: [E]."""
    key = sequence * (int(item.max()) + 1 if len(item) else 1) + item.long()
    order = torch.argsort(key, stable=True)
    again = torch.zeros_like(key, dtype=torch.bool)
    again[order[1:]] = key[order[1:]] == key[order[:-1]]
    return again


def earned_by_meeting(sequence: Tensor, item: Tensor, event: Tensor, reward: Tensor) -> Tensor:
    """Rewards of a sequence with an item per row of the first one's event: [E], at all rows."""
    if not len(item):
        return reward.double()
    key = sequence * (int(item.max()) + 1) + item.long()
    pair = torch.unique(key, return_inverse=True)[1]
    order = torch.argsort(pair, stable=True)
    group, kind = pair[order], event[order]
    begins = torch.ones_like(group, dtype=torch.bool)
    begins[1:] = group[1:] != group[:-1]
    first = begins.nonzero().squeeze(1)
    met = torch.bincount(group[kind == kind[first][group]], minlength=len(first))
    earned = torch.zeros(len(first), dtype=torch.float64, device=item.device)
    earned.index_add_(0, group, reward[order].double())
    return (earned / met)[pair]
