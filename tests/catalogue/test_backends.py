"""Every backend computes the statistics that `dense` defines: values and gradients, at awkward shapes too."""

from __future__ import annotations

import math

import pytest
import torch
from fused_checks import check_freed

from localpolicy.catalogue import BACKENDS, backend, chunked, chunks, dense
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.errors import ConfigError
from localpolicy.logits import DenseLogits, Head, LinearLogits, tilted
from localpolicy.types import ItemFilters

SHAPES = [(1, 1), (1, 2), (7, 2), (5, 1271), (1, 1271), (64, 300)]
# One tolerance per type, for values and for gradients.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}
OTHERS = [name for name in BACKENDS if name != "dense"]


@pytest.fixture(params=[1, 100, 1 << 19], ids=["narrow", "middling", "whole"], autouse=True)
def chunk(request, monkeypatch):
    """Widths of chunks: several chunks in the catalogue, one wider than it, and single columns of a small catalogue."""
    narrowest = lambda items: 37 if items > 500 else 1  # noqa: E731 - 1,271 columns are 34 such chunks and a rest
    monkeypatch.setattr(chunks, "_width", lambda rows, items, device: min(items, max(request.param, narrowest(items))))


@pytest.fixture(params=[0, 1 << 25], ids=["formed-again", "kept"], autouse=True)
def keep(request, monkeypatch):
    """Both ways of backward: chunks that are formed again, and chunks that are kept."""
    monkeypatch.setitem(chunks.KEEP, "cpu", request.param)


def rows(n, v, dtype=torch.float64, *, seed=0, d=6, scale=1.0, bias=True):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    return LinearLogits(draw(n, d), Head(draw(v, d), draw(v) if bias else None))


def items_of(n, v):
    return torch.randint(v, (n,), generator=torch.Generator().manual_seed(9))


def close(found, expected, dtype):
    return torch.testing.assert_close(
        found.to(torch.float64), expected.to(torch.float64), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_equal_the_definition(name, shape, dtype):
    n, v = shape
    other = backend(name)
    p, q, items = rows(n, v, dtype), rows(n, v, dtype, seed=1), items_of(n, v)
    close(other.log_prob(p, items), dense.log_prob(p, items), dtype)
    close(other.logsumexp(p), dense.logsumexp(p), dtype)
    close(other.mean(p, q), dense.mean(p, q), dtype)
    close(other.entropy(p), dense.entropy(p), dtype)
    for found, expected in zip(other.divergence(p, q), dense.divergence(p, q), strict=True):
        close(found, expected, dtype)
    for found, expected in zip(other.log_prob_and_mean(p, items, q), dense.log_prob_and_mean(p, items, q), strict=True):
        close(found, expected, dtype)
    for found, expected in zip(other.maximum(p), dense.maximum(p), strict=True):
        close(found, expected, dtype)
    close(other.rank(p, items), dense.rank(p, items), dtype)
    for k in (1, 3, v):
        assert torch.equal(other.top(p, k)[1], dense.top(p, k)[1])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_gradients_equal_the_definition(name, shape, dtype, bias):
    n, v = shape
    items = items_of(n, v)
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64)

    def gradients(module, dtype):
        made = rows(n, v, dtype, bias=bias)
        leaves = [tensor.requires_grad_() for tensor in (made.hidden, *made.head) if tensor is not None]
        value = module.log_prob(made, items)
        (value * upstream.to(value.dtype)).sum().backward()
        return [value.detach(), *(leaf.grad for leaf in leaves)]

    # bf16 is compared with the float64 definition on the same (rounded) inputs.
    expected = gradients(dense, torch.float64) if dtype != torch.bfloat16 else None
    found = gradients(backend(name), dtype)
    if expected is None:
        made = rows(n, v, torch.bfloat16, bias=bias)
        exact = LinearLogits(
            made.hidden.double(), Head(made.head[0].double(), None if not bias else made.head[1].double())
        )
        leaves = [tensor.requires_grad_() for tensor in (exact.hidden, *exact.head) if tensor is not None]
        value = dense.log_prob(exact, items)
        (value * upstream).sum().backward()
        expected = [value.detach(), *(leaf.grad for leaf in leaves)]
    if v > 1:
        assert expected[1].abs().max() > 1e-3, "a zero gradient would compare equal to anything"
    for one, other in zip(found, expected, strict=True):
        scale = other.abs().max().clamp(min=1.0)
        close(one.double() / scale, other / scale, dtype)


