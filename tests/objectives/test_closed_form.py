"""The closed form on a world small enough to enumerate: its critic is Q_μ, its policy μ exp(A/β)/Z, and it improves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from tabular import World, maximise, normalised, table, tabular
from test_convergence import GAMMA, Q_MU, WORLD, close

from localpolicy.catalogue import dense
from localpolicy.model.deployable import Origin
from localpolicy.model.policy import Policy
from localpolicy.model.readout import NetworkReader, heads_for
from localpolicy.model.towers import Towers
from localpolicy.objectives.critic import Critic
from localpolicy.objectives.lpi import LPI, LPIBandit


def logging_tower(world: World):
    """A tower that is μ."""
    network = tabular(world, ("policy",))
    with torch.no_grad():
        network.heads["policy"].weight[:, : len(world.contexts)] = world.mu.log().T
    return network.requires_grad_(False)


def policy_of(network, world: World) -> Policy:
    items = pa.table({"item_id": np.arange(world.n_items)})
    return Policy(network, Origin("lpi_rl", "impressions", ["click"], "logging"), items)


def critic_tower(world: World, critic: Critic, sweeps: int):
    """A tower fitted to the critic's loss in expectation under μ, its targets held fixed in each sweep."""
    reads = critic.reads()
    network = tabular(world, heads_for(reads, logging_given=True))
    reader = NetworkReader(network, reads, dense, policy_of(logging_tower(world), world))
    batch, chance, context = world.log
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for _ in range(sweeps):
        with torch.no_grad():
            following = reader.read(batch, step=0, coin=True).next_value

        def loss(following=following):
            readout = replace(reader.read(batch, step=0, coin=True), next_value=following)
            return -(critic.terms(readout).losses["critic"] * chance / world.visits[context]).sum()

        maximise(parameters, loss)
    return network


@pytest.fixture(scope="module")
def towers():
    q = critic_tower(WORLD, LPI(gamma=GAMMA).critic_objective("unused"), sweeps=WORLD.steps + 1)
    return logging_tower(WORLD), q


def pi(policy: Policy) -> torch.Tensor:
    """[S, V]: a context's hidden unit is 1 in every tower."""
    contexts, network = len(WORLD.contexts), policy.network
    width = network.logging.config.width
    hidden = torch.eye(width, dtype=torch.float64)[:contexts].repeat(1, len(network.towers))
    return torch.softmax(policy.rows_of(hidden).chunk(0, WORLD.n_items), 1)


def test_the_critic_alone_finds_q_of_mu_and_the_bandits_finds_r(towers):
    close(table(towers[1], "q", len(WORLD.contexts)), Q_MU)
    bandit = critic_tower(WORLD, LPIBandit().critic_objective("unused"), sweeps=1)
    close(table(bandit, "reward", len(WORLD.contexts)), WORLD.reward)


@pytest.mark.parametrize(("beta", "slope"), [(1.0, 1.0), (0.2, 1.0), (0.2, 0.4), (0.2, 0.0)])
def test_the_policy_is_mu_tilted_by_the_calibrated_advantage(towers, beta, slope):
    made = policy_of(Towers(towers[0], [towers[1]], beta=beta, slope=slope), WORLD)
    advantage = Q_MU - (WORLD.mu * Q_MU).sum(1, keepdim=True)
    close(pi(made), normalised(WORLD.mu * (slope * advantage / beta).exp()))
    for dial in (0.3, 3.0):
        close(pi(made.dialled(dial)), normalised(WORLD.mu * (slope * advantage / dial).exp()))
    close(pi(made.logging()), WORLD.mu)


def test_it_improves_and_more_so_the_smaller_beta_is(towers):
    values = [
        float(WORLD.J(pi(policy_of(Towers(towers[0], [towers[1]], beta=beta, slope=1.0), WORLD)), GAMMA))
        for beta in (1e6, 1.0, 0.3, 0.1)
    ]
    assert values[0] == pytest.approx(float(WORLD.J(WORLD.mu, GAMMA)), abs=1e-6)
    assert all(later > earlier + 0.005 for earlier, later in pairwise(values)), values


@pytest.mark.parametrize("slope", [1.0, 0.4])
def test_a_cap_bounds_what_one_estimate_counts_for_and_keeps_the_guarantee(towers, slope):
    """π ∝ μ w with w = min(exp(s A/β), c) rising in A: E_π[A] = Cov_μ(w, A)/E_μ[w] >= 0 in every context."""
    advantage = Q_MU - (WORLD.mu * Q_MU).sum(1, keepdim=True)
    for beta in (1.0, 0.1, 0.02):
        made = pi(policy_of(Towers(towers[0], [towers[1]], beta=beta, slope=slope, cap=1.5), WORLD))
        weight = (slope * advantage / beta).exp()
        close(made, normalised(WORLD.mu * weight.clamp(max=1.5)))
        assert ((made * advantage).sum(1) >= -1e-12).all()
        assert WORLD.J(made, GAMMA) >= WORLD.J(WORLD.mu, GAMMA) - 1e-12
    assert (weight > 1.5).any(), "the cap must have bound somewhere"


def test_several_critics_are_averaged(towers):
    other = critic_tower(WORLD, LPIBandit().critic_objective("unused"), sweeps=1)
    renamed = tabular(WORLD, ("q",))
    renamed.heads["q"].load_state_dict(other.heads["reward"].state_dict())
    made = policy_of(Towers(towers[0], [towers[1], renamed], beta=0.5, slope=1.0), WORLD)
    close(pi(made), normalised(WORLD.mu * ((Q_MU + WORLD.reward) / 2 / 0.5).exp()))
