"""Trained to convergence on a world whose every sequence is known, each objective finds what its docs say.

The whole path is the project's: Batch, Network (its heads are tables), NetworkReader, formula. The log holds every
possible sequence once, and terms are weighted by the probability of their sequence, so losses are expectations under μ.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest
import torch
from tabular import UNCAPPED, Learner, World, batch_of, draws, formula, normalised, world

from localpolicy.types import Readout

GAMMA, BETA = 0.7, 0.5
WORLD = world()
Q_MU = WORLD.q_of(WORLD.mu, GAMMA)
Q_BEST = WORLD.q_best(GAMMA)
SWEEPS = 2 * WORLD.steps  # each head needs one sweep per step


def close(found, expected, *, atol=1e-6):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def tilted(values):
    return normalised(WORLD.mu * (values / BETA).exp())


def test_limits_of_the_objectives_differ_in_the_world():
    """Guards: what objectives converge to must differ by more than the tolerances below."""
    targets = [WORLD.mu, normalised(WORLD.mu * WORLD.reward), normalised(WORLD.mu * Q_MU),
               normalised(WORLD.mu * Q_BEST),
               tilted(WORLD.reward), tilted(Q_MU), tilted(Q_BEST)]  # fmt: skip
    for place, one in enumerate(targets):
        assert all((one - other).abs().max() > 5e-3 for other in targets[:place])
    assert sum(chance for *_, chance in WORLD.sequences) == pytest.approx(1.0, abs=1e-12)


def test_q_of_mu_equals_the_mean_return_of_the_log():
    """Q_μ by the recursion is the mean of the log's returns, weighted by their probabilities."""
    total, mass = torch.zeros_like(Q_MU), torch.zeros_like(Q_MU)
    for items, rewards, chance in WORLD.sequences:
        for step, a in enumerate(items):
            x = WORLD.number[items[:step]]
            total[x, a] += chance * sum(GAMMA**k * r for k, r in enumerate(rewards[step:]))
            mass[x, a] += chance
    close(total / mass, Q_MU, atol=1e-13)
    close(mass, WORLD.visits[:, None] * WORLD.mu, atol=1e-13)


# ---------------------------------------------------------------------- weighted likelihoods


def test_mle_finds_the_logging_policy():
    close(Learner(WORLD, "mle").converge().pi, WORLD.mu)


def test_reward_weighted_finds_mu_r():
    close(Learner(WORLD, "reward_weighted").converge().pi, normalised(WORLD.mu * WORLD.reward))


def test_pg_finds_mu_times_the_mean_return():
    close(Learner(WORLD, "pg", gamma=GAMMA).converge().pi, normalised(WORLD.mu * Q_MU))


@pytest.mark.parametrize("target", ["max", "expected"])
def test_sqn_finds_the_logging_policy_and_q(target):
    learner = Learner(WORLD, "sqn", gamma=GAMMA, target=target).converge(SWEEPS)
    close(learner.pi, WORLD.mu)
    for head in ("q_a", "q_b", "q"):
        close(learner.scores(head), {"max": Q_BEST, "expected": Q_MU}[target])


@pytest.mark.parametrize("target", ["max", "expected"])
def test_sac_finds_mu_q(target):
    learner = Learner(WORLD, "sac", gamma=GAMMA, target=target).converge(SWEEPS)
    close(learner.pi, normalised(WORLD.mu * {"max": Q_BEST, "expected": Q_MU}[target]))


# ---------------------------------------------------------------------- local policy improvement


@pytest.mark.parametrize("baseline", ["expected", "value", "none"])
def test_lpi_cb_finds_the_tilt_by_the_reward(baseline):
    learner = Learner(WORLD, "lpi_cb", beta=BETA, cap=UNCAPPED, baseline=baseline).converge()
    close(learner.pi, tilted(WORLD.reward))
    close(learner.scores("reward"), WORLD.reward)
    if baseline == "expected":
        close(torch.softmax(learner.scores("logging"), 1), WORLD.mu)
    if baseline == "value":  # V regressed on r is E_μ[r|x]
        head = learner.network.heads["value"]
        found = (head.weight[0, : len(WORLD.contexts)] + head.bias).detach()
        close(found, (WORLD.mu * WORLD.reward).sum(1))


@pytest.mark.parametrize(("target", "baseline"), [("expected", "expected"), ("max", "max"), ("max", "policy")])
def test_lpi_rl_finds_the_tilt_by_q(target, baseline):
    learner = Learner(WORLD, "lpi_rl", beta=BETA, gamma=GAMMA, cap=UNCAPPED, target=target, baseline=baseline)
    learner.converge(SWEEPS)
    q = {"max": Q_BEST, "expected": Q_MU}[target]
    close(learner.scores("q"), q)
    close(learner.pi, tilted(q))


