"""The bar of a terminal."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

from localpolicy.runtime import progress as bars
from localpolicy.runtime.progress import progress


def test_a_name_in_brackets_is_no_markup(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("scoring lpi[red]x", 2) as advance:
        advance(1, note="from [/data/x]")
        advance(1, note="from [/data/x]")
    shown = capsys.readouterr().err
    assert "scoring lpi[red]x" in shown and "from [/data/x]" in shown


def test_a_narrow_terminal_shows_the_bar_and_the_time_left(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress("lpi_rl", 200) as advance:
        advance(20, note="epoch 3 of 20, loss policy 3.1087, effective sample 100%, best -2.18962 at step 12, 1,561/s")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    line = next(line for line in shown.replace("\r", "\n").splitlines() if "20/200" in line)
    assert "━" * 20 in line.replace("╸", "━").replace("╺", "━") and re.search(r"-:--:--|\d:\d\d:\d\d", line)
    assert "epoch 3 of 20" in line and len(line) <= 80


def test_a_notebook_shows_one_output_and_empties_it_at_the_end(monkeypatch, capsys):
    """Without a terminal and without widgets, and without asking for it. Before: hundreds of lines on stderr."""
    outputs = []

    class Output:
        def update(self, data, *, raw):
            outputs.append(data["text/plain"])

    def display(data, *, raw, display_id):
        assert raw and display_id and data == {"text/plain": ""}
        return Output()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(bars, "in_notebook", lambda: True)
    monkeypatch.setattr(bars, "find_spec", lambda name: None)
    with progress("training mle", 40) as advance:
        advance(12, note=lambda: "loss 3.1")
        advance(1)  # within half a second nothing is written again
    assert outputs == ["training mle: 12 of 40 loss 3.1", ""] and capsys.readouterr().err == ""
    monkeypatch.setattr(bars, "in_notebook", lambda: False)
    with progress("training mle", 40) as advance:
        advance(12)
    assert capsys.readouterr().err == ""
