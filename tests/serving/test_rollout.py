"""Rollouts: harm is found early, nothing is blamed on an equal, and the file moves as the log says."""

from __future__ import annotations

import json
import math
import os
from itertools import product

import numpy as np
import pytest

from localpolicy.errors import ConfigError, RunError
from localpolicy.serving.assignment import Assignment, hashed_position
from localpolicy.serving.database import Database
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import write
from localpolicy.serving.records import Feedback, Request, Shadowed, new_id
from localpolicy.serving.rollout import RolloutRules, judge, plan, read_plan
from localpolicy.serving.sequential import benefit, harm, ratio
from localpolicy.serving.units import units_of

START = 1_700_000_000_000
RUNS = int(os.environ.get("LPI_ROLLOUTS", "6"))
VISITS = 1_000_000  # of one rollout
STAGES = ("1", "5", "25", "50", "100")
SHARES = {stage: int(stage) / 100 for stage in STAGES}
# Of each stage before the next; the last two take what is left.
LENGTHS = {"1": 0.05, "5": 0.2, "25": 0.25, "50": 0.25}


# ---------------------------------------------------------------------- the tests themselves


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9])
def test_wealth_is_a_martingale_where_both_arms_are_equal(p):
    """Over every outcome of three units with binary rewards, the expected wealth is exactly 1."""
    q, total = 0.3, 0.0
    for arms, rewards in product(product((0, 1), repeat=3), product((0.0, 1.0), repeat=3)):
        chance = math.prod(p if arm else 1 - p for arm in arms) * math.prod(q if r else 1 - q for r in rewards)
        total += chance * math.exp(harm(np.array(arms), np.full(3, p), np.array(rewards), largest=1.0)[-1])
    assert total == pytest.approx(1)


def expected_wealth(test, current: float, candidate: float, p: float = 0.3) -> float:
    total = 0.0
    for arms, rewards in product(product((0, 1), repeat=3), product((0.0, 2.0), repeat=3)):
        chance = 1.0
        for arm, reward in zip(arms, rewards, strict=True):
            mean = candidate if arm else current
            chance *= (p if arm else 1 - p) * (mean if reward else 1 - mean)
        total += chance * math.exp(test(np.array(arms), np.full(3, p), np.array(rewards), largest=2.0)[-1])
    return total


def test_wealth_grows_only_against_what_is_true():
    assert expected_wealth(harm, 0.5, 0.3) > 1 > expected_wealth(harm, 0.3, 0.5)
    assert expected_wealth(benefit, 0.3, 0.5) > 1 > expected_wealth(benefit, 0.5, 0.3)


def test_rewards_above_the_largest_are_cut_off():
    arm, p = np.array([0, 1, 1]), np.full(3, 0.5)
    cut = harm(arm, p, np.array([0.0, 1.0, 1.0]), largest=1.0)
    assert harm(arm, p, np.array([0.0, 9.0, 1e9]), largest=1.0).tolist() == cut.tolist()


def test_the_ratio_of_the_arms_is_a_martingale_too():
    share, n = 0.2, 6
    total = sum(
        math.comb(n, k) * share**k * (1 - share) ** (n - k) * math.exp(ratio(k, n - k, share)) for k in range(n + 1)
    )
    assert total == pytest.approx(1)
    assert ratio(300, 700, 0.2) > 10 > 2 > ratio(200, 800, 0.2)
    assert ratio(5, 0, 1.0) == 0 and ratio(5, 1, 1.0) == math.inf


# ---------------------------------------------------------------------- whole rollouts, simulated


def rewards_of_visits() -> np.ndarray:
    """What a shop's visits bring: most nothing, some a click or two, a few a purchase; in [0, 5]."""
    rng = np.random.default_rng(7)
    clicks, purchases = rng.poisson(0.9, 200_000), rng.binomial(2, 0.12, 200_000)
    return np.minimum(0.2 * clicks + 1.0 * purchases, 5.0)


