"""One kernel for dropout, sum and norm equals the three operations. On a CPU through Triton's interpreter."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from interpreter import either
from torch import nn
from torch.nn import functional

from localpolicy.runtime.deferred_gradients import deferred_gradients

pytestmark = either

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def norm_of(width):
    norm = nn.LayerNorm(width).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(draw(width, seed=5))
        norm.bias.copy_(draw(width, seed=6))
    return norm


def gradients(outputs, upstream, leaves):
    used = [(out, up) for out, up in zip(outputs, upstream, strict=True) if up is not None]
    return torch.autograd.grad([out for out, _ in used], leaves, [up for _, up in used])


@pytest.mark.parametrize("both", [True, False], ids=["both results used", "the norm alone"])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(("n", "width"), [(1, 4), (37, 12), (50, 64)])
def test_add_and_norm_returns_the_sum_and_its_norm(n, width, adds, both):
    from localpolicy.kernels.residual import add_and_norm

    norm, seed = norm_of(width), torch.zeros(1, dtype=torch.long, device=DEVICE)
    branch, hidden = (draw(n, width, seed=number).requires_grad_() for number in (1, 2))
    leaves = [branch, norm.weight, norm.bias, *([hidden] if adds else [])]
    upstream = [draw(n, width, seed=3) if both else None, draw(n, width, seed=4)]
    found = add_and_norm(hidden if adds else None, branch, norm, seed=seed, site=2, dropout=0.0)
    summed = branch + hidden if adds else branch * 1.0
    expected = (summed, norm(summed))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients(found, upstream, leaves), gradients(expected, upstream, leaves), strict=True):
        assert theirs.abs().max() > 1e-2
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_backward_drops_what_forward_dropped_and_places_drop_differently():
    from localpolicy.kernels.residual import add_and_norm

    norm, rate = norm_of(16), 0.25
    hidden, branch = draw(200, 16).requires_grad_(), torch.ones(200, 16, device=DEVICE).requires_grad_()
    masks = []
    for number, site in ((7, 0), (7, 0), (8, 0), (7, 1)):
        seed = torch.tensor([number], device=DEVICE)
        summed, normed = add_and_norm(hidden, branch, norm, seed=seed, site=site, dropout=rate)
        masks.append((summed - hidden).detach())
        upstream = draw(200, 16, seed=3)
        for_branch, for_hidden = torch.autograd.grad([summed, normed], [branch, hidden], [upstream, upstream])
        assert for_hidden.abs().min() > 0
        torch.testing.assert_close(for_branch, for_hidden * masks[-1], rtol=1e-4, atol=1e-4)
    assert torch.equal(masks[0], masks[1])
    assert 0.3 < float((masks[0] == masks[2]).float().mean()) < 0.8
    assert 0.3 < float((masks[0] == masks[3]).float().mean()) < 0.8
    kept = masks[0] > 0.5
    torch.testing.assert_close(masks[0][kept], torch.full_like(masks[0][kept], 1 / (1 - rate)))
    assert float(kept.float().mean()) == pytest.approx(1 - rate, abs=0.05)


def test_a_linear_map_has_the_gradients_of_torch():
    from localpolicy.kernels.residual import linear

    layer = nn.Linear(12, 50).to(DEVICE)
    x, upstream = draw(300, 12).requires_grad_(), draw(300, 50, seed=1)
    ours, theirs = linear(layer, x), functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    leaves = [x, layer.weight, layer.bias]
    for one, two in zip(gradients([ours], [upstream], leaves), gradients([theirs], [upstream], leaves), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-3)


def test_gradients_of_parameters_may_be_deferred():
    from localpolicy.kernels.residual import add_and_norm, linear

    def graded(*, later, frozen):
        layer, norm, x = nn.Linear(12, 50).to(DEVICE), norm_of(50), draw(300, 12).requires_grad_()
        with torch.no_grad():
            layer.weight.copy_(draw(50, 12, seed=7))
            layer.bias.copy_(draw(50, seed=8))
        layer.bias.requires_grad_(not frozen)
        parameters = [*layer.parameters(), *norm.parameters()]
        with deferred_gradients() if later else nullcontext():
            seed = torch.zeros(1, dtype=torch.long, device=DEVICE)
            add_and_norm(None, linear(layer, x), norm, seed=seed, site=0, dropout=0.0)[1].backward(
                draw(300, 50, seed=1)
            )
            assert x.grad is not None
            assert (norm.weight.grad is None) == later
            assert (layer.weight.grad is None) == (later and not frozen)
        return [x.grad, *(parameter.grad for parameter in parameters)]

    for frozen in (False, True):
        for one, two in zip(graded(later=True, frozen=frozen), graded(later=False, frozen=frozen), strict=True):
            assert (one is None) == (two is None)
            assert one is None or torch.equal(one, two)