def test_lpi_rl_with_exact_q_improves_and_a_cap_does_not_break_that():
    """The guarantee, end to end: learned Q_μ, learned μ̂, learned π, and J(π) >= J(μ) with and without a cap."""
    for cap in (UNCAPPED, 1.2):
        learner = Learner(WORLD, "lpi_rl", beta=0.2, gamma=GAMMA, cap=cap, target="expected").converge(SWEEPS)
        assert WORLD.J(learner.pi, GAMMA) > WORLD.J(WORLD.mu, GAMMA) + 0.02
    a = Q_MU - (WORLD.mu * Q_MU).sum(1, keepdim=True)
    close(learner.pi, normalised(WORLD.mu * (a / 0.2).exp().clamp(max=1.2)))


def test_monte_carlo_finds_the_exponential_moment_of_the_return():
    """μ E[e^{G/β}|x,a], which is not μ e^{E[G|x,a]/β}: it seeks risk."""
    learner = Learner(WORLD, "lpi_rl", beta=BETA, gamma=GAMMA, cap=UNCAPPED, advantage="monte_carlo", baseline="none")
    moment = WORLD.exponential_moment(1 / BETA, GAMMA)
    close(learner.converge().pi, normalised(WORLD.mu * moment))
    assert (normalised(WORLD.mu * moment) - tilted(Q_MU)).abs().max() > 2e-3
    close(learner.scores("q_a"), Q_MU)


# ---------------------------------------------------------------------- noisy rewards

# One context. Item 0 is a coin, 1 or 0; item 1 is a sure 0.6.
COIN = World(
    steps=1,
    mu=torch.full((1, 2), 0.5, dtype=torch.float64),
    reward=torch.tensor([[0.5, 0.6]], dtype=torch.float64),
    ends=torch.ones(1, 2, dtype=torch.float64),
    outcomes=((0, 1.0, 0.5), (0, 0.0, 0.5), (1, 0.6, 1.0)),
)


@pytest.mark.parametrize("beta", [1.0, 0.2])
def test_observed_rewards_seek_risk(beta):
    """observed -> μ E[e^{R/β}|x,a]: at small β the coin wins, and J falls below J(μ)."""
    learner = Learner(COIN, "lpi_cb", advantage="observed", baseline="none", beta=beta, cap=UNCAPPED).converge()
    moments = torch.tensor([[(exp(1 / beta) + exp(0 / beta)) / 2, exp(0.6 / beta)]], dtype=torch.float64)
    close(learner.pi, normalised(COIN.mu * moments))
    assert (COIN.J(learner.pi, 0.0) < COIN.J(COIN.mu, 0.0) - 0.01) == (beta == 0.2)


@pytest.mark.parametrize("beta", [1.0, 0.2, 0.05])
def test_the_direct_method_does_not_seek_risk(beta):
    learner = Learner(COIN, "lpi_cb", beta=beta, cap=UNCAPPED).converge()
    close(learner.pi, normalised(COIN.mu * (COIN.reward / beta).exp()))
    assert COIN.J(learner.pi, 0.0) > COIN.J(COIN.mu, 0.0) + 1e-3


# ---------------------------------------------------------------------- importance weights


def importance_learner(name, **settings):
    """Learner with a random policy and a logging head that is exactly μ."""
    learner = Learner(WORLD, name, **settings)
    count = len(WORLD.contexts)
    with torch.no_grad():
        for head, rows in (("policy", draws(count, WORLD.n_items, seed=4)), ("logging", WORLD.mu.log())):
            learner.network.heads[head].weight[:, :count] = rows.T
            learner.network.heads[head].bias.zero_()
    return learner


@pytest.mark.parametrize(("name", "settings", "value"), [
    ("ips", {}, WORLD.reward),
    ("ips_pg", {"gamma": GAMMA}, Q_MU),
], ids=["ips", "ips_pg"])  # fmt: skip
def test_importance_weights_give_the_importance_weighted_policy_gradient(name, settings, value):
    """∇ -Σ_x P_μ(x) Σ_a π(a|x) value(x,a), where nothing is clipped; and J rises along it."""
    learner = importance_learner(name, clip=1e9, **settings)
    weight = learner.network.heads["policy"].weight
    batch, chance, _ = WORLD.log
    terms = learner.terms(batch, coin=True)
    assert not terms.clipped.any()
    (found,) = torch.autograd.grad((chance * terms.losses["policy"]).sum(), weight)

    def reward_of(rows):
        return (WORLD.visits[:, None] * torch.softmax(rows, 1) * value).sum()

    leaf = learner.scores("policy").requires_grad_()
    (true,) = torch.autograd.grad(reward_of(leaf), leaf)
    assert true.abs().max() > 1e-2, "a zero gradient would compare equal to anything"
    close(found[:, : len(WORLD.contexts)].T, -true, atol=1e-13)

    step = 0.1
    moved = leaf.detach() - step * found[:, : len(WORLD.contexts)].T
    assert reward_of(moved) > reward_of(leaf) + 0.5 * step * (true**2).sum()


