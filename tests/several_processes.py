"""Run a function in several processes that form a group."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from localpolicy.runtime.ranks import joined


def in_processes(total, function, *arguments):
    """`function(ranks, *arguments)` in each of `total` processes; one that fails fails the test."""
    # As under torchrun, the processes meet in a store that was there before: nobody can take its port meanwhile.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(_join, (total, store.port, function, arguments), nprocs=total)


def _join(rank, total, port, function, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(total), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    torch.set_num_threads(1)
    with joined() as ranks:
        function(ranks, *arguments)
