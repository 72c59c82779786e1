"""`lp.off_policy`: any policy or table of probabilities on any log, by any estimator; values, intervals, refusals."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from small_logs import write_small

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError
from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimators import ESTIMATORS
from localpolicy.measure.estimators.ips import IPS
from localpolicy.measure.value import value_of

MU, PI, WORTH = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5]), np.array([0.1, 0.4, 0.9])
MODEL = np.array([0.2, 0.3, 0.7])


@pytest.fixture(scope="module")
def log():
    """Decisions of μ, by hand and as a frame with other names."""
    rng = np.random.default_rng(0)
    action = rng.choice(3, 3000, p=MU)
    reward = (rng.random(3000) < WORTH[action]).astype(float)
    user = np.arange(3000) // 2
    frame = pandas.DataFrame({"user": user, "action": action, "pscore": MU[action], "reward": reward})
    by_hand = Decisions((PI / MU)[action], reward, user, MODEL[action], np.full(3000, PI @ MODEL))
    return SimpleNamespace(frame=frame, decisions=by_hand, action=action, columns={"item_id": "action"})


def forms(log) -> dict[str, object]:
    """The same policy, in every form that a table of decisions takes."""
    every = np.tile(PI, (len(log.frame), 1))
    return {
        "of each row": PI[log.action], "of every action": every, "with one place": every[:, :, None],
        "by item": dict(enumerate(PI)), "a frame": pandas.DataFrame({"item_id": [2, 1, 0], "probability": PI[::-1]}),
    }  # fmt: skip


def test_every_form_of_a_policy_has_the_value_of_the_decisions(log):
    plain = log.decisions._replace(value_taken=None, value_expected=None)
    expected = value_of(plain, largest_reward=1.0).to_dict()
    for name, form in forms(log).items():
        found = lp.off_policy(form, log.frame, columns=log.columns, largest_reward=1.0)
        assert found.to_dict() == expected, name
    assert found.estimates["SNIPS"].intervals["skewness corrected"].low < PI @ WORTH
    assert found.estimates["SNIPS"].value == pytest.approx(PI @ WORTH, abs=0.05) != found.logged.value


def test_every_estimator_is_known_by_its_name(log):
    every, model = np.tile(PI, (3000, 1)), np.tile(MODEL, (3000, 1))
    given = {"columns": log.columns, "reward_model": model, "largest_reward": 1.0}
    values = {
        "ips": log.decisions.weight @ log.decisions.reward / 3000,
        "snips": log.decisions.weight @ log.decisions.reward / log.decisions.weight.sum(),
        "dm": PI @ MODEL,
        "dr": PI @ MODEL + (log.decisions.weight * (log.decisions.reward - MODEL[log.action])).mean(),
    }
    for name, each in ESTIMATORS.items():
        found = lp.off_policy(every, log.frame, estimator=name, **given)
        ((title, estimate),) = found.estimates.items()
        assert title == each.title and (name == "dm") == (not estimate.intervals)
        assert estimate.value == pytest.approx(values.get(name, estimate.value))
        assert found.estimates == lp.off_policy(every, log.frame, estimator=title, **given).estimates
        for low, high in estimate.intervals.values():
            assert low < PI @ WORTH < high
    assert list(lp.off_policy(every, log.frame, estimator=["dr", "ips"], **given).estimates) == ["DR", "IPS"]
    assert np.isinf(lp.off_policy(every, log.frame, estimator="log_smoothing", **given).estimates["log smoothing"]
                    .intervals["logarithmic smoothing"].high)  # fmt: skip


class Half(IPS):
    name, title = "half", "half IPS"

    def values(self, log):
        return super().values(log) / 2


def test_off_policy_takes_an_estimator_of_the_user(log):
    found = lp.off_policy(PI[log.action], log.frame, estimator=[Half(), "ips"])
    assert found.estimates["half IPS"].value == pytest.approx(found.estimates["IPS"].value / 2)


def test_an_impossible_estimate_says_why(log):
    asked = lp.off_policy(PI[log.action], log.frame, estimator=["dr", "ips"])
    assert set(asked.refusals) == {"DR"} and set(asked.estimates) == {"IPS"}
    assert "reward model" in asked.refusals["DR"] and asked.refusals["DR"] in str(asked)
    far = lp.off_policy(np.where(log.action == 2, 1.0, 0.0), log.frame, rules={"min_effective_share": 0.5})
    assert far.refusal is not None and not far.estimates and far.logged.value == log.frame["reward"].mean()
    rows = far.to_arrow().to_pylist()
    assert [row["estimator"] for row in rows] == ["the log itself", "all"] and rows[1]["refusal"] == far.refusal
    worse = log.frame.assign(reward=log.frame["reward"] - 1)
    assert "rewards >= 0" in lp.off_policy(PI[log.action], worse, estimator="log_smoothing").refusals["log smoothing"]


def test_a_result_shows_itself(log):
    found = lp.off_policy(PI[log.action], log.frame, estimator=["snips", "log_smoothing"])
    assert "SNIPS" in repr(found) and "log smoothing" in str(found) and "<table" in (found._repr_html_() or "")
    frame = found.to_frame()
    snips = frame[frame["estimator"] == "SNIPS"].iloc[0]
    assert snips["low"] < snips["value"] == found.estimates["SNIPS"].value < snips["high"]
    assert json.loads(json.dumps(found.to_dict()))["estimates"]["SNIPS"]["value"] == snips["value"]


def test_lists_are_asked_all_three_questions():
    """Two places of three items, drawn one after the other: enumerated, every list as often as μ draws it."""
    rows, policy = [], []
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            for copy in range(round(840 * MU[first] * MU[second] / (1 - MU[first]))):
                for place, (item, open_mu, open_pi) in enumerate(
                    [(first, 1.0, 1.0), (second, 1 - MU[first], 1 - PI[first])]
                ):
                    rows.append({"request": f"{first}{second}{copy}", "place": 1 + place, "item_id": item,
                                 "propensity": MU[item] / open_mu, "reward": WORTH[item]})  # fmt: skip
                    policy.append(PI[item] / open_pi)
    order = np.random.default_rng(0).permutation(len(rows))
    frame, chance = pandas.DataFrame(rows).iloc[order], np.array(policy)[order]
    found = lp.off_policy(chance, frame, estimator="ips")
    beside = {"whole list under a cascade", "first place", "one place changed"}
    assert set(found.beside) == beside and found.unit == "lists"
    true = sum(PI[a] * (WORTH[a] + sum(PI[b] / (1 - PI[a]) * WORTH[b] for b in range(3) if b != a)) for a in range(3))
    assert found.estimates["IPS"].value == pytest.approx(true, rel=0.01)
    assert found.beside["first place"].estimates["IPS"].value == pytest.approx(PI @ WORTH, rel=0.01)
    with pytest.raises(DataError, match="still open at its place"):
        lp.off_policy(dict(enumerate(PI)), frame)


@pytest.mark.parametrize(
    ("policy", "change", "given", "said"),
    [
        (lambda log: PI[log.action][:-1], {}, {}, "3,000 rows"),
        (lambda log: PI[log.action] + 1, {}, {}, "between 0 and 1"),
        (lambda log: np.tile(PI / 2, (3000, 1)), {}, {}, "sum to 1; row 0 sums to 0.5"),
        (lambda log: np.tile(np.array([0.5, 0.5]), (3000, 1)), {}, {}, "0 to 1"),
        (lambda log: "runs/mle", {}, {}, "lpi prepare"),
        (lambda log: {0: 0.5}, {}, {}, "sum to 1"),
        (lambda log: {"a": 1.0}, {}, {}, "none of the log's items"),
        (lambda log: PI[log.action], {"pscore": 0.0}, {}, "above 0 and at most 1; row 0"),
        (lambda log: PI[log.action], {"pscore": 1.5}, {}, "above 0 and at most 1; row 0"),
        (lambda log: PI[log.action], {"reward": np.nan}, {}, "reward is empty or not finite in row 0"),
        (lambda log: PI[log.action], {"reward": "much"}, {}, "reward must be numbers"),
        (lambda log: PI[log.action], {}, {"columns": {"rewards": "reward"}}, "no column 'rewards'"),
        (lambda log: PI[log.action], {}, {"columns": {"reward": "rewad"}}, "did you mean 'reward'"),
        (lambda log: PI[log.action], {}, {"reward_model": np.ones((3000, 3))}, r"as \[n, V\] too"),
        (lambda log: np.tile(PI, (3000, 1)), {}, {"reward_model": np.ones((3, 3))}, "shape"),
        (lambda log: PI[log.action], {}, {"propensities": "runs/mle"}, "prepared logs"),
    ],
)
def test_a_mistake_is_an_error_with_a_remedy(log, policy, change, given, said):
    with pytest.raises(DataError, match=said):
        lp.off_policy(policy(log), log.frame.assign(**change), **{"columns": log.columns, **given})


def test_missing_propensities_or_an_unknown_estimator_are_errors(log):
    with pytest.raises(DataError, match="no column 'propensity'"):
        lp.off_policy(PI[log.action], log.frame[["reward", "action"]])
    with pytest.raises(ConfigError, match="did you mean 'snips'"):
        lp.off_policy(PI[log.action], log.frame, estimator="snip")


# ---------------------------------------------------------------------- prepared logs


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    return lp.train(small, "mle", out=tmp_path_factory.mktemp("any") / "mle", epochs=1, width=8, batch_size=64)


EASY = {"min_effective": 1, "min_effective_share": 0, "max_share": 1, "min_rewarded": 1, "max_bias": 9}


def test_the_value_of_a_run_equals_that_of_evaluate(run, small, tmp_path):
    expected = lp.evaluate(run, data=small, out=tmp_path).off_policy
    for form, given in ((run, {}), (run.folder, {}), (run, {"data": small}), (run.policy(), {"data": small.path})):
        assert lp.off_policy(form, **given).to_dict() == expected.to_dict()
    one = lp.off_policy(run, estimator="snips", rules=EASY)
    assert list(one.estimates) == ["SNIPS"] and one.estimates["SNIPS"].value > 0


@pytest.mark.parametrize("form", ["mapping", "frame", "by person"])
def test_a_table_of_probabilities_on_a_prepared_log_is_exact(tmp_path, form):
    """Its probabilities are taken as they are, and what it does not list is never shown."""
    small = write_small(tmp_path / "small", ids=True)
    ids = small.catalogue["item_id"].to_pylist()
    listed = np.random.default_rng(1).dirichlet(np.ones(len(ids) // 2))
    table = pandas.DataFrame({"item_id": ids[: len(listed)], "probability": listed})
    if form == "by person":
        people = small.sequence_ids("test").to_pylist()
        table = pandas.concat([table.assign(sequence_id=person) for person in people])
    policy = dict(zip(ids, listed, strict=False)) if form == "mapping" else table
    found = lp.off_policy(policy, small, rules=EASY)
    test = small["test"].arrays
    first = np.isin(np.arange(len(test["item"])), small["test"].offsets[:-1])  # its history is empty: not measured
    share = np.r_[listed, np.zeros(len(ids) - len(listed))][test["item"]]
    weight, reward = (share / test["propensity"])[~first], test["reward"][~first]
    assert found.overlap.n == len(weight) and (weight == 0).any()
    assert found.estimates["IPS"].value == pytest.approx((weight * reward).mean(), rel=1e-4)
    assert found.estimates["SNIPS"].value == pytest.approx(weight @ reward / weight.sum(), rel=1e-4)


def test_a_log_without_propensities_needs_somebody_who_estimates_them(two_runs, tmp_path):
    with pytest.raises(DataError, match="pass propensities"):
        lp.off_policy(two_runs / "mle0")
    found = lp.off_policy(two_runs / "mle0", propensities=two_runs / "mle1", rules=EASY, estimator="ips")
    evaluated = lp.evaluate(two_runs / "mle0", against=two_runs / "mle1", propensities="mle1", out=tmp_path).off_policy
    assert found.propensities == evaluated.propensities == "mle1"
    np.testing.assert_array_equal(found.log.weight, evaluated.log.weight)
    assert found.estimates["IPS"].value == pytest.approx((found.log.weight * found.log.reward).mean())


def test_what_belongs_to_the_other_kind_of_log_is_refused(run, small):
    with pytest.raises(DataError, match="this log is prepared"):
        lp.off_policy(run, small, columns={"item_id": "action"})
    with pytest.raises(DataError, match="say which log"):
        lp.off_policy(run.policy())
