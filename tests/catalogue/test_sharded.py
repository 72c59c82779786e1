"""A catalogue split over ranks gives the numbers of `dense` in one process: values and gradients, at uneven shares."""

from __future__ import annotations

import pytest
import torch
from fused_checks import check_freed
from several_processes import in_processes

from localpolicy.catalogue import chunks, dense, sharded
from localpolicy.catalogue.capped import CappedLogits
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.catalogue.shards import Shard, ShardedHead, lookup
from localpolicy.logits import Head, LinearLogits
from localpolicy.runtime.ranks import ALONE, Ranks
from localpolicy.types import ItemFilters

pytestmark = pytest.mark.cluster
ITEMS, WIDTH = 11, 4  # not divisible by 2 or 3
POSITIONS = {2: (5, 3), 3: (4, 0, 3)}  # uneven, and a rank that has none


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(total, bias=True):
    n = sum(POSITIONS[total])
    hidden, weight = draw(n, WIDTH), draw(ITEMS, WIDTH, seed=1)
    weight[7] = weight[2]  # a tie across ranks
    biases = draw(ITEMS, seed=2) if bias else None
    if biases is not None:
        biases[7] = biases[2]
    values = draw(ITEMS, WIDTH, seed=3)
    items = torch.randint(ITEMS, (n,), generator=torch.Generator().manual_seed(4))
    items[0] = 7
    return hidden, weight, biases, values, items, torch.linspace(-1, 2, n, dtype=torch.float64)


def own_positions(ranks):
    shares = POSITIONS[ranks.total]
    first = sum(shares[: ranks.rank])
    return slice(first, first + shares[ranks.rank])


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def check_values(ranks):
    hidden, weight, bias, values, items, _ = case(ranks.total)
    shard, mine = Shard(ranks, ITEMS), own_positions(ranks)
    whole_p, whole_q = LinearLogits(hidden, Head(weight, bias)), LinearLogits(hidden, Head(values))
    p = ShardedHead(weight[shard.own], bias[shard.own], shard).logits(hidden[mine])
    q = ShardedHead(values[shard.own], None, shard).logits(hidden[mine])
    ceiling = torch.linspace(-0.5, 0.5, len(hidden), dtype=torch.float64)
    tilted, whole_tilted = CappedLogits(p, q, 2.0, ceiling[mine]), CappedLogits(whole_p, whole_q, 2.0, ceiling)
    for one, whole in ((p, whole_p), (tilted, whole_tilted)):
        check_rows(one, whole, q, whole_q, items, mine)


def check_rows(p, whole_p, q, whole_q, items, mine):
    close(p.chunk(0, ITEMS), whole_p.chunk(0, ITEMS)[mine])
    close(p.chunk(3, 8), whole_p.chunk(3, 8)[mine])
    close(sharded.logsumexp(p), dense.logsumexp(whole_p)[mine])
    close(sharded.mean(p, q), dense.mean(whole_p, whole_q)[mine])
    close(sharded.entropy(p), dense.entropy(whole_p)[mine])
    close(sharded.rank(p, items[mine]), dense.rank(whole_p, items)[mine])
    for found, expected in zip(sharded.maximum(p), dense.maximum(whole_p), strict=True):
        close(found, expected[mine])
    for found, expected in zip(sharded.divergence(p, q), dense.divergence(whole_p, whole_q), strict=True):
        close(found, expected[mine])
    both = sharded.log_prob_and_mean(p, items[mine], q)
    for found, expected in zip(both, dense.log_prob_and_mean(whole_p, items, whole_q), strict=True):
        close(found, expected[mine])
    for k in (1, 5, ITEMS):
        close(sharded.top(p, k)[0], dense.top(whole_p, k)[0][mine])
    given, part = open_items(items, mine)
    close(sharded.log_prob(p, items[mine], part), dense.log_prob(whole_p, items, given)[mine])
    both = sharded.log_prob_and_mean(p, items[mine], q, part)
    for found, expected in zip(both, dense.log_prob_and_mean(whole_p, items, whole_q, given), strict=True):
        close(found, expected[mine])
    close(sharded.mean(p, q, part), dense.mean(whole_p, whole_q, given)[mine])
    asked = sharded.catalogue_statistics(p, items[mine])
    close(asked["logp"], dense.log_prob(whole_p, items)[mine])
    close(asked["top"], dense.maximum(whole_p)[1][mine])


