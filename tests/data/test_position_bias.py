"""Position bias, separated from the quality of the items at each place."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest

from localpolicy.data.position_bias import _Pairs, examination
from localpolicy.data.prepare import prepare
from localpolicy.errors import DataError
from localpolicy.runs.config import Config
from localpolicy.training.setup import resolve

MU = np.array([0.5, 0.25, 0.15, 0.1])
WORTH = np.array([0.9, 0.5, 0.2, 0.1])  # what μ prefers is better: means by place fall without any attention
EXAMINED = np.array([1.0, 0.6, 0.3])


def conditional(items) -> np.ndarray:
    """μ of each place given those above."""
    left = 1 - np.concatenate([[0], np.cumsum(MU[list(items)])[:-1]])
    return MU[list(items)] / left


@pytest.mark.parametrize("examined", [EXAMINED, np.ones(3), np.array([0.5, 1.0, 0.2])], ids=str)
def test_every_pair_of_places_is_exact_in_expectation(examined):
    """Over all 24 lists of 3 of 4, each by its probability: E[w r_i] / E[w r_j] = e_i / e_j for every pair."""
    lists = list(permutations(range(4), 3))
    propensity = np.array([conditional(items) for items in lists])
    chance = propensity.prod(1)
    np.testing.assert_allclose(chance.sum(), 1)
    reward = WORTH[np.array(lists)] * examined
    pairs = _Pairs(3)
    for i, j, weight in pairs._weights(propensity):
        earned = (chance * weight) @ reward[:, [i, j]]
        np.testing.assert_allclose(earned[0] / earned[1], examined[i] / examined[j], rtol=1e-12)
        assert (weight > 0).all() and (weight < 1).all()
    by_place = chance @ reward
    assert by_place[1] / by_place[0] < 0.9 * examined[1] / examined[0], "means by place tell something else"


def drawn(n, examined, *, seed=0, propensities=True, shuffled=True):
    """A log of n lists of 3, one after another."""
    rng = np.random.default_rng(seed)
    noise = rng.gumbel(size=(n, 4)) if shuffled else 0.0
    items = np.argsort(-(np.log(MU) + noise) * np.ones((n, 1)), axis=1)[:, :3]
    propensity = np.array([conditional(one) for one in items]) if shuffled else np.ones((n, 3))
    reward = (rng.random((n, 3)) < WORTH[items] * examined).astype(np.float32)
    place = np.tile(np.arange(3), (n, 1))
    arrays = {"above": place, "place": place, "reward": reward, "propensity": propensity}
    arrays = {name: array.ravel() for name, array in arrays.items()}
    return arrays if propensities else {name: arrays[name] for name in ("above", "place", "reward")}


def test_attention_is_found_in_a_log():
    found = examination(drawn(4_000, EXAMINED))
    assert found.identifiable and found.warning is None and found.examined[0] == 1
    np.testing.assert_allclose(np.log(found.examined), np.log(EXAMINED), atol=0.2)
    assert (found.se < 0.1).all()


def test_without_falling_attention_examination_is_one():
    """Means by place fall by a half here. Differences that chance explains are not believed."""
    found = [examination(drawn(2_000, np.ones(3), seed=seed)) for seed in range(8)]
    off = np.abs(np.log([one.examined for one in found]))
    assert any((one.examined == 1).all() for one in found) and off.mean() < np.mean([one.se for one in found])
    np.testing.assert_allclose(np.mean([one.examined for one in found], 0), 1, atol=0.04)


def test_errors_are_what_they_say():
    """The standard error of log e agrees with its spread over logs."""
    found = [examination(drawn(1_000, EXAMINED, seed=seed)) for seed in range(60)]
    spread = np.std([np.log(one.examined) - np.log(one.examined).mean() for one in found], axis=0)
    np.testing.assert_allclose(np.mean([one.se for one in found], 0), spread, rtol=0.35)


@pytest.mark.parametrize("case", [{"shuffled": False}, {"propensities": False}], ids=str)
def test_places_without_a_draw_have_no_estimate(case):
    found = examination(drawn(500, EXAMINED, **case))
    assert not found.identifiable and (found.examined == 1).all() and "cannot be separated" in found.warning


def test_lists_that_are_not_whole_say_nothing():
    arrays = drawn(300, EXAMINED)
    arrays["place"] = arrays["place"] + 1  # the first row of every list was not logged
    assert not examination(arrays).identifiable


def test_a_log_without_lists_has_no_places():
    assert examination({"reward": np.ones(3)}) is None
    assert examination({"above": np.zeros(3, int), "reward": np.ones(3), "propensity": np.ones(3)}) is None


def lists_of_three(place, **columns):
    """A log of 60 lists of three, whose rows state these places."""
    rng = np.random.default_rng(0)
    shown = {"sequence_id": np.repeat(np.arange(60), 3), "request": np.repeat(np.arange(60), 3).astype(str)}
    items = np.concatenate([rng.permutation(8)[:3] for _ in range(60)])
    event = np.where(rng.random(180) < 0.3, "click", "none")
    said = {"item_id": items, "event": event, "propensity": np.full(180, 1 / 8), "timestamp": np.arange(180)}
    return pa.table({**shown, **said, "place": np.tile(place, 60), **columns})


def stored(data, name):
    return np.concatenate([np.asarray(data[split].arrays[name]) for split in ("train", "validation", "test")])


def test_places_counted_from_1_are_the_same_log(tmp_path, caplog):
    zero, one = (prepare(lists_of_three(place), out=tmp_path / str(place[0])) for place in ([0, 1, 2], [1, 2, 3]))
    for name in ("place", "above", "item", "propensity"):
        np.testing.assert_array_equal(stored(zero, name), stored(one, name))
    assert set(stored(one, "place")) == {0, 1, 2}
    assert "lack a place" not in caplog.text


@pytest.mark.parametrize("place", [[0, 2, 3], [0, 0, 0], [2, 3, 4]], ids=str)
def test_prepare_warns_of_incomplete_lists(place, tmp_path, caplog):
    prepare(lists_of_three(place), out=tmp_path / "data")
    assert "60 of 60 lists lack a place, or have one twice" in caplog.text


def test_places_are_whole_numbers_and_requests_have_places(tmp_path, caplog):
    with pytest.raises(DataError, match="place is not a whole number from 0 on"):
        prepare(lists_of_three([0.5, 1.5, 2.5]), out=tmp_path / "halves")
    prepare(lists_of_three([0, 1, 2]).drop_columns(["place"]), out=tmp_path / "none")
    assert "Name the column of places too" in caplog.text


def test_one_list_a_person_needs_no_setting(tmp_path):
    one = prepare(lists_of_three([0, 1, 2]), out=tmp_path / "one")
    two = prepare(lists_of_three([0, 1, 2], sequence_id=np.repeat(np.arange(30), 6)), out=tmp_path / "two", seed=1)
    assert [resolve(Config(), data).train.min_history for data in (one, two)] == [0, 1]
