"""Days of the daily round as a user has it: its scripts, a service's log, one bad candidate and one killed night.

benchmarks/month.py plays a whole month (docs/results/daily.md); this is four days of it, with fewer people.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from localpolicy.data.store import Prepared
from localpolicy.serving.recommender import Recommender

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "month.py"
# Visits in each part of a day: with 500 a bad candidate passes once in thirty times, by the arms that people are given.
BAD, KILLED, DAYS, VISITS = 2, 3, 4, 1000


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days")
    month = runpy.run_path(str(BENCHMARK))["month"]
    *days, last = month(  # arms differ from run to run: no good candidate may wait for its proof by chance
        folder, days=DAYS, visits=VISITS, bad=BAD, killed=KILLED, epochs=4, stages="50,100", people=100, finds=3.0,
        margin=0.3, floor=0.0,
    )  # fmt: skip
    return folder, {entry["day"]: entry for entry in days}, last["accounts"]


def test_nothing_is_lost_and_nothing_is_there_twice(played):
    _, _, accounts = played
    assert accounts["requests"] == DAYS * 3 * VISITS
    assert {name: count for name, count in accounts.items() if name.endswith(("lost", "twice"))} == {
        "requests lost": 0, "requests twice": 0, "feedback lost": 0, "feedback twice": 0
    }  # fmt: skip


def test_a_bad_candidate_is_rolled_back_and_the_current_policy_stays(played):
    folder, days, _ = played
    assert days[BAD]["night"] == 0 and days[BAD]["candidate"] < days[BAD]["evening"]
    assert 3 in days[BAD + 1]["judged"], "the day after it is judged on people"
    assert all(days[day]["served"] < BAD for day in (BAD + 1, BAD + 2)), "made by a night before it"
    assert Recommender(folder / "exports" / "2026-09-24").version != Recommender(folder / "served").version


def data_sets(folder: Path) -> list[Path]:
    """Data sets of the nights, in order; a killed night may have left its lock file there."""
    return sorted(path for path in (folder / "data").iterdir() if not path.name.startswith("."))


def test_a_killed_night_is_made_up_for_by_the_next(played):
    folder, days, _ = played
    assert days[KILLED]["night"].startswith("killed")
    data = Prepared(data_sets(folder)[-1])
    files = {file.name for file in (folder / "events").glob("*/*.parquet")}
    assert {Path(file["name"]).name for file in data.manifest["inputs"]["taken"]} == files and len(files) >= DAYS
    assert not list((folder / "runs").glob(".*partial*"))


def test_the_data_do_not_grow_for_ever(played):
    folder, _, _ = played
    *_, before, last = (Prepared(path) for path in data_sets(folder))
    span = last["train"].arrays["time"].max() - last["train"].arrays["time"].min()
    assert span < 3 * 86_400_000 and last.manifest["settings"]["days"] == 3
    assert len(last) < 1.5 * len(before)


def test_answers_that_were_held_up_join_their_day(played):
    """They arrive the next morning, for lists of the evening before: these are rotated the night after, with them."""
    folder, days, accounts = played
    assert all(days[day]["arrived late"] > 0 for day in range(2, DAYS + 1))
    answered = sum(
        sum(event in ("buy", "view") for event in pq.read_table(file)["event"].to_pylist())
        for file in (folder / "events").glob("*/*.parquet")
    )
    kept = sum(pq.read_metadata(file).num_rows for file in (folder / "events").glob("*/_feedback/*.parquet"))
    late = accounts["answers late"]  # to the lists of the evening's first hour: their window is over by the morning
    assert 0 < late < 0.2 * sum(days[day]["arrived late"] for day in range(2, DAYS + 1))
    assert answered + late == kept
