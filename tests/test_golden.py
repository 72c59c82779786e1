"""Artefacts of every release are read by this version, and no key of an artefact changes without a new format."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import localpolicy as lp
from localpolicy.errors import DataError, RunError
from localpolicy.runtime.formats import Format
from localpolicy.serving import database, rollout
from localpolicy.serving.database import Database
from localpolicy.serving.rotate import rotate

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import golden

RELEASES = sorted(path for path in golden.FOLDER.iterdir() if path.is_dir())
# Settings may come: an older file lacks them, and has their defaults then.
MAY_COME = ("config.yaml", "auto.", "settings.", "config.", "past.", "size.", "rules.")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict:
    """Keys of what this code writes."""
    folder = tmp_path_factory.mktemp("golden")
    golden.make(folder)
    return golden.keys_of(folder)


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request, tmp_path) -> Path:
    """A copy of a release's folder: a reader may write next to what it reads."""
    return Path(shutil.copytree(request.param, tmp_path / "release"))


def changes(before: dict, now: dict) -> list[str]:
    """What differs between the keys of one format, apart from settings that came."""
    found = []
    for name in sorted({*before, *now}):
        old, new = set(before.get(name, ())), set(now.get(name, ()))
        found += [f"{name}: {key} is gone" for key in sorted(old - new)]
        found += [f"{name}: {key} came" for key in sorted(new - old)
                  if not (name.endswith(MAY_COME[0]) or key.startswith(MAY_COME))]  # fmt: skip
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", golden.KINDS)
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_format_stands_for_the_keys_it_was_released_with(kind, release, made):
    recorded = json.loads((release / golden.KEYS).read_text())[kind]
    if recorded["format"] == made[kind]["format"]:
        assert not changes(recorded["keys"], made[kind]["keys"]), (
            f"the {kind} changed: raise its format, with an upgrade from the one before (runtime/formats.py), then "
            "run tools/golden.py"
        )


def test_a_key_that_is_renamed_retyped_or_added_is_a_change_and_a_new_setting_is_none():
    before = {"manifest.json": ["digest (str)", "settings.seed (number)"], "x/config.yaml": ["train.seed (number)"]}
    assert changes(before, before) == []
    renamed = before | {"manifest.json": ["digests (str)", "settings.seed (number)"]}
    assert changes(before, renamed) == ["manifest.json: digest (str) is gone", "manifest.json: digests (str) came"]
    retyped = before | {"manifest.json": ["digest (number)", "settings.seed (number)"]}
    assert len(changes(before, retyped)) == 2
    assert changes(before, before | {"more.json": ["a (str)"]}) == ["more.json: a (str) came"]
    setting = {"manifest.json": [*before["manifest.json"], "settings.new (str)"],
               "x/config.yaml": [*before["x/config.yaml"], "train.new (bool)"]}  # fmt: skip
    assert changes(before, setting) == []
    assert len(changes(setting, before)) == 2


def test_artefacts_of_a_release_give_the_answers_they_gave(release):
    assert golden.answers(release) == json.loads((release / "answers.json").read_text())
    for name in ("data", "runs/mle", "runs/lpi", "runs/popularity", "exports/mle"):
        lp.verify(release / name)
    assert lp.load_world(release / "world").name == "bandit"
    assert rollout.read_plan(release / "rollout.json")["stage"] == "shadow"


def test_a_stopped_run_of_a_release_resumes(release):
    tiny = {**golden.TINY, "epochs": 2}
    run = lp.train(lp.Prepared(release / "data"), "mle", out=release / "stopped", seed=2, resume=True, **tiny)
    assert run.manifest["epochs"] == 2 and [line["epoch"] for line in run.metrics()] == [1, 2]


def test_a_log_of_a_release_is_read_and_rotated(release):
    connection = sqlite3.connect(release / "log.db")
    connection.executescript((release / "log" / "log.sql").read_text())
    connection.close()
    files = rotate(release / "log.db", out=release / "out", upto=golden.START + 10 * 3_600_000)
    before = next((release / "log").glob("events-*.parquet"))
    (after,) = (pq.read_table(file) for file in files)
    assert after["reward"].to_pylist() == [0.0, 0.2, 0.0] * 2  # of two lists: the context, two places
    assert after.schema == pq.read_schema(before)


def test_an_older_log_is_upgraded_step_by_step_and_keeps_its_rows(tmp_path, monkeypatch):
    Database(tmp_path / "log.db", create=True).close()
    version = database.VERSION
    steps = {version: "ALTER TABLE shown ADD COLUMN page INTEGER; CREATE TABLE more (name TEXT)",
             version + 1: "INSERT INTO more SELECT value FROM about WHERE name = 'version'"}  # fmt: skip
    monkeypatch.setattr(database, "VERSION", version + 2)
    with pytest.raises(DataError, match=f"is a log of version {version}, .* knows {version + 2}: use the one"):
        Database(tmp_path / "log.db")
    monkeypatch.setattr(database, "UPGRADES", steps)
    upgraded = Database(tmp_path / "log.db")
    assert upgraded.about("version") == str(version + 2) and upgraded.rows("SELECT * FROM more") == [(str(version),)]
    assert upgraded.rows("SELECT page FROM shown") == []
    upgraded.close()
    monkeypatch.setattr(database, "VERSION", version)
    with pytest.raises(DataError, match="upgrade localpolicy"):
        Database(tmp_path / "log.db")


def test_content_is_upgraded_by_a_function_per_step():
    steps = {1: lambda content: {**content, "items": content["n"]}, 2: lambda content: {**content, "twice": 2}}
    form = Format(3, "make it again", upgrades=steps)
    path = Path("x")
    assert form.reads == (1, 2, 3)
    assert form.upgraded({"format": 1, "n": 7}, path) == {"format": 3, "n": 7, "items": 7, "twice": 2}
    assert form.upgraded({"format": 2, "n": 7}, path) == {"format": 3, "n": 7, "twice": 2}
    assert form.upgraded({"format": 3, "n": 7}, path) == {"format": 3, "n": 7}
    for found, says in ((4, "has format 4; this version reads 1, 2, 3: upgrade localpolicy"), (0, "make it again"),
                        (True, "make it again"), ("2", "make it again"), (None, "has no format")):  # fmt: skip
        with pytest.raises(RunError, match=says):
            form.upgraded({"format": found}, path)
    with pytest.raises(RunError, match="has no format"):
        form.upgraded([], path)


def test_folders_of_format_1_from_before_the_first_release_are_read(release):
    """They differ in nothing but the number: the manifest of a run had none."""
    from localpolicy.runtime.files import sealed, sha256

    for name in ("data/manifest.json", "runs/mle/policy.json", "exports/mle/export.json"):
        path = release / name
        path.write_text(json.dumps(sealed({**json.loads(path.read_text()), "format": 1})))
    policy = release / "runs" / "mle" / "policy.json"
    policy.write_text(
        json.dumps({key: value for key, value in json.loads(policy.read_text()).items() if "sha" not in key})
    )
    manifest = json.loads((release / "runs" / "mle" / "manifest.json").read_text())
    manifest["files"]["policy.json"] = sha256(policy)
    del manifest["format"]
    (release / "runs" / "mle" / "manifest.json").write_text(json.dumps(sealed(manifest)))
    assert golden.answers(release) == json.loads((release / "answers.json").read_text())
