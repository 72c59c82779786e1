"""Pages with pasted output: commands are run as a reader would, and a page that is not current is noticed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("run_pages", ROOT / "tools" / "run_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shell(tool, tmp_path):
    return tool.Shell(tmp_path / "scratch")


def test_pages_on_disk_are_current(tool):
    assert sorted(tool.ORDER) == sorted(path.name for path in tool.TEMPLATES.iterdir())
    for name in tool.ORDER:
        page, template = (tool.PAGES / name).read_text(), (tool.TEMPLATES / name).read_text()
        assert tool.is_current(page, template), f"{name}: run `make docs`"


def test_a_touched_page_or_template_is_not_current(tool):
    page = tool.sealed("a.md", "template", "body\n")
    assert tool.is_current(page, "template")
    assert not tool.is_current(page + "more", "template")
    assert not tool.is_current(page, "another template")
    assert not tool.is_current("body\n", "template")


def test_output_follows_its_command(tool, shell):
    template = """before

```console
$ cat > a.txt <<'END'
two
lines
END
$ cat a.txt | \\
    tail -1
$ echo '  a table  '; echo talk >&2
```

```bash
$ not run
```
"""
    shown = tool.body(template, shell)
    assert shown == template.replace("tail -1\n", "tail -1\nlines\n").replace(">&2\n", ">&2\n  a table\n")


def test_a_failure_must_be_shown(tool, shell):
    asked = ["echo said; echo why >&2; exit 3", "echo $?"]
    assert shell.show(asked) == "$ echo said; echo why >&2; exit 3\nsaid\nwhy\n$ echo $?\n3\n"
    with pytest.raises(SystemExit, match="exit code 3"):
        shell.show(["exit 3", "true"])


def test_paths_of_this_machine_are_refused(shell):
    with pytest.raises(SystemExit, match="a path of this machine"):
        shell.show(["pwd"])


def test_the_program_is_that_of_this_environment(shell):
    assert shell.show(["lpi --version"]).startswith("$ lpi --version\nlocalpolicy ")


def test_long_sentences_are_broken_and_tables_are_not(tool):
    sentence, row = " ".join(["word"] * 40), "  " + " ".join(["word"] * 40)
    assert max(map(len, tool.wrapped(sentence).splitlines())) <= tool.WIDTH
    assert tool.wrapped(sentence).split() == sentence.split()
    assert tool.wrapped(row) == row


def test_another_machine_may_differ_in_figures_alone(tool):
    here = "  beta=0.3   0.6232   1,024 ─────\n sha256 " + "a1" * 32
    assert tool.words(here) == tool.words("  beta=0.3  -0.62   96 ───\n sha256 " + "b2" * 32)
    assert tool.words("DEPLOY 0.1") != tool.words("DO NOT DEPLOY 0.1")
