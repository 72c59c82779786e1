"""An installation that only serves: what it can do it does, and the other commands say what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_log import START, answer, listed, write

from localpolicy.serving.doctor import EXTRAS, REQUIRED, remedy
from localpolicy.serving.log import Log

LEFT_OUT = ("torch", "pyarrow", "duckdb", "scipy", "safetensors", "onnx", "onnxscript", "jinja2")  # by the image
CODE = f"import sys\nsys.modules.update(dict.fromkeys({LEFT_OUT!r}))\nfrom localpolicy.cli.main import main\nmain()"


def lpi(*words) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", CODE, *map(str, words)], capture_output=True, text=True, timeout=120)


@pytest.fixture
def log(tmp_path):
    made, request = Log(tmp_path / "log.db"), listed(1, time=START)
    write(made, request, answer(request, 1))
    made.close()
    return tmp_path / "log.db"


@pytest.mark.parametrize(
    ("words", "needs"),
    [(("rotate", "LOG", "--out", "OUT"), "pyarrow"), (("audit", "LOG"), "torch|pyarrow|scipy"),
     (("erase", "p1", "--log", "LOG"), "pyarrow"), (("verify", "DATA"), "torch|pyarrow|scipy"),
     (("rollout", "plan", "EXPORT", "--out", "OUT"), "pyarrow|scipy"),
     (("rollout", "judge", "OUT", "--log", "LOG"), "pyarrow|scipy"),
     (("prepare", "events", "LOG", "--out", "OUT"), "pyarrow|duckdb"),
     (("train", "DATA", "--out", "OUT"), "torch|pyarrow"), (("export", "DATA", "--out", "OUT"), "torch|pyarrow")],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, tuple) else "",
)  # fmt: skip
def test_what_needs_more_says_what_to_install(exported, small, log, tmp_path, words, needs):
    paths = {"LOG": log, "OUT": tmp_path / "out", "DATA": small.path, "EXPORT": exported.folder}
    done = lpi(*(paths.get(word, word) for word in words))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "pip install localpolicy" in done.stderr and len(done.stderr) < 300
    assert any(f"this needs {name}" in done.stderr for name in needs.split("|"))
    assert not (tmp_path / "out").exists()


def test_an_export_is_verified_where_there_is_no_torch(exported):
    done = lpi("verify", exported.folder)
    assert done.returncode == 0 and "unchanged" in done.stdout + done.stderr, done.stderr


def test_packages_are_named_by_what_brings_them():
    for package in REQUIRED:
        module = {"pyyaml": "yaml"}.get(package, package.replace("-", "_"))
        assert "pip install localpolicy." in remedy(module)
    for extra, packages in EXTRAS.items():
        told = [remedy(package.replace("-", "_")) for package in packages]
        assert all(told) and any(f"localpolicy[{extra}]" in each for each in told)
    assert "localpolicy[trace]" in remedy("opentelemetry.sdk.trace") and "[serve]" in remedy("prometheus_client.core")
    assert remedy("localpolicy.nonsense") is remedy(None) is remedy("a_users_module") is None
