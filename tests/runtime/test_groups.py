"""A group of processes ends with its block."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from several_processes import in_processes

pytestmark = pytest.mark.cluster


def builds_an_optimiser(ranks):
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    import torch.distributed.nn.functional as collectives

    kept = [value for value in collectives.all_reduce.__defaults__ if isinstance(value, dist.ProcessGroup)]
    assert not kept, "a group that a default argument keeps has threads that live into the interpreter's exit"


def test_the_group_ends_with_its_block():
    in_processes(2, builds_an_optimiser, fresh=True)  # what is imported when is the point
