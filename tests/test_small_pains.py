"""Small things that cost a new user an hour each."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from small_logs import write_small
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.data.quality import measure
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError, DataError
from localpolicy.report.quality import quality_tables
from localpolicy.runs.config import Config
from localpolicy.serving.recommend import recommend
from localpolicy.study.sweep import sweep
from localpolicy.training.train import train

ROOT = Path(__file__).parents[1]
TINY = {"model": {"width": 8}, "train": {"epochs": 1, "device": "cpu", "min_history": 0}}


def lpi(*words: object) -> object:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A data set with ids, and two runs of it."""
    folder = tmp_path_factory.mktemp("pains")
    data = write_small(folder / "data", propensity=False, ids=True)
    for seed in (0, 1):
        config = Config.parse({**TINY, "train": {**TINY["train"], "seed": seed}})
        train(data, "mle", out=folder / f"mle{seed}", config=config)
    return folder


def test_readme_commands_share_no_seed():
    """The README's own first steps must not fall into the trap that they warn of."""
    steps = re.findall(r"^lpi train (\S+) .*$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    lines = re.findall(r"^lpi train .*$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    seeds = [(data, re.search(r"--seed (\d+)", line)) for data, line in zip(steps, lines, strict=True)]
    found = [(data, seed[1] if seed else "0") for data, seed in seeds]
    assert len(found) >= 4 and len(set(found)) == len(found)


def test_a_budget_below_the_floor_is_refused_before_anything_is_trained(shop, tmp_path):
    against = [shop / "mle0", shop / "mle1"]
    with pytest.raises(ConfigError, match="below the noise floor"):
        sweep(shop / "data", "lpi_rl", over=["beta=1"], out=tmp_path / "sweep", against=against, max_js=1e-9,
              processes=1, config=Config.parse(TINY))  # fmt: skip
    assert not (tmp_path / "sweep" / "runs").exists(), "no point was trained"


def test_without_references_it_says_first_that_two_are_trained(shop, tmp_path, caplog):
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError, match="below the noise floor"):
        sweep(shop / "data", "lpi_rl", over=["beta=1"], out=tmp_path / "sweep", max_js=1e-9, processes=1,
              config=Config.parse(TINY))  # fmt: skip
    said = [record.getMessage() for record in caplog.records]
    assert "once two mle runs of other seeds are trained" in next(text for text in said if "max-js" in text)


def test_a_sweep_names_the_chosen_runs_folder(shop, tmp_path):
    settings = {**TINY, "objective": {"name": "reward_weighted"}}
    found = sweep(shop / "data", config=Config.parse(settings), over=["train.learning_rate=0.01"],
                  out=tmp_path / "sweep", against=[shop / "mle0", shop / "mle1"], processes=1)  # fmt: skip
    assert len(found.runs) == 1 and (found.runs[0] / "policy.safetensors").exists()
    assert found.to_dict()["runs"] == [str(found.runs[0].relative_to(found.out))]


def test_a_log_without_histories_says_what_to_set(tmp_path):
    """As Open Bandit's: each impression is a sequence of its own."""
    with writing(tmp_path / "data", kind="impressions", events=["none", "click"], rewards={"none": 0.0, "click": 1.0},
                 optional=("propensity",)) as store:  # fmt: skip
        rng = np.random.default_rng(0)
        for part in store.splits.values():
            event = rng.integers(0, 2, 60)
            arrays = {"item": rng.integers(0, 5, 60), "event": event, "reward": event.astype(float)}
            part.append(np.ones(60, np.int64), {**arrays, "propensity": np.full(60, 0.2)})
        store.write_items(np.arange(5), np.ones(5, np.int64))
    tiny = Config.parse({"model": {"width": 8}, "train": {"epochs": 1, "device": "cpu"}})
    with pytest.raises(DataError, match="train with min_history=0"):
        train(tmp_path / "data", "mle", out=tmp_path / "run", config=tiny)
    assert not (tmp_path / "run" / "config.yaml").exists(), "told before anything is done"
    train(tmp_path / "data", "mle", out=tmp_path / "run", config=Config.parse(TINY))


