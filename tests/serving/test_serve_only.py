"""An installation that only serves: what it can do it does. What it cannot: tests/cli/test_missing_packages.py."""

from __future__ import annotations

import subprocess
import sys

from localpolicy.serving.doctor import EXTRAS, REQUIRED, remedy

LEFT_OUT = ("torch", "pyarrow", "duckdb", "scipy", "safetensors", "onnx", "onnxscript", "jinja2")  # by the image
CODE = f"import sys\nsys.modules.update(dict.fromkeys({LEFT_OUT!r}))\nfrom localpolicy.cli.main import main\nmain()"


def lpi(*words) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", CODE, *map(str, words)], capture_output=True, text=True, timeout=120)


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
