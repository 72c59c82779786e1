"""The bounds of the paper's section 3.1 and appendices, on bandits small enough to enumerate.

From x >= 1 + log x at x = π/μ:  J(π) = E_μ[π/μ r] >= E_μ[r (1 + log π - log μ)] = 𝓛_μ(π) + E_μ[r (1 - log μ)].
"""

from __future__ import annotations

import pytest
import torch
from tabular import UNCAPPED, bandit, draws, formula, maximise, normalised

WORLD = bandit()
BETAS = (5.0, 1.0, 0.3, 0.1, 0.03)
BASELINES = ("expected", "policy", "max", "value", "none")
RANDOM = [draws(*WORLD.mu.shape, seed=seed) * scale for seed in range(100, 120) for scale in (0.3, 3.0)]


def surrogate(logits):
    """𝓛_μ(π), from the project's reward-weighted loss."""
    return -WORLD.expected(formula("reward_weighted", WORLD.readout(logits)).losses["policy"])


def lpi(logits, *, baseline="expected", cap=UNCAPPED, beta=0.4):
    """E_μ[exp(A/β) log π], from the project's lpi_cb with a perfect r̂."""
    fields = WORLD.critic_fields(torch.softmax(logits, -1))
    field = {"expected": "q_expected", "policy": "q_policy", "max": "q_max", "value": "value"}.get(baseline)
    kept = {name: fields[name] for name in ("q", "q_fit", field) if name}
    terms = formula("lpi_cb", WORLD.readout(logits, **kept), baseline=baseline, cap=cap, beta=beta)
    return -WORLD.expected(terms.losses["policy"])


def tilt(beta, world=WORLD):
    """π_β ∝ μ exp(A/β), from the weights of lpi_cb."""
    fields = {name: world.critic_fields(world.mu)[name] for name in ("q", "q_fit", "q_expected")}
    weight = formula("lpi_cb", world.readout(world.mu.log(), **fields), beta=beta, cap=1e300).weight
    return normalised(world.mu * weight.reshape(world.mu.shape))


def gradient(value, logits):
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(value(leaf), leaf)[0]


# ---------------------------------------------------------------------- 𝓛_μ (equations 4 to 6)

CONST = WORLD.expected(WORLD.r * (1 - WORLD.mu.log()))


def test_the_surrogate_never_exceeds_the_expected_reward():
    gaps = torch.stack([WORLD.J(torch.softmax(z, 1)) - (surrogate(z) + CONST) for z in RANDOM])
    assert (gaps >= 0).all()
    assert gaps.min() > 1e-4, "away from μ the bound is strict"


def test_the_surrogate_touches_at_the_logging_policy_with_the_true_gradient():
    at = WORLD.mu.log()
    torch.testing.assert_close(surrogate(at) + CONST, WORLD.J(WORLD.mu), rtol=1e-14, atol=0)
    true = gradient(lambda z: WORLD.J(torch.softmax(z, 1)), at)
    assert true.abs().max() > 1e-2, "a zero gradient would compare equal to anything"
    torch.testing.assert_close(gradient(surrogate, at), true, rtol=1e-12, atol=1e-14)


def test_the_surrogates_optimum_is_mu_r_and_improves():
    best = normalised(WORLD.mu * WORLD.r)
    logits = draws(*WORLD.mu.shape, seed=1).requires_grad_()
    maximise([logits], lambda: surrogate(logits))
    # r(x0, a0) = 0 sends that logit to -inf; its probability is what converges.
    torch.testing.assert_close(torch.softmax(logits, 1).detach(), best, rtol=0, atol=1e-7)
    assert WORLD.J(best) > WORLD.J(WORLD.mu) + 0.05
    top = WORLD.expected(WORLD.r * best.clamp(min=1e-300).log())
    assert all(surrogate(z) < top for z in RANDOM)


def test_a_shift_of_the_rewards_changes_the_optimum():
    """Why negative rewards are refused, and not shifted."""
    assert (normalised(WORLD.mu * (WORLD.r + 1)) - normalised(WORLD.mu * WORLD.r)).abs().max() > 0.02


# ---------------------------------------------------------------------- Appendix A


def free_energy(pi):
    """log J(π) - KL(q_μ‖q_π), q_π = d π r / J(π)."""
    joint = lambda policy: WORLD.d[:, None] * policy * WORLD.r / WORLD.J(policy)  # noqa: E731
    q_mu, q_pi = joint(WORLD.mu), joint(pi)
    paid = WORLD.r > 0
    return WORLD.J(pi).log() - (q_mu[paid] * (q_mu[paid].log() - q_pi[paid].log())).sum()


