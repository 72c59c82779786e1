"""What is in deploy/ fits the service: metrics that exist, paths that answer, variables and packages that are used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import yaml

from localpolicy.serving.config import ServeConfig
from localpolicy.serving.metrics import COUNTERS, Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVE = Path(__file__).parents[2] / "src" / "localpolicy" / "cli" / "serve.py"


def test_the_dashboard_asks_for_metrics_that_exist():
    known = {line.split()[2] for line in Metrics().text().splitlines() if line.startswith("# TYPE")}
    known |= {f"localpolicy_{name}_total" for name in COUNTERS} | {"localpolicy_seconds_bucket"}
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = set(re.findall(r"localpolicy_\w+", " ".join(t["expr"] for p in board["panels"] for t in p["targets"])))
    assert asked <= known and len(asked) > 6


def test_manifests_name_paths_and_variables_of_the_service():
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    (container,) = documents[-1]["spec"]["template"]["spec"]["containers"]
    probes = [container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == ["/readyz", "/healthz", "/readyz"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    named = {one["name"] for one in container["env"]} | set(compose["services"]["server"]["environment"])
    named |= set(re.findall(r"LPI_\w+(?==)", (DEPLOY / "Dockerfile").read_text()))
    assert named <= set(re.findall(r"LPI_\w+", SERVE.read_text())) and len(named) >= 5


def test_the_small_image_has_what_serving_imports():
    """Modules from site-packages that `lpi serve` loads are those that the image installs, or come with them."""
    code = "import json, sys, localpolicy.cli.main, localpolicy.serving.app, localpolicy.serving.service, uvicorn\n"
    code += "print(json.dumps(list({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "pyarrow", "duckdb", "scipy", "safetensors", "onnx"} & set(json.loads(done.stdout))
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()[1:]
    assert {re.split(r"[\[<>=]", line)[0] for line in lines} == {
        "numpy", "pydantic", "pyyaml", "typer", "rich", "fastapi", "uvicorn", "onnxruntime", "psycopg",
        "prometheus-client",
    }  # fmt: skip
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert set(lines) <= {*project["dependencies"], *project["optional-dependencies"]["serve"]}, "the same bounds"


def test_prometheus_gets_what_it_asks_for():
    """Both stacks may have a token, and neither gives it to Prometheus."""
    (container,) = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))[-1]["spec"]["template"]["spec"][
        "containers"
    ]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for words in (container["args"], compose["services"]["server"]["command"]):
        changes = [word for before, word in pairwise(words) if before == "--set"]
        given = ServeConfig.parse({"export": "served", "log": "log.db"}).with_changes(changes)
        assert given.open_metrics and given.access_log