def roll(rng: np.random.Generator, visits: np.ndarray, effect: float) -> float | None:
    """One rollout over all visits: the share of visits that had seen the candidate at the first alarm, if any.

    Stages follow each other at fixed visits, and the evidence is watched after every single one.
    """
    ends = np.cumsum([LENGTHS[stage] for stage in STAGES[:-1]])
    stage = np.searchsorted(ends, np.arange(VISITS) / VISITS, side="right")
    p = np.array([SHARES[one] for one in STAGES])[stage]
    p = p[p < 1]
    arm = (rng.random(len(p)) < p).astype(float)
    reward = rng.choice(visits, len(p)) * (1 + effect * arm)
    rules = RolloutRules(largest_reward=5.0)
    wealth = harm(arm, p, reward, largest=rules.largest_reward)
    alarm = np.flatnonzero(wealth >= -math.log(rules.reward_alpha))
    counts = [(int(arm[p == q].sum()), int((p == q).sum()), float(q)) for q in np.unique(p)]
    if sum(ratio(given, total - given, q) for given, total, q in counts) >= -math.log(rules.guardrail_alpha):
        return 0.0
    return float(arm[: alarm[0] + 1].sum()) / VISITS if len(alarm) else None


def test_five_percent_less_is_rolled_back_before_a_tenth_saw_it():
    """The full trial: LPI_ROLLOUTS=200."""
    visits, rng = rewards_of_visits(), np.random.default_rng(0)
    ends = [roll(rng, visits, -0.05) for _ in range(RUNS)]
    caught = sum(share is not None and share < 0.1 for share in ends)
    seen = np.median([1.0 if share is None else share for share in ends])
    print(f"-5 %: {caught} of {RUNS} rolled back before 10 % of {VISITS:,} visits saw it; median {seen:.2%}")
    assert caught >= 0.95 * RUNS - (0 if RUNS >= 100 else 1)


def test_equals_raise_no_alarm():
    visits, rng = rewards_of_visits(), np.random.default_rng(1)
    ends = [roll(rng, visits, 0.0) for _ in range(RUNS)]
    alarms = sum(share is not None for share in ends)
    print(f"A/A: {alarms} false alarms in {RUNS}")
    assert alarms <= max(0.05 * RUNS, 1)


# ---------------------------------------------------------------------- from a log to a decision


def events(person: str, arm: str, stage: str, at: int, reward: float, request: str, mode: str = "drawn") -> dict:
    return dict(sequence_id=person, arm=arm, stage=stage, timestamp=at, reward=reward, request=request, mode=mode)


def test_a_person_counts_once_in_each_stage():
    rows = [
        events("a", "current", "1", 0, 0.2, "r1"), events("a", "current", "1", 0, 1.0, "r1"),
        events("a", "current", "1", 50, 0.0, "r2", "fallback"), events("a", "current", "1", 5000, 9.0, "r3"),
        events("b", "candidate", "1", 10, 0.5, "r4"), events("b", "candidate", "5", 2000, 0.5, "r5"),
        events("a", "candidate", "5", 3000, 0.7, "r6"), events("c", "", "", 0, 1.0, "r7"),
        events("d", "current", "shadow", 0, 1.0, "r8"),
    ]  # fmt: skip
    found = units_of(rows, {"shadow": 0.0, "1": 0.01, "5": 0.05}, horizon_ms=1000)
    assert found.arm.tolist() == [0, 1, 1]
    assert found.reward.tolist() == pytest.approx([0.6, 0.5, 0.7])
    assert found.fallback.tolist() == [0.5, 0, 0]
    assert found.probability.tolist() == pytest.approx([0.01, 0.01, 0.04 / 0.99])


