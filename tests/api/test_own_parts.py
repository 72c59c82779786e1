"""An installed package with an objective, a backbone and a reader of its own goes through every verb."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import warm

PACKAGE = Path(__file__).parents[2] / "examples" / "own_parts"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the installed package, for PYTHONPATH: nothing is changed in the environment."""
    source, target = tmp_path_factory.mktemp("own_parts") / "source", tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("*.egg-info", "build"))  # the build writes there
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *words, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def lpi(installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def run(*words, expected=(0,)):
        done = warm.python("-m", "localpolicy", *words, cwd=folder, env=environment)
        assert done.returncode in expected, done.stderr
        return done

    run.folder = folder
    return run


def write_log(path):
    random = np.random.default_rng(0)
    events = np.where(random.random(6_000) < 0.3, "purchase", "click")
    rows = zip(np.repeat(np.arange(1_000), 6), range(6_000), random.integers(0, 25, 6_000), events, strict=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


SMALL = ("--epochs", "1", "--set", "model.width=8", "--set", "data.length=6")


@pytest.mark.slow
def test_parts_from_outside_go_through_every_verb(lpi):
    write_log(lpi.folder / "log.tsv")
    lpi("prepare", "tabbed", "log.tsv", "--out", "data")
    assert json.loads((lpi.folder / "data" / "manifest.json").read_text())["counts"]["sequences"] == 1_000
    own = ("--objective", "powered_reward", "--set", "objective.power=3", "--set", "model.backbone=running_mean")
    lpi("train", "data", *own, *SMALL, "--out", "own")
    lpi("train", "data", *own, *SMALL, "--out", "own", "--resume")
    lpi("train", "data", "--objective", "mle", *SMALL, "--seed", "1", "--out", "mle")
    lpi("evaluate", "own", "--against", "mle", "--json", "evaluation.json")
    assert json.loads((lpi.folder / "evaluation.json").read_text())["metrics"]["purchase"]["nDCG@20"]["n"] > 0
    assert "own" in lpi("compare", "own", "mle").stdout
    gate = lpi("gate", "own", "--against", "mle", expected=(3, 4))  # nothing can be learnt from chance
    assert "own instead of mle" in gate.stdout
    (lpi.folder / "histories.jsonl").write_text('{"history": [3, 4]}\n')
    lpi("recommend", "own", "--histories", "histories.jsonl", "-k", "3", "--out", "lists.jsonl")
    assert len(json.loads((lpi.folder / "lists.jsonl").read_text())["items"]) == 3
    swept = (*own[:2], *own[4:], *SMALL[:2], "--set", "model.width=8", "--processes", "2")
    lpi("sweep", "data", *swept, "--over", "objective.power=1,2", "--out", "sweep")
    assert len(json.loads((lpi.folder / "sweep" / "sweep.json").read_text())["policies"]) == 2


def test_names_in_the_files_of_a_run_import_nothing(tmp_path, small):
    """Where the package is not installed, its run is shown; but nothing is imported, and it cannot be trained on."""
    from localpolicy.errors import ConfigError
    from localpolicy.runs.config import Config
    from localpolicy.runs.run import Run
    from localpolicy.runtime.files import sealed, sha256
    from localpolicy.training.train import train

    run = train(small, "mle", out=tmp_path / "run", epochs=1, width=8)
    written = (run.folder / "config.yaml").read_text()
    (run.folder / "config.yaml").write_text(written.replace("name: mle", "name: not_there.module:Objective\n  tau: 3"))
    manifest = run.manifest
    manifest["files"]["config.yaml"] = sha256(run.folder / "config.yaml")
    (run.folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    config = Run(run.folder).config
    assert config.objective.name == "not_there.module:Objective" and config.objective.tau == 3
    assert "not_there" not in sys.modules
    with pytest.raises(ConfigError, match=r"no objective 'not_there.module:Objective'"):
        Config.parse({"objective": {"name": "not_there.module:Objective"}})
    with pytest.raises(ConfigError, match="is not known here"):
        train(small, out=tmp_path / "again", config=config, epochs=1)
