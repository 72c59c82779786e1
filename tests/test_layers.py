"""Imports point down the layers, so that the folder tree shows the possible dependencies."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import localpolicy

ROOT = Path(localpolicy.__file__).parent
# A package may import those above it here, and itself.
LAYERS = (
    "version",
    "limits",
    "errors",
    "types",
    "settings",
    "plugins",
    "runtime",
    "results",
    "logits",
    "plackett_luce",
    "kernels",
    "catalogue",
    "data",
    "simulation",
    "model",
    "objectives",
    "runs",
    "measure",
    "ranker",
    "judge",
    "training",
    "study",
    "serving",
    "report",
    "worlds",
    "reproduction",
    "cli",
)
ONLY_WHERE_NEEDED = ("torch", "pyarrow", "duckdb", "scipy", "altair", "pydantic", "yaml", "numpy")


def imports(path: Path, *, top_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if package in ("__init__", "__main__"):
        return
    own = next((number for number, rooms in enumerate(LAYERS) if package in rooms.split()), None)
    assert own is not None, f"{package} has no place in the layers"
    allowed = {room for rooms in LAYERS[: own + 1] for room in rooms.split()}
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "localpolicy" and len(parts) > 1:
            assert parts[1] in allowed, f"{package} must not import {name}"


def modules() -> dict[str, Path]:
    """Every module but the package root, by its name below the package."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items() if name != "__init__"}


def module_imports(path: Path, known: set[str]) -> set[str]:
    """The modules of this package that one imports: within functions and for type checking too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("localpolicy.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "localpolicy":
            room = node.module.removeprefix("localpolicy").removeprefix(".")
            for alias in node.names:
                inner = f"{room}.{alias.name}".removeprefix(".")
                found.add(inner if inner in known else room)
    return found & known


def test_no_modules_import_each_other():
    """By any chain of imports, those within functions and those for type checking included."""
    known = modules()
    graph = {name: module_imports(path, set(known)) for name, path in known.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a cycle of imports: " + " <- ".join(error.args[1]))


def test_no_module_imports_the_package_root():
    """The root imports every room: what all need is in a module of its own, such as `version`."""
    known = set(modules())
    for name, path in modules().items():
        if name.split(".")[0] in ("cli", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "localpolicy" not in {alias.name for alias in node.names}, name
            elif isinstance(node, ast.ImportFrom) and node.module == "localpolicy":
                assert {alias.name for alias in node.names} <= known, name


@pytest.mark.parametrize("path", sorted((ROOT / "cli").glob("*.py")), ids=lambda path: path.name)
def test_the_command_line_imports_nothing_heavy(path):
    heavy = {name for name in imports(path, top_only=True) if name.split(".")[0] in ONLY_WHERE_NEEDED}
    assert not heavy, f"{path.name} slows down 'lpi --help' by importing {heavy}"


def test_the_command_line_alone_loads_nothing_heavy():
    """Not through another of our modules either: `lpi --help` answers at once."""
    code = f"import sys, localpolicy.cli.main; print([name for name in {ONLY_WHERE_NEEDED} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ALONE = "measure.value judge.verdict study.go report.go results"


def test_modules_import_alone_whatever_came_first():
    """Each module is imported in a process of its own: none waits for another to fill a registry."""
    code = f"""
import os, torch, pyarrow
for name in {ALONE.split()}:
    if not (child := os.fork()):
        __import__(f"localpolicy.{{name}}")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "imported", done.stderr


def test_no_room_has_the_name_of_a_public_function():
    """`localpolicy.train` is a function: a package of that name would hide it once it is imported."""
    rooms = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    assert not rooms & set(localpolicy.__all__)


def test_every_public_name_is_there():
    for name in localpolicy.__all__:
        assert getattr(localpolicy, name) is not None


def test_no_module_is_called_utils():
    assert not [path for path in ROOT.rglob("*.py") if path.stem in ("utils", "helpers", "common", "misc")]
