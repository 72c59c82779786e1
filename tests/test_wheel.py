"""The wheel: the same bytes twice, and whole: from a log to lists where nothing of the checkout is to be seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def build(folder: Path) -> Path:
    """A wheel from a copy of the sources, as `make wheel` builds it."""
    for name in SOURCES:
        leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name, **({"ignore": leave} if (ROOT / name).is_dir() else {}))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder / "dist", folder]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="a wheel is built with setuptools >= 77")
    return build(tmp_path_factory.mktemp("first"))


def test_two_builds_have_the_same_bytes(wheel, tmp_path):
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_installed_from_the_wheel_it_walks_from_a_log_to_lists(wheel, tmp_path):
    """The dependencies are this environment's, localpolicy is the wheel's alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean"], check=True)
    python = tmp_path / "clean" / "bin" / "python"
    # A checkout on PYTHONPATH would pass for an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True, env=environment)
    (site,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    # A path added by a .pth file is only searched: the .pth of the checkout's own installation is not read there.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    environment["OMP_NUM_THREADS"] = "1"
    asked = [python, "-c", "import localpolicy; print(localpolicy.__file__)"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path).stdout
    assert str(site) in found
    walked = subprocess.run(
        [python, ROOT / "tools" / "smoke.py"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert walked.returncode == 0, walked.stdout + walked.stderr
    assert walked.stdout.endswith("all steps passed\n")
