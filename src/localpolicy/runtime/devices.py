"""Devices by name, their random numbers and their memory."""

from __future__ import annotations

import ctypes
import gc
import re
import sys

import torch

from localpolicy.errors import ConfigError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h


def device_called(name: str) -> str:
    """Name of the device: the one that `auto` stands for, or the given one; ConfigError if torch lacks it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device: expected cpu, cuda, cuda:N or auto, got '{name}'.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device: '{name}' asked for, but torch sees no CUDA device; use cpu.")
    if (torch.device(name).index or 0) >= max(torch.cuda.device_count(), 1):
        raise ConfigError(f"device: '{name}' asked for, but torch sees {torch.cuda.device_count()}, counted from 0.")
    return name


def seed_generators(seed: int, device: str) -> None:
    """`torch.manual_seed` for the CPU and for the device in use.

    For kinds of devices that are not in use torch writes down the call stack each time, which takes longer than a step.
    """
    torch.default_generator.manual_seed(seed)
    if (named := torch.device(device)).type == "cuda":
        index = torch.cuda.current_device() if named.index is None else named.index
        torch.cuda.default_generators[index].manual_seed(seed)


def keep_freed_memory() -> None:
    """Let the C library use freed buffers again instead of requesting fresh pages from the system in every step.

    glibc maps buffers beyond a threshold on their own and unmaps them when they are freed, so the gradients of the item
    table cost a page fault for each 4 KiB and step. On other systems nothing happens.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 256 << 20)


def give_back_memory() -> None:
    """Return the allocator's unused memory to the device.

    A captured run has a pool of its own: memory that one run leaves there serves no other, and other processes on the
    device cannot have it.
    """
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
