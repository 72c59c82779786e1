"""Whose law a log's lists follow: found where it is known, refused where it does not explain what was shown."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from localpolicy.ranker.law import Law, law_of, log_chance, own_law, shown_lists
from localpolicy.ranker.reading import read_requests
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig, drawn

SMALL = RankerConfig(items=60, people=50, candidates=12, places=4)


def log_of(config=SMALL, *, count=1500, seed=1, lists=None, logits=None):
    world, rng = ForeignRanker(config, seed=seed), np.random.default_rng(seed)
    requests = world.requests(count, rng)
    shown = world.lists(requests, rng) if lists is None else lists(world, requests, rng)
    tables = world.tables(requests, shown, world.clicks(requests, shown, rng),
                          logits=None if logits is None else logits(world, requests))  # fmt: skip
    return read_requests(*tables, items=world.items())


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_the_temperature_is_fitted(temperature):
    law = law_of(log_of(SMALL.model_copy(update={"temperature": temperature})))
    assert (law.kind, law.fitted, law.standardise) == ("scores", True, True)
    assert law.temperature == pytest.approx(temperature, rel=0.05)


def test_raw_scores_are_distinguished_from_standardised_ones():
    law = law_of(log_of(lists=lambda world, requests, rng: drawn(requests.score / 0.3, 4, rng)))
    assert (law.kind, law.standardise) == ("scores", False)
    assert law.temperature == pytest.approx(0.3, rel=0.05)


def test_a_stated_temperature_is_tested():
    log = log_of()
    assert law_of(log, temperature=0.1, standardise=True).known
    wrong = law_of(log, temperature=0.15, standardise=True)
    assert wrong.kind == "unknown"
    assert "does not explain what was shown" in wrong.why


def test_temperatures_of_requests_are_used():
    log = log_of()
    logged = replace(log, temperature=np.full(len(log), 0.1))
    law = law_of(logged, standardise=True)
    assert law.known and law.temperature is None
    assert law_of(replace(log, temperature=np.full(len(log), 0.2)), standardise=True).kind == "unknown"
    half = np.where(np.arange(len(log)) % 2 == 0, 0.1, 0.0)
    assert len(law_of(replace(log, temperature=half), standardise=True).drawn(replace(log, temperature=half))) == 750


def test_their_own_list_is_deterministic():
    law = law_of(log_of(SMALL.model_copy(update={"temperature": 0.0})))
    assert law.kind == "deterministic"
    assert not law.known
    assert (law.overlap, law.same_first) == (1, 1)


def test_a_rule_after_the_draw_is_found():
    """A sold-out item is taken out of the drawn list: what is shown is no draw from the logged candidates."""

    def after_the_draw(world, requests, rng):
        lists = world.lists(requests, rng)
        sold_out = requests.item % 5 == 0
        order = np.argsort(np.take_along_axis(sold_out, lists, 1), axis=1, kind="stable")
        return np.take_along_axis(lists, order, 1)

    assert law_of(log_of(lists=after_the_draw)).kind == "unknown"


def test_probabilities_are_the_law():
    log = log_of(logits=lambda world, requests: world.law(requests))
    assert law_of(log).kind == "probabilities"
    assert law_of(log_of(logits=lambda world, requests: world.law(requests, 0.2))).kind == "unknown"


def test_equal_probabilities_are_tested_by_the_logged_scores():
    log = log_of()
    equal = 1 / np.bincount(log.request)[log.request]
    law = law_of(replace(log, probability=equal))
    assert (law.kind, law.why[:25]) == ("unknown", "the logged probabilities ")
    even = log_of(lists=lambda world, requests, rng: drawn(np.zeros(requests.score.shape), 4, rng))
    assert law_of(replace(even, probability=equal)).known


def test_probabilities_of_a_layer_are_not_the_rankers_own_law():
    """A layer's lines state how scores were standardised: they are the ranker's, and the probabilities the layer's."""
    log = log_of(lists=lambda world, requests, rng: drawn(world.law(requests) / 2, 4, rng),
                 logits=lambda world, requests: world.law(requests) / 2)  # fmt: skip
    law = law_of(log)
    assert law.known and own_law(log, law) == law
    logged = replace(log, temperature=np.full(len(log), 0.1))
    assert own_law(logged, law) == law
    assert own_law(replace(logged, standardise=True), law) == Law("scores", 0.1, True)
    assert own_law(replace(logged, standardise=False), law) == Law("scores", 0.1, False)
    assert own_law(log, law, temperature=0.3) == Law("scores", 0.3, True)


def test_without_scores_nothing_is_known():
    assert law_of(replace(log_of(), score=None)).kind == "unknown"


def test_a_true_law_is_hardly_ever_refused():
    smallest = [law_of(log_of(count=300, seed=seed), temperature=0.1, standardise=True, seed=100 + seed).p
                for seed in range(40)]  # fmt: skip
    assert np.mean(np.array(smallest) < 0.05) < 0.15


def test_chances_of_whole_lists_sum_to_one():
    log = log_of(RankerConfig(items=20, people=10, candidates=5, places=3), count=60)
    (block,) = log.padded(np.arange(1))
    law = law_of(log, temperature=0.3, standardise=True)
    logits, lists = law.logits(log, block), shown_lists(log, block)
    total = sum(float(np.exp(log_chance(logits, lists._replace(at=np.array([order])))[0]))
                for order in itertools.permutations(range(5), 3))  # fmt: skip
    assert total == pytest.approx(1)
    pinned = lists._replace(pinned=np.array([1]))
    first = lists.at[0, 0]
    logits[0, first] = -np.inf
    rest = [one for one in range(5) if one != first]
    total = sum(float(np.exp(log_chance(logits, pinned._replace(at=np.array([[first, *order]])))[0]))
                for order in itertools.permutations(rest, 2))  # fmt: skip
    assert total == pytest.approx(1)


def test_candidates_logged_with_the_shown_ones_first_are_no_fault():
    log = log_of(count=3000)
    order = np.lexsort((np.where(log.place > 0, log.place, 99), log.request))
    row = np.argsort(order)
    moved = replace(log, item=log.item[order], place=log.place[order], score=log.score[order],
                    answers=log.answers._replace(row=row[log.answers.row]), columns={})  # fmt: skip
    assert moved.place[:4].tolist() == [1, 2, 3, 4]
    assert law_of(moved, temperature=0.1, standardise=True).known
