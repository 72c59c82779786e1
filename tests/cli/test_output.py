"""Tables as a terminal and as a file get them: nothing is cut, and nothing in a name is markup."""

from __future__ import annotations

import sys

import pytest

from localpolicy.cli.output import console, show_table

WHY = "JS 0.0412 ± 0.0003 from mle_0, mle_1; noise floor not known (give a second reference of another seed); " * 3
SHORT = "its lower end must be above 0"
TITLE = "DO NOT DEPLOY: lpi[red]x instead of [/data/x] :apple:"


@pytest.fixture
def shown(monkeypatch, capsys):
    """What a file gets, or a terminal of 80 columns."""

    def show(*rows: tuple[str, ...], note: str = "", terminal: bool = False) -> str:
        console.cache_clear()
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        monkeypatch.setenv("TERM", "dumb")  # 80 columns, and no codes of colour
        show_table(TITLE, ("check", "ok", "why"), rows, note=note)
        return capsys.readouterr().out

    yield show
    console.cache_clear()


def words(text: str) -> str:
    """The text however it was broken into lines."""
    return " ".join(text.split())


def test_a_file_gets_each_reason_on_one_line(shown):
    text = shown(("gain", "yes", SHORT), ("divergence", "not known", WHY), note=f"A note. {WHY}")
    assert f"gain               yes   {SHORT} " in text, "reasons begin below one another"
    assert f"divergence   not known   {WHY}" in text
    assert f"A note. {WHY.strip()}" in text
    assert "…" not in text


def test_a_narrow_terminal_gets_every_word(shown):
    text = shown(("divergence", "not known", WHY), terminal=True)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert words(WHY) in words(text.replace("divergence", "").replace("not known", "", 1))
    assert "…" not in text


def test_what_looks_like_markup_is_text(shown):
    text = shown(("lpi[red]x", "yes", "[/data/x] :apple:"), note="[bold]plain[/bold]")
    assert TITLE in text and "lpi[red]x" in text.replace(TITLE, "") and "[/data/x] :apple:" in text.replace(TITLE, "")
    assert "[bold]plain[/bold]" in text


def test_a_narrow_terminal_breaks_no_number(monkeypatch, capsys):
    console.cache_clear()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    numbers = [f"0.{place}234 ± 0.0{place}12" for place in range(8)]
    show_table("figures", ("policy", *(f"purchase.nDCG@{place}" for place in range(8))), [("mle-seed-101", *numbers)])
    text = capsys.readouterr().out
    console.cache_clear()
    assert all(number in text for number in numbers) and text.count("mle-seed-101") > 1 and text.count("figures") == 1
    assert max(len(line) for line in text.splitlines()) <= 80
