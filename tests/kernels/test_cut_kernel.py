"""The kernel that cuts a batch gives the batch of plain operations. On a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreter import either

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.buckets import Planner
from localpolicy.model.backbones.layout import Layout

pytestmark = either


@pytest.mark.parametrize("size", [16, 300])
@pytest.mark.parametrize("length", [3, 20])
def test_the_kernel_cuts_what_plain_operations_cut(small, length, size):
    from localpolicy.kernels.cut import cut

    device = "cuda" if torch.cuda.is_available() else "cpu"
    windows = Windows(small, "train", WindowConfig(length=length), device=device)
    planner = Planner(windows, size)
    for planned in planner.epoch(seed=0, epoch=0):
        spare = planner.cut(planned.sequences, planned.bucket).block[0] - size
        found = cut(
            planned.sequences, windows.offsets, windows.arrays, planned.bucket.tokens, length=length, spare=spare
        )
        expected = planner._cut(planned.sequences, planned.bucket)
        layout = Layout(expected["row"], expected["column"], size + spare, length)
        expected["first"], expected["stop"] = layout.bounds
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert torch.equal(found[name], values), name
