"""Deferred gradients, added up at the end of a step, equal the gradients of torch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from localpolicy.logits import copies_in
from localpolicy.model.item_embeddings import begun
from localpolicy.runtime.deferred_gradients import compute_on_branch, deferred_gradients


def graded(*, later):
    """Gradients of a start token that stands at some tokens and is read twice, and of the other tokens."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, generator=generator, requires_grad=True)
    embedded = torch.randn(7, 4, generator=generator, requires_grad=True)
    begins = torch.tensor([True, False, False, True, True, False, False])
    with deferred_gradients() if later else nullcontext():
        one, two = begun(begins, start, embedded), begun(~begins, start, embedded)
        (one * torch.arange(28.0).view(7, 4) + two).sum().backward()
        assert (start.grad is None) == later
    return start.grad, embedded.grad


def test_the_start_tokens_gradient_may_be_deferred():
    for ours, theirs in zip(graded(later=True), graded(later=False), strict=True):
        assert theirs.abs().min() > 0
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("how", ["not within the block", "a result of other parameters", "frozen", "half precision"])
def test_gradients_that_cannot_be_deferred_are_returned(how):
    table = torch.ones(3, requires_grad=True)
    tables = {
        "a result of other parameters": table * 2,
        "frozen": table.detach(),
        "half precision": table.detach().half().requires_grad_(),
    }
    with nullcontext() if how == "not within the block" else deferred_gradients():
        (given,) = compute_on_branch((tables.get(how, table),), lambda: (torch.ones(3),), reads=(table,))
    assert given is not None and table.grad is None


def test_copies_of_a_table_are_gone_at_the_end_of_the_block():
    from localpolicy.logits import as_type

    table = torch.randn(3, 2)
    with copies_in(torch.bfloat16, table):
        assert as_type(table, torch.bfloat16) is as_type(table, torch.bfloat16)
    assert as_type(table, torch.bfloat16) is not as_type(table, torch.bfloat16)
