"""Chunks are kept for the backward pass, and only if there will be one."""

from __future__ import annotations

import torch

from localpolicy.catalogue.chunks import ChunkedSoftmax
from localpolicy.logits import Head, LinearLogits


def test_chunks_are_kept_only_for_a_gradient():
    head = Head(torch.randn(7, 4, requires_grad=True), torch.zeros(7, requires_grad=True))
    rows, items = LinearLogits(torch.randn(3, 4, requires_grad=True), head), torch.tensor([0, 3, 6])
    for wanted in (True, False):
        with torch.set_grad_enabled(wanted):
            softmax = ChunkedSoftmax()
        with torch.no_grad():  # as within an autograd function
            softmax.sums(rows, items, None, (True, True, True))
        assert (softmax.kept is not None) == wanted
