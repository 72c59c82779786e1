"""Numerics: precision of the forward pass, and deterministic operations on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from localpolicy.errors import ConfigError
from localpolicy.runs.config import TrainConfig

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")  # with others cuBLAS may sum in another order each time


def check_numerics(config: TrainConfig) -> None:
    """Raise ConfigError if the device does not support the settings. `config.device` is resolved."""
    on_gpu = config.device.startswith("cuda")
    if config.precision == "bf16" and config.shard_catalogue:
        raise ConfigError("train.precision: bf16 and --shard-catalogue do not go together; use float32.")
    if config.precision == "bf16" and not on_gpu:
        # Not only slow: on some processors bf16 matrix products end the process with an illegal instruction.
        raise ConfigError(
            f"train.precision: bf16 needs a CUDA device, and this run is on {config.device}; use float32."
        )
    if config.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(f"train.precision: {torch.cuda.get_device_name()} has no bf16; use float32.")
    if config.deterministic and on_gpu and os.environ.get(WORKSPACE) not in WORKSPACES:
        raise ConfigError(
            f"train.deterministic: on CUDA it needs {WORKSPACE}={WORKSPACES[0]} (or {WORKSPACES[1]}) in the "
            f"environment before the program starts, found {os.environ.get(WORKSPACE)!r}."
        )


def half(config: TrainConfig) -> torch.dtype | None:
    """Type of the forward pass if it differs from the weights', else None."""
    return torch.bfloat16 if config.precision == "bf16" else None


_wanted = 0  # open blocks of `deterministic`
_before = (False, False, False)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Context manager: operations with a result that may vary raise; earlier settings are restored afterwards.

    Blocks may be nested or overlap: the last one to end restores them.
    """
    global _wanted, _before
    if not wanted:
        yield
        return
    if not _wanted:
        _before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.benchmark,
        )
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False  # it picks the fastest algorithm, which may differ from run to run
    _wanted += 1
    try:
        yield
    finally:
        _wanted -= 1
        if not _wanted:
            torch.use_deterministic_algorithms(_before[0], warn_only=_before[1])
            torch.backends.cudnn.benchmark = _before[2]


@contextmanager
def tf32_products() -> Iterator[None]:
    """Context manager: float32 products of the backbone use the GPU's matrix units, like the fused kernels."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
