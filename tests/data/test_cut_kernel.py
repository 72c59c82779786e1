"""The kernel that cuts a batch cuts what plain operations cut. On a CPU through Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.buckets import Planner

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # in older interpreters
]


@pytest.mark.parametrize("size", [16, 300])
@pytest.mark.parametrize("length", [3, 20])
def test_the_kernel_cuts_what_plain_operations_cut(small, length, size):
    from localpolicy.data.cut_kernel import cut

    device = "cuda" if torch.cuda.is_available() else "cpu"
    windows = Windows(small, "train", WindowConfig(length=length), device=device)
    planner = Planner(windows, size)
    for planned in planner.epoch(seed=0, epoch=0):
        found = cut(planned.sequences, windows.offsets, windows.arrays, planned.bucket.tokens, length=length)
        expected = planner._cut(planned.sequences, planned.bucket)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert torch.equal(found[name], values), name
