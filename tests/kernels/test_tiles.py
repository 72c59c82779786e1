"""A device gets the largest tile that fits into its shared memory."""

from __future__ import annotations

import pytest
import torch
from interpreter import interpreted

pytestmark = interpreted


@pytest.mark.parametrize("bits", [16, 32])
def test_a_device_with_little_shared_memory_gets_the_smaller_tile(bits, monkeypatch):
    from localpolicy.kernels import tiles

    like = torch.empty(1, dtype=torch.bfloat16 if bits == 16 else torch.float32)
    measured = tiles.VALUED[bits][128]
    for memory, expected in ((227 << 10, measured), (163 << 10, measured.smaller), (99 << 10, measured.smaller)):
        monkeypatch.setattr(tiles, "shared_memory", lambda device, memory=memory: memory)
        assert tiles.tile(tiles.VALUED, 100, like, "tf32") is expected
        assert tiles.tile(tiles.SUMMED, 100, like, "tf32") is tiles.SUMMED[bits][128]  # there is one for all
