"""docs/your-ranker.md: its commands and scripts give what it says, and its schemas say what is read."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import jsonschema
import pytest
from commands import lpi

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "your-ranker.md").read_text()
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def words(text):
    """Without figures and layout: they may differ in the last digit on another machine."""
    return re.findall(r"[^\W\d_]{2,}", text)


@pytest.mark.slow
def test_what_the_page_shows_is_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said, blocks = None, BLOCK.findall(PAGE)
    assert len([kind for kind, _ in blocks if kind]) == 3
    for kind, text in blocks:
        if kind == "python":
            told = StringIO()
            with redirect_stdout(told):
                exec(compile(text, "your-ranker.md", "exec"), {})
            said = told.getvalue()
        elif text.startswith("$ lpi "):
            command, _, shown = text.partition("\n")
            done = lpi(*command.split()[2:])
            assert done.returncode == 0, done.stderr
            assert sorted(words(done.stdout + done.stderr)) == sorted(words(shown))
        else:
            assert words(said) == words(text)


def schema(name):
    return json.loads((DOCS / f"{name}.schema.json").read_text())


def test_the_first_line_of_the_log_fits_its_schema():
    line = next(text for kind, text in BLOCK.findall(PAGE) if text.startswith('{"request"')).splitlines()[0]
    jsonschema.validate(json.loads(line), schema("requests"))
    jsonschema.validate({"request": "r1", "item": "a17", "event": "click", "reward": 1.0}, schema("outcomes"))


@pytest.mark.parametrize("wrong", [
    {"candidates": ["a"], "shown": ["a"]}, {"request": "r", "candidates": [], "shown": ["a"]},
    {"request": "r", "candidates": ["a", "a"], "shown": ["a"]},
    {"request": "r", "candidates": ["a"], "shown": ["a"], "temperature": -1},
    {"request": "r", "candidates": ["a"], "shown": ["a"], "probabilities": [2]},
])  # fmt: skip
def test_what_is_refused_does_not_fit(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema("requests"))
