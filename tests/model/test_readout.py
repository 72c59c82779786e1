"""The reader against sums written out by hand, in float64; and the parts of the network that each term trains."""

from __future__ import annotations

from dataclasses import fields, replace
from math import isclose

import pytest
import torch
from forms import weighted
from small import HEADS, ITEMS, SEQUENCES, network, policy, prepared, scores, whole
from torch import nn

from localpolicy.catalogue import BACKENDS, backend
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.model.readout import CONSTANT, NetworkReader, heads_for, returns_to_go
from localpolicy.objectives import OBJECTIVES, objective_of
from localpolicy.types import Readout, Reads

GAMMA = 0.6
NO_READING = {"logp", "reward", "step", "cross_entropy", "examined"}  # teachers: test_distill; places: elsewhere
ALL = frozenset(one.name for one in fields(Readout)) - NO_READING


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data") / "prepared")


def reader(made, reads=ALL, *, critic="q", name="dense", **settings):
    asked = Reads(
        frozenset(reads), critic, GAMMA, **{key: value for key, value in settings.items() if key in Reads._fields}
    )
    rest = {key: value for key, value in settings.items() if key not in Reads._fields}
    return NetworkReader(made, asked, backend(name), **rest)


def by_hand(made, batch, *, coin, target, critic="q"):
    """Every field but q_sampled, computed position by position and item by item."""
    hidden = made.hidden(batch).detach()

    def row(head, token):
        if head == "q":
            return (scores(made, hidden[token], "q_a") + scores(made, hidden[token], "q_b")) / 2
        return scores(made, hidden[token], head)

    def softmax(numbers):
        return numbers.exp() / numbers.exp().sum()

    fitted, other = (("q_a", "q_b") if coin else ("q_b", "q_a")) if critic == "q" else ("reward", "reward")
    found = {name: [] for name in (*ALL - {"q_sampled"}, "logp", "reward")}
    for token in batch.scored.tolist():
        a, last = int(batch.item[token]), token + 1 == len(batch.row) or batch.row[token + 1] != batch.row[token]
        pi, mu, q = softmax(row("policy", token)), softmax(row("logging", token)), row(critic, token)
        rest = [float(batch.reward[t]) for t in range(token, len(batch.row)) if batch.row[t] == batch.row[token]]
        following = torch.tensor(0.0, dtype=torch.float64)
        if not last and target == "max":
            following = row(other, token + 1)[row(fitted, token + 1).argmax()]
        elif not last:
            following = (softmax(row("logging", token + 1)) * row(other, token + 1)).sum()
        found["logp"].append(pi[a].log())
        found["reward"].append(batch.reward[token])
        found["logp_logging"].append(mu[a].log())
        found["logged_propensity"].append(batch.propensity[token])
        found["return_to_go"].append(torch.tensor(sum(GAMMA**k * r for k, r in enumerate(rest)), dtype=torch.float64))
        found["q"].append(q[a])
        found["q_fit"].append(row(fitted, token)[a])
        found["q_expected"].append((mu * q).sum())
        found["q_policy"].append((pi * q).sum())
        found["q_max"].append(q.max())
        found["next_value"].append(following)
        found["value"].append((made.heads["value"].weight[0] * hidden[token]).sum() + made.heads["value"].bias[0])
    return {name: torch.stack(numbers).detach() for name, numbers in found.items()}


@pytest.mark.parametrize("name", list(BACKENDS))
@pytest.mark.parametrize("coin", [True, False])
@pytest.mark.parametrize("target", ["max", "expected"])
@pytest.mark.parametrize("last", [None, 2])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_every_field_is_what_it_says(data, name, coin, target, last, tied):
    made, batch = network(event_embeddings=True, tied=tied), whole(data, last=last)
    readout = reader(made, name=name, target=target).read(batch, step=3, coin=coin)
    expected = by_hand(made, batch, coin=coin, target=target)
    for field, numbers in expected.items():
        assert numbers.std() > 1e-3, f"{field} must vary for this to prove anything"
        torch.testing.assert_close(getattr(readout, field).detach(), numbers, rtol=1e-11, atol=1e-12, msg=field)
    assert readout.step == 3


@pytest.mark.parametrize("name", list(BACKENDS))
def test_the_bandits_critic_is_the_reward_head(data, name):
    made, batch = network(), whole(data)
    reads = {"q", "q_fit", "q_expected", "q_policy", "q_max", "logp_logging", "value"}
    readout = reader(made, reads, critic="reward", name=name).read(batch, step=0, coin=True)
    expected = by_hand(made, batch, coin=True, target="max", critic="reward")
    for field in reads:
        torch.testing.assert_close(getattr(readout, field).detach(), expected[field], rtol=1e-11, atol=1e-12, msg=field)


