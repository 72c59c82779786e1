"""A wish to stop reaches every open block; the last to end sets things back."""

from __future__ import annotations

import signal

import torch

from localpolicy.runtime.interrupt import stop_requested
from localpolicy.training.numerics import deterministic


def test_the_last_of_overlapping_blocks_resets_the_handlers():
    handler = signal.getsignal(signal.SIGTERM)
    blocks = [stop_requested(), stop_requested()]
    asked = [block.__enter__() for block in blocks]
    signal.raise_signal(signal.SIGTERM)
    assert [each() for each in asked] == [True, True]
    blocks[0].__exit__(None, None, None)  # the first begun ends first
    assert signal.getsignal(signal.SIGTERM) is not handler
    blocks[1].__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is handler
    with stop_requested() as again:
        assert not again(), "an older wish is forgotten"
    blocks = [deterministic(True), deterministic(True)]
    for block in blocks:
        block.__enter__()
    blocks[0].__exit__(None, None, None)
    assert torch.are_deterministic_algorithms_enabled()
    blocks[1].__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()
