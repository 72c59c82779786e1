"""What was altered on disk is refused by name, and a folder of another kind is told for what it is."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, RunError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.loop import train


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    settings = Config.parse({"model": {"width": 8}, "train": {"epochs": 1, "device": "cpu"}})
    return train(small, out=tmp_path_factory.mktemp("whole") / "run", config=settings)


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.mark.parametrize("content", [[], {}, {"objective": "mle"}], ids=str)
def test_a_manifest_that_is_no_runs(run, content):
    (run.folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"manifest\.json is not a run's"):
        run.policy()


def test_a_data_set_is_no_run_and_a_run_is_no_data_set(small, run):
    with pytest.raises(RunError, match="is a prepared data set; expected a run"):
        Run(small.path).policy()
    with pytest.raises(DataError, match="is a run; expected a prepared data set"):
        Prepared(run.folder)


def test_settings_and_metrics_that_cannot_be_read(run):
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    with pytest.raises(RunError, match=r"metrics\.jsonl was altered"):
        run.metrics()
    (run.folder / "config.yaml").write_text("a: [")
    with pytest.raises(RunError, match=r"config\.yaml cannot be read"):
        run.config  # noqa: B018


def test_weights_that_were_altered(run):
    path = run.folder / "policy.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x80  # the sign of one weight
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"policy\.safetensors was altered \(its digest differs\)"):
        run.policy()
    assert run.policy(last=True).size == 12, "the last epoch's are another file"


def test_a_catalogue_that_was_cut_short(run):
    path = run.folder / "items.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RunError, match=r"items\.parquet cannot be read"):
        run.policy()


@pytest.mark.parametrize(
    ("content", "says"), [([], "is not a data set's"), ({"format": 1}, "lacks counts, digest, events")], ids=str
)
def test_a_data_manifest_that_was_altered(small, tmp_path, content, says):
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
