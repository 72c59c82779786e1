"""Logarithmic smoothing on an enumerable bandit: a lower bound of J with its own true gradient, and J in the limit."""

from __future__ import annotations

import pytest
import torch
from tabular import bandit, draws, formula

WORLD = bandit()


def bound(logits, smoothing):
    """E_μ[log(1 + λ ρ r)] / λ."""
    ratio = torch.softmax(logits, 1) / WORLD.mu
    return (WORLD.d[:, None] * WORLD.mu * torch.log1p(smoothing * ratio * WORLD.r)).sum() / smoothing


@pytest.mark.parametrize("smoothing", [0.01, 0.3, 5.0])
def test_its_gradient_is_that_of_the_bound(smoothing):
    logits = draws(*WORLD.r.shape, seed=7).requires_grad_()
    readout = WORLD.readout(logits, logp_logging=WORLD.mu.log())
    terms = formula("log_smoothing", readout, smoothing=smoothing)
    (found,) = torch.autograd.grad(-WORLD.expected(terms.losses["policy"]), logits)
    (expected,) = torch.autograd.grad(bound(logits, smoothing), logits)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert expected.abs().max() > 1e-3
    assert (terms.weight < 1 / smoothing).all()


def test_it_is_below_j_and_tends_to_it():
    for seed in range(5):
        logits = draws(*WORLD.r.shape, seed=seed)
        value = WORLD.J(torch.softmax(logits, 1))
        values = [bound(logits, smoothing) for smoothing in (3.0, 0.3, 1e-6)]
        assert values[0] < values[1] < values[2] <= value
        torch.testing.assert_close(values[2], value, rtol=1e-4, atol=0)