@pytest.mark.parametrize("name", OTHERS)
def test_two_heads_and_two_backward_passes_do_not_disturb_each_other(name):
    """Buffers of kept chunks are used again only after their owner's backward pass."""
    items, other_items = items_of(5, 1271), items_of(5, 1271).flip(0)

    def gradients(module):
        one, two = rows(5, 1271), rows(5, 1271, seed=4)
        leaves = [tensor.requires_grad_() for made in (one, two) for tensor in (made.hidden, *made.head)]
        first, second = module.log_prob(one, items), module.log_prob(two, other_items)
        first.sum().backward(retain_graph=True)
        third = module.log_prob(two, items)
        (first.sum() * 2 + second.sum() * 3 + third.sum() * 5).backward()
        return [leaf.grad for leaf in leaves]

    for found, expected in zip(gradients(backend(name)), gradients(dense), strict=True):
        assert expected.abs().max() > 1e-3
        close(found, expected, torch.float64)


@pytest.mark.parametrize("name", OTHERS)
def test_a_result_without_references_is_freed(name):
    check_freed(backend(name), rows(5, 30), items_of(5, 30))


def test_kept_buffers_do_not_pile_up(keep):
    """Batches differ in size: a buffer that is too small for one of them must not stay around."""
    chunks._local.__dict__.pop("free", None)
    for n in (3, 40, 5, 60, 9, 90, 200, 4):
        made = rows(n, 50)
        made.hidden.requires_grad_()
        chunked.log_prob(made, items_of(n, 50)).sum().backward()
    for free in chunks._local.__dict__.get("free", {}).values():
        assert len(free) == 1
        assert free[0].numel() <= 1.125 * 200 * 50


