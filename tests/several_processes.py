"""Run a function in several processes that form a group."""

from __future__ import annotations

import multiprocessing
import os

import torch
import torch.distributed as dist

from localpolicy.runtime.ranks import joined


def in_processes(total, function, *arguments, fresh=False):
    """`function(ranks, *arguments)` in each of `total` processes; one that fails fails the test.

    They are forked from a server that has imported what a training needs, which takes a process longer than most
    functions do. `fresh` ones begin with nothing.
    """
    # As under torchrun, the processes meet in a store that was there before: nobody can take its port meanwhile.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch._dynamo", "localpolicy.training.train"])
    torch.multiprocessing.start_processes(
        _join, (total, store.port, function, arguments), nprocs=total, start_method="spawn" if fresh else "forkserver"
    )


def _join(rank, total, port, function, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(total), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    torch.set_num_threads(1)
    with joined() as ranks:
        function(ranks, *arguments)
