"""Cross-entropy towards a whole distribution equals its definition, values and gradients, in blocks of any size."""

from __future__ import annotations

import pytest
import torch

from localpolicy.catalogue import dense, soft_targets
from localpolicy.logits import DenseLogits, Head, LinearLogits

N, V, D = 7, 11, 3


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("cells", [1, 3 * V, 1 << 24])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_formula(cells, bias, monkeypatch):
    monkeypatch.setattr(soft_targets, "CELLS", cells)
    leaves = [draw(N, D, seed=0).requires_grad_(), draw(V, D, seed=1).requires_grad_()]
    constant = draw(V, seed=2).requires_grad_() if bias else None
    leaves += [constant] if bias else []
    target = DenseLogits(draw(N, V, seed=3))
    found = soft_targets.cross_entropy(LinearLogits(leaves[0], Head(leaves[1], constant)), target)
    logits = leaves[0] @ leaves[1].T + (constant if bias else 0.0)
    expected = -(torch.softmax(target.values, 1) * torch.log_softmax(logits, 1)).sum(1)
    torch.testing.assert_close(found, expected)
    upstream = torch.linspace(-1, 2, N, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(one @ upstream, leaves, retain_graph=True) for one in (found, expected))
    assert all(gradient.abs().max() > 0.01 for gradient in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_cross_entropy_exceeds_the_targets_entropy_by_kl():
    """H(p, q) = H(p) + KL(p‖q): the minimum over q is p itself."""
    rows, target = LinearLogits(draw(N, D, seed=0), Head(draw(V, D, seed=1))), DenseLogits(draw(N, V, seed=3))
    found = soft_targets.cross_entropy(rows, target)
    torch.testing.assert_close(found - dense.entropy(target), dense.divergence(target, rows)[1])
    torch.testing.assert_close(soft_targets.cross_entropy(rows, rows), dense.entropy(rows))
    assert soft_targets.cross_entropy(
        LinearLogits(draw(0, D, seed=0), rows.head), DenseLogits(draw(0, V, seed=1))
    ).shape == (0,)
