"""Grids: every combination once, names that tell, mistakes that are named."""

from __future__ import annotations

import pytest

from localpolicy.errors import ConfigError
from localpolicy.runs.config import Config
from localpolicy.study.settings import Axis, axes, grid, whole_key
from localpolicy.study.sweep import optuna_search


def test_a_grid_is_the_cartesian_product():
    points = grid(axes(["beta=0.1,1", "td_weight=0.3,1,3"]))
    assert [point.name for point in points] == [
        f"beta={beta} td_weight={weight}" for beta in ("0.1", "1") for weight in ("0.3", "1", "3")
    ]
    assert grid([]) == grid(axes([])) and len(grid([])) == 1  # no axis: the one point that changes nothing


def test_a_point_changes_its_settings_alone():
    config = Config.parse({"objective": {"name": "lpi_rl"}, "train": {"epochs": 3}})
    (point,) = grid(axes(["beta=0.25", "model.tied=true", "train.learning_rate=1e-4"]))
    changed = point.apply(config)
    assert (changed.objective.beta, changed.model.tied, changed.train.learning_rate) == (0.25, True, 1e-4)
    assert (changed.objective.name, changed.train.epochs) == ("lpi_rl", 3)


def test_values_named_twice_count_once():
    assert axes(["beta=1,1,2"])[0].values == ("1", "2")


def test_a_range_is_for_searching():
    (axis,) = axes(["beta=0.01..1"])
    assert (axis.low, axis.high, axis.values, axis.whole) == (0.01, 1.0, (), False)
    assert axes(["model.width=8..64"])[0].whole
    with pytest.raises(ConfigError, match="is a range"):
        grid([axis])


def test_short_names_find_their_group():
    assert whole_key("beta") == "objective.beta"
    assert whole_key("width") == "model.width"
    assert whole_key("train.patience") == "train.patience"


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (["bta=1"], "did you mean 'beta'"),
        (["objective.bta=1"], "did you mean 'objective.beta'"),
        (["beta"], "key=v1,v2"),
        (["beta="], "key=v1,v2"),
        (["beta=1,,2"], "empty value"),
        (["beta=2..1"], "two finite numbers, the smaller first"),
        (["beta=1e-9..inf"], "two finite numbers"),
        (["beta=nan..1"], "two finite numbers"),
        (["data.length=5,20"], "cannot be compared"),
        (["last=5,20"], "cannot be compared"),
        (["min_history=0,1"], "cannot be compared"),
        (["beta=a..b"], "low..high"),
        (["seed=1,2"], "use seeds="),
        (["beta=1", "objective.beta=2"], "twice"),
    ],
)
def test_a_mistake_is_named(over, says):
    with pytest.raises(ConfigError, match=says):
        axes(over)


def test_a_search_proposes_the_same_again_and_finds_the_top():
    pytest.importorskip("optuna")
    over = [Axis("objective.beta", low=0.01, high=10.0), Axis("model.width", low=2, high=9, whole=True)]

    def tried():
        seen = []

        def selection_score(point):
            seen.append(point)
            beta, width = (float(value) for _, value in point.settings)
            return -abs(beta - 1) - abs(width - 5)

        optuna_search(over, 25, selection_score)
        return seen

    first = tried()
    assert first == tried()  # so that an interrupted search can continue
    widths = [dict(point.settings)["model.width"] for point in first]
    assert all(2 <= int(width) <= 9 for width in widths)
    best = max(-abs(float(dict(point.settings)["objective.beta"]) - 1) for point in first)
    assert best > -0.5


def test_equal_numbers_are_one_point():
    assert [axis.values for axis in axes(["beta=0.1,0.10,1e-1,1", "backbone=gru,sasrec,gru"])] == [
        ("0.1", "1"),
        ("gru", "sasrec"),
    ]
