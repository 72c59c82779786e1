"""tools/check_words.py finds unclear words, passes clear ones, and lets no package hold more than its maximum."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_words", ROOT / "tools" / "check_words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tool, tmp_path, monkeypatch):
    """A project with one source file, and a copy of the settings that allows `src/localpolicy/data` two findings."""
    settings = tmp_path / "words.toml"
    head = tool.SETTINGS.read_text().partition("[maxima]\n")[0]
    settings.write_text(head + '[maxima]\n"src/localpolicy/data" = 2\n')
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "SETTINGS", settings)
    tool.settings.cache_clear()
    (tmp_path / "src" / "localpolicy" / "data").mkdir(parents=True)
    yield tmp_path
    tool.settings.cache_clear()


@pytest.mark.parametrize(
    "line",
    [
        "Of a step.",
        "The same, without padding.",
        "Those of one group.",
        "All of them.",
        "What came out.",
        "One line.",
        "Rows.",
    ],
)
def test_a_docstring_that_names_nothing_is_found(tool, line):
    assert tool.docstring_fault(line) is not None


@pytest.mark.parametrize(
    "line",
    [
        "Number of batches per epoch.",
        "Return the log's columns.",
        "-r log π(a|x).",
        "The same message with `--beta` as a keyword.",
        "Of several intervals, return the narrowest.",
        "Which estimator follows the truth?",
    ],
)
def test_a_clear_docstring_passes(tool, line):
    assert tool.docstring_fault(line) is None


@pytest.mark.parametrize(
    "name", ["test_a_port_that_is_taken", "test_what_is_refused", "test_the_dial", "test_empty_files"]
)
def test_a_noun_phrase_is_no_claim(tool, name):
    assert not tool.makes_claim(name)


@pytest.mark.parametrize(
    "name",
    [
        "test_serve_reports_a_port_in_use",
        "test_what_is_broken_is_refused",
        "test_the_sum_by_hand",
        "test_a_and_b_agree",
    ],
)
def test_a_sentence_is_a_claim(tool, name):
    assert tool.makes_claim(name)


def test_private_words_are_found_in_all_kinds_of_text_but_not_in_code(tool, project):
    file = project / "src" / "localpolicy" / "data" / "log.py"
    file.write_text(
        '"""Rows beside others; `beside` is code."""\n\n\ndef told(worth):  # anew\n    print("this is alike in all")\n'
    )
    found = {(each.line, each.fault.partition(" for ")[0]) for each in tool.findings(file.relative_to(project))}
    assert found == {
        (1, "docstring: 'beside'"),
        (4, "name: 'told'"),
        (4, "name: 'worth'"),
        (4, "comment: 'anew'"),
        (5, "message: 'alike'"),
    }


@pytest.mark.parametrize(("count", "code"), [(2, 0), (3, 1)])
def test_a_package_above_its_maximum_fails(tool, project, monkeypatch, capsys, count, code):
    (project / "src" / "localpolicy" / "data" / "log.py").write_text("# told\n" * count)
    monkeypatch.setattr(sys, "argv", ["check_words.py"])
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert end.value.code == code
    assert ("src/localpolicy/data: 3 unclear texts, at most 2 allowed" in capsys.readouterr().out) == (code == 1)


def test_maxima_fall_and_never_rise(tool):
    text = '[words]\n[maxima]\n"src/a" = 3\n"src/b" = 3\n"src/c" = 3\n'
    counts = Counter({"src/a": 2, "src/b": 4, "src/d": 5})
    assert tool.lowered(text, counts) == '[words]\n[maxima]\n"src/a" = 2\n"src/b" = 3\n"src/d" = 5\n'
