"""Which assumption a value of lists needs: weights of a cascade by hand, and what the log's tests choose."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from localpolicy.ranker.improve import REFUSED, improve, judged, persons_apart
from localpolicy.ranker.law import Law, law_of
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import ListValues
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig, drawn

SMALL = {"items": 100, "people": 600, "candidates": 15, "places": 5}


def logged(count=4000, seed=1, **settings):
    world, rng = ForeignRanker(RankerConfig(**(SMALL | settings)), seed=seed), np.random.default_rng(seed)
    requests = world.requests(count, rng)
    lists = world.lists(requests, rng)
    return world, requests, lists, world.tables(requests, lists, world.clicks(requests, lists, rng))


def test_weights_of_a_cascade_are_products_of_the_ratios_of_places():
    world, requests, lists, tables = logged(count=6, places=3)
    log = read_requests(*tables)
    values = ListValues(log, Law("scores", 0.1, True), np.arange(6), world.examined, log.reward())
    tilt = np.random.default_rng(2).normal(size=requests.score.shape)
    found = values.weights(lambda block: block.of(tilt.ravel(), 0.0), "cascade").reshape(6, 3)
    old = np.exp(world.law(requests))
    new = np.exp(world.law(requests) + tilt)
    for row, list_ in enumerate(lists[values.requests]):
        row, product = values.requests[row], 1.0
        for place, item in enumerate(list_):
            above = list_[:place]
            product *= new[row, item] / np.delete(new[row], above).sum()
            product /= old[row, item] / np.delete(old[row], above).sum()
            assert found[values.number[row], place] == pytest.approx(product, rel=1e-9)


def test_a_cascade_tells_the_gain_where_people_stop_and_places_overstate_it():
    world, requests, lists, tables = logged(count=12_000, stops=1.0, temperature=0.4, base=-1.2, places=4)
    log = read_requests(*tables)
    values = ListValues(log, Law("scores", 0.4, True), np.arange(len(log)), world.examined, log.reward())
    tilt = 0.3 * (requests.log_odds - requests.log_odds.mean(1, keepdims=True))
    better = drawn(world.law(requests) + tilt, 4, np.random.default_rng(4))
    truth = world.value(requests, better).mean() - world.value(requests, lists).mean()
    gain = {form: values.gain(values.weights(lambda block: block.of(tilt.ravel(), 0.0), form))
            for form in ("by places", "cascade")}  # fmt: skip
    assert gain["cascade"].mean == pytest.approx(truth, abs=3 * gain["cascade"].se)
    assert gain["by places"].mean > truth + 3 * gain["by places"].se


@pytest.mark.parametrize(("stops", "form"), [(0.0, "by places"), (1.0, "cascade")])
def test_the_log_decides_whether_gains_are_by_places(tmp_path, stops, form):
    world, _, _, tables = logged(stops=stops)
    result = improve(*tables, items=world.items(), out=tmp_path / "run", critics=("logistic",))
    assert result.form == form and result.stopping.fails == (stops == 1)
    assert result.to_dict()["form"] == form


def test_no_gain_is_given_where_items_below_matter(tmp_path):
    """New items are answered, and so is what stands above one."""
    world, requests, lists, (table, _) = logged(seed=2, temperature=0.6)
    item = np.take_along_axis(requests.item, lists, 1)
    clicked = world.new[item] & (np.random.default_rng(3).random(item.shape) < 0.5)
    clicked[:, :-1] |= world.new[item[:, 1:]]
    request, place = np.nonzero(clicked)
    outcomes = pa.table({"request": table["request"].take(request), "event": ["click"] * len(request),
                         "item": [f"i{one}" for one in item[request, place]]})  # fmt: skip
    result = improve(table, outcomes, items=world.items(), out=tmp_path / "run", critics=("logistic",))
    assert (result.verdict, result.beta) == ("cannot tell", np.inf)
    assert result.below.p < REFUSED and "items below" in result.why


def test_a_layer_is_hardly_ever_refused_where_items_below_do_not_matter():
    """A test of one in twenty would take the layer from one log in twenty."""
    world, _, _, tables = logged(count=1500)
    log = read_requests(*tables)
    law, found = law_of(log), []
    for seed in range(20):
        _, _, choice, verdict = persons_apart(log, seed)
        noise = np.random.default_rng(seed).normal(size=len(log.item))
        found.append(judged(log, law, noise, log.reward(), world.examined, choice, verdict))
    assert min(one["below"].p for one in found) < 0.05
    assert not [one["why"] for one in found if "items below" in one["why"]]
