"""What is in deploy/ fits the service and its schemas: metrics that exist, paths that answer, packages by hash."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from localpolicy.serving.config import ServeConfig
from localpolicy.serving.metrics import COUNTERS, Metrics
from localpolicy.version import __version__

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVE = Path(__file__).parents[2] / "src" / "localpolicy" / "cli" / "serve.py"
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
UNPRIVILEGED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def manifest(kind: str, name: str = "localpolicy") -> dict[str, Any]:
    (found,) = [one for one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def pods() -> list[dict[str, Any]]:
    """Pod specifications of each Deployment and CronJob."""
    jobs = [one["spec"]["jobTemplate"]["spec"] for one in manifests() if one["kind"] == "CronJob"]
    return [spec["template"]["spec"] for spec in (manifest("Deployment")["spec"], *jobs)]


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist():
    known = {line.split()[2] for line in Metrics().text().splitlines() if line.startswith("# TYPE")}
    known |= {f"localpolicy_{name}_total" for name in COUNTERS} | {"localpolicy_seconds_bucket"}
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = set(re.findall(r"localpolicy_\w+", " ".join(t["expr"] for p in board["panels"] for t in p["targets"])))
    alarmed = set(re.findall(r"localpolicy_\w+", " ".join(rule["expr"] for rule in alerts())))
    assert asked | alarmed <= known and len(asked) > 6 and len(alarmed) > 6


def test_alerts_ask_for_labels_that_exist():
    for rule in alerts():
        for name, labels in re.findall(r"localpolicy_(\w+?)(?:_total)?\{([^}]*)\}", rule["expr"]):
            stated = set(re.findall(r"(\w+)=", labels))
            assert stated <= {*COUNTERS.get(name, ("", ()))[1], *(("fate",) if name == "rotated_answers" else ())}


def test_alerts_are_what_prometheus_reads():
    parser = pytest.importorskip("promql_parser")
    for rule in alerts():
        parser.parse(rule["expr"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "rules", DEPLOY / "alerts.yml"], check=True)
    assert yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]


def test_manifests_keep_to_the_schemas_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate").validate
    for one in manifests():
        validate(one, "1.31", strict=True)
    kinds = {one["kind"] for one in manifests()}
    assert kinds >= {"CronJob", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "Ingress"}


def test_every_pod_runs_without_rights_and_with_a_limit_of_memory():
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == UNPRIVILEGED and container["resources"]["limits"]["memory"]
            assert container["image"].endswith(f":{__version__}"), "a version of the package, never the latest"


def test_budget_autoscaler_and_policy_are_about_the_service():
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    target = manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "localpolicy"}
    assert (
        manifest("HorizontalPodAutoscaler")["spec"]["minReplicas"]
        > manifest("PodDisruptionBudget")["spec"]["minAvailable"]
    )
    rounds = manifest("NetworkPolicy", "localpolicy-round")["spec"]["podSelector"]["matchLabels"]
    for job in ("localpolicy-daily", "localpolicy-rollout"):
        template = manifest("CronJob", job)["spec"]["jobTemplate"]["spec"]["template"]
        assert template["metadata"]["labels"] == rounds and template["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(("job", "answer", "code"), [
    ("localpolicy-daily", 0, 0), ("localpolicy-daily", 4, 0), ("localpolicy-daily", 6, 0), ("localpolicy-daily", 1, 1),
    ("localpolicy-daily", 2, 2), ("localpolicy-rollout", 5, 0), ("localpolicy-rollout", 2, 2),
])  # fmt: skip
def test_a_round_fails_on_faults_and_not_on_verdicts(job, answer, code, tmp_path):
    (words,) = manifest("CronJob", job)["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    script = re.search(r"/app/examples/(\w+\.sh)", words)[1]
    assert (DEPLOY.parent / "examples" / script).exists() and f"examples/{script}" in (
        DEPLOY / "Dockerfile"
    ).read_text()
    (tmp_path / script).write_text(f"exit {answer}\n")
    done = subprocess.run(["/bin/sh", "-c", words.replace("/app/examples", str(tmp_path))], check=False)
    assert done.returncode == code


def test_images_are_named_by_digest():
    stages = re.findall(r"^FROM (\S+) AS (\w+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    outside = [image for image, _ in stages if image not in {name for _, name in stages}]
    outside += [service["image"] for service in compose().values() if "image" in service]
    assert len(outside) == 5 and all(DIGEST.fullmatch(image) for image in outside), outside


def test_images_install_packages_by_hash():
    """Each requirement is in its lock within its bounds; each package of a lock has hashes."""
    packaging = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        "serve.lock": (DEPLOY / "requirements.txt").read_text().splitlines()[1:],
        "full.lock": [*project["dependencies"], *extras["serve"], *extras["report"]],
    }
    for name, requirements in wanted.items():
        entries = re.split(r"\n(?=\S)", (DEPLOY / name).read_text().strip())
        assert all("--hash=sha256:" in entry for entry in entries)
        versions = dict(re.match(r"([\w.-]+)==(\S+)", entry).groups() for entry in entries)
        for requirement in map(packaging.Requirement, requirements):
            assert requirement.specifier.contains(versions[requirement.name]), (name, requirement.name)
    recipe = (DEPLOY / "Dockerfile").read_text()
    assert recipe.count("pip install --require-hashes --no-deps") == recipe.count("pip install") == len(wanted)


def test_nothing_starts_without_a_token():
    text = (DEPLOY / "compose.yaml").read_text()
    assert "${LPI_TOKEN:?" in text and "${LPI_TOKEN:-" not in text
    (server,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    token = next(one for one in server["env"] if one["name"] == "LPI_TOKEN")
    assert "optional" not in token["valueFrom"]["secretKeyRef"]


def test_manifests_name_paths_and_variables_of_the_service():
    (container,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    probes = [container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == ["/readyz", "/healthz", "/readyz"]
    named = {one["name"] for one in container["env"]} | set(compose()["server"]["environment"])
    named |= set(re.findall(r"LPI_\w+(?==)", (DEPLOY / "Dockerfile").read_text()))
    named -= {"PGPASSWORD"}  # is libpq's own
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
    (container,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    for words in (container["args"], compose()["server"]["command"]):
        changes = [word for before, word in pairwise(words) if before == "--set"]
        given = ServeConfig.parse({"export": "served", "log": "log.db"}).with_changes(changes)
        assert given.open_metrics and given.access_log and given.proxies, "one proxy's clients are many"