def open_items(items, mine):
    """Open items of all positions and of this rank's, under filters: unknown, none, two closed, three left."""
    position = torch.arange(len(items))
    filters = ItemFilters(torch.tensor([0, 2, 5]), torch.tensor([1, 8, 0, 7, 10]), torch.tensor([0, 1]))
    number = position % 4 - 2
    given = OpenItems(items, position, position.new_zeros(len(items)), number, filters)
    part = OpenItems(items[mine], position[: mine.stop - mine.start], given.above[mine], number[mine], filters)
    return given, part


def check_gradients(ranks):
    for bias in (True, False):
        hidden, weight, biases, _, items, upstream = case(ranks.total, bias)
        shard, mine = Shard(ranks, ITEMS), own_positions(ranks)
        given, part = open_items(items, mine)
        for name in ("log_prob", "among open", "at"):
            leaves = [leaf(hidden), leaf(weight), *([leaf(biases)] if bias else [])]
            rows = LinearLogits(leaves[0], Head(leaves[1], leaves[2] if bias else None))
            among = given if name == "among open" else None
            value = rows.at(items) if name == "at" else dense.log_prob(rows, items, among)
            expected = torch.autograd.grad((value * upstream).sum(), leaves)
            cut = [leaf(hidden[mine]), leaf(weight[shard.own]), *([leaf(biases[shard.own])] if bias else [])]
            split = ShardedHead(cut[1], cut[2] if bias else None, shard).logits(cut[0])
            among = part if name == "among open" else None
            value = split.at(items[mine]) if name == "at" else sharded.log_prob(split, items[mine], among)
            found = torch.autograd.grad((value * upstream[mine]).sum(), cut)
            close(found[0], expected[0][mine])
            for one, other in zip(found[1:], expected[1:], strict=True):
                close(one, other[shard.own])
        whole, own = leaf(weight), leaf(weight[shard.own])
        pull = draw(len(items), WIDTH, seed=5)
        (expected,) = torch.autograd.grad((whole[items] * pull).sum(), whole)
        looked_up = lookup(own, items[mine], shard)
        close(looked_up.detach(), weight[items][mine])
        (found,) = torch.autograd.grad((looked_up * pull[mine]).sum(), own)
        close(found, expected[shard.own])


def check_both(ranks):
    """Check one group of ranks, with chunks narrower than a shard, kept for backward and formed again."""
    check_values(ranks)
    check_gradients(ranks)
    chunks.CHUNK["cpu"], chunks.KEEP["cpu"] = 1, 0
    chunks._width = lambda rows, items, device: 2
    check_values(ranks)
    check_gradients(ranks)


@pytest.mark.parametrize("total", POSITIONS)
def test_statistics_and_gradients_equal_the_definition(total):
    in_processes(total, check_both)


def test_a_result_without_references_is_freed():
    shard = Shard(ALONE, ITEMS)
    check_freed(sharded, ShardedHead(draw(ITEMS, WIDTH), None, shard).logits(draw(5, WIDTH)), torch.arange(5))


@pytest.mark.parametrize(("items", "total"), [(11, 3), (5, 5), (100, 7)])
def test_each_item_has_one_rank(items, total):
    shares = [Shard(Ranks(rank, total), items).own for rank in range(total)]
    assert [one for share in shares for one in range(share.start, share.stop)] == list(range(items))
    sizes = [share.stop - share.start for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_one_rank_holds_everything():
    hidden, weight, bias, _, items, _ = case(2)
    rows = ShardedHead(weight, bias, Shard(ALONE, ITEMS)).logits(hidden)
    close(sharded.log_prob(rows, items), dense.log_prob(LinearLogits(hidden, Head(weight, bias)), items))