def test_both_targets_and_both_coins_differ(data):
    made, batch = network(), whole(data)
    found = [
        by_hand(made, batch, coin=coin, target=target)["next_value"]
        for coin in (True, False)
        for target in ("max", "expected")
    ]
    for place, one in enumerate(found):
        assert all((one - other).abs().max() > 1e-2 for other in found[:place])
    # 0 at a sequence's end, and only there.
    ends = [
        place
        for place, token in enumerate(batch.scored)
        if not (batch.row[token + 1 : token + 2] == batch.row[token]).any()
    ]
    assert [place for place, value in enumerate(found[0].tolist()) if value == 0] == ends
    assert len(ends) == len(SEQUENCES)


def test_undeclared_fields_are_absent(data):
    made, batch = network(), whole(data)
    for name in OBJECTIVES:
        reads = objective_of(weighted({"name": name})).reads()
        readout = NetworkReader(made, reads, backend("dense")).read(batch, step=0, coin=True)
        present = {one.name for one in fields(Readout) if getattr(readout, one.name) is not None} - {"step"}
        assert present == reads.fields | {"logp", "reward"}, name


def test_a_frozen_run_stands_for_the_logging_policy(data):
    """μ̂ from another network's policy head: at the position, and at the next."""
    made, other, batch = network(heads=tuple(head for head in HEADS if head != "logging")), network(seed=5), whole(data)
    reads = {"logp_logging", "q_expected", "q", "next_value", "q_fit"}
    found = reader(made, reads, target="expected", logging_policy=policy(other)).read(batch, step=0, coin=True)
    rows = torch.softmax(other.hidden(batch) @ other.heads["policy"].weight.T + other.heads["policy"].bias, 1).detach()
    hidden = made.hidden(batch).detach()
    q_a, q_b = (hidden @ made.heads[head].weight.T + made.heads[head].bias for head in ("q_a", "q_b"))
    at = torch.arange(len(batch.row))
    torch.testing.assert_close(found.logp_logging, rows[at, batch.item].log(), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.q_expected, (rows * (q_a + q_b) / 2).sum(1), rtol=1e-11, atol=1e-12)
    following = (rows * q_b).sum(1).detach()
    for n in range(len(at)):
        inside = n + 1 < len(at) and batch.row[n + 1] == batch.row[n]
        assert isclose(found.next_value[n], following[n + 1] if inside else 0.0, rel_tol=1e-11, abs_tol=1e-12)
    assert not found.logp_logging.requires_grad


def test_sampled_is_the_mean_over_the_taken_and_random_items(data):
    made, batch = network(), whole(data)
    made.requires_grad_(False)
    one = reader(made, {"q", "q_sampled", "q_fit"}, negatives=3)
    found = one.read(batch, step=0, coin=True, generator=torch.Generator().manual_seed(4))
    drawn = torch.randint(ITEMS, (len(batch.scored), 3), generator=torch.Generator().manual_seed(4))
    hidden = made.hidden(batch)
    for n, token in enumerate(batch.scored.tolist()):
        q = (scores(made, hidden[token], "q_a") + scores(made, hidden[token], "q_b")) / 2
        expected = (q[batch.item[token]] + q[drawn[n]].sum()) / (1 + 3)
        assert isclose(found.q_sampled[n], expected, rel_tol=1e-11)


