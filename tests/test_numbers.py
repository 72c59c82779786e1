"""One number, one file: CONTRIBUTING names where each number of a page is computed, and it is defined there alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import localpolicy

ROOT = Path(localpolicy.__file__).parent
ROOMS = ("measure", "judge", "study", "report", "worlds", "reproduction")


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


# Numbers that were written by hand in several files: a pattern, and the file that may hold it.
OWNED = {
    r"\b1\.96\b": "measure/estimate.py",  # standard errors of an interval
    r"\b0\.975\b": "measure/estimate.py",
    r"confidence: float = 0\.95\b": "measure/estimate.py",
    r"std\(.*sqrt": "measure/estimate.py",  # a standard error
    r"len\(np\.unique\(.*(sequence|cluster)": "measure/estimate.py",
    r"\b0\.693?\b|math\.log\(2\)": "measure/divergence.py",  # the largest JS
    r"\*\*\*|p < 0?\.05": "measure/significance.py",  # stars and their levels
    r"\(5, 10, 15\)": "measure/position_metrics.py",
    r"\"HR@20\", \"nDCG@20\"\)": "measure/metrics.py",
    r"5, 10 and 20": "",
    r"below (half|a tenth) of": "worlds/trajectory.py",
    r"^(SURE|NOISE|FEW)\b *=": "",  # a tenth, 5 % and 1.2 times the floor
}  # fmt: skip


def literals(path: Path) -> str:
    """A module without its comments and docstrings, which may say what a constant is."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0].value.value = ""
    return ast.unparse(tree).replace("'", '"')


@pytest.mark.parametrize(("pattern", "owner"), OWNED.items())
def test_a_number_is_written_in_the_file_that_owns_it(pattern, owner):
    for room in (*ROOMS, "training"):
        for path in (ROOT / room).rglob("*.py"):
            if path != ROOT / owner:
                found = re.search(pattern, literals(path), re.M)
                assert not found, f"{path.relative_to(ROOT)}: {found[0]}; take it from {owner or 'its constant'}"


@pytest.mark.parametrize(
    "line",
    [
        "reach = 1.96 * se",
        "note = 'stars (* .05, *** .001)'",
        "meaning = 'JS 0.69: nothing in common'",
        "se = values.std(ddof=1) / np.sqrt(n)",
        "n = len(np.unique(scores.sequence))",
    ],
)
def test_a_literal_of_old_would_be_found(line, tmp_path):
    (tmp_path / "module.py").write_text(f'"""1.96 in words."""\n{line}\n')
    text = literals(tmp_path / "module.py")
    assert sum(bool(re.search(pattern, text, re.M)) for pattern in OWNED) == 1


def test_pages_make_no_tests_of_their_own():
    """A test is made in measure/, judge/, study/ or worlds/ with its family; pages print it."""
    made = re.compile(r"\b(paired|paired_family|holm_steps|holm_factors|paired_bootstrap|t_reach|t_quantile)\(")
    others = ("worlds/demo", "worlds/loop_page", "reproduction/paper", "reproduction/table3")
    pages = [*(ROOT / "report").rglob("*.py"), *(ROOT / f"{name}.py" for name in others)]
    assert not [path.name for path in pages if made.search(path.read_text())]