@pytest.mark.parametrize("name", OTHERS)
def test_extreme_rows_stay_finite(name):
    p, q = rows(6, 500, torch.float32, scale=30.0), rows(6, 500, torch.float32, seed=1, scale=30.0)
    items = items_of(6, 500)
    js, kl = backend(name).divergence(p, q)
    assert dense.log_prob(p, items).min() < -80, "the case must be extreme to prove anything"
    for number in (backend(name).log_prob(p, items), backend(name).mean(p, q), js, kl):
        assert number.isfinite().all()
    torch.testing.assert_close(js, dense.divergence(p, q)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_sums_beyond_the_range_of_plain_exponentials_stay_exact(name):
    """Logits of several hundred: means and gradients come from shifted sums, kept or formed again."""
    items, upstream = items_of(6, 500), torch.linspace(-1, 2, 6, dtype=torch.float64)

    def found(module):
        p, q = rows(6, 500, scale=8.0), rows(6, 500, seed=1)
        leaves = [tensor.requires_grad_() for tensor in (p.hidden, *p.head)]
        value, mean = module.log_prob_and_mean(p, items, q)
        (value * upstream).sum().backward()
        return [value.detach(), mean, *(leaf.grad for leaf in leaves)]

    assert dense.logsumexp(rows(6, 500, scale=8.0)).max() > math.log(chunks.PLAIN[1])
    for one, other in zip(found(backend(name)), found(dense), strict=True):
        close(one, other, torch.float64)


def test_half_precision_serves_the_products_alone():
    """Sums add the scores that bf16 has rounded once: neither hidden states nor sums are rounded again."""
    p, q = rows(7, 300, torch.bfloat16), rows(7, 300, torch.bfloat16, seed=1)
    formed, values = p.chunk(0, 300).float(), q.chunk(0, 300).float()
    torch.testing.assert_close(chunked.logsumexp(p), formed.logsumexp(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(chunked.mean(p, q), (formed.softmax(1) * values).sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(BACKENDS))
def test_ties_count_half(name):
    values = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    linear = LinearLogits(torch.ones(1, 1), Head(values.T.contiguous()))
    for made in (DenseLogits(values), linear):
        ranks = [backend(name).rank(made, torch.tensor([item])).item() for item in range(5)]
        assert ranks == [1, 1 + 1 + 2 / 2, 1 + 1 + 2 / 2, 1 + 1 + 2 / 2, 5]


@pytest.mark.parametrize("name", list(BACKENDS))
def test_divergence_is_a_divergence(name):
    p, q = rows(40, 30), rows(40, 30, seed=1)
    js, kl = backend(name).divergence(p, q)
    swapped, _ = backend(name).divergence(q, p)
    same, none = backend(name).divergence(p, p)
    assert ((js > 0) & (js <= math.log(2))).all()
    assert (kl > 0).all()
    torch.testing.assert_close(js, swapped)
    torch.testing.assert_close(same, torch.zeros_like(same), atol=1e-12, rtol=0)
    torch.testing.assert_close(none, torch.zeros_like(none), atol=1e-12, rtol=0)
    apart, _ = backend(name).divergence(
        DenseLogits(torch.tensor([[900.0, 0.0]])), DenseLogits(torch.tensor([[0.0, 900.0]]))
    )
    assert apart.item() == pytest.approx(math.log(2))


def test_a_tilt_is_a_head():
    generator = torch.Generator().manual_seed(3)
    hidden, w, q = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (9, 3), (9, 3)))
    b, c = (torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = hidden @ w.T + b + (hidden @ q.T + c) / 0.3
    for base, values in (((w, b), (q, c)), ((w, None), (q, c)), ((w, b), (q, None))):
        made = tilted(hidden, Head(*base), Head(*values), beta=0.3).chunk(0, 9)
        missing = (0 if base[1] is not None else b) + (0 if values[1] is not None else c / 0.3)
        torch.testing.assert_close(made, expected - missing)


def test_unknown_backend_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'chunked'"):
        backend("chunk")


def open_items(n, v):
    """Open items of lists of three, under filters that close two items, leave two, or are unknown."""
    shown = torch.stack([torch.randperm(v, generator=torch.Generator().manual_seed(seed))[0] for seed in range(n)])
    filters = ItemFilters(torch.tensor([0, 2, 4]), torch.tensor([0, v - 1, 0, v // 2]), torch.tensor([0, 1]))
    position = torch.arange(n)
    return OpenItems(shown, position, position % 3, position % 4 - 2, filters)


@pytest.mark.parametrize("name", list(BACKENDS))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_log_prob_covers_open_items_alone(name, shape):
    """log π(a|x, open), position by position, by hand; the shown item counts as open."""
    logits, given = rows(*shape, scale=3.0), open_items(*shape)
    formed, items = logits.chunk(0, shape[1]), given.shown
    values = rows(*shape, seed=1)
    found = backend(name).log_prob(logits, items, given)
    mean = backend(name).mean(logits, values, given)
    again, mean_again = backend(name).log_prob_and_mean(logits, items, values, given)
    torch.testing.assert_close(found, again)
    torch.testing.assert_close(mean, mean_again)
    for n in range(shape[0]):
        number = int(given.filter[n])
        closed = {0: {0, shape[1] - 1}, 1: set(range(shape[1])) - {0, shape[1] // 2}}.get(number, set())
        closed = (closed | set(items[n - n % 3 : n].tolist())) - {int(items[n])}
        left = [a for a in range(shape[1]) if a not in closed]
        expected = float(formed[n, items[n]] - formed[n, left].logsumexp(0))
        assert float(found[n]) == pytest.approx(expected, rel=1e-10, abs=1e-12)
        worth = (formed[n, left].softmax(0) * values.chunk(0, shape[1])[n, left]).sum()
        assert float(mean[n]) == pytest.approx(float(worth), rel=1e-10, abs=1e-12)
    assert given.unknown.tolist() == [number == -2 for number in given.filter.tolist()]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", [(7, 2), (5, 1271), (64, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("staked", [0.0, 1 - 1e-6], ids=["spread", "staked"])
def test_gradients_among_open_items_equal_the_definition(name, shape, dtype, staked):
    """Policies that stake all but a millionth on closed items are covered, too."""
    n, v = shape
    given = open_items(n, v)
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64)

    def gradients(module, dtype):
        made = rows(n, v, dtype)
        if staked:
            closed = given.closed(0, v).double()
            heavy = torch.log(staked / (1 - staked) * (1 - closed).sum(1) / closed.sum(1).clamp(min=1)).max()
            # Every position has an item of its own in the hidden state, by which its closed items are raised.
            hidden = torch.cat([made.hidden.double(), torch.eye(n, dtype=torch.float64)], 1)
            weight = torch.cat([made.head.weight.double(), heavy * closed.T], 1)
            made = LinearLogits(hidden.to(dtype), Head(weight.to(dtype), made.head.bias))
        leaves = [tensor.requires_grad_() for tensor in (made.hidden, *made.head)]
        value = module.log_prob(made, given.shown, given)
        (value * upstream.to(value.dtype)).sum().backward()
        return [value.detach(), *(leaf.grad for leaf in leaves)]

    expected, found = gradients(dense, torch.float64), gradients(backend(name), dtype)
    assert expected[2].abs().max() > 1e-3, "a zero gradient would compare equal to anything"
    for one, other in zip(found, expected, strict=True):
        scale = other.abs().max().clamp(min=1.0)
        close(one.double() / scale, other / scale, dtype)


def test_a_policy_that_stakes_all_on_closed_items_is_not_lost_in_rounding():
    logits = DenseLogits(torch.tensor([[200.0, 0.0, 1.0, -300.0]]))
    given = OpenItems(torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([1]), torch.tensor([-1]), None)
    expected = 1 - math.log(1 + math.e)
    for name in BACKENDS:
        assert float(backend(name).log_prob(logits, torch.tensor([2]), given)[0]) == pytest.approx(expected)
