"""Markov decision processes: what improvement is guaranteed, and what is not. Exact linear algebra, float64."""

from __future__ import annotations

import pytest
import torch
from tabular import draws, formula, normalised

from localpolicy.types import Readout

GAMMA = 0.8


class Process:
    """d0 [X], P(x'|x,a) [X, A, X], r [X, A]."""

    def __init__(self, start, transition, reward, gamma):
        self.start, self.transition, self.reward, self.gamma = start, transition, reward, gamma

    def v(self, pi):
        """V_π = (1 - γ P_π)^{-1} r_π."""
        moves = torch.einsum("xa,xay->xy", pi, self.transition)
        return torch.linalg.solve(torch.eye(len(self.start)) - self.gamma * moves, (pi * self.reward).sum(1))

    def q(self, pi):
        """Q_π(x,a) = r + γ Σ P V_π."""
        return self.reward + self.gamma * self.transition @ self.v(pi)

    def J(self, pi):
        """Σ_t γ^t E[r_t]."""
        return self.start @ self.v(pi)

    def visits(self, pi):
        """d_π(x) = (1 - γ) Σ_t γ^t P(x_t = x): sums to 1."""
        moves = torch.einsum("xa,xay->xy", pi, self.transition)
        return (1 - self.gamma) * torch.linalg.solve((torch.eye(len(self.start)) - self.gamma * moves).T, self.start)


def process(seed, *, states=4, actions=3):
    transition = torch.softmax(2 * draws(states, actions, states, seed=seed), 2)
    start, reward = torch.softmax(draws(states, seed=seed + 1), 0), draws(states, actions, seed=seed + 2)
    return Process(start, transition, reward, GAMMA), torch.softmax(draws(states, actions, seed=seed + 3), 1)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def improved(made, mu, *, q=None, **settings):
    """π ∝ μ w, with the weights of lpi_rl at the exact Q_μ (or a given Q) and its mean under μ."""
    q = made.q(mu) if q is None else q
    flat = lambda values: values.expand(mu.shape).reshape(-1)  # noqa: E731
    readout = Readout(
        logp=flat(mu.log()), reward=flat(made.reward), q=flat(q), q_fit=flat(q), next_value=flat(torch.zeros(1)),
        q_expected=flat((mu * q).sum(1, keepdim=True)),
    )  # fmt: skip
    weight = formula("lpi_rl", readout, **settings).weight.reshape(mu.shape)
    return normalised(mu * weight), weight


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("settings", [{"cap": 1e6}, {"cap": 1.5}, {"cap": 1.0}], ids=str)
def test_the_weighted_policy_improves_on_the_logging_policy(seed, settings):
    """E_{a~π}[A_μ(x,a)] = Cov_μ(w, A)/E_μ[w] >= 0 in every state, and so J(π) >= J(μ), caps included."""
    made, mu = process(10 * seed)
    for beta in (10.0, 1.0, 0.3, 0.1):
        pi, weight = improved(made, mu, beta=beta, **settings)
        assert weight.max() <= settings["cap"] * (1 + 1e-12)
        q = made.q(mu)
        advantage = q - (mu * q).sum(1, keepdim=True)
        assert ((pi * advantage).sum(1) >= -1e-14).all()
        assert (made.v(pi) >= made.v(mu) - 1e-13).all(), "in every state, not on average alone"
        assert made.J(pi) > made.J(mu) + 1e-3


@pytest.mark.parametrize(
    "weigh", [torch.sigmoid, torch.exp, lambda a: (a > 0).double() + 0.1], ids=["sigmoid", "exp", "step"]
)
def test_any_weight_that_does_not_fall_in_the_advantage_improves(weigh):
    for seed in range(5):
        made, mu = process(10 * seed)
        advantage = made.q(mu) - made.v(mu)[:, None]
        assert made.J(normalised(mu * weigh(advantage))) > made.J(mu) + 1e-3
        assert made.J(normalised(mu * weigh(-advantage))) < made.J(mu) - 1e-3, "a falling weight does harm"


def test_with_another_q_there_is_no_guarantee():
    """Q* is not Q_μ: it trusts state 1, where a 1 waits that μ, and the tilted policy after it, hardly ever takes."""
    transition = torch.zeros(3, 2, 3)
    transition[0, 0, 2] = transition[0, 1, 1] = transition[1, :, 2] = transition[2, :, 2] = 1.0
    reward = torch.tensor([[0.5, 0.0], [0.0, 1.0], [0.0, 0.0]])
    made = Process(torch.tensor([1.0, 0.0, 0.0]), transition, reward, 0.9)
    mu = torch.tensor([[0.5, 0.5], [0.99, 0.01], [0.5, 0.5]])
    q_best = torch.tensor([[0.5, 0.9 * 1.0], [0.0, 1.0], [0.0, 0.0]])
    followed, exact = (improved(made, mu, q=q, beta=1.0, cap=1e6)[0] for q in (q_best, made.q(mu)))
    assert made.J(followed) < made.J(mu) - 0.03
    assert made.J(exact) > made.J(mu) + 0.03


def test_the_value_need_not_rise_as_beta_falls():
    """State 0: a sure 0.55, or on to state 1, where μ tosses a coin between 0 and 1 (selection_score 0.5 under μ).

    Small β takes the sure 0.55 for certain; a larger one still moves on often, and by then knows to take the 1.
    """
    transition = torch.zeros(3, 2, 3)
    transition[0, 0, 2] = transition[0, 1, 1] = transition[1, :, 2] = transition[2, :, 2] = 1.0
    reward = torch.tensor([[0.55, 0.0], [0.0, 1.0], [0.0, 0.0]])
    made = Process(torch.tensor([1.0, 0.0, 0.0]), transition, reward, 1 - 1e-9)
    mu = torch.full((3, 2), 0.5)
    values = [made.J(improved(made, mu, beta=beta, cap=1e300)[0]).item() for beta in (0.2, 0.02, 0.002)]
    # By hand: at β = 0.2, P(take 1) = σ(1/β) and P(sure) = σ(0.05/β).
    sure, one = 1 / (1 + torch.tensor([-0.05 / 0.2, -1 / 0.2]).exp())
    assert values[0] == pytest.approx((sure * 0.55 + (1 - sure) * one).item(), abs=1e-8)
    assert values[0] > values[1] + 0.1 > values[2]
    assert values[2] == pytest.approx(0.55, abs=1e-6)
    assert all(value > made.J(mu).item() + 0.02 for value in values)


@pytest.mark.parametrize("seed", range(4))
def test_the_performance_difference_identity_holds(seed):
    """J(π) - J(μ) = 1/(1-γ) E_{x~d_π} E_{a~π}[A_μ(x,a)], d_π normalised. (The paper leaves the factor out.)"""
    made, mu = process(10 * seed)
    pi = torch.softmax(draws(*mu.shape, seed=seed + 77), 1)
    visits = made.visits(pi)
    assert visits.sum().item() == pytest.approx(1.0, abs=1e-13)
    advantage = made.q(mu) - made.v(mu)[:, None]
    gained = (visits[:, None] * pi * advantage).sum()
    difference = made.J(pi) - made.J(mu)
    assert difference.abs() > 1e-2
    torch.testing.assert_close(gained / (1 - GAMMA), difference, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close((visits[:, None] * pi * made.reward).sum() / (1 - GAMMA), made.J(pi), rtol=1e-11, atol=0)