def test_a_dash_means_stdout(shop, tmp_path):
    done = lpi("evaluate", shop / "mle0", "--json", "-", "--out", tmp_path / "values", "--device", "cpu")
    assert json.loads(done.stdout)["settings"]["policy"] == "mle0" and not Path("-").exists()
    (tmp_path / "h.jsonl").write_text('{"id": "anna", "history": [101, 102]}\n{"history": []}\n')
    done = lpi("recommend", shop / "mle0", "--histories", tmp_path / "h.jsonl", "-k", "2", "--out", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["id"] == "anna" and "id" not in lines[1] and len(lines[1]["items"]) == 2


def test_lists_keep_ids_in_tables(shop, tmp_path):
    table = pa.table({"sequence_id": ["b", "a", "b"], "item_id": [101, 102, 103], "event": ["click"] * 3})
    pa.csv.write_csv(table, tmp_path / "h.csv")
    pq.write_table(table, tmp_path / "h.parquet")
    for source, target in (("h.csv", "lists.csv"), ("h.parquet", "lists.parquet"), ("h.csv", "lists.jsonl")):
        assert recommend(shop / "mle0", histories=tmp_path / source, out=tmp_path / target, k=3) == 2
    found_csv, found_parquet = pa.csv.read_csv(tmp_path / "lists.csv"), pq.read_table(tmp_path / "lists.parquet")
    for found in (found_csv, found_parquet):
        assert found["sequence_id"].to_pylist() == ["b"] * 3 + ["a"] * 3
        assert found["rank"].to_pylist() == [1, 2, 3] * 2
    lines = [json.loads(line) for line in (tmp_path / "lists.jsonl").read_text().splitlines()]
    assert [item for line in lines for item in line["items"]] == found_csv["item_id"].to_pylist()
    assert [line["id"] for line in lines] == ["b", "a"]
    pq.write_table(table.drop_columns("sequence_id"), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no column sequence_id"):
        recommend(shop / "mle0", histories=tmp_path / "none.parquet", out=tmp_path / "x.csv")


def test_lists_for_all_sequences_of_a_data_set(shop, tmp_path):
    count = recommend(shop / "mle0", every=shop / "data", out=tmp_path / "all.parquet", k=2)
    found = pq.read_table(tmp_path / "all.parquet")
    assert count == 120 and found.num_rows == 240
    assert set(found["sequence_id"].to_pylist()) >= {"train-0", "test-0", "validation-3"}
    with pytest.raises(ConfigError, match="histories=, or a data set with every="):
        recommend(shop / "mle0", out=tmp_path / "x.csv")


def test_each_request_has_its_own_candidates_and_exclusions(shop, tmp_path):
    rows = [
        {"history": [101], "candidates": [105, 106, 999]},
        {"history": [101], "exclude": [105, 106]},
        {"history": [101]},
    ]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recommend(shop / "mle0", histories=tmp_path / "h.jsonl", out=tmp_path / "l.jsonl", k=2)
    some, rest, free = ([*json.loads(line)["items"]] for line in (tmp_path / "l.jsonl").read_text().splitlines())
    assert sorted(some) == [105, 106] and not {105, 106} & set(rest)
    recommend(shop / "mle0", histories=tmp_path / "h.jsonl", out=tmp_path / "l2.jsonl", k=2, seed=1)
    assert free == json.loads((tmp_path / "l2.jsonl").read_text().splitlines()[2])["items"]


def test_a_baseline_is_trained_and_recommends_by_the_same_verbs(shop, tmp_path):
    lpi("train", shop / "data", "--objective", "item-knn", "--out", tmp_path / "knn")
    (tmp_path / "h.jsonl").write_text('{"history": [101]}\n')
    lpi("recommend", tmp_path / "knn", "--histories", tmp_path / "h.jsonl", "-k", "3", "--out", tmp_path / "l.jsonl")
    assert json.loads((tmp_path / "l.jsonl").read_text())["items"][0] == 101, "an item is its own neighbour"
    with pytest.raises(ConfigError, match="has no dial"):
        recommend(tmp_path / "knn", histories=tmp_path / "h.jsonl", out=tmp_path / "x.jsonl", beta=1.0)


def test_a_session_of_thousands_of_events_is_flagged(tmp_path):
    with writing(tmp_path / "data", kind="interactions", events=["click"], rewards={"click": 1.0}) as store:
        for name, part in store.splits.items():
            length = 3_000 if name == "train" else 3
            part.append(
                np.array([length]),
                {"item": np.zeros(length), "event": np.zeros(length, int), "reward": np.ones(length)},
            )
        store.write_items(np.arange(1), np.ones(1, np.int64))
    data = Prepared(tmp_path / "data")
    cells = [text for table in quality_tables(data, measure(data)) for row in table.plain() for text in row]
    assert any("a machine, or several people? See --session-gap" in text for text in cells)


def test_other_extras_are_installed_though_setup_was_done(tmp_path):
    """A mark is left for each list of extras: with another list, make installs."""
    (tmp_path / ".venv").mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())

    def planned(*words):
        done = subprocess.run(["make", "-n", "setup", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    mark = re.search(r"touch (\S+)", planned())
    assert "pip install" in planned() and mark
    (tmp_path / mark[1]).touch()
    assert "pip install" not in planned() and "pip install" in planned("EXTRAS=dev,serve")


def test_the_lock_the_licences_and_the_bill_cover_every_extra_that_users_install():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.search(r"FOR_USERS := (.*)", (ROOT / "Makefile").read_text())[1]
    assert set(listed.split()) == set(extras) - {"dev", "check", "docs"}
    command = ["make", "-n", "lock", "sbom", "licences"]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    (compiled,) = [line for line in plan.splitlines() if "pip compile" in line]
    assert all(f"--extra {extra} " in compiled for extra in listed.split())
    assert f"tools/licences.py {listed} >" in plan
    assert any("cyclonedx-py" in line and "dist/requirements.lock" in line for line in plan.splitlines())