def test_the_bound_on_log_j_holds_and_touches_at_mu():
    """F(π, q_μ) = 𝓛_μ(π)/J(μ) + log J(μ) - 𝓛_μ(μ)/J(μ) <= log J(π), equal at π = μ."""
    value = WORLD.J(WORLD.mu)
    const = value.log() - surrogate(WORLD.mu.log()) / value
    for z in RANDOM:
        pi = torch.softmax(z, 1)
        bound = surrogate(z) / value + const
        torch.testing.assert_close(bound, free_energy(pi), rtol=1e-12, atol=1e-12)
        assert bound < WORLD.J(pi).log() - 1e-6
    at = WORLD.mu.log()
    torch.testing.assert_close(surrogate(at) / value + const, value.log(), rtol=1e-14, atol=0)
    true = gradient(lambda z: WORLD.J(torch.softmax(z, 1)).log(), at)
    assert true.abs().max() > 1e-2
    torch.testing.assert_close(gradient(surrogate, at) / value, true, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------- the penalty (equations 7 and 8, Appendix B)


@pytest.mark.parametrize("beta", BETAS)
def test_the_penalty_bound_holds_and_has_its_optimum(beta):
    """J - β KL <= J, and its largest value is β E_x log Σ_a μ e^{r/β}, at π ∝ μ e^{r/β}."""
    best = tilt(beta)
    torch.testing.assert_close(best, torch.softmax(WORLD.mu.log() + WORLD.r / beta, 1), rtol=1e-10, atol=1e-300)
    assert WORLD.kl(WORLD.mu).abs() < 1e-15, "tight at μ"
    highest = beta * (WORLD.d * torch.logsumexp(WORLD.mu.log() + WORLD.r / beta, 1)).sum()
    divergence = (WORLD.d[:, None] * torch.xlogy(best, best / WORLD.mu)).sum()
    torch.testing.assert_close(WORLD.J(best) - beta * divergence, highest, rtol=1e-10, atol=0)
    for z in RANDOM:
        pi = torch.softmax(z, 1)
        assert WORLD.kl(pi) > 1e-3
        assert WORLD.J(pi) - beta * WORLD.kl(pi) < highest


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_tabular_optimum_does_not_depend_on_the_baseline(baseline):
    beta = 0.4
    expected = normalised(WORLD.mu * (WORLD.r / beta).exp())
    assert gradient(lambda z: lpi(z, baseline=baseline), WORLD.mu.log()).abs().max() > 1e-4, "not stationary at μ"
    assert gradient(lambda z: lpi(z, baseline=baseline), expected.log()).abs().max() < 1e-11
    if baseline == "policy":
        return  # its weights follow the policy: there is a fixed point, not one function to climb
    logits = draws(*WORLD.mu.shape, seed=1).requires_grad_()
    maximise([logits], lambda: lpi(logits, baseline=baseline))
    torch.testing.assert_close(torch.softmax(logits, 1).detach(), expected, rtol=0, atol=1e-7)


def test_with_shared_parameters_the_baseline_reweights_contexts():
    """One row of logits for all contexts: π(a) ∝ Σ_x d(x) μ(a|x) e^{(r - g(x))/β}."""
    found = {}
    for baseline, g in (("none", 0.0), ("max", WORLD.r.amax(1, keepdim=True))):
        logits = torch.zeros(1, WORLD.mu.shape[1], dtype=torch.float64, requires_grad=True)
        maximise([logits], lambda: lpi(logits, baseline=baseline, beta=0.4))  # noqa: B023
        found[baseline] = torch.softmax(logits[0], 0).detach()
        expected = normalised((WORLD.d[:, None] * WORLD.mu * ((WORLD.r - g) / 0.4).exp()).sum(0))
        torch.testing.assert_close(found[baseline], expected, rtol=0, atol=1e-7)
    assert (found["none"] - found["max"]).abs().max() > 0.01


def test_a_cap_makes_the_baseline_matter():
    """π ∝ μ min(e^{(r - g)/β}, cap): g decides what is capped."""
    found = {}
    for baseline, g in (
        ("expected", (WORLD.mu * WORLD.r).sum(1, keepdim=True)),
        ("max", WORLD.r.amax(1, keepdim=True)),
    ):
        logits = draws(*WORLD.mu.shape, seed=1).requires_grad_()
        maximise([logits], lambda: lpi(logits, baseline=baseline, cap=2.0))  # noqa: B023
        found[baseline] = torch.softmax(logits, 1).detach()
        expected = normalised(WORLD.mu * ((WORLD.r - g) / 0.4).exp().clamp(max=2.0))
        torch.testing.assert_close(found[baseline], expected, rtol=0, atol=1e-7)
    assert (found["expected"] - found["max"]).abs().max() > 0.02


def test_the_bandits_optimum_improves_for_every_beta_and_rises_as_beta_falls():
    values = torch.stack([WORLD.J(tilt(beta)) for beta in BETAS])
    assert (values > WORLD.J(WORLD.mu) + 1e-3).all()
    assert (values.diff() > 1e-4).all(), "BETAS fall"
    assert values[-1] < WORLD.J(torch.nn.functional.one_hot(WORLD.r.argmax(1), WORLD.r.shape[1]).double()) + 1e-12


@pytest.mark.parametrize("beta", BETAS)
def test_the_slope_in_one_over_beta_is_the_variance_of_the_reward(beta):
    pi = tilt(beta)
    mean = (pi * WORLD.r).sum(1, keepdim=True)
    variance = (WORLD.d[:, None] * pi * (WORLD.r - mean) ** 2).sum()
    step = 1e-5
    slope = (WORLD.J(tilt(1 / (1 / beta + step))) - WORLD.J(tilt(1 / (1 / beta - step)))) / (2 * step)
    assert variance > 1e-7
    torch.testing.assert_close(slope, variance, rtol=1e-5, atol=1e-9)
