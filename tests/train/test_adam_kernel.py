"""The optimiser's kernel on a CPU, through Triton's interpreter. On a GPU: tests/gpu/test_captured_cuda.py."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from fused_checks import check_adam

from localpolicy.training import adam

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu covers the kernels where there is a device"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # in older interpreters
]


@pytest.mark.parametrize("large", [4000, 1 << 30], ids=["our kernel", "torch's"])
def test_parameters_move_as_adamw_moves_them(large, monkeypatch):
    monkeypatch.setattr(adam, "LARGE", large)
    check_adam("cpu")
