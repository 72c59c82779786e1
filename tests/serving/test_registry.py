"""Runs and exports in MLflow, with a stand-in for it: what is logged, and that only the gate makes a champion."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

import localpolicy
from localpolicy.cli.main import app
from localpolicy.errors import ConfigError, DataError, LocalPolicyError, RunError
from localpolicy.serving.exports import write_description
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.registry import register


@pytest.fixture
def mlflow(monkeypatch):
    """The calls that we make, under the names and arguments of MLflow 3."""
    said = SimpleNamespace(params={}, metrics=[], artifacts=[], tags={}, models=[], aliases={}, uri=None)
    made = ModuleType("mlflow")
    made.pyfunc, made.models = ModuleType("mlflow.pyfunc"), ModuleType("mlflow.models")

    @contextmanager
    def start_run(run_name):
        yield SimpleNamespace(info=SimpleNamespace(run_id=f"run of {run_name}"))

    def log_model(*, name, python_model, artifacts, registered_model_name, metadata, model_config, signature,
                  code_paths, pip_requirements):  # fmt: skip
        said.models.append((registered_model_name, python_model, artifacts, metadata))
        assert model_config == metadata and code_paths == [str(Path(localpolicy.__file__).parent)]
        assert all(re.fullmatch(r"(numpy|onnxruntime|pydantic)==[\d.]+", line) for line in pip_requirements)
        return SimpleNamespace(registered_model_version=len(said.models))

    class Client:
        def set_registered_model_alias(self, name, alias, version):
            said.aliases[name, alias] = version

    made.set_tracking_uri = lambda uri: setattr(said, "uri", uri)
    made.set_experiment = lambda name: None
    made.start_run, made.pyfunc.log_model, made.MlflowClient = start_run, log_model, Client
    made.log_params, made.set_tags = said.params.update, said.tags.update
    made.log_metrics = lambda values, step: said.metrics.append((step, values))
    made.log_artifact = said.artifacts.append
    made.pyfunc.PythonModel = object
    made.models.set_model = lambda model: setattr(said, "model", model)
    monkeypatch.setattr("localpolicy.serving.registry._signature", lambda mlflow, ids: ids)
    for name, module in (("mlflow", made), ("mlflow.pyfunc", made.pyfunc), ("mlflow.models", made.models)):
        monkeypatch.setitem(sys.modules, name, module)
    return said


def verdict(tmp_path, answer: str, **more):
    path = tmp_path / f"{answer}.json"
    path.write_text(json.dumps({"answer": answer, **more}))
    return path


@pytest.mark.parametrize("answer", ["deploy", "test online", "do not deploy", "cannot tell", None])
def test_the_gate_alone_makes_a_champion(answer, run, exported, mlflow, tmp_path):
    gate = None if answer is None else verdict(tmp_path, answer, policy_sha256=run.manifest["policy_sha256"])
    made = register(run.folder, name="shop", export=exported.folder, gate=gate, uri="file:here")
    assert made["version"] == "1" and made["champion"] == (answer == "deploy") and mlflow.uri == "file:here"
    assert mlflow.aliases == ({("shop", "champion"): "1"} if answer == "deploy" else {})
    assert mlflow.params["objective.name"] == "sqn" and mlflow.params["train.epochs"] == "3"
    assert [step for step, _ in mlflow.metrics] == list(range(len(mlflow.metrics))) and mlflow.metrics
    assert all("@" not in name for _, values in mlflow.metrics for name in values)
    assert mlflow.tags.get("localpolicy.gate") == answer
    ((_, _, artifacts, metadata),) = mlflow.models
    assert artifacts == {"export": str(exported.folder.resolve())} and metadata == {"policy": exported.version}


def test_nothing_becomes_champion_on_an_assumption(run, exported, mlflow, tmp_path):
    """No gate says so: such a file was edited, or made by something else."""
    for ground, refused in (("assumed", True), ("none", True), ("randomised", False)):
        gate = verdict(tmp_path, "deploy", policy_sha256=run.manifest["policy_sha256"], ground=ground)
        if refused:
            with pytest.raises(DataError, match=ground):
                register(run.folder, name="shop", export=exported.folder, gate=gate)
        else:
            register(run.folder, name="shop", export=exported.folder, gate=gate)
    assert mlflow.aliases == {("shop", "champion"): "1"}


def test_the_model_answers_like_the_export(run, exported, mlflow):
    register(run.folder, name="shop", export=exported.folder)
    ((_, code, artifacts, _),) = mlflow.models
    runpy.run_path(code)
    mlflow.model.load_context(SimpleNamespace(artifacts=artifacts, model_config={"policy": exported.version}))
    histories = [[100, 101], [103]]
    answers = mlflow.model.predict(None, histories, {"k": 3})
    expected = Recommender(exported.folder).recommend(histories, 3, sample=False).items
    assert [answer["items"] for answer in answers] == expected
    assert mlflow.model.predict(None, [{"history": [100], "events": ["click"]}])[0]["policy"] == exported.version
    with pytest.raises(RunError, match="was registered"):
        mlflow.model.load_context(SimpleNamespace(artifacts=artifacts, model_config={"policy": "another"}))


REAL = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow, pandas as pd
from localpolicy.serving.registry import register
run, export, gate, uri = sys.argv[1:]
made = register(run, name="shop", export=export, gate=gate, uri=uri)
model = mlflow.pyfunc.load_model("models:/shop@champion")
rows = [{"history": [100, 101], "events": ["click", "click"]}, {"history": [103], "events": None}]
answers = [model.predict(pd.DataFrame(rows), params={"k": 3}), model.predict(rows[:1])]
signature = model.metadata.signature
print(json.dumps({"made": made, "answers": answers, "inputs": signature.inputs.input_names(),
                  "k": signature.params.params[0].default,
                  "needs": mlflow.pyfunc.get_model_dependencies("models:/shop@champion")}))
"""


@pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra 'mlflow'")
def test_mlflow_itself_keeps_the_model_and_asks_it(run, exported, tmp_path):
    gate = verdict(tmp_path, "deploy", policy_sha256=run.manifest["policy_sha256"])
    words = [run.folder, exported.folder, gate, f"sqlite:///{tmp_path / 'mlflow.db'}"]
    done = subprocess.run([sys.executable, "-c", REAL, *map(str, words)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["made"]["champion"] and told["inputs"] == ["history", "events"] and told["k"] == 10
    (both, one) = told["answers"]
    events = [["click", "click"], [exported.default_event]]
    expected = exported.recommend([[100, 101], [103]], 3, events=events, sample=False).items
    assert [answer["items"] for answer in both] == expected and len(one[0]["items"]) == 10
    assert all(0 < sum(answer["probabilities"]) < 1 for answer in both)
    assert not [line for line in Path(told["needs"]).read_text().splitlines() if line.startswith("localpolicy")]


def test_register_refuses_a_missing_export_and_another_runs_verdict(run, exported, tmp_path, monkeypatch, mlflow):
    with pytest.raises(ConfigError, match="name the export too"):
        register(run.folder, name="shop", gate=verdict(tmp_path, "deploy"))
    with pytest.raises(DataError, match="holds no gate's answer"):
        register(run.folder, name="shop", export=exported.folder, gate=verdict(tmp_path, "perhaps"))
    for typed in ({}, {"policy_sha256": None}, {"policy_sha256": "another"}):
        with pytest.raises(ConfigError, match=r"is not about .* digest"):
            register(run.folder, name="shop", export=exported.folder, gate=verdict(tmp_path, "deploy", **typed))
    other = shutil.copytree(exported.folder, tmp_path / "other")
    about = json.loads((other / "export.json").read_text())
    write_description(other, {**about, "policy_sha256": "another"})
    with pytest.raises(ConfigError, match="is not an export of"):
        register(run.folder, name="shop", export=other, gate=verdict(tmp_path, "deploy"))
    assert not mlflow.models and not mlflow.aliases
    for name in ("mlflow", "mlflow.pyfunc"):
        monkeypatch.setitem(sys.modules, name, None)
    asked = CliRunner().invoke(app, ["register", str(run.folder), "--name", "shop"])
    assert isinstance(asked.exception, LocalPolicyError) and "pip install 'localpolicy[mlflow]'" in str(asked.exception)