# ---------------------------------------------------------------------- returns


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_returns_to_go_equal_discounted_sums(data, gamma):
    batch = whole(data)
    expected = []
    for sequence in SEQUENCES:
        rewards = [action[2] for action in sequence][-5:]
        expected += [sum(gamma**k * r for k, r in enumerate(rewards[step:])) for step in range(len(rewards))]
    before = batch.reward.clone()
    torch.testing.assert_close(
        returns_to_go(batch, gamma=gamma), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert torch.equal(batch.reward, before)


# ---------------------------------------------------------------------- constants and gradients


def groups(made, loss):
    """Names of the parts of the network that a loss trains."""
    made.zero_grad(set_to_none=True)
    loss.sum().backward(retain_graph=True)
    trained = {
        name
        for name, parameter in made.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().max() > 0
    }
    return {".".join(name.split(".")[:2]) if name.startswith("heads") else name.split(".")[0] for name in trained}


BODY = {"embedding", "start", "answer", "backbone"}
VARIANTS = [
    *({"name": name} for name in OBJECTIVES),
    *({"name": name, "target": "expected"} for name in ("sqn", "sac", "lpi_rl")),
    *({"name": name, "baseline": g} for name in ("lpi_cb", "lpi_rl") for g in ("policy", "max", "value", "none")),
    {"name": "lpi_cb", "advantage": "observed"},
    {"name": "lpi_rl", "advantage": "monte_carlo"},
    {"name": "lpi_rl", "advantage": "sampled"},
    {"name": "ips", "propensities": "logged"},
]


@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: "-".join(case.values()))
@pytest.mark.parametrize("coin", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_each_term_trains_its_own_head_and_only_two_reach_the_backbone(data, case, coin, dropout):
    found = objective_of(weighted(case))
    made = network(event_embeddings=True, dropout=dropout, heads=heads_for(found.reads(), logging_given=False)).train()
    readout = NetworkReader(made, found.reads(), backend("chunked")).read(whole(data), step=0, coin=coin)
    losses = found.terms(
        replace(readout, reward=readout.reward - 0.5 if not found.non_negative else readout.reward)
    ).losses
    fitted = "heads.q_a" if coin else "heads.q_b"
    allowed = {
        "policy": BODY | {"heads.policy"},
        "td": BODY | {fitted},
        "reward": BODY | {"heads.reward"},
        "logging": {"heads.logging"},
        "value": {"heads.value"},
    }
    for name, loss in losses.items():
        assert groups(made, loss) == allowed[name], name


def test_constants_carry_no_gradient(data):
    made = network(dropout=0.3).train()
    readout = reader(made).read(whole(data), step=0, coin=True)
    for name in CONSTANT - {"logp_logging", "value"}:
        assert not getattr(readout, name).requires_grad, name


@pytest.mark.parametrize("target", ["max", "expected"])
def test_constants_are_read_without_dropout(data, target):
    """In training constants equal the network's numbers in serving; logp and q_fit do not."""
    made, batch = network(dropout=0.5).train(), whole(data)
    reads = ALL - {"q_sampled"}
    found = reader(made, reads, target=target).read(batch, step=0, coin=True)
    assert made.training
    served = reader(made.eval(), reads, target=target).read(batch, step=0, coin=True)
    for name in CONSTANT - {"q_sampled"}:
        torch.testing.assert_close(getattr(found, name), getattr(served, name), rtol=1e-12, atol=1e-13)
    for name in ("logp", "q_fit"):
        assert (getattr(found, name) - getattr(served, name)).abs().max() > 1e-3, name


class Noisy(nn.Module):
    """Backbone of a user, with dropout of its own."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, embedded, layout):
        return self.dropout(embedded)


def test_a_users_backbone_is_read_without_its_dropout_too(data):
    torch.manual_seed(0)
    made = Network(
        ModelConfig(width=8, dropout=0.0, tied=False), items=ITEMS, events=0, length=5, heads=HEADS, backbone=Noisy()
    ).double()
    with torch.no_grad():
        for head in ("q_a", "q_b"):
            made.heads[head].weight.normal_()
    batch = whole(data)
    found = reader(made.train(), {"q", "next_value", "q_fit"}).read(batch, step=0, coin=True)
    served = reader(made.eval(), {"q", "next_value", "q_fit"}).read(batch, step=0, coin=True)
    torch.testing.assert_close(found.q, served.q)


# ---------------------------------------------------------------------- heads that share the embeddings


def test_a_tied_critic_and_logging_head_read_the_embeddings_through_a_projection(data):
    made, batch = network(tied=True), whole(data)
    hidden = made.hidden(batch).detach()
    for head in ("logging", "q_a", "reward"):
        table = made.head(head).logits(hidden).chunk(0, ITEMS)
        ours = made.scores(head, hidden)
        for token in range(len(batch.row)):
            expected = scores(made, hidden[token], head)
            torch.testing.assert_close(table[token], expected, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(
                ours.logits.chunk(0, ITEMS)[token] + ours.shift[token], expected, rtol=1e-11, atol=1e-12
            )


def test_the_tied_logging_heads_likelihood_leaves_policy_and_embeddings_alone(data):
    made = network(tied=True).train()
    readout = reader(made, {"logp_logging", "q", "q_fit"}).read(whole(data), step=0, coin=True)
    assert groups(made, readout.logp_logging) == {"heads.logging"}
    assert "embedding" in groups(made, readout.q_fit), "a critic teaches the embeddings it reads"
