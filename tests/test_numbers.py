"""One number, one file: CONTRIBUTING names where each number of a page is computed, and it is defined there alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import localpolicy

ROOT = Path(localpolicy.__file__).parent
ROOMS = ("measure", "judge", "study", "report")


def defined(path: Path) -> set[str]:
    """Functions, classes and constants at the top of a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def numbers() -> list[tuple[str, list[str], list[str]]]:
    """What the table of CONTRIBUTING says: a number, its files, its functions."""
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    rows = text.partition("| a number on a page |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return [(number, *(re.findall("`([^`]+)`", cell) for cell in rest)) for number, *rest in cells]


def test_the_table_names_fifteen_numbers_or_more():
    assert len(numbers()) >= 15


@pytest.mark.parametrize(("number", "files", "names"), numbers(), ids=lambda value: str(value)[:30])
def test_a_number_is_defined_in_its_file_and_nowhere_else(number, files, names):
    assert files and names, number
    for name in names:
        here = [file for file in files if name in defined(ROOT / file)]
        assert len(here) == 1, f"{name} is not in {files}"
        again = [
            path.relative_to(ROOT)
            for room in ROOMS
            for path in (ROOT / room).rglob("*.py")
            if name in defined(path) and path != ROOT / here[0]
        ]
        assert not again, f"{name} is defined again in {again}"


def test_the_wrong_definitions_of_old_are_gone():
    """A tenth, 5 % and 1.2 times the floor were written again and again; now they have a name."""
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"^(SURE|NOISE|FEW)\b *=", text, re.M), path
