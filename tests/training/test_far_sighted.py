"""β where what pays comes later: by the return, among what the gate can judge, on the rows that it judges by."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.returns import ReturnModel, Visits, read_visits, return_gain
from localpolicy.measure.score import score
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import ALONE
from localpolicy.training.beta_selection import ENOUGH, MULTIPLES, BetaCandidate, _best, choose, judged_rows
from localpolicy.training.held_out import read_held_out
from localpolicy.training.train import improving_objective, train

BAIT, DOOR, GOAL, STEPS = 0, 1, 2, 5
# Four items: bait pays .3 at once; the door pays nothing and leads to where everything pays .9; then all begins again.
MU = np.array([0.6, 0.05, 0.15, 0.2])


def write_doors(path, *, visits=1500, seed=0, opens=True, stated=True, steps=STEPS) -> Prepared:
    """An impression log with exact propensities, in which what pays comes a step after the door."""
    rng = np.random.default_rng(seed)
    options = {"kind": "impressions", "events": ["context", "none", "click"], "rewards": {"none": 0, "click": 1}}
    with writing(path, optional=("propensity",) if stated else (), **options) as store:
        for split, count in (("train", visits), ("validation", visits // 3), ("test", visits // 3)):
            item = np.c_[np.full(count, GOAL), rng.choice(4, p=MU, size=(count, steps))]
            pay = np.where(opens & (item[:, :-1] == DOOR), 0.9, np.where(item[:, 1:] == BAIT, 0.3, 0.02))
            click = np.c_[np.zeros(count, int), rng.random(pay.shape) < pay]
            arrays = {"item": item, "event": np.c_[np.zeros(count, int), 1 + click[:, 1:]], "reward": click,
                      "propensity": np.where(np.arange(steps + 1) == 0, np.nan, MU[item])}  # fmt: skip
            arrays = {name: each.ravel() for name, each in arrays.items() if stated or name != "propensity"}
            store.splits[split].append(np.full(count, steps + 1), arrays)
        store.write_items(np.arange(4), np.ones(4, np.int64))
    return Prepared(path)


def config(**objective):
    return Config.parse(
        {
            "model": {"width": 16, "blocks": 1},
            "objective": {"name": "lpi_rl", **objective},
            "train": {"epochs": 6, "batch_size": 64, "learning_rate": 0.01, "device": "cpu"},
        }
    )


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    return write_doors(tmp_path_factory.mktemp("doors") / "data")


@pytest.fixture(scope="module")
def run(doors, tmp_path_factory):
    return train(doors, out=tmp_path_factory.mktemp("doors") / "run", config=config(gamma=0.9))


def test_a_critic_that_looks_ahead_moves_as_far_as_the_return_says(run, doors):
    """Before: asked for the next reward every tilt looked like a loss, and the policy stayed at μ̂."""
    found = run.manifest["improvement"]
    assert found["chosen_by"] == "return by logged propensities"
    chosen = next(each for each in found["candidates"] if each["beta"] == found["beta"])
    assert found["slope"] > 0 and chosen["low"] > 0.02
    assert found["candidates"][-1]["low"] == found["candidates"][-1]["value"] == 0, "μ̂ itself"
    scores = score(run.policy(), Windows(doors, "test", run.config.data), events=doors.events)
    visits, weight = read_visits(scores)
    assert weight[visits.item == DOOR].mean() > 1.3
    model = ReturnModel.fit(Visits.of_split(doors, "train"), gamma=1.0, n_items=4)
    gain = return_gain(visits, weight, None, model).gain
    assert gain.mean > 4 * gain.se


def test_a_candidates_gain_is_that_of_the_return_over_mu(run, doors):
    """The same by hand: on the half that chose no epoch, w (G - Q̂) + E_π Q̂, less μ̂'s."""
    found, policy = run.manifest["improvement"], run.policy()
    windows = Windows(doors, "validation", run.config.data).part(1, 2)
    model = ReturnModel.fit(Visits.of_split(doors, "train"), gamma=0.9, n_items=4)
    values = []
    for each in (policy, policy.logging()):
        scores = score(each, windows, events=doors.events, reward_model=model)
        visits, weight = read_visits(scores)
        context = model.context(visits)
        said = context + model.of_taken[visits.item]
        values.append(context + scores.value_expected + weight * (visits.returns(0.9) - said))
    chosen = next(each for each in found["candidates"] if each["beta"] == found["beta"])
    assert chosen["value"] == pytest.approx((values[0] - values[1]).mean(), rel=1e-3)


def test_the_value_of_one_decision_chooses_without_looking_ahead(doors, tmp_path):
    near = train(doors, out=tmp_path / "run", config=config(gamma=0.0)).manifest["improvement"]
    assert near["chosen_by"] == "value by logged propensities"


def candidate(beta, low, *, effective=0.5, js=0.1):
    return BetaCandidate(beta, low + 0.1, low, effective, js)


def test_what_the_gate_can_judge_is_preferred_if_there_is_any():
    mu, near, far = candidate(None, 0.0, effective=1.0, js=0.0), candidate(2.0, 0.1), candidate(0.5, 0.3, effective=0.3)
    for judged, best in ((ENOUGH / 0.3, far), (ENOUGH / 0.3 - 1, near), (ENOUGH / 0.5, near), (ENOUGH / 0.5 - 1, far)):
        assert _best([near, far, mu], most=1.0, judged=judged) is best
    loses = near._replace(low=-0.1)
    assert _best([loses, far, mu], most=1.0, judged=ENOUGH / 0.5) is mu


def test_what_lies_beyond_the_ceiling_or_the_log_is_not_chosen():
    mu, far = candidate(None, 0.0, effective=1.0, js=0.0), candidate(0.5, 0.3, effective=LEAST_EFFECTIVE)
    assert _best([far, mu], most=0.1, judged=10**6) is far
    assert _best([far, mu], most=0.0999, judged=10**6) is mu
    assert _best([far._replace(effective=0.0999), mu], most=0.1, judged=10**6) is mu


def test_calibration_and_beta_read_the_rows_that_the_gate_judges_by(run, doors):
    """Before: they also read those without a history, which no evaluation scores."""
    windows = Windows(doors, "validation", run.config.data).part(1, 2)
    scores = score(run.policy(), windows, events=doors.events, min_history=2)
    for least, count in ((0, 5), (1, 5), (2, 4)):
        settings = run.config.with_changes([f"train.min_history={least}"])
        read = read_held_out(run.policy(), windows, gamma=0.9, config=settings, ranks=ALONE)
        assert len(read.reward) == count * len(windows)
        if least == 2:
            np.testing.assert_array_equal(read.item, scores.item)
        assert judged_rows(doors, settings) == count * len(doors["test"])
    settings = run.config.with_changes(["train.min_history=2"])
    policy = run.policy()
    policy.network.slope = 1.0
    assert (
        len(choose(policy, windows, settings.objective, doors, settings, ranks=ALONE).candidates) == len(MULTIPLES) + 1
    )


@pytest.mark.parametrize(
    ("log", "expected"),
    [({}, "lpi_rl"), ({"opens": False}, "lpi_cb"), ({"stated": False}, "lpi_rl"), ({"steps": 0}, "lpi_cb")],
    ids=["door opens", "nothing comes later", "no propensities", "one action"],
)
def test_the_log_decides_which_objective_improves(tmp_path, log, expected):
    name, why = improving_objective(write_doors(tmp_path / "data", **log))
    assert name == expected
    assert ("does not show" in why) == (log == {"opens": False})
