"""What every objective owes, for all registered ones at once; and each one's terms by hand."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from math import exp, log
from pathlib import Path

import pytest
import torch
from forms import weighted
from tabular import draws, formula

from localpolicy.errors import ConfigError
from localpolicy.model.readout import heads_for
from localpolicy.objectives import OBJECTIVES, objective_of
from localpolicy.objectives.objective import Objective
from localpolicy.types import Readout

ROOT = Path(__file__).parents[2]
WITH_GRADIENT = {"logp", "logp_logging", "q_fit", "value"}
# Every objective as it comes, and every variant that reads something else.
CASES = [
    *({"name": name} for name in OBJECTIVES),
    *({"name": name, "propensities": "logged"} for name in ("mle", "ips", "ips_pg")),
    *({"name": name, "target": "expected"} for name in ("sqn", "sac", "lpi_rl")),
    *({"name": name, "baseline": g} for name in ("lpi_cb", "lpi_rl") for g in ("policy", "max", "value", "none")),
    *(
        {"name": "lpi_cb", "advantage": "observed", "baseline": g}
        for g in ("expected", "policy", "max", "value", "none")
    ),
    *({"name": "lpi_rl", "advantage": "monte_carlo", "baseline": g} for g in ("expected", "max", "value", "none")),
    {"name": "lpi_rl", "advantage": "sampled"},
    {"name": "lpi_observed", "form": "exponential"},
    {"name": "lpi_observed", "returns": True},
    {"name": "lpi_observed", "td_weight": 1.0},
    {"name": "lpi_observed", "td_weight": 1.0, "target": "expected", "returns": True},
    {"name": "sac", "warmup": 1},
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))


def prepared(case):
    found = objective_of(weighted(case))
    return found, found.reads().fields | {"logp", "reward"}


def random_readout(names, n=17, *, seed=0, dtype=torch.float64):
    """A readout with these fields alone; those that train something require gradients."""
    made = {}
    for place, name in enumerate(sorted(names)):
        numbers = draws(n, seed=100 * seed + place)
        if name.startswith("logp"):
            numbers = -numbers.abs() - 0.1
        if name == "logged_propensity":
            numbers = torch.sigmoid(numbers)
        if name in ("reward", "return_to_go"):
            numbers = numbers.abs()
        made[name] = numbers.to(dtype).requires_grad_(name in WITH_GRADIENT)
    return Readout(**made)


def all_require_gradients(readout):
    """The same numbers, constants included, as leaves: what reaches them shows."""
    return replace(readout, **{one.name: value.detach().requires_grad_() for one in fields(readout)
                               if isinstance(value := getattr(readout, one.name), torch.Tensor)})  # fmt: skip


def at(readout, index):
    """The readout of some of its positions."""
    chosen = {one.name: value[index] for one in fields(readout)
              if isinstance(value := getattr(readout, one.name), torch.Tensor)}  # fmt: skip
    return replace(readout, **chosen)


def numbers_of(terms):
    extra = {} if terms.clipped is None else {"clipped": terms.clipped.double()}
    return {**terms.losses, "weight": terms.weight, **extra}


def test_the_cases_cover_every_objective():
    assert {case["name"] for case in CASES} == set(OBJECTIVES)


# ---------------------------------------------------------------------- the contract


@each_case
def test_terms_are_one_number_per_position(case):
    found, reads = prepared(case)
    for n in (1, 17):
        terms = found.terms(random_readout(reads, n))
        assert "policy" in terms.losses
        for number in numbers_of(terms).values():
            assert number.shape == (n,)
        assert terms.clipped is None or terms.clipped.dtype == torch.bool


@each_case
def test_inputs_are_left_alone(case):
    found, reads = prepared(case)
    readout, untouched = random_readout(reads), random_readout(reads)
    sum(found.terms(readout).losses.values()).sum().backward()
    for name in reads:
        assert torch.equal(getattr(readout, name), getattr(untouched, name)), name


@each_case
def test_the_weight_is_a_constant_and_the_policy_term_trains_the_policy_alone(case):
    found, reads = prepared(case)
    readout = all_require_gradients(random_readout(reads))
    terms = found.terms(readout)
    assert not terms.weight.requires_grad
    assert terms.weight.max() > 0
    leaves = [getattr(readout, name) for name in reads]
    for name, slope in zip(
        reads, torch.autograd.grad(terms.losses["policy"].sum(), leaves, allow_unused=True), strict=True
    ):
        if name == "logp":
            torch.testing.assert_close(slope, -terms.weight, rtol=0, atol=0)
        else:
            assert slope is None, f"the policy term reaches {name}"


@each_case
def test_every_auxiliary_loss_trains_one_head(case):
    """control -> logp, logging -> logp_logging, td and reward -> q_fit, value -> value; targets are constants."""
    found, reads = prepared(case)
    readout = all_require_gradients(random_readout(reads))
    losses = found.terms(readout).losses
    owner = {"policy": "logp", "control": "logp", "logging": "logp_logging", "td": "q_fit", "reward": "q_fit"}
    owner["value"] = "value"
    assert {owner[name] for name in losses} == reads & WITH_GRADIENT
    for name, loss in losses.items():
        for field in reads:
            (slope,) = torch.autograd.grad(loss.sum(), getattr(readout, field), retain_graph=True, allow_unused=True)
            assert (slope is not None and bool(slope.abs().max() > 0)) == (field == owner[name]), (name, field)


@each_case
def test_what_is_declared_is_what_is_read(case):
    """The equation runs with the declared fields alone; and each of them changes some number."""
    found, reads = prepared(case)
    readout = random_readout(reads)
    terms = numbers_of(found.terms(readout))
    returns_alone = found.name in ("pg", "ips_pg") or case.get("advantage") == "monte_carlo"
    returns_alone |= case.get("returns", False) and not case.get("td_weight")
    idle = {"reward"} if not found.uses_reward or returns_alone else set()
    if case.get("warmup"):
        idle |= {"q"}
    for name in reads - idle:
        moved = replace(
            readout, **{name: (getattr(readout, name) * 0.7).detach().requires_grad_(name in WITH_GRADIENT)}
        )
        other = numbers_of(found.terms(moved))
        assert any(not torch.equal(other[key], value) for key, value in terms.items()), f"{name} is declared, not read"


@each_case
def test_no_position_reaches_another(case):
    """A permutation permutes terms and gradients; leaving positions out changes nothing for those that stay."""
    found, reads = prepared(case)
    readout = random_readout(reads)
    whole = found.terms(readout)
    sum(whole.losses.values()).sum().backward()
    for index in (
        torch.randperm(17, generator=torch.Generator().manual_seed(1)),
        torch.tensor([3]),
        torch.tensor([16, 2]),
    ):
        part = at(random_readout(reads), index)
        leaves = {name: getattr(part, name).detach().requires_grad_() for name in reads & WITH_GRADIENT}
        terms = found.terms(replace(part, **leaves))
        for key, value in numbers_of(terms).items():
            assert torch.equal(value, numbers_of(whole)[key][index]), key
        sum(terms.losses.values()).sum().backward()
        for name, leaf in leaves.items():
            assert torch.equal(leaf.grad, getattr(readout, name).grad[index]), name


@each_case
@pytest.mark.parametrize("ours", [-80.0, -1e-6], ids=["unlikely", "certain"])
@pytest.mark.parametrize("theirs", [-80.0, -1e-6], ids=["rarely-logged", "always-logged"])
def test_extremes_stay_finite(case, ours, theirs):
    """log p ≈ -80, critics far off, float32: every term, weight and gradient is finite."""
    found, reads = prepared(case)
    found = found.model_copy(update={"beta": 1e-3} if found.name.startswith("lpi") else {})
    readout = random_readout(reads, dtype=torch.float32)
    extreme = {"logp": torch.full((17,), ours).requires_grad_()}
    if "logp_logging" in reads:
        extreme["logp_logging"] = torch.full((17,), theirs).requires_grad_()
    if "logged_propensity" in reads:
        extreme["logged_propensity"] = torch.full((17,), theirs).exp()
    for name in reads & {"q", "q_fit", "value"}:
        extreme[name] = (1e3 * getattr(readout, name).detach()).requires_grad_(name in WITH_GRADIENT)
    readout = replace(readout, **extreme)
    terms = found.terms(readout)
    for key, value in numbers_of(terms).items():
        assert value.isfinite().all(), key
    sum(terms.losses.values()).sum().backward()
    for name in reads & WITH_GRADIENT:
        assert getattr(readout, name).grad.isfinite().all(), name


@each_case
def test_heads_follow_from_what_is_read(case):
    found, reads = prepared(case)
    heads = heads_for(found.reads(), logging_given=False)
    assert heads[0] == "policy" and len(set(heads)) == len(heads)
    assert ("logging" in heads) == ("logp_logging" in reads)
    assert ("value" in heads) == ("value" in reads)
    critics = {"q_a", "q_b"} if found.reads().critic == "q" else {"reward"}
    assert set(heads) & {"q_a", "q_b", "reward"} == (critics if "q_fit" in reads else set())
    assert "logging" not in heads_for(found.reads(), logging_given=True)


def test_a_frozen_logging_policy_is_not_trained():
    for case in CASES:
        found, reads = prepared(case)
        if "logp_logging" in reads:
            readout = random_readout(reads)
            frozen = replace(readout, logp_logging=readout.logp_logging.detach())
            with_head, without = found.terms(readout), found.terms(frozen)
            assert set(with_head.losses) - set(without.losses) == {"logging"}
            assert torch.equal(with_head.weight, without.weight)


# ---------------------------------------------------------------------- by hand

# Two positions: π = 1/2 and 1/4, μ̂ = 1/4 and 1/2, r = 1 and 5, G = 2 and 6, and numbers for critics.
HAND = Readout(
    logp=torch.tensor([log(1 / 2), log(1 / 4)], dtype=torch.float64),
    reward=torch.tensor([1.0, 5.0], dtype=torch.float64),
    logp_logging=torch.tensor([log(1 / 4), log(1 / 2)], dtype=torch.float64, requires_grad=True),
    logged_propensity=torch.tensor([1 / 8, 1.0], dtype=torch.float64),
    return_to_go=torch.tensor([2.0, 6.0], dtype=torch.float64),
    q=torch.tensor([3.0, -1.0], dtype=torch.float64),
    q_fit=torch.tensor([2.5, 4.0], dtype=torch.float64, requires_grad=True),
    q_expected=torch.tensor([2.0, 1.0], dtype=torch.float64),
    q_policy=torch.tensor([2.8, -2.0], dtype=torch.float64),
    q_max=torch.tensor([3.5, 0.0], dtype=torch.float64),
    q_sampled=torch.tensor([1.0, -0.5], dtype=torch.float64),
    next_value=torch.tensor([4.0, 0.0], dtype=torch.float64),
    value=torch.tensor([2.2, 3.0], dtype=torch.float64, requires_grad=True),
    step=7,
)
L, M = [log(2), log(4)], [log(4), log(2)]  # -log π, -log μ̂
TD = [(2.5 - (1 + 0.5 * 4)) ** 2, (4 - (5 + 0.5 * 0)) ** 2]  # γ = 0.5, the default
BY_HAND = [
    ({"name": "mle"}, [1, 1], {}, None),
    ({"name": "reward_weighted"}, [1, 5], {}, None),
    ({"name": "pg"}, [2, 6], {}, None),
    ({"name": "ips"}, [(1 / 2) / (1 / 4) * 1, (1 / 4) / (1 / 2) * 5], {"logging": M}, [False, False]),
    ({"name": "ips", "clip": 1.5}, [1.5 * 1, (1 / 2) * 5], {"logging": M}, [True, False]),
    ({"name": "ips", "propensities": "logged"}, [(1 / 2) / (1 / 8) * 1, (1 / 4) / 1 * 5], {}, [False, False]),
    ({"name": "ips_pg"}, [2 * 2, (1 / 2) * 6], {"logging": M}, [False, False]),
    ({"name": "ips_pg", "clip": 1.5}, [1.5 * 2, (1 / 2) * 6], {"logging": M}, [True, False]),
    ({"name": "ips_pg", "propensities": "logged"}, [4 * 2, (1 / 4) * 6], {}, [False, False]),
    ({"name": "lpi_observed", "beta": 2.0}, [1 + 1 / 2, 1 + 5 / 2], {}, None),
    ({"name": "lpi_observed", "beta": 2.0, "smallest": 1.0}, [1, 1 + 4 / 2], {}, None),
    ({"name": "lpi_observed", "beta": 2.0, "smallest": 3.0}, [0, 1 + 2 / 2], {}, None),
    ({"name": "lpi_observed", "beta": 0.0}, [1, 5], {}, None),
    ({"name": "lpi_observed", "beta": 0.5, "returns": True}, [1 + 2 / 0.5, 1 + 6 / 0.5], {}, None),
    ({"name": "lpi_observed", "form": "exponential", "beta": 2.0}, [exp(1 / 2), exp(5 / 2)], {}, [False, False]),
    ({"name": "lpi_observed", "form": "exponential", "cap": 4.0, "smallest": 0.5},
     [exp(0.5), 4], {}, [False, True]),
    ({"name": "lpi_observed", "td_weight": 3.0}, [1 + 1, 1 + 5], {"td": [3 * t for t in TD]}, None),
    ({"name": "lpi_observed", "td_weight": 1.0, "target": "expected"}, [2, 6], {"td": TD, "logging": M}, None),
    ({"name": "sqn"}, [1, 1], {"td": TD}, None),
    ({"name": "sqn", "target": "expected", "td_weight": 3.0}, [1, 1], {"td": [3 * t for t in TD], "logging": M}, None),
    ({"name": "sqn", "gamma": 0.0}, [1, 1], {"td": [(2.5 - 1) ** 2, (4 - 5) ** 2]}, None),
    ({"name": "sac"}, [3, 0], {"td": TD}, [False, True]),
    ({"name": "sac", "target": "expected"}, [3, 0], {"td": TD, "logging": M}, [False, True]),
    ({"name": "sac", "warmup": 8, "td_weight": 2.0}, [1, 1], {"td": [2 * t for t in TD]}, None),
    ({"name": "sac", "warmup": 7}, [3, 0], {"td": TD}, [False, True]),
    ({"name": "lpi_cb"}, [exp(3 - 2), exp(-1 - 1)], {"reward": [1.5**2, 1], "logging": M}, [False, False]),
    ({"name": "lpi_cb", "beta": 0.25, "cap": 20.0, "td_weight": 0.5}, [20, exp(-2 / 0.25)],
     {"reward": [0.5 * 1.5**2, 0.5 * 1], "logging": M}, [True, False]),
    ({"name": "lpi_cb", "baseline": "policy"}, [exp(3 - 2.8), exp(-1 + 2)], {"reward": [1.5**2, 1]}, [False, False]),
    ({"name": "lpi_cb", "baseline": "max"}, [exp(3 - 3.5), exp(-1 - 0)], {"reward": [1.5**2, 1]}, [False, False]),
    ({"name": "lpi_cb", "baseline": "value"}, [exp(3 - 2.2), exp(-1 - 3)],
     {"reward": [1.5**2, 1], "value": [(2.2 - 1) ** 2, (3 - 5) ** 2]}, [False, False]),
    ({"name": "lpi_cb", "baseline": "none", "cap": 4.0}, [4, exp(-1)], {"reward": [1.5**2, 1]}, [True, False]),
    ({"name": "lpi_cb", "advantage": "observed", "baseline": "none", "beta": 2.0},
     [exp(1 / 2), exp(5 / 2)], {}, [False, False]),
    ({"name": "lpi_cb", "advantage": "observed"}, [exp(1 - 2), 20],
     {"reward": [1.5**2, 1], "logging": M}, [False, True]),
    ({"name": "lpi_cb", "advantage": "observed", "baseline": "value"}, [exp(1 - 2.2), exp(5 - 3)],
     {"value": [(2.2 - 1) ** 2, (3 - 5) ** 2]}, [False, False]),
    ({"name": "lpi_rl"}, [exp(3 - 2), exp(-1 - 1)], {"td": TD, "logging": M}, [False, False]),
    ({"name": "lpi_rl", "baseline": "max", "beta": 0.5, "td_weight": 2.0}, [exp(-0.5 / 0.5), exp(-1 / 0.5)],
     {"td": [2 * t for t in TD]}, [False, False]),
    ({"name": "lpi_rl", "baseline": "policy", "target": "expected"}, [exp(3 - 2.8), exp(-1 + 2)],
     {"td": TD, "logging": M}, [False, False]),
    ({"name": "lpi_rl", "baseline": "value", "gamma": 0.25}, [exp(3 - 2.2), exp(-1 - 3)],
     {"td": [(2.5 - 2) ** 2, 1], "value": [(2.2 - (1 + 0.25 * 4)) ** 2, (3 - 5) ** 2]}, [False, False]),
    ({"name": "lpi_rl", "advantage": "monte_carlo"}, [exp(2 - 2), 20],
     {"td": [(2.5 - 2) ** 2, (4 - 6) ** 2], "logging": M}, [False, True]),
    ({"name": "lpi_rl", "advantage": "monte_carlo", "baseline": "value", "td_weight": 0.1}, [exp(2 - 2.2), 20],
     {"td": [0.1 * 0.5**2, 0.1 * 2**2], "value": [(2.2 - 2) ** 2, (3 - 6) ** 2]}, [False, True]),
    ({"name": "lpi_rl", "advantage": "sampled"}, [exp(3 - 1), exp(-1 + 0.5)], {"td": TD}, [False, False]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "weight", "auxiliary", "clipped"), BY_HAND,
                         ids=["-".join(map(str, case[0].values())) for case in BY_HAND])  # fmt: skip
def test_terms_by_hand(case, weight, auxiliary, clipped):
    *_, reads = prepared(case)
    given = replace(HAND, **{one.name: None for one in fields(Readout) if one.name not in reads | {"step"}})
    terms = formula(case["name"], given, **{key: value for key, value in case.items() if key != "name"})
    expected = {"policy": [w * loss for w, loss in zip(weight, L, strict=True)], **auxiliary}
    assert set(terms.losses) == set(expected)
    for name, numbers in expected.items():
        torch.testing.assert_close(
            terms.losses[name].detach().tolist(), [float(n) for n in numbers], rtol=1e-13, atol=1e-15
        )
    torch.testing.assert_close(terms.weight.tolist(), [float(w) for w in weight], rtol=1e-13, atol=1e-15)
    assert (None if terms.clipped is None else terms.clipped.tolist()) == clipped


def test_by_hand_covers_every_objective():
    equations = {name for name, one in OBJECTIVES.items() if one.terms is not Objective.terms}
    assert {weighted(case)["name"] for case, *_ in BY_HAND} == equations == OBJECTIVES.keys() - {"lpi_cb", "lpi_rl"}


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(("settings", "message"), [
    ({"beta": 0}, r"^objective.beta: .*greater than 0"),
    ({"beta": -1.0}, r"^objective.beta: .*greater than 0"),
    ({"beta": float("nan")}, r"^objective.beta: .*finite"),
    ({"name": "pg", "gamma": 1.0}, r"^objective.gamma: .*less than 1"),
    ({"name": "pg", "gamma": -0.1}, r"^objective.gamma: .*greater than or equal to 0"),
    ({"cap": 0.0}, r"^objective.cap: .*greater than 0"),
    ({"name": "ips", "clip": -3}, r"^objective.clip: .*greater than 0"),
    ({"td_weight": -1}, r"^objective.td_weight: "),
    ({"name": "lpi_rl", "negatives": 0}, r"^objective.negatives: "),
    ({"name": "lpi_cb_weighted", "baseline": "expcted"}, r"^objective.baseline: .*'expected'.*got 'expcted'"),
    ({"name": "lpi_cb_weighted", "advantage": "guess"}, r"^objective.advantage: .*'direct'"),
    ({"name": "sqn", "target": "mean"}, r"^objective.target: .*'max' or 'expected'"),
    ({"betta": 1.0}, r"^objective.betta: no such key \(did you mean 'beta'\?\)"),
], ids=str)  # fmt: skip
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        objective_of(settings)


@pytest.mark.parametrize(("settings", "message"), [
    ({"name": "lpi_bc"}, "did you mean 'lpi_cb'"),
    ({"name": "reinforce"}, "no objective 'reinforce'"),
    ({"name": "mle", "beta": 0.5}, r"objective.beta: mle does not use it \(used by lpi_observed, lpi_cb, lpi_cb_w"),
    ({"name": "lpi_cb", "gamma": 0.9}, "objective.gamma: lpi_cb does not use it"),
    ({"name": "sqn", "cap": 3.0}, "objective.cap: sqn does not use it"),
    ({"name": "pg", "clip": 3.0}, "objective.clip: pg does not use it"),
    ({"name": "lpi_cb", "clip": None}, "objective.clip: lpi_cb does not use it"),
    ({"name": "lpi_cb", "nonsense": None}, "objective.nonsense: no such key"),
    ({"name": "lpi_cb", "critics": None}, "objective.critics: expected a whole number"),
    ({"name": "lpi_cb", "critics": True}, "objective.critics: expected a whole number"),
    ({"name": "sac", "advantage": "td"}, "objective.advantage: sac does not use it"),
    ({"name": "lpi_cb_weighted", "advantage": "td"}, "objective.advantage: .*'direct' or 'observed'.*got 'td'"),
    ({"name": "lpi_rl_weighted", "advantage": "observed"}, "advantage: .*'td', .* or 'sampled'.*got 'observed'"),
    (weighted({"name": "lpi_rl", "advantage": "sampled", "baseline": "max"}), "sampled advantage is its own baseline"),
    ({"name": "lpi_rl", "cap": 1.0}, "objective.cap: the closed form needs a cap above 1, got 1"),
    ({"name": "lpi_rl", "target": "max"}, r"objective.target: lpi_rl does not use it \(used by .*lpi_rl_weighted\)"),
    ({"name": "lpi_rl", "expectile": 0.9}, "objective.expectile: no such key"),
    ({"name": "lpi_rl", "advantage": "sampled"}, "objective.advantage: lpi_rl does not use it"),
    (weighted({"name": "lpi_rl", "critics": 3}), r"critics: lpi_rl_weighted does not use it \(used by lpi_cb, "),
], ids=str)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        objective_of(settings)


@each_case
def test_a_resolved_config_is_accepted_as_it_is(case):
    """Settings as written to a run's config.yaml resolve to themselves."""
    for settings in (case, weighted(case)) if case == {"name": case["name"]} else (weighted(case),):
        found = objective_of(settings)
        assert objective_of(found.model_dump()) == found


