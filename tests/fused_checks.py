"""Checks of the fused kernels, on a GPU or in the interpreter: numbers and gradients of `dense` in float64."""

from __future__ import annotations

import gc
import weakref

import torch

from localpolicy.catalogue import chunked, dense, fused, sharded
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.catalogue.shards import Shard, ShardedHead
from localpolicy.logits import Head, LinearLogits
from localpolicy.runtime.deferred_gradients import deferred_gradients
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.adam import TableAdamW


def draw_rows(n, v, d, dtype=torch.float32, *, device="cpu", seed=0, scale=1.0, bias=True):
    """Logits whose scores have a standard deviation of about `scale`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    return LinearLogits(draw(n, d), Head(draw(v, d) * (scale * d**-0.5), draw(v) * scale if bias else None))


def draw_items(n, v, device="cpu"):
    return torch.randint(v, (n,), generator=torch.Generator().manual_seed(9)).to(device)


def exact(rows):
    return LinearLogits(rows.hidden.double(), Head(*(None if part is None else part.double() for part in rows.head)))


def far(found, expected):
    """‖found - expected‖ / max(‖expected‖, √n): relative, and absolute where the numbers are small."""
    assert found.shape == expected.shape
    assert found.isfinite().all()
    floor = expected.numel() ** 0.5
    return float((found.double() - expected).norm() / expected.norm().clamp(min=floor))


def check_values(n, v, d, dtype, *, tolerance, device="cpu", scale=1.0, bias=True):
    p = draw_rows(n, v, d, dtype, device=device, scale=scale, bias=bias)
    q = draw_rows(n, v, min(d + 3, 256), dtype, device=device, seed=1, scale=scale, bias=bias)
    items = draw_items(n, v, device)
    assert fused.serves(p), "the kernels would not run, and `chunked` would be compared with the definition"
    p64, q64 = exact(p), exact(q)
    pairs = {
        "log_prob": (fused.log_prob(p, items), dense.log_prob(p64, items)),
        "mean": (fused.mean(p, q), dense.mean(p64, q64)),
        "logsumexp": (fused.logsumexp(p), dense.logsumexp(p64)),
        "entropy": (fused.entropy(p), dense.entropy(p64)),
        "maximum": (fused.maximum(p)[0], dense.maximum(p64)[0]),
        "rank": (fused.rank(p, items) / v, dense.rank(p64, items) / v),
    }
    both = fused.log_prob_and_mean(p, items, q)
    pairs["log_prob, with mean"], pairs["mean, with log_prob"] = (
        (both[0], pairs["log_prob"][1]),
        (both[1], pairs["mean"][1]),
    )
    for name, one, two in zip(("js", "kl"), fused.divergence(p, q), dense.divergence(p64, q64), strict=True):
        pairs[name] = (one, two)
    errors = {name: far(*pair) for name, pair in pairs.items()}
    assert all(error < tolerance for error in errors.values()), errors
    _, item = fused.maximum(p)
    # Rounding may put another item first, but never one that is not as good.
    assert far(p64.at(item), dense.maximum(p64)[0]) < tolerance


def check_equal_rows(module, n, v, d, *, device="cpu"):
    """Check that items with one row tie, wherever they stand and in whatever order a product is summed."""
    rows = draw_rows(n, v, d, device=device)
    copies = torch.arange(0, v, 7, device=device)
    rows.head.weight[copies] = rows.head.weight[0].clone()
    rows.head.bias[copies] = rows.head.bias[0].clone()
    items = copies[torch.arange(n, device=device) % len(copies)]
    formed = exact(rows).chunk(0, v)
    above = (formed > formed[:, :1] + 1e-9).sum(1)
    off = module.rank(rows, items) - (1 + above + (len(copies) - 1) / 2)
    # Another item may lie within rounding by chance; a tie that was missed would move the rank by (copies - 1) / 2.
    assert off.abs().max() <= 1 < (len(copies) - 1) / 2


def draw_open(items, *, most=3):
    """Open items of lists: every position but the first of each list has some above it, and nothing is filtered."""
    position = torch.arange(len(items), device=items.device)
    return OpenItems(items, position, position % (most + 1), torch.full_like(position, -1), None)


def check_open(n, v, d, dtype, *, tolerance, device="cpu", scale=1.0, bias=True):
    """Check log π among open items, its mean of values and its gradients, by tiles."""
    rows, values = (draw_rows(n, v, d, dtype, device=device, seed=seed, scale=scale, bias=bias) for seed in (0, 1))
    items = draw_items(n, v, device)
    given = draw_open(items)
    closed = given.closed_pairs(0, v)
    assert len(closed.row) and isinstance(fused.softmax_over(rows, closed), fused.FusedSoftmax), "tiles must run"
    found = fused.log_prob_and_mean(rows, items, values, given)
    for one, two in zip(found, dense.log_prob_and_mean(exact(rows), items, exact(values), given), strict=True):
        assert far(one, two) < tolerance
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64, device=device)
    found, expected = (
        gradients(module, logits, items, upstream, open_items=given)
        for module, logits in ((fused, rows), (dense, exact(rows)))
    )
    for name, one, two in zip(("hidden", "weight", "bias"), found, expected, strict=False):
        error = float((one.double() - two).norm() / two.norm().clamp(min=float(upstream.norm())))
        assert error < tolerance, (name, error)


def gradients(module, rows, items, upstream, *, constant_weight=False, keep=False, open_items=None):
    """Gradients of hidden states, weights and biases, if there are any. `keep`: the leaves, too."""
    leaves = [part.detach().clone().requires_grad_() for part in (rows.hidden, *rows.head) if part is not None]
    leaves[1].requires_grad_(not constant_weight)
    made = LinearLogits(leaves[0], Head(leaves[1], leaves[2] if len(leaves) > 2 else None))
    value = module.log_prob(made, items, open_items)
    value.backward(upstream.to(value.dtype))
    grads = [leaf.grad for leaf in leaves if leaf.requires_grad]
    return (leaves, grads) if keep else grads


def check_taken(n, v, d, dtype, *, tolerance, device="cpu", bias=True):
    """Check scores at the items, and their gradients: alone, and with gradients of rows that are deferred."""
    rows = draw_rows(n, v, d, dtype, device=device, bias=bias)
    items = draw_items(n, v, device)
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64, device=device)

    def graded(score, rows):
        leaves = [part.detach().clone().requires_grad_() for part in (rows.hidden, *rows.head) if part is not None]
        value = score(LinearLogits(leaves[0], Head(leaves[1], leaves[2] if bias else None)), items)
        value.backward(upstream.to(value.dtype))
        return [value.detach(), *(leaf.grad for leaf in leaves)]

    expected = graded(lambda rows, items: rows.at(items), exact(rows))
    whole = graded(fused.gather_logits, rows)
    with deferred_gradients():
        leaves = [part.detach().clone().requires_grad_() for part in (rows.hidden, *rows.head) if part is not None]
        value = fused.gather_logits(LinearLogits(leaves[0], Head(leaves[1], leaves[2] if bias else None)), items)
        value.backward(upstream.to(value.dtype))
        assert leaves[1].grad is None, "it waits"
    later = [value.detach(), *(leaf.grad for leaf in leaves)]
    for ours in (whole, later):
        for one, two in zip(ours, expected, strict=True):
            assert two.abs().max() > 1e-2
            assert far(one, two) < tolerance


def check_freed(module, rows, items):
    """Check that a result without references is freed at once: a captured step fails if an older graph is alive."""
    hidden = rows.hidden.detach().clone().requires_grad_()
    gc.disable()
    try:
        result = module.log_prob(rows._replace(hidden=hidden), items)
        watched = weakref.ref(result)
        del result
        assert watched() is None
    finally:
        gc.enable()


def check_gradients(n, v, d, dtype, *, tolerance, device="cpu", scale=1.0, bias=True):
    rows = draw_rows(n, v, d, dtype, device=device, scale=scale, bias=bias)
    items = draw_items(n, v, device)
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64, device=device)
    found = gradients(fused, rows, items, upstream)
    expected = gradients(dense, exact(rows), items, upstream)
    if v > 1:
        assert min(float(one.abs().max()) for one in expected) > 1e-3, "a zero gradient compares equal to anything"
    for name, one, two in zip(("hidden", "weight", "bias"), found, expected, strict=False):
        size = two.norm().clamp(min=float(upstream.norm()))  # a bias's gradient may cancel
        error = float((one.double() - two).norm() / size)
        assert one.isfinite().all() and (v == 1 or error < tolerance), (name, error)
    with deferred_gradients():
        later, grads = gradients(fused, rows, items, upstream, keep=True)
        assert grads[0] is not None and (grads[1] is None) == (dtype == torch.float32), "float32 tables wait"
    for one, other in zip(later, found, strict=True):
        assert torch.equal(one.grad, other) or far(one.grad, other.double()) < tolerance
    # A head over constant items: hidden states and biases get the same gradients without the weights'.
    without = gradients(fused, rows, items, upstream, constant_weight=True)
    for one, other in zip(without, found[:1] + found[2:], strict=True):
        assert far(one, other.double()) < tolerance


def check_top(n, v, d, k, dtype, *, tolerance, device="cpu", bias=True, scale=1.0):
    """Check the k best: all different, in falling order, and as good as those of the definition."""
    from localpolicy.kernels.top_k import top_k

    rows = draw_rows(n, v, d, dtype, device=device, bias=bias, scale=scale)
    value, item = top_k(rows, k)
    formed = exact(rows).chunk(0, v)
    expected = formed.sort(dim=1, descending=True).values[:, :k]
    assert far(value, expected) < tolerance
    # Rounding may put another item there, but never one that is not as good.
    assert far(formed.gather(1, item), expected) < tolerance
    assert (value.diff(dim=1) <= 0).all()
    assert all(len(set(items)) == k for items in item.tolist())


def check_ties(v, k, device="cpu"):
    """Check that of equal scores the lower index comes first, in whichever group it is, and that zero has one sign."""
    from localpolicy.kernels.top_k import largest_columns, top_k

    assert largest_columns(torch.tensor([[-0.0], [0.0], [-0.0], [1.0]], device=device), 3)[1].tolist() == [[3, 0, 1]]
    head = Head(torch.zeros(v, 16, device=device), torch.zeros(v, device=device))
    rows = LinearLogits(torch.ones(3, 16, device=device), head)
    assert top_k(rows, k)[1].tolist() == [list(range(k))] * 3
    better = [20, 20 + 64, 20 + 128, v - 1]
    rows.head.bias[better] = 1.0
    assert top_k(rows, k)[1].tolist() == [(better + [item for item in range(v) if item not in better])[:k]] * 3
    spread = [place * (v // k) for place in range(k)]  # in k groups of groups
    rows.head.bias[spread] = 2.0
    assert top_k(rows, k)[1].tolist() == [spread] * 3
    rows.head.bias[:] = -torch.inf  # what may not be shown comes last, and no number is invented
    rows.head.bias[v - 2] = -1.0
    value, item = top_k(rows, k)
    assert item.tolist() == [[v - 2, *range(k - 1)]] * 3
    assert value[:, 0].tolist() == [-1.0] * 3 and value[:, 1:].isneginf().all()


def check_top_without(n, v, d, k, device="cpu"):
    """Check that forbidden items enter no list: as in chunks, where their scores are -inf."""
    from localpolicy.catalogue.masked import MaskedLogits

    rows = draw_rows(n, v, d, device=device)
    best = dense.top(exact(rows), 3 * k)[1].tolist()
    forbidden = [items[: 2 * (number % k)][::2] for number, items in enumerate(best)]
    allowed = MaskedLogits.of_lists(rows, forbidden)
    assert fused.lists(rows, k + allowed.most_forbidden), "the kernels would not run"
    item = fused.top(allowed, k)[1].tolist()
    assert item == [[one for one in items if one not in gone][:k] for items, gone in zip(best, forbidden, strict=True)]


def check_range(n, v, d, dtype, shift, *, tolerance, device="cpu"):
    """Check scores that are moved so far that plain exponentials are 0 or infinite."""
    p, q = (draw_rows(n, v, d, dtype, device=device, seed=seed) for seed in range(2))
    p.head.bias[:] = shift  # a number that every type has
    items = draw_items(n, v, device)
    p64, q64 = exact(p), exact(q)
    (log_p, mean), entropy = fused.log_prob_and_mean(p, items, q), fused.entropy(p)
    pairs = [(log_p, dense.log_prob(p64, items)), (mean, dense.mean(p64, q64)), (entropy, dense.entropy(p64))]
    assert all(far(*pair) < tolerance for pair in pairs)
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64, device=device)
    hidden, expected = (gradients(module, rows, items, upstream)[0] for module, rows in ((fused, p), (dense, p64)))
    assert far(hidden, expected) < tolerance


def check_statistics(n, v, d, dtype, *, tolerance, device="cpu", lists=1, exclude=False):
    """Check all statistics of an evaluation against logits that are formed."""
    from localpolicy.catalogue.statistics import catalogue_statistics
    from localpolicy.logits import DenseLogits

    policy, values, *others = (draw_rows(n, v, d, dtype, device=device, seed=seed) for seed in range(4))
    items = draw_items(n, v, device)

    def formed(rows):
        return DenseLogits(exact(rows).chunk(0, v))

    asked = {"lists": lists}
    assert lists == 1 or fused.lists(policy, lists + 4), "the kernels would not run"
    if exclude:  # the best, one of them twice, and at some positions the item itself
        best = dense.top(exact(policy), 3)[1]
        row = torch.arange(n, device=device)
        pairs = [(row, best[:, 0]), (row, best[:, 2]), (row[::2], best[::2, 0]), (row[::5], items[::5])]
        asked["excluded"] = tuple(torch.cat(part) for part in zip(*pairs, strict=True))
    found = catalogue_statistics(policy, items, references=dict(zip("xy", others, strict=True)), values=values, **asked)
    references = {name: formed(other) for name, other in zip("xy", others, strict=True)}
    expected = catalogue_statistics(formed(policy), items, references=references, values=formed(values), **asked)
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        if name in ("top", "lists"):
            assert (found[name] == column).double().mean() > 0.98, name
        elif name == "tied":  # more tie within rounding than where logits are given
            assert (found[name] >= column).all(), name
            whole = exact(policy)
            _, within = chunked.counts(whole, items, whole.at(items))
            assert exclude or (found[name] == within).double().mean() > 0.98, name
        elif name == "rank":  # right but for the order of those that tie
            assert ((found[name] - column).abs() <= found["tied"] / 2).all(), name
        else:
            assert far(found[name].double(), column) < tolerance, name


def check_adam(device):
    """Check that tables and small parameters move as in AdamW in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(601, 7), (5,)]
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    settings = {"lr": 0.01, "weight_decay": 0.1}
    exact_ones = [torch.nn.Parameter(one.clone()) for one in start]
    ours = [torch.nn.Parameter(one.float().to(device)) for one in start]
    expected = torch.optim.AdamW(exact_ones, **settings)
    rate = torch.tensor(settings["lr"], device=device)
    found = TableAdamW(ours, **settings | {"lr": rate}, capturable=True)
    for number in range(40):
        for one, other in zip(exact_ones, ours, strict=True):
            one.grad = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            other.grad = one.grad.float().to(device)
        if number == 20:  # a rate that changes is read on the device
            expected.param_groups[0]["lr"] = 0.002
            rate.fill_(0.002)
        expected.step()
        found.step()
    for one, other, begun in zip(exact_ones, ours, start, strict=True):
        assert float((other.detach().cpu().double() - one.detach()).abs().max()) < 1e-5
        assert float((one.detach() - begun).abs().min()) > 1e-5, "what does not move proves nothing"
    assert expected.state[exact_ones[0]].keys() == found.state[ours[0]].keys()
    assert found.state[ours[0]]["step"] == 40


