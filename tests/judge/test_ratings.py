"""Ratings: a policy is judged by how well what it ranks high was liked, not by how much of what was taken it shows."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.judge.rules import GateRules
from localpolicy.measure.score import CANDIDATES, liking
from localpolicy.report.comparison import write_comparison
from localpolicy.report.tables import comparison_table

PEOPLE, FILMS, RATED = 300, 40, 8


def test_liking_by_hand():
    scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [5.0, 9.0, 9.0], [0.0, 1.0, 2.0]])
    reward = torch.tensor([[0.5, 1.0, 0.0], [1.0, 0.0, 0.2], [0.4, 1.0, 1.0], [1.0, 1.0, 1.0]])
    valid = torch.tensor([[True] * 3, [True, True, False], [True, False, False], [True] * 3])
    top, agreement = liking(scores, reward, valid)
    # Row 0: the first is ranked first; of pairs (0,1), (0,2), (1,2) only (0,2) is ordered as rated. Row 1: a tie.
    np.testing.assert_allclose(top.numpy(), [0.5, (1.0 + 0.0) / 2, math.nan, 1.0])
    np.testing.assert_allclose(agreement.numpy(), [1 / 3, 1 / 2, math.nan, math.nan])


def ratings(folder) -> tuple[Prepared, np.ndarray]:
    """People take popular films first and like other ones; the true liking of each film."""
    rng = np.random.default_rng(0)
    popular, worth = rng.standard_normal(FILMS), rng.permutation(np.linspace(0.0, 1.0, FILMS))
    events = ["1", "2", "3", "4", "5"]
    rewards = dict(zip(events, (0.0, 0.0, 0.5, 1.0, 1.0), strict=True))
    with writing(folder, kind="interactions", events=events, rewards=rewards) as store:
        for split in ("train", "validation", "test"):
            taken = np.argsort(-(1.5 * popular + rng.gumbel(size=(PEOPLE, FILMS))), axis=1)[:, :RATED]
            stars = np.clip(np.round(4 * worth[taken] + 0.7 * rng.standard_normal(taken.shape)), 0, 4).astype(np.int64)
            arrays = {
                "item": taken.ravel(),
                "event": stars.ravel(),
                "reward": np.array([0, 0, 0.5, 1, 1])[stars].ravel(),
            }
            store.splits[split].append(np.full(PEOPLE, RATED), arrays)
        store.write_items(np.arange(FILMS), np.bincount(taken.ravel(), minlength=FILMS).astype(np.int64))
    share = np.exp(1.5 * popular)
    return Prepared(folder), np.stack([share / share.sum(), worth])


def lists(path, probability: np.ndarray):
    pa.csv.write_csv(pa.table({"item_id": np.arange(FILMS), "probability": probability / probability.sum()}), path)
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratings")
    data, (share, worth) = ratings(folder / "data")
    better = share * np.exp(2.0 * worth)
    files = {
        "imitates": lists(folder / "imitates.csv", share),
        "better": lists(folder / "better.csv", better),
        "worse": lists(folder / "worse.csv", share * np.exp(-2.0 * worth)),
    }
    truth = [float((each / each.sum()) @ worth) for each in (share, better)]
    assert truth[1] > 1.2 * truth[0], "a true gain of more than 20 %"
    return data, files


RULES = GateRules(baselines=False, max_segment_loss=1.0)


def test_a_policy_that_buries_bad_films_is_not_refused_for_it(world):
    data, files = world
    found = gate(files["better"], against=[files["imitates"]], data=data, rules=RULES)
    assert found.question.kind == "liking" and found.metric == "liked@1" and found.answer == "test online"
    taken = [each.estimate("all.nDCG@20").mean for each in (found.evaluation, found.deployed)]
    assert taken[0] < taken[1], "by the nDCG of everything taken it would have been refused"
    agreement = next(check for check in found.checks if check.figure == "agreement")
    assert agreement.outcome == "yes" and agreement.low > 0
    assert any("chose themselves what to rate" in note for note in found.notes)
    assert found.sentence.startswith("Test better.csv online beside imitates.csv: what it ranks first was liked better")
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_policy_that_shows_what_people_dislike_is_refused(world):
    data, files = world
    found = gate(files["worse"], against=[files["imitates"]], data=data, rules=RULES)
    assert found.answer == "do not deploy" and "what it ranks first was liked less" in found.sentence
    assert next(check for check in found.checks if check.figure == "agreement").outcome == "no"


def test_the_candidates_are_what_the_person_rated_from_there_on(world):
    data, files = world
    found = gate(files["better"], against=[files["imitates"]], data=data, rules=RULES).evaluation
    order = np.argsort(-np.asarray(pa.csv.read_csv(files["better"])["probability"]))
    place = np.argsort(order)
    first = data["test"][0]
    for history in range(1, RATED):
        ahead = slice(history, min(history + CANDIDATES, RATED))
        best = np.argmin(place[first["item"][ahead]])
        expected = math.nan if history == RATED - 1 else float(first["reward"][ahead][best])
        np.testing.assert_allclose(found.scores.liked[history - 1], expected)


def test_a_comparison_shows_the_figure_that_decides(world, tmp_path):
    data, files = world
    found = compare([files["imitates"], files["better"]], data=data, baseline="imitates.csv")
    assert found.main == "liked@1" and found.gains["better.csv"]["liked@1"].sign == 1
    assert list(comparison_table(found).columns).count("liked@1") == 1
    assert found.gains["better.csv"]["agreement"].sign == 1, "tested as well, so that it can be marked"
    write_comparison(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "liked@1" in page and "of what they rated, the item that is ranked first" in page


def test_one_held_out_rating_each_cannot_tell(tmp_path, recwarn):
    """As leave-one-out leaves: there is nothing to compare a rating with."""
    rng = np.random.default_rng(0)
    events = ["1", "3", "5"]
    rewards = dict(zip(events, (0.0, 0.5, 1.0), strict=True))
    with writing(tmp_path / "data", kind="interactions", events=events, rewards=rewards) as store:
        for split, length in (("train", 4), ("validation", 2), ("test", 2)):
            item, stars = rng.integers(0, FILMS, (50, length)), rng.integers(0, 3, (50, length))
            reward = np.array([0.0, 0.5, 1.0])[stars].ravel()
            arrays = {"item": item.ravel(), "event": stars.ravel(), "reward": reward}
            store.splits[split].append(np.full(50, length), arrays)
        store.write_items(np.arange(FILMS), np.ones(FILMS, np.int64))
    files = [lists(tmp_path / f"{name}.csv", rng.random(FILMS)) for name in "ab"]
    found = gate(files[0], against=[files[1]], data=Prepared(tmp_path / "data"), config={"min_history": 1})
    said = {check.figure: (check.outcome, check.because) for check in found.checks}
    assert found.metric == "liked@1" and found.answer == "cannot tell"
    for name in ("gain", "baselines"):
        assert said[name][0] == "cannot tell" and "--split random or time" in said[name][1]
    assert said["agreement"][0] == "not asked"