def written(path, *, persons: int, stage: str, share: float, effect: float = 0.0, seed: int = 0, fallback: float = 0.0):
    """A log of one stage: each person sees one list and buys with some chance."""
    rng = np.random.default_rng(seed)
    database = Database(path, create=True)
    with database.transaction():
        for number in range(persons):
            arm = "candidate" if rng.random() < share else "current"
            mode = "fallback" if arm == "candidate" and rng.random() < fallback else "drawn"
            request = Request(
                id=new_id(START + number), time=START + number, person=f"p{seed}-{number}", history=[], items=[1],
                propensities=[0.5], policy="x", beta=None, mode=mode, floor=0.0, item_filter=Filter(), deferred=False,
                share=1.0, arm=arm, stage=stage,
            )  # fmt: skip
            write(database, request)
            if rng.random() < (0.5 + effect if arm == "candidate" else 0.5):
                write(database, Feedback(request.id, request.id, 1, "purchase", None, request.time, False))
            if stage == "shadow":
                write(database, Shadowed(request.id, "y", rng.random() < -effect))
    database.close()
    return path


def test_a_rollout_walks_through_its_stages(tmp_path):
    path = tmp_path / "rollout.json"
    plan(path, stages=["shadow", "50", "100"], rules=RolloutRules(units=200), salt="s")
    log = tmp_path / "log.db"
    written(log, persons=100, stage="shadow", share=0.0)
    assert judge(path, log=log, at=START * 2).decision == "hold"
    written(log, persons=150, stage="shadow", share=0.0, seed=1)
    assert judge(path, log=log, at=START * 2, apply=False).decision == "advance"
    assert read_plan(path)["stage"] == "shadow"
    judge(path, log=log, at=START * 2)
    assert (read_plan(path)["stage"], read_plan(path)["share"]) == ("50", 0.5)
    written(log, persons=400, stage="50", share=0.5, seed=3)
    found = judge(path, log=log, at=START * 2)
    assert found.decision == "advance" and sum(found.units.values()) == 400
    assert read_plan(path)["share"] == 1.0
    assert judge(path, log=log, at=START * 2).decision == "done"
    assert [one["stage"] for one in read_plan(path)["history"]] == ["shadow", "50", "100"]


@pytest.mark.parametrize(
    ("stage", "settings", "why"),
    [
        ("50", {"effect": -0.3}, "earns less"),
        ("50", {"fallback": 0.5}, "falls back more often"),
        ("50", {"share": 0.7}, "not given in the planned ratio"),
        ("shadow", {"effect": -0.2, "share": 0.0}, "shadow answers failed"),
    ],
)
def test_harm_of_any_kind_is_rolled_back(tmp_path, stage, settings, why):
    path = tmp_path / "rollout.json"
    plan(path, stages=["shadow", "50"] if stage == "shadow" else ["50", "100"], rules=RolloutRules(units=100))
    log = written(tmp_path / "log.db", persons=600, stage=stage, **{"share": 0.5, **settings})
    found = judge(path, log=log, at=START * 2)
    assert found.decision == "roll back" and why in found.why and found.exit_code == 3
    after = read_plan(path)
    assert (after["stage"], after["share"]) == ("rolled back", 0.0)
    assert not Assignment.of(after).is_candidate("anyone")
    with pytest.raises(ConfigError, match="was rolled back"):
        judge(path, log=log)


def test_everyone_keeps_their_arm_while_the_share_grows():
    people = [f"p{n}" for n in range(20_000)]
    arms = {
        share: {one for one in people if Assignment("s", "x", share).is_candidate(one)} for share in (0.01, 0.05, 0.25)
    }
    assert arms[0.01] < arms[0.05] < arms[0.25]
    for share, given in arms.items():
        assert abs(len(given) / len(people) - share) < 5 * math.sqrt(share / len(people))
    other = {one for one in people if Assignment("t", "x", 0.05).is_candidate(one)}
    assert len(other & arms[0.05]) < 0.2 * len(other), "another salt, another share of people"
    assert 0 <= hashed_position("p", "s") < 1


def test_plans_that_make_no_sense(tmp_path):
    for stages in (["5", "1"], ["1", "1"], ["101"], ["half"], []):
        with pytest.raises(ConfigError, match="stage"):
            plan(tmp_path / "rollout.json", stages=stages)
    plan(tmp_path / "rollout.json")
    with pytest.raises(ConfigError, match="exists"):
        plan(tmp_path / "rollout.json")
    (tmp_path / "other.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(RunError, match="is not a rollout"):
        judge(tmp_path / "other.json", log=tmp_path / "log.db")