class ThroughMemory(Ranks):
    """Ranks that share one GPU: their numbers meet in main memory, since NCCL needs a device for each."""

    def sum_(self, tensor):
        return tensor.copy_(super().sum_(tensor.cpu()))

    def extreme_(self, tensor, *, largest):
        return tensor.copy_(super().extreme_(tensor.cpu(), largest=largest))

    def all_gather(self, tensor):
        whole, mine = super().all_gather(tensor.cpu())
        return whole.to(tensor.device), mine


def check_sharded(ranks, device, n, v, d, tolerance):
    """Check each rank's rows through the kernels: numbers and gradients of `dense` over the whole catalogue."""
    ranks = ThroughMemory(ranks.rank, ranks.total)
    shard = Shard(ranks, v)
    mine = slice(n * ranks.rank // 3, n) if ranks.rank else slice(0, n // 3)  # two ranks, uneven
    whole, other = draw_rows(n, v, d, device=device), draw_rows(n, v, d, device=device, seed=1)
    items = draw_items(n, v, device)
    upstream = torch.linspace(-1, 2, n, dtype=torch.float64, device=device)

    def cut(rows):
        leaves = [part.clone().requires_grad_() for part in (rows.hidden[mine], *(one[shard.own] for one in rows.head))]
        return ShardedHead(*leaves[1:], shard).logits(leaves[0]), leaves

    (p, leaves), (q, _) = cut(whole), cut(other)
    assert fused.evaluates(LinearLogits(p.hidden, p.head.here)), "the kernels would not run"
    p64, q64 = exact(whole), exact(other)
    log_p, mean = sharded.log_prob_and_mean(p, items[mine], q)
    log_p.backward(upstream[mine].to(log_p.dtype))
    pairs = {
        "log_prob": (log_p.detach(), dense.log_prob(p64, items)),
        "mean, with log_prob": (mean, dense.mean(p64, q64)),
        "mean": (sharded.mean(p, q), dense.mean(p64, q64)),
        "logsumexp": (sharded.logsumexp(p), dense.logsumexp(p64)),
        "entropy": (sharded.entropy(p), dense.entropy(p64)),
        "rank": (sharded.rank(p, items[mine]) / v, dense.rank(p64, items) / v),
        "maximum": (sharded.maximum(p)[0], dense.maximum(p64)[0]),
        "js": (sharded.divergence(p, q)[0], dense.divergence(p64, q64)[0]),
        "kl": (sharded.divergence(p, q)[1], dense.divergence(p64, q64)[1]),
    }
    hidden, *head = gradients(dense, p64, items, upstream)
    errors = {name: far(value, expected[mine]) for name, (value, expected) in pairs.items()}
    errors["gradient of hidden"] = far(leaves[0].grad, hidden[mine])
    for leaf, expected in zip(leaves[1:], head, strict=True):
        errors[f"gradient {tuple(leaf.shape)}"] = far(leaf.grad, expected[shard.own])
    assert all(error < tolerance for error in errors.values()), errors