def test_the_weighted_forms_have_their_default_advantages():
    assert objective_of("lpi_cb_weighted").advantage == "direct"
    assert objective_of("lpi_rl_weighted").advantage == "td"


def test_runs_of_a_baseline_or_an_objective_that_is_gone_can_be_shown_and_not_trained():
    gone = [
        {"name": "lpi_cb_weighted", "beta": 0.5, "baseline": "expectile", "expectile": 0.9},
        {"name": "proximal", "clip": 3.0},
    ]
    for settings in gone:
        found = objective_of(settings, recorded=True)
        assert found.name == settings["name"] and found.model_dump() == settings
        with pytest.raises(ConfigError, match="is not known here"):
            found.terms(HAND)
        with pytest.raises(ConfigError):
            objective_of(settings)
    kept = {"name": "lpi_rl_weighted", "beta": 0.5, "baseline": "max", "expectile": 0.7}
    assert objective_of(kept, recorded=True) == OBJECTIVES["lpi_rl_weighted"](beta=0.5, baseline="max")


def test_objectives_say_what_they_ask_of_rewards():
    assert {name for name, one in OBJECTIVES.items() if one.non_negative} == {
        "reward_weighted",
        "pg",
        "ips",
        "ips_pg",
        "sac",
    }
    assert {name for name, one in OBJECTIVES.items() if not one.uses_reward} == {"mle"}


def test_every_objective_has_a_row_in_the_docs():
    page = (ROOT / "docs" / "objectives.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert set(OBJECTIVES) <= rows
