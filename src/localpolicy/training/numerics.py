"""How exact the arithmetic is: which precision the forward pass has, and whether equal runs must be equal on a GPU."""

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
    """Raise where the device cannot do what is asked. `config.device` is resolved."""
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
    """The type of the forward pass where it is not the weights'."""
    return torch.bfloat16 if config.precision == "bf16" else None


_wanted = 0  # open blocks of `deterministic`
_before = (False, False, False)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Operations that could give another result next time raise; what was set before is set again afterwards.

    Blocks may be nested or overlap: the last one to end sets it back.
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
    """Float32 products of the backbone on the GPU's matrix units, as the fused kernels' are; as before afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
