"""A layer whose files were altered: found by a seal and a digest; if these were recomputed, by contradictions."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from test_crafted_exports import BYTES, READ_ALIKE
from test_rerank_endpoint import ask, question

from localpolicy.errors import LocalPolicyError, RunError
from localpolicy.ranker.layer import FILE, Layer
from localpolicy.runtime.files import SEAL, sealed, sha256, write_json
from localpolicy.serving.app import make_app
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.layers import layer_deployment


def about(folder: Path) -> dict:
    return json.loads((folder / FILE).read_text())


def resealed(folder: Path, content: dict) -> None:
    """Recompute the digests and the seal, as whoever can write the folder can."""
    for critic in content["critics"].values() if isinstance(content.get("critics"), dict) else ():
        if isinstance(critic, dict) and (file := folder / str(critic.get("folder")) / "logistic.npz").is_file():
            critic["sha256"] = sha256(file)
    write_json(folder / FILE, sealed(content))


def copied(layer: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(layer, tmp_path / "copy"))


def used(folder: Path) -> list:
    """Use every function of a layer that a service calls."""
    made, asked = Layer(folder), question()
    assert made.critics
    found = made.rerank(asked["candidates"], 3, context=asked["context"], request="r")
    assert np.isfinite(found.propensities).all()
    return found.items


CONTENTS = {
    "no law": lambda c: c | {"law": None}, "another law": lambda c: c | {"law": c["law"] | {"kind": "other"}},
    "a cold law": lambda c: c | {"law": c["law"] | {"temperature": 0}},
    "a dial below 0": lambda c: c | {"beta": -1.0}, "a dial as text": lambda c: c | {"beta": "1"},
    "no columns": lambda c: c | {"columns": None}, "one column fewer": lambda c: c | {"columns": c["columns"][1:]},
    "a column without a name": lambda c: c | {"columns": [{**c["columns"][0], "name": 7}, *c["columns"][1:]]},
    "a column without a spread": lambda c: c | {"columns": [{**c["columns"][0], "scale": 0.0}, *c["columns"][1:]]},
    "no critics": lambda c: {name: value for name, value in c.items() if name != "critics"},
    "a critic elsewhere": lambda c: c | {"critics": {"reward": c["critics"]["reward"] | {"folder": "../run"}}},
    "an unknown critic": lambda c: c | {"critics": {"reward": c["critics"]["reward"] | {"name": "oracle"}}},
    "a weight as text": lambda c: c | {"critics": {"reward": c["critics"]["reward"] | {"weight": "1"}}},
    "no places": lambda c: c | {"critics": {"reward": c["critics"]["reward"] | {"places": 0}}},
    "more places": lambda c: c | {"critics": {"reward": c["critics"]["reward"] | {"places": 9}}},
    "another format": lambda c: c | {"format": 9},
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_a_layer_that_contradicts_itself_is_refused_with_and_without_a_new_seal(layer, tmp_path, name):
    folder = copied(layer, tmp_path)
    changed = CONTENTS[name](about(folder))
    (folder / FILE).write_text(json.dumps(changed))
    with pytest.raises(LocalPolicyError, match=r"was altered|no layer"):
        used(folder)
    resealed(folder, changed)
    with pytest.raises(RunError, match=str(folder)):
        used(folder)


@pytest.mark.parametrize("change", BYTES)
def test_every_altered_file_of_a_layer_is_reported(layer, tmp_path, change):
    for name in (FILE, "critic-1/logistic.npz"):
        folder = copied(layer, tmp_path)
        (folder / name).write_bytes(BYTES[change]((folder / name).read_bytes()))
        with pytest.raises(LocalPolicyError):
            used(folder)
        if name != FILE:
            resealed(folder, about(folder))
            with suppress(RunError) if change in READ_ALIKE else pytest.raises(RunError, match=str(folder)):
                used(folder)
        shutil.rmtree(folder)


def test_a_layer_without_a_seal_is_refused(layer, tmp_path):
    """Its version is made of the seal."""
    folder = copied(layer, tmp_path)
    (folder / FILE).write_text(json.dumps({name: value for name, value in about(folder).items() if name != SEAL}))
    with pytest.raises(RunError, match="no layer"):
        Layer(folder)


def test_damage_of_a_layer_while_it_serves_is_reported_and_answers_continue(layer, tmp_path, caplog):
    folder = copied(layer, tmp_path)
    layers = layer_deployment(ServeConfig(export=folder)).current
    layers.recheck()
    assert layers.refused is None
    content = (folder / "critic-1/logistic.npz").read_bytes()
    (folder / "critic-1/logistic.npz").write_bytes(content[:-1])
    with caplog.at_level(logging.ERROR):
        layers.recheck()
    assert layers.damaged and "was altered" in layers.refused and "was altered" in caplog.text
    (folder / "critic-1/logistic.npz").write_bytes(content)
    layers.recheck()
    assert layers.refused is None and not layers.damaged, "somebody brought it back"


def test_a_layers_description_that_is_gone_while_it_serves_is_reported(layer, tmp_path):
    folder = copied(layer, tmp_path)
    layers = layer_deployment(ServeConfig(export=folder)).current
    (folder / FILE).rename(tmp_path / FILE)
    assert not layers.refresh() and layers.refused is None, "a folder that is being replaced is absent for a moment"
    layers.recheck()
    assert layers.damaged and FILE in layers.refused
    (tmp_path / FILE).rename(folder / FILE)
    layers.recheck()
    assert layers.refused is None and not layers.damaged


def test_a_service_looks_at_its_layer_again(layer, tmp_path):
    folder = copied(layer, tmp_path)
    given = {"export": folder, "log": str(tmp_path / "log.db"), "poll_seconds": 0.01, "verify_seconds": 0.01}
    with TestClient(make_app(ServeConfig.parse(given))) as client:
        (folder / "critic-1/logistic.npz").write_bytes(b"")
        refused = None
        while not refused:  # a service that does not look would hang, and fail by the suite's time limit
            refused = client.get("/v1/policies").json()["refused"]
        assert "logistic.npz" in refused and ask(client)["items"]
