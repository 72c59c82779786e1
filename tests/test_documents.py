"""What the documents show is what happens: blocks, examples and steps are run, and links lead somewhere."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import warm

import localpolicy
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.training.train import train

ROOT = Path(__file__).parents[1]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


ARGUMENTS = {"round_trip.py": ("500", "0", "2")}  # the second round holds all that a third would
SMALLER = (  # what makes a script quick: whether it runs does not depend on it
    (r"sequences=\d+_000", "sequences=600"),
    (r"range\(600\)", "range(200)"),
    (r"epochs(\W+)\d+", r"epochs\g<1>1"),
)
LARGER_STEPS = ((r'"train\.device=cpu"', '"train.device=cpu", "train.batch_size=16"'),)  # it must learn: rewards rise


def quick(source: str, changes: tuple[tuple[str, str], ...] = SMALLER) -> str:
    for pattern, instead in changes:
        source, times = re.subn(pattern, instead, source)
        assert times or changes is SMALLER, f"{pattern} is not there any more"
    return source


def test_readme_blocks_run(tmp_path):
    blocks = python_blocks((ROOT / "README.md").read_text())
    assert blocks, "the README shows how to use it from Python"
    script = tmp_path / "readme.py"
    script.write_text(quick("\n".join(blocks)))
    done = warm.python(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["docs/tutorial.md", "tools/pages/tutorial.md"])
def test_first_steps_share_no_seed(page):
    """A newcomer's first steps must not fall into the trap that the page warns of; one run's two β may share it."""
    lines = re.findall(r"^\$ lpi train .*$", (ROOT / page).read_text(), flags=re.MULTILINE)
    found = [(re.search(r"--objective (\S+)", line)[1], re.search(r"--seed (\d+)", line)[1]) for line in lines]
    seeds = [seed for _, seed in sorted(set(found))]
    assert len(found) >= 4 and len(set(seeds)) == len(seeds) >= 3


def words(*patterns: str) -> int:
    """Number of words in the pages of these patterns, as `wc -w` counts them: marks of tables are words, too."""
    pages = {page for pattern in patterns for page in ROOT.glob(pattern)}
    return sum(len(page.read_text().split()) for page in pages)


def test_pages_keep_within_their_words():
    """A reader should find the twenty figures that matter. docs/settings.md is made from the settings' classes."""
    assert words("README.md") <= 900
    assert words("docs/results/**/*.md") <= 12_000
    assert words("docs/*.md") - words("docs/settings.md") < 24_000


def test_commands_of_the_readme_fit_a_terminal():
    """Its first page is read on 80 columns, and shows of `lpi go` what fits one screen."""
    blocks = [block.splitlines()[1:-1] for block in FENCE.findall((ROOT / "README.md").read_text())]
    (answer,) = [block for block in blocks if any(line.startswith("TEST ONLINE") for line in block)]
    assert len(answer) <= 15 and max(map(len, answer)) <= 80


@pytest.mark.parametrize("page", ["docs/beta.md", "tools/pages/beta.md"])
def test_the_dial_is_read_on_validation_rows(page, monkeypatch, capsys):
    """Of many β on test rows the best would flatter itself: the page's own script, asked which rows it compares on."""
    scripts = re.findall(
        r"^\$ cat > \w+\.py <<'END'\n(.*?)^END$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    (dial,) = [script for script in scripts if "dials=" in script]
    asked = []
    monkeypatch.setattr(localpolicy, "Run", lambda folder: folder)
    monkeypatch.setattr(localpolicy, "compare", lambda runs, **settings: asked.append(settings) or MagicMock())
    exec(compile(dial, page, "exec"), {})
    (settings,) = asked
    assert len(settings["dials"]) > 1
    assert EvaluateConfig.parse(settings["config"]).split == "validation"
    assert EvaluateConfig().split == "test", "what is left out is the test"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path, tmp_path):
    script = tmp_path / path.name
    script.write_text(quick(path.read_text(), LARGER_STEPS if path.name in ARGUMENTS else SMALLER))
    done = warm.python(script, *ARGUMENTS.get(path.name, ()), cwd=tmp_path)
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


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
FENCE = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    """What its headings are called: lower case, without punctuation, with hyphens for blanks."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    """Links and images that lead to no file, or to no heading of it."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_of_documents_lead_somewhere(page):
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# What β is, in short\n\n```\n# not a heading\n```\n")
    good, bad = (
        ("other.md", "other.md#what-β-is-in-short", "#here"),
        ("lost.md", "other.md#not-a-heading", "#there", ".."),
    )
    (tmp_path / "page.md").write_text("# Here\n" + "\n".join(f"[a]({link}) ![b]({link})" for link in good + bad))
    assert broken_links(tmp_path / "page.md") == [link for link in bad for _ in range(2)]


def test_every_page_is_in_the_site_and_the_readme():
    """Which leads a newcomer to all of them; evidence is linked from the pages that read it."""
    readme, site = (ROOT / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in readme
        assert f": docs/{page.name}\n" in site


def test_every_public_name_is_in_the_reference_where_it_is_defined():
    listed = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "python.md").read_text(), flags=re.MULTILINE)
    assert set(localpolicy.__all__) <= {path.rpartition(".")[2] for path in listed}
    assert [path for path in listed if pkgutil.resolve_name(path) is None] == []


def test_make_targets_named_in_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {(page.name, name) for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert len(named) > 10 and {name for _, name in named} <= targets, sorted(named)


def test_the_project_speaks_of_itself_alone():
    """No absolute path of a machine in anything that is shipped."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        assert not re.search(r"(?<![\w.])/(root|home|work)/", page.read_text()), page


def test_contributing_names_existing_files():
    """So that the walk leads to the code of today."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    walk = page[page.index("## The tree and the walk") : page.index("## An objective of your own")]
    files = {f"/{path.relative_to(ROOT)}" for path in (ROOT / "src" / "localpolicy").rglob("*.py")}
    named = re.findall(r"(?<![\w/])[\w/]+\.py\b", walk)
    assert len(named) > 20
    assert [
        name for name in named if not (ROOT / name).exists() and not any(f.endswith(f"/{name}") for f in files)
    ] == []
