"""The bar of a terminal."""

from __future__ import annotations

import sys

from localpolicy.runtime.progress import progress


def test_a_name_in_brackets_is_no_markup(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("scoring lpi[red]x", 2) as advance:
        advance(1, note="from [/data/x]")
        advance(1, note="from [/data/x]")
    shown = capsys.readouterr().err
    assert "scoring lpi[red]x" in shown and "from [/data/x]" in shown
