"""The optimiser's kernel on a CPU, through Triton's interpreter. On a GPU: tests/gpu/test_captured_cuda.py."""

from __future__ import annotations

import pytest
from fused_checks import check_adam
from interpreter import interpreted

from localpolicy.training import adam

pytestmark = interpreted


@pytest.mark.parametrize("large", [4000, 1 << 30], ids=["our kernel", "torch's"])
def test_parameters_move_as_adamw_moves_them(large, monkeypatch):
    monkeypatch.setattr(adam, "LARGE", large)
    check_adam("cpu")
