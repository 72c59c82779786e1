"""Altered files are refused by name, and a folder of another kind is named for what it is."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from localpolicy.cli.doctor import verify
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, RunError
from localpolicy.model.weights import load_weights, save_weights
from localpolicy.runs.config import Config
from localpolicy.runs.folder import FILES, LIKELIEST
from localpolicy.runs.run import Run
from localpolicy.runtime.files import SEAL, sealed, sha256
from localpolicy.training.train import train


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    settings = Config.parse(
        {"model": {"width": 8}, "objective": {"name": "sqn"}, "train": {"epochs": 1, "device": "cpu"}}
    )
    return train(small, out=tmp_path_factory.mktemp("whole") / "run", config=settings)


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.mark.parametrize("content", [[], {}, {"objective": "mle"}], ids=str)
def test_a_manifest_of_something_else_is_refused(run, content):
    (run.folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"manifest\.json is not a run's"):
        run.policy()


def test_a_data_set_is_no_run_and_a_run_is_no_data_set(small, run):
    with pytest.raises(RunError, match="is a prepared data set; expected a run"):
        Run(small.path).policy()
    with pytest.raises(DataError, match="is a run; expected a prepared data set"):
        Prepared(run.folder)


def test_unreadable_settings_and_metrics_are_refused(run):
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    with pytest.raises(RunError, match=r"metrics\.jsonl was altered"):
        run.metrics()
    (run.folder / "config.yaml").write_text("a: [")
    with pytest.raises(RunError, match=r"config\.yaml was altered"):
        run.config  # noqa: B018


def test_altered_weights_are_refused(run):
    path = run.folder / "policy.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x80  # the sign of one weight
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"policy\.safetensors was altered \(its digest differs\)"):
        run.policy()
    assert run.policy(last=True).n_items == 12, "the last epoch's are another file"


@pytest.mark.parametrize("name", [name for name in FILES if name != LIKELIEST])
def test_a_file_that_was_altered_or_lost_is_named(name, run):
    assert set(run.verify()) >= {*FILES} - {LIKELIEST}
    path = run.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=rf"{name} was altered \(its digest differs\)"):
        run.verify()
    path.unlink()
    with pytest.raises(RunError, match=rf"{name} is missing"):
        run.verify()


def test_items_in_another_order_are_found_out(run):
    """Otherwise items would be recommended under one another's names."""
    path = run.folder / "items.parquet"
    items = pq.read_table(path)
    pq.write_table(items.set_column(1, "item_id", items["item_id"].combine_chunks()[::-1]), path)
    with pytest.raises(RunError, match=r"items\.parquet was altered"):
        run.policy()


def alter(run, name, change):
    """Change a JSON file, as somebody would who records the new digest too."""
    content = json.loads((run.folder / name).read_text())
    change(content)
    (run.folder / name).write_text(json.dumps(content))
    sign(run, name)


def sign(run, name):
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest["files"][name] = sha256(run.folder / name)
    if name == "policy.safetensors":
        manifest["policy_sha256"] = manifest["files"][name]
    (run.folder / "manifest.json").write_text(json.dumps(sealed(manifest)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda about: about["network"].update(items=10**12), r"embedding is \(12, 8\) there"),
        (lambda about: about["network"].update(items=10**30), r"network\.items: Input should be less than or equal"),
        (lambda about: about["network"].update(length=10**12), r"backbone\.position is \(\d+, 8\) there"),
        (lambda about: about["network"].update(items="many"), r"network\.items"),
        (lambda about: about["network"].update(heads=["crown"]), r"network\.heads"),
        (lambda about: about["network"].pop("model"), r"network\..*model: Field required"),
        (lambda about: about.update(network=[]), r"policy\.json is not a policy's: it was altered"),
        (lambda about: about.update(origin=None), r"policy\.json is not a policy's"),
        (lambda about: about.pop("format"), "has no format"),
    ],
    ids=["items", "too many", "length", "text", "heads", "no model", "list", "no origin", "no format"],
)
def test_a_description_of_another_shape_is_refused_before_memory_is_taken(change, says, run):
    alter(run, "policy.json", change)
    with pytest.raises(RunError, match=says):
        run.policy()


def test_a_catalogue_with_fewer_rows_is_refused(run):
    path = run.folder / "items.parquet"
    pq.write_table(pq.read_table(path).slice(0, 5), path)
    sign(run, "items.parquet")
    with pytest.raises(RunError, match=r"items\.parquet does not name the 12 items of the policy \(5 rows\)"):
        run.policy()


def test_weights_that_are_not_finite_are_refused(run):
    path = run.folder / "policy.safetensors"
    weights = load_weights(path)
    weights["embedding"][3, 1] = float("nan")
    save_weights(weights, path)
    sign(run, "policy.safetensors")
    with pytest.raises(RunError, match=r"policy\.safetensors holds numbers that are not finite \(in embedding\)"):
        run.policy()


def test_a_run_of_an_earlier_version_is_read(run):
    manifest = json.loads((run.folder / "manifest.json").read_text())
    del manifest["files"], manifest[SEAL]
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    assert run.policy().n_items == 12
    assert run.verify() == ["policy.safetensors"]


def test_a_truncated_catalogue_is_refused(run):
    path = run.folder / "items.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    sign(run, "items.parquet")
    with pytest.raises(RunError, match=r"items\.parquet cannot be read"):
        run.policy()


@pytest.mark.parametrize("name", ["seed", "objective", "selected"])
def test_a_manifest_with_another_entry_is_refused(run, name):
    """Files have digests there; what else it says has one too."""
    manifest = json.loads((run.folder / "manifest.json").read_text())
    (run.folder / "manifest.json").write_text(json.dumps({**manifest, name: manifest["steps"]}))
    for opened in (run.policy, run.verify):
        with pytest.raises(DataError, match=r"manifest\.json was altered \(its digest differs\)"):
            opened()


def test_events_that_changed_places_are_found_out(small, tmp_path):
    """The arrays hold codes: with another order of names every click would be a purchase."""
    shutil.copytree(small.path, tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "events": manifest["events"][::-1]}))
    with pytest.raises(DataError, match=r"manifest\.json was altered \(its digest differs\)"):
        Prepared(tmp_path / "data")


def test_verify_distinguishes_runs_and_data_from_other_folders(small, run, tmp_path, capsys):
    verify(run.folder)
    verify(small.path)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{run.folder}: ")
    assert "train/item.npy" in said[1]
    with pytest.raises(RunError, match=r"has no manifest\.json"):
        verify(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"), [([], "is not a data set's"), ({"format": 1}, "lacks counts, digest, events")], ids=str
)
def test_an_altered_data_manifest_is_refused(small, tmp_path, content, says):
    shutil.copytree(small.path, tmp_path / "data")
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=says):
        Prepared(tmp_path / "data")


def test_altered_data_is_found_out(small, tmp_path):
    shutil.copytree(small.path, tmp_path / "data")
    array = np.load(tmp_path / "data" / "test" / "item.npy")
    np.save(tmp_path / "data" / "test" / "item.npy", np.zeros_like(array))
    with pytest.raises(DataError, match=r"item\.npy was altered|has \d+ bytes"):
        Prepared(tmp_path / "data").verify()
