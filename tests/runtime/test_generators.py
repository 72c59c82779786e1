"""Random numbers are seeded as torch seeds them, without the other work of torch's own function."""

from __future__ import annotations

import traceback

import torch

from localpolicy.runtime.devices import seed_generators


def test_numbers_are_those_of_torchs_own_seed():
    torch.manual_seed(2**40 + 7)
    expected = torch.rand(5), torch.randperm(9)
    seed_generators(2**40 + 7, "cpu")
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip((torch.rand(5), torch.randperm(9)), expected, strict=True)
    )
    seed_generators(8, "cpu")
    assert not torch.equal(torch.rand(5), expected[0])


def test_nobody_writes_down_the_call_stack(monkeypatch):
    def asked(*given, **more):
        raise AssertionError("a call stack is formatted at every step")

    monkeypatch.setattr(traceback, "format_stack", asked)
    seed_generators(1, "cpu")