def test_a_step_of_ips_pg_from_the_logging_policy_raises_the_value_of_the_process():
    learner = importance_learner("ips_pg", gamma=GAMMA)
    with torch.no_grad():
        learner.network.heads["policy"].weight.copy_(learner.network.heads["logging"].weight)
    learner.expected_loss().backward()
    head = learner.network.heads["policy"]
    with torch.no_grad():
        head.weight -= 0.5 * head.weight.grad
    assert WORLD.J(learner.pi, GAMMA) > WORLD.J(WORLD.mu, GAMMA) + 1e-3


def test_the_clip_binds_where_it_should():
    """Clipped positions weigh clip · r, the others π/μ · r."""
    learner = importance_learner("ips", clip=1.5)
    batch, _, context = WORLD.log
    terms = learner.terms(batch, coin=True)
    ratio = (learner.pi / WORLD.mu)[context, batch.item]
    assert 0 < terms.clipped.sum() < len(ratio)
    close(terms.weight, ratio.clamp(max=1.5) * batch.reward, atol=1e-13)
    assert torch.equal(terms.clipped, ratio > 1.5)


# ---------------------------------------------------------------------- critics


def test_double_q_overestimates_less_than_single_q():
    """Every first item leads to a state where all actions pay a fair ±1, so Q = 0 after every first item.

    The largest of noisy estimates is above 0, and single Q believes it. Each batch is fresh, as in a stream: the two
    heads see different noise. Averaged over 12 first items and 3 seeds.
    """
    items, rate, steps = 12, 0.2, 120
    blank = torch.full((1 + items, items), 1 / items, dtype=torch.float64)
    ends = torch.zeros_like(blank)
    ends[1:] = 1.0
    stream = World(2, blank, torch.zeros_like(blank), ends)
    estimates = {}
    for shared in (True, False):
        found = []
        for seed in range(3):
            learner = Learner(stream, "sqn", gamma=0.9, shared=shared)
            critics = [parameter for name, parameter in learner.network.named_parameters()
                       if ".q_" in name and parameter.requires_grad]  # fmt: skip
            generator = torch.Generator().manual_seed(seed)
            for _ in range(steps):
                second = torch.randint(items, (items,), generator=generator).tolist()
                paid = (2 * torch.randint(2, (items,), generator=generator) - 1).tolist()
                batch = batch_of([((a, b), (0.0, float(r))) for a, (b, r) in enumerate(zip(second, paid, strict=True))])
                coin = bool(torch.randint(2, (), generator=generator))
                loss = learner.terms(batch, coin=coin).losses["td"].sum()
                for parameter, slope in zip(
                    critics, torch.autograd.grad(loss, critics, allow_unused=True), strict=True
                ):
                    if slope is not None:
                        parameter.data -= rate / 2 * slope
            found.append(learner.scores("q")[0].mean().item())
        estimates["single" if shared else "double"] = sum(found) / len(found)
    assert estimates["single"] > 0.1, "the world must show the bias"
    assert abs(estimates["double"]) < 0.5 * estimates["single"]


@pytest.mark.parametrize("baseline", ["expected", "policy", "max", "value", "none"])
def test_without_a_future_lpi_rl_is_lpi_cb(baseline):
    """γ = 0 and equal inputs: the same weights and the same losses, by name reward = td."""
    n = 50
    numbers = {name: draws(n, seed=place) for place, name in enumerate(
        ("logp", "reward", "logp_logging", "q", "q_fit", "q_expected", "q_policy", "q_max", "value",
         "next_value"))}  # fmt: skip
    readout = Readout(**{**numbers, "logp_logging": numbers["logp_logging"].requires_grad_()})
    shared = {"baseline": baseline, "beta": 0.7, "cap": 3.0, "td_weight": 0.6}
    bandit = formula("lpi_cb", replace(readout, next_value=None), **shared)
    process = formula("lpi_rl", readout, gamma=0.0, **shared)
    assert torch.equal(bandit.weight, process.weight)
    assert torch.equal(bandit.clipped, process.clipped)
    assert 0 < bandit.clipped.sum() < n
    renamed = {"td": "reward"}
    assert {renamed.get(name, name) for name in process.losses} == set(bandit.losses)
    for name, loss in process.losses.items():
        assert torch.equal(loss, bandit.losses[renamed.get(name, name)])
        assert loss.abs().max() > 0.1
    with_future = formula("lpi_rl", readout, gamma=0.5, **shared)
    assert not torch.equal(with_future.losses["td"], process.losses["td"]), "γ must matter for this to prove anything"
