"""e_a = features_a W + δ_a: formed by sums over bags, with exact gradients, and one plain table afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_logs import small_item_table

from localpolicy.data.item_features import ItemFeatures
from localpolicy.data.item_mixtures import NewItems
from localpolicy.data.item_table import join_items
from localpolicy.model import item_embeddings
from localpolicy.model.config import ModelConfig
from localpolicy.model.item_embeddings import ABSENT, Features, ItemInputs
from localpolicy.model.network import FEATURES, Network
from localpolicy.model.weights import fill
from localpolicy.types import Batch

ITEMS = 40
COLUMNS = ("brand", "tags", "price", "text")


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def encoded(known=None):
    import pyarrow as pa

    ids = np.arange(100, 100 + ITEMS)
    table = join_items(pa.table({"item_id": ids}), small_item_table(ids))
    known = np.ones(ITEMS, bool) if known is None else known
    made = ItemFeatures.fit(table, COLUMNS, known).encode(table)
    return ItemInputs(made, known, NewItems.of(made, np.arange(ITEMS, 0, -1) * known, bound=0.5))


def matrix(x):
    whole = np.zeros((len(x.offsets) - 1, x.n_features))
    item = np.repeat(np.arange(len(whole)), np.diff(x.offsets))
    np.add.at(whole, (item, x.row), x.weight)
    whole[:, x.n_sparse :] = x.dense
    return torch.from_numpy(whole)


def network(features, *, heads=("policy",), **settings):
    torch.manual_seed(0)
    config = ModelConfig.parse({"width": 8, "blocks": 1, "dropout": 0.0, "id_dropout": 0.0, **settings})
    made = Network(config, items=ITEMS, events=0, length=5, heads=heads, features=features)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


@pytest.mark.parametrize("longest", [2, 3, 64])
def test_the_sums_are_the_products_with_the_matrix(longest, monkeypatch):
    monkeypatch.setattr(item_embeddings, "LONGEST_BAG", longest)  # 2: five levels
    given = encoded()
    features = given.encoded
    x, made = matrix(features), Features(given, 8)
    weight, upstream = torch.randn(features.n_features, 8, requires_grad=True), torch.randn(ITEMS, 8)
    rows = made.product(weight)
    rows.backward(upstream)
    assert torch.allclose(rows, x @ weight, atol=1e-6)
    assert torch.allclose(weight.grad, x.T @ upstream, atol=1e-6)
    assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_gradients_go_back_through_the_sum(leaf, dropped):
    known = np.arange(ITEMS) % 8 != 5
    given = encoded(known)
    made = network(given, heads=("policy", "reward"), id_dropout=dropped)
    x, cold = matrix(given.encoded), torch.from_numpy(~known)
    torch.manual_seed(3)
    made.build_item_embeddings(leaf=leaf)
    torch.manual_seed(3)
    kept = ~cold if not dropped else ~cold & (torch.rand(ITEMS) >= dropped)
    hidden = torch.randn(6, 8)
    taken = torch.tensor([0, 1, 2, 3, 4, 6])

    def loss(rows, bias, q_rows, q_bias):
        return (
            -torch.log_softmax(hidden @ rows.T + bias, 1)[range(6), taken].sum()
            + (hidden @ q_rows.T + q_bias)[range(6), taken].square().sum()
        )

    policy, reward = made.head("policy"), made.head("reward")
    loss(policy.weight, policy.bias, reward.weight, reward.bias).backward()
    made.backward_to_features()
    found = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    made.zero_grad()
    head, critic = made.heads["policy"], made.heads["reward"]
    rows = x @ made.features.weight + kept[:, None] * made.embedding
    bias = x @ head.features + kept * head.bias + ABSENT * cold
    q_bias = x @ critic.features + ~cold * critic.bias + critic.context[-1]  # an item's mean return stays
    loss(rows, bias, rows @ critic.projection + critic.context[:-1], q_bias).backward()
    expected = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys() >= {"embedding", "features.weight", "heads.policy.features"}
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-6), name
        assert gradient.abs().max() > 0, name
    assert (found["embedding"][~kept] == 0).all()


def test_the_saved_network_is_a_plain_one_of_the_same_numbers():
    known = np.arange(ITEMS) % 8 != 5
    made = network(encoded(known), heads=("policy", "q_a", "q_b"))
    made.features.rise.fill_(-1.5)
    state = made.plain_state()
    plain = Network(made.config, items=ITEMS, events=0, length=5, heads=("policy", "q_a", "q_b"))
    beside_it = {name: state.pop(name) for name in [*state] if name.startswith(FEATURES)}
    assert beside_it.keys() == {f"{FEATURES}{name}" for name in ("weight", "keys", "rise", "policy", "q_a", "q_b")}
    fill(plain, state, source="here")
    batch = one_batch()
    for head in ("policy", "q"):
        one = made.head(head).logits(made.hidden_without_dropout(batch)).chunk(0, ITEMS)
        other = plain.head(head).logits(plain.hidden_without_dropout(batch)).chunk(0, ITEMS)
        assert torch.equal(one, other)
    with made.evaluation_embeddings():
        assert torch.equal(made.head("policy").weight, plain.embedding)


def one_batch() -> Batch:
    from localpolicy.model.histories import batch_from

    return batch_from([[0, 1, 2], [5]], None, index={n: n for n in range(ITEMS)}, names=["click"], length=5)


@pytest.mark.parametrize("bound", [0.01, 0.2, 1.0])
def test_new_items_stay_below_their_bound_in_any_context(bound):
    """The bound holds even if contexts point at the new items' rows, and biases rise without limit."""
    known = np.arange(ITEMS) % 4 != 1
    given = encoded(known)
    given = given._replace(new=NewItems.of(given.encoded, np.arange(ITEMS, 0, -1) * known, bound=bound))
    made = network(given)
    made.features.rise.fill_(100.0)
    head, cold = made.head("policy"), torch.from_numpy(~known)
    hidden = torch.cat([torch.randn(200, 8), *(scale * head.weight[cold] for scale in (1, 10, 100))])
    mass = torch.softmax(hidden @ head.weight.T + head.bias, 1)[:, cold].sum(1)
    assert (mass / (1 - mass)).max() <= bound * (1 + 1e-9)
    assert (mass / (1 - mass)).max() > bound / 20  # a bound that is met, not one that forbids everything
