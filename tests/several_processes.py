"""Run a function in several processes that form a group."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from localpolicy.runtime.ranks import Ranks


def in_processes(total, function, *arguments):
    """`function(ranks, *arguments)` in each of `total` processes; one that fails fails the test."""
    torch.multiprocessing.spawn(_join, (total, _free_port(), function, arguments), nprocs=total)


def _join(rank, total, port, function, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(total), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    try:
        function(Ranks(rank, total), *arguments)
    finally:
        dist.destroy_process_group()


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
