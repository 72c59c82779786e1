"""Attention on flat tokens equals attention on a padded block. On a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreter import either
from torch.nn import functional

from localpolicy.model.backbones import Layout

pytestmark = either

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def layout_of(*widths):
    row = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths)).to(DEVICE)
    column = torch.cat([torch.arange(width) for width in widths]).to(DEVICE)
    return Layout(row, column, len(widths), max(widths))


def padded_attention(qkv, layout, heads):
    block = layout.pad(qkv)
    query, key, value = block.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return layout.flatten(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("width", "heads"), [(12, 1), (12, 3), (100, 1)])  # 100: more columns than are read at a time
@pytest.mark.parametrize("widths", [(1,), (5, 1, 20, 0, 17), (3, 33)], ids=str)
def test_short_attention_equals_attention_on_a_padded_block(widths, width, heads):
    from localpolicy.kernels.attention import short_attention

    layout = layout_of(*widths)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(sum(widths), 3 * width, generator=generator).to(DEVICE)
    upstream = torch.randn(sum(widths), width, generator=generator).to(DEVICE)
    found = []
    for attend in (
        lambda qkv: short_attention(
            qkv, *layout.bounds, columns=layout.columns, heads=heads, dropout=0.0, seed=layout.row
        ),
        lambda qkv: padded_attention(qkv, layout, heads),
    ):
        leaf = start.clone().requires_grad_()
        mixed = attend(leaf)
        mixed.backward(upstream)
        found.append((mixed.detach(), leaf.grad))
    assert found[1][1].abs().max() > 1e-2
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_backward_drops_what_forward_dropped():
    from localpolicy.kernels.attention import short_attention

    layout = layout_of(*[12] * 40)
    torch.manual_seed(0)
    qkv = torch.randn(480, 3 * 16, device=DEVICE).requires_grad_()
    upstream = torch.randn(480, 16, device=DEVICE)
    outs = []
    for number, site in ((1, 0), (1, 0), (2, 0), (1, 7)):
        seed = torch.tensor([number], device=DEVICE)
        outs.append(short_attention(qkv, *layout.bounds, columns=12, heads=1, dropout=0.5, seed=seed, site=site))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert not torch.equal(outs[0], outs[3])
    # The result is linear in the values: with g for it, ⟨g, result⟩ = ⟨gradient of values, values⟩, mask and all.
    (gradient,) = torch.autograd.grad(outs[0], qkv, upstream)
    left, right = (upstream * outs[0]).detach().sum(), (gradient[:, 32:] * qkv[:, 32:]).detach().sum()
    assert float(left) == pytest.approx(float(right), rel=1e-3)
    whole = short_attention(qkv, *layout.bounds, columns=12, heads=1, dropout=0.0, seed=layout.row)
    assert float((outs[0] - whole).detach().abs().mean()) > 0.1, "nothing was dropped"
    # A first step sees itself alone, so that half of them are dropped, and the others doubled.
    ratio = (outs[0] / whole).detach()[::12, 0]
    assert {round(float(one), 3) for one in ratio} == {0.0, 2.0}
