"""Filters reach the importance weights: log, rotation, preparation, scoring; exact on a world small enough to list."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_log import HOUR, START, answer, listed, write

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.quality import filter_notes, measure
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.logits import DenseLogits
from localpolicy.measure.decisions import decisions
from localpolicy.measure.estimators import by_name
from localpolicy.measure.score import score
from localpolicy.objectives.importance import IPS
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import Log
from localpolicy.serving.rotate import rotate
from localpolicy.serving.sampling import conditional_propensities
from localpolicy.training.train import train
from localpolicy.types import Readout

SHARES = {"test": 0.3, "validation": 0.3}
ITEMS = 5
LOGGING, TARGET = np.log([0.1, 0.2, 0.3, 0.2, 0.2]), np.log([0.6, 0.1, 0.1, 0.15, 0.05])
REWARD, MODEL = np.array([0.9, 0.1, 0.5, 0.3, 0.7]), np.array([0.2, 0.8, 0.1, 0.6, 0.4])
HISTORY = [(0, "click"), (3, "click")]
FILTERS = {  # and what each leaves
    "none": (Filter(), {0, 1, 2, 3, 4}),
    "exclude": (Filter(exclude=(0,)), {1, 2, 3, 4}),
    "seen": (Filter(seen=True), {1, 2, 4}),
    "last": (Filter(last=1), {0, 1, 2, 4}),
    "candidates": (Filter(exclude=(2,), candidates=(0, 2, 3, 4, 99)), {0, 3, 4}),
}


class Row:
    """The same scores at every position; items come from the catalogue of the data."""

    def __init__(self, values: np.ndarray, data: Prepared) -> None:
        self.row = torch.from_numpy(values[data.catalogue["item_id"].to_numpy()]).float()

    def logits(self, batch):
        return DenseLogits(self.row.expand(len(batch.scored), -1))


@pytest.fixture
def world(tmp_path):
    """Every list of two that μ can draw under each filter, each by a person of its own."""
    log, chances, number = Log(tmp_path / "log.db"), {}, 0
    for name, (item_filter, left) in FILTERS.items():
        forbidden = [np.array(sorted(set(range(ITEMS)) - left))]
        for items in permutations(sorted(left), 2):
            propensity = conditional_propensities(LOGGING[None], np.array([items]), forbidden=forbidden)[0]
            person = f"{name}-{number:03d}"
            chances[person] = (name, propensity.prod())
            request = listed(
                person=person, time=START + number, history=HISTORY, items=list(items),
                propensities=propensity.tolist(), item_filter=item_filter,
            )  # fmt: skip
            write(log, request, *(answer(request, item) for item in items if item == 4))
            number += 1
    log.close()
    rotate(log.address, out=tmp_path / "events", upto=START + HOUR)
    data = prepare("events", [tmp_path / "events"], out=tmp_path / "data", **SHARES)
    return data, chances


def scored(data: Prepared):
    """Decisions of the target on all splits, with the person of each and its place in the list."""
    for split in data.splits:
        if not len(data[split]):
            continue
        windows = Windows(data, split, WindowConfig(length=10))
        scores = score(Row(TARGET, data), windows, events=data.events, reward_model=Row(MODEL, data))
        known = ~np.isnan(scores.logp_open)
        ids = data.sequence_ids(split).to_pylist()
        items = data.catalogue["item_id"].to_numpy()[scores.item[known]]
        log = decisions(scores, estimand="one place changed")._replace(reward=REWARD[items])
        yield [ids[index] for index in scores.sequence[known]], scores.history[known] - len(HISTORY), log


def expected_value(left: set[int]) -> np.ndarray:
    """Of each place: μ fills those above it, the target this one."""
    value = np.zeros(2)
    weight, mine = np.exp(LOGGING), np.exp(TARGET)
    value[0] = sum(mine[a] * REWARD[a] for a in left) / sum(mine[a] for a in left)
    for first in left:
        rest = left - {first}
        given = sum(mine[a] * REWARD[a] for a in rest) / sum(mine[a] for a in rest)
        value[1] += weight[first] / sum(weight[a] for a in left) * given
    return value


def test_the_mean_weight_is_one_and_values_are_unbiased_under_any_filter(world):
    data, chances = world
    mean, values, robust = ({name: np.zeros(2) for name in FILTERS} for _ in range(3))
    for persons, places, log in scored(data):
        for row, (person, place) in enumerate(zip(persons, places, strict=True)):
            name, chance = chances[person]
            mean[name][place] += chance * log.weight[row]
            values[name][place] += chance * by_name("ips").values(log)[row]
            robust[name][place] += chance * by_name("dr").values(log)[row]
    for name, (_, left) in FILTERS.items():
        np.testing.assert_allclose(mean[name], 1, rtol=1e-5)
        np.testing.assert_allclose(values[name], expected_value(left), rtol=1e-5)
        np.testing.assert_allclose(robust[name], expected_value(left), rtol=1e-5)


def test_distinct_filters_are_stored_once_and_resolved(world, tmp_path):
    data, _ = world
    ids = data.catalogue["item_id"].to_numpy()
    offsets, items, allows = data.filters
    stored = {(bool(allow), *sorted(ids[items[first:stop]].tolist()))
              for allow, first, stop in zip(allows, offsets[:-1], offsets[1:], strict=True)}  # fmt: skip
    assert stored == {(False, 0), (False, 3), (False, 0, 3), (True, 0, 3, 4)} and len(allows) == 4
    (file,) = (tmp_path / "events").glob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert all(
        (row["filter_content"] is None) == (row["place"] != 0 or not row["filter"]) for row in rows if row["request"]
    )
    found = measure(data)
    assert (found.filtered, found.filter_unknown) == (2 * (12 + 6 + 12 + 6), 0) and filter_notes(data, "train") == []


def test_a_filter_whose_items_are_not_in_the_log_has_no_weight(world, tmp_path):
    table = pq.read_table(next((tmp_path / "events").glob("*.parquet")))
    pq.write_table(table.drop_columns("filter_content"), tmp_path / "named.parquet")
    data = prepare("events", [tmp_path / "named.parquet"], out=tmp_path / "named", **SHARES)
    persons = [person for names, _, _ in scored(data) for person in names]
    assert {person.split("-")[0] for person in persons} == {"none"}
    assert measure(data).filter_unknown == 2 * (12 + 6 + 12 + 6)
    (note,) = filter_notes(data, "train")
    assert "whose items the log does not state" in note
    pq.write_table(table.drop_columns(["filter", "filter_content"]), tmp_path / "silent.parquet")
    silent = prepare("events", [tmp_path / "silent.parquet"], out=tmp_path / "silent", **SHARES)
    assert measure(silent).filtered is None and "does not say" in filter_notes(silent, "train")[0]


def test_appending_keeps_filters(world, tmp_path):
    data, _ = world
    table = pq.read_table(next((tmp_path / "events").glob("*.parquet")))
    halves = [(0, len(table) // 2), (len(table) // 2, len(table) - len(table) // 2)]
    for number, part in enumerate(halves):
        pq.write_table(table.slice(*part), tmp_path / f"half-{number}.parquet")
    first = prepare("events", [tmp_path / "half-0.parquet"], out=tmp_path / "first", **SHARES)
    both = prepare("events", [tmp_path / "half-1.parquet"], out=tmp_path / "both", append=first.path)
    assert [array.tolist() for array in both.filters] != [array.tolist() for array in first.filters]
    weights = {person: log.weight[row] for persons, _, log in scored(both) for row, person in enumerate(persons)}
    again = {person: log.weight[row] for persons, _, log in scored(data) for row, person in enumerate(persons)}
    assert weights == again


def test_an_erased_person_leaves_no_filter_behind(world, tmp_path):
    data, chances = world
    gone = [person for person, (name, _) in chances.items() if name == "seen"]
    for person in gone:
        erase(person, files=[tmp_path / "events"], data=[data.path])
    after = Prepared(data.path)
    after.verify()
    assert len(after.filters.allows) == 3, "nobody else had that one"
    kept = {person: log.weight[row] for persons, _, log in scored(after) for row, person in enumerate(persons)}
    assert set(kept) == set(chances) - set(gone) and np.isfinite(list(kept.values())).all()
    assert Database(tmp_path / "log.db").rows("SELECT * FROM filters") == [], (
        "rotated away with the lists that had them"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("no", "is not JSON"),
        ("[1]", "expected"),
        ('{"exclude": 3}', "expected"),
        ('{"exclude": ["x"]}', "another type"),
    ],
)
def test_contents_that_are_no_filters_are_refused(world, tmp_path, content, says):
    table = pq.read_table(next((tmp_path / "events").glob("*.parquet"))).to_pandas()
    table.loc[table["filter_content"].notna(), "filter_content"] = content
    with pytest.raises(DataError, match=says):
        prepare(table, out=tmp_path / "bad", **SHARES)


def test_one_name_for_two_filters_is_refused(world, tmp_path):
    table = pq.read_table(next((tmp_path / "events").glob("*.parquet"))).to_pandas()
    table.loc[table["filter"] != "", "filter"] = "mine"
    with pytest.raises(DataError, match="different items on different rows"):
        prepare(table, out=tmp_path / "bad", **SHARES)


def test_ips_weighs_nothing_where_nobody_can_say_what_was_open():
    readout = Readout(
        logp=torch.tensor([0.25, 0.25]).log(),
        reward=torch.ones(2),
        logged_propensity=torch.tensor([0.5, torch.nan]),
    )
    assert IPS(propensities="logged").ratio(readout).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("objective", ["lpi_cb", "ips"])
def test_training_under_filters_meets_no_number_that_is_not_finite(world, tmp_path, objective):
    data, _ = world
    settings = {"propensities": "logged"} if objective == "ips" else {"calibrate_critic": False}
    run = train(data, objective, out=tmp_path / "run", epochs=1, min_history=0, **settings)
    assert all(np.isfinite(loss) for line in run.metrics() for loss in line["losses"].values())
    if objective == "lpi_cb":
        candidates = run.manifest["improvement"]["candidates"]
        assert len(candidates) == 9 and all(0 < candidate["effective"] <= 1 for candidate in candidates)
