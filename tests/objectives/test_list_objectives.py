"""From a log of lists to gradients: every list of 2 of 5 that μ can draw, weighted by its probability.

The rows go the whole way: store, windows, network, readout, objective. The expectation over lists is exact.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from localpolicy.catalogue import chunked
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.model.readout import NetworkReader, heads_for
from localpolicy.objectives import objective_of
from localpolicy.objectives.critic import Critic
from localpolicy.types import Readout

MU = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
LISTS = list(permutations(range(5), 2))
CHANCE = np.array([MU[a] * MU[b] / (1 - MU[a]) for a, b in LISTS])
REWARD = np.array([0.1, 0.9, 0.4, 0.6, 0.3])
BY_RATIO = ["ips", "ips_pg"]


def enumerated(folder, reward) -> Prepared:
    optional = ("propensity", "place", "above")
    with writing(folder, kind="impressions", events=["none", "click"], optional=optional) as store:
        item = np.array(LISTS).ravel()
        place = np.tile([0, 1], len(LISTS))
        propensity = np.array([[MU[a], MU[b] / (1 - MU[a])] for a, b in LISTS]).ravel()
        for split in store.splits.values():
            split.append(np.full(len(LISTS), 2), {
                "item": item, "event": place * 0, "reward": reward[item], "propensity": propensity, "place": place,
                "above": place,
            })  # fmt: skip
        store.write_items(np.arange(5), np.ones(5, np.int64))
    return Prepared(folder)


class Lists:
    """Expected losses of a policy that knows no context: its logits are the head's biases."""

    def __init__(self, data: Prepared, objective: dict, logits) -> None:
        self.batch = Windows(data, "train", WindowConfig(length=4)).cut(torch.arange(len(LISTS)))
        self.objective = objective_of(objective)
        reads = self.objective.reads()
        heads = heads_for(reads, logging_given=False)
        network = Network(ModelConfig(width=4, dropout=0, tied=False), items=5, events=0, length=4, heads=heads)
        self.network = network.double()
        for parameter in self.network.parameters():
            torch.nn.init.zeros_(parameter)
        self.logits = self.network.heads["policy"].bias
        with torch.no_grad():
            self.logits.copy_(torch.as_tensor(logits))
        self.reader = NetworkReader(self.network, reads, chunked)

    def loss(self, step=0):
        terms = self.objective.terms(self.reader.read(self.batch, step=step, coin=True))
        chance = torch.from_numpy(np.repeat(CHANCE, 2))
        return sum((chance * loss).sum() for loss in terms.losses.values())

    def gradient(self):
        return torch.autograd.grad(self.loss(), self.logits)[0]

    def trained(self, steps=400):
        """Newton's steps by LBFGS: the world is convex in the logits for likelihoods."""
        optimiser = torch.optim.LBFGS(self.network.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

        def closure():
            optimiser.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        optimiser.step(closure)
        return torch.softmax(self.logits.detach(), 0).numpy()


def js(p, q):
    m = (p + q) / 2
    return float(0.5 * (p * np.log(p / m)).sum() + 0.5 * (q * np.log(q / m)).sum())


@pytest.fixture(scope="module")
def equal(tmp_path_factory) -> Prepared:
    return enumerated(tmp_path_factory.mktemp("equal") / "data", np.ones(5))


@pytest.fixture(scope="module")
def unequal(tmp_path_factory) -> Prepared:
    return enumerated(tmp_path_factory.mktemp("unequal") / "data", REWARD)


@pytest.mark.parametrize("name", BY_RATIO)
@pytest.mark.parametrize("logits", [np.log(MU), np.linspace(-1, 1, 5)], ids=["at μ", "elsewhere"])
def test_equal_rewards_give_ratios_nothing_to_climb(name, logits, equal):
    """Σ_b μ(b|open) ρ(b) ∇ log π(b|open) = ∇ Σ_b π(b|open) = 0, whatever was drawn above and wherever π is."""
    settings = {"propensities": "logged"} | ({"gamma": 0.0} if name == "ips_pg" else {})
    world = Lists(equal, {"name": name, "clip": 1e9, **settings}, logits)
    assert world.gradient().abs().max() < 1e-7


@pytest.mark.parametrize("name", BY_RATIO)
def test_unequal_rewards_pull_towards_the_better(name, unequal):
    settings = {"propensities": "logged"} | ({"gamma": 0.0} if name == "ips_pg" else {})
    world = Lists(unequal, {"name": name, **settings}, np.log(MU))
    first = torch.from_numpy(MU) * torch.from_numpy(REWARD - MU @ REWARD)
    second = torch.zeros(5, dtype=torch.float64)
    for above in range(5):  # place 2: the same among what is left
        left = MU * (np.arange(5) != above) / (1 - MU[above])
        second += torch.from_numpy(MU[above] * left * (REWARD - left @ REWARD))
    torch.testing.assert_close(-world.gradient(), first + second, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("propensities", ["logged", "unused"])
def test_the_likelihood_of_lists_has_its_optimum_at_mu(propensities, equal):
    """Over the whole catalogue it would be the share of exposure: .33 for the item that μ puts first half the time."""
    world = Lists(equal, {"name": "mle", "propensities": propensities}, np.log(MU))
    assert world.gradient().abs().max() < 1e-7
    found = Lists(equal, {"name": "mle", "propensities": propensities}, np.zeros(5)).trained()
    assert js(found, MU) < 1e-8
    exposure = sum(CHANCE[n] * np.isin(np.arange(5), LISTS[n]) for n in range(len(LISTS))) / 2
    assert js(exposure, MU) > 0.005, "what the likelihood over all items would find"


def test_reward_weighting_finds_mu_times_reward_among_open_items(unequal):
    """Stationary where π(b|open) ∝ μ(b|open) r(b) on average over what is above; first places alone: π ∝ μ r."""
    found = Lists(unequal, {"name": "reward_weighted"}, np.log(MU)).trained()
    assert np.corrcoef(np.log(found), np.log(MU * REWARD))[0, 1] > 0.98
    assert found.argmax() == (MU * REWARD).argmax()


def test_the_logging_head_of_a_policy_has_its_optimum_at_mu_too(equal):
    world = Lists(equal, {"name": "ips", "propensities": "estimated"}, np.zeros(5))
    head = world.network.heads["logging"].bias
    (away,) = torch.autograd.grad(world.loss(), head)
    with torch.no_grad():
        head.copy_(torch.from_numpy(np.log(MU)))
    (there,) = torch.autograd.grad(world.loss(), head)
    assert there.abs().max() < 1e-12 < 0.1 < away.abs().max()


def test_a_critic_predicts_the_reward_at_the_first_place(tmp_path):
    """r = e(place) · r(a): the mean squared error is least at r(a) itself, whatever stands where how often."""
    examined = np.array([1.0, 0.4])
    data = enumerated(tmp_path / "data", REWARD)
    batch = Windows(data, "train", WindowConfig(length=4)).cut(torch.arange(len(LISTS)))
    e = torch.from_numpy(examined[np.tile([0, 1], len(LISTS))])
    reward = torch.from_numpy(REWARD)[batch.item] * e
    chance = torch.from_numpy(np.repeat(CHANCE, 2))
    for gamma, kind in ((0.0, "reward"), (0.5, "q")):
        q = torch.zeros(5, dtype=torch.float64, requires_grad=True)
        readout = Readout(logp=torch.zeros_like(reward), reward=reward, examined=e, q_fit=q[batch.item],
                          next_value=torch.full_like(reward, 0.7))  # fmt: skip
        loss = Critic(kind=kind, gamma=gamma, logging="").terms(readout).losses["critic"]
        (slope,) = torch.autograd.grad((chance * loss).sum(), q)
        # A quadratic with a diagonal Hessian: its minimum is one Newton step away.
        curvature = torch.zeros(5, dtype=torch.float64).index_add_(0, batch.item, 2 * chance * e**2)
        expected = torch.from_numpy(REWARD) + gamma * 0.7 * (kind == "q")
        torch.testing.assert_close(-slope / curvature, expected)
