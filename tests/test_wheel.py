"""The wheel: the same bytes twice, and whole: from a log to lists where nothing of the checkout is to be seen."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from repack_sdist import repack  # noqa: E402

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


def test_the_source_distribution_holds_every_file_of_the_repository_and_builds_the_same_wheel(wheel, tmp_path):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no repository: this is a source distribution itself")
    tracked = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    for name in tracked:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    code = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "source", check=True, capture_output=True)
    (archive,) = tmp_path.glob("localpolicy-*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
        opened.extractall(tmp_path / "unpacked", filter="data")
    assert set(tracked) <= held
    (folder,) = (tmp_path / "unpacked").iterdir()
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", folder]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, capture_output=True)
    (again,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


def test_source_distributions_of_equal_files_have_the_same_bytes(tmp_path):
    """Whenever they were built, and on which machine; contents and the right to run are kept."""
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o700)
    for second, owner in ((1, "ann"), (2, "bob")):
        entry = tarfile.TarInfo("x/made.txt")
        entry.size, entry.mtime, entry.uname, entry.uid = 3, second, owner, second
        path = tmp_path / f"{second}.tar.gz"
        with tarfile.open(path, "w:gz") as made:
            made.addfile(entry, io.BytesIO(b"abc"))
            made.add(tmp_path / "run.sh", "x/run.sh")
        os.utime(tmp_path / "run.sh", (second, second))
        repack(path, 1_700_000_000)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as kept:
        assert kept.extractfile("x/made.txt").read() == b"abc"
        assert [(entry.name, oct(entry.mode), entry.mtime) for entry in kept.getmembers()] == [
            ("x/made.txt", "0o644", 1_700_000_000), ("x/run.sh", "0o755", 1_700_000_000),
        ]  # fmt: skip


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


def test_other_extras_are_installed_though_setup_was_done(tmp_path):
    """A mark is left for each list of extras: with another list, make installs."""
    (tmp_path / ".venv").mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())

    def planned(*words):
        done = subprocess.run(["make", "-n", "setup", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    mark = re.search(r"touch (\S+)", planned())
    assert "pip install" in planned() and mark
    (tmp_path / mark[1]).touch()
    assert "pip install" not in planned() and "pip install" in planned("EXTRAS=dev,serve")


def test_the_lock_the_licences_and_the_bill_cover_every_extra_that_users_install():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.search(r"FOR_USERS := (.*)", (ROOT / "Makefile").read_text())[1]
    assert set(listed.split()) == set(extras) - {"dev", "check", "docs"}
    command = ["make", "-n", "lock", "sbom", "licences"]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    (compiled,) = [line for line in plan.splitlines() if "pip compile" in line]
    assert all(f"--extra {extra} " in compiled for extra in listed.split())
    assert f"tools/licences.py {listed} >" in plan
    assert any("cyclonedx-py" in line and "dist/requirements.lock" in line for line in plan.splitlines())
