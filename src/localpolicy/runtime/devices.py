"""Devices by name."""

from __future__ import annotations

import re

import torch

from localpolicy.errors import ConfigError


def device_called(name: str) -> str:
    """The device that `auto` stands for, or the one named, where torch has it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device: expected cpu, cuda, cuda:N or auto, got '{name}'.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device: '{name}' asked for, but torch sees no CUDA device; use cpu.")
    if (torch.device(name).index or 0) >= max(torch.cuda.device_count(), 1):
        raise ConfigError(f"device: '{name}' asked for, but torch sees {torch.cuda.device_count()}, counted from 0.")
    return name
