"""What the documents show is what happens: README blocks, examples and the four steps are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from localpolicy.objectives import OBJECTIVES
from localpolicy.train.config import Config
from localpolicy.train.loop import train

ROOT = Path(__file__).parents[1]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run_script(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # One thread: these are small, and two would wait for each other on a busy machine.
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(path)], cwd=folder, env=one, capture_output=True, text=True, check=False)


def test_readme_blocks_run(tmp_path):
    blocks = python_blocks((ROOT / "README.md").read_text())
    assert blocks, "the README shows how to use it from Python"
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path, tmp_path):
    done = run_script(path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_an_objective_is_added_in_four_steps(small, tmp_path):
    page = (ROOT / "docs" / "objectives.md").read_text()
    steps = page[page.index("## Add an objective in four steps") :]
    assert [line[:2] for line in steps.splitlines() if re.match(r"\d\.", line)] == ["1.", "2.", "3.", "4."]
    equation, registration = python_blocks(steps)
    before = dict(OBJECTIVES)
    try:
        exec(equation + registration, {})
        settings = {"objective": {"name": "squared_reward"}, "train": {"epochs": 1}, "model": {"width": 8}}
        run = train(small, out=tmp_path / "run", config=Config.parse(settings))
    finally:
        OBJECTIVES.clear()
        OBJECTIVES.update(before)
    assert run.metrics()[-1]["weights"]["max"] == 1.0
    assert run.metrics()[-1]["weights"]["mean"] < 0.3


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_links_between_documents_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not link.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_project_speaks_of_itself_alone():
    """No absolute path of a machine in anything that is shipped."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        assert not re.search(r"(?<![\w.])/(root|home|work)/", page.read_text()), page
