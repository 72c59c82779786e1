"""Tables as a terminal and as a file get them: nothing is cut, and nothing in a name is markup."""

from __future__ import annotations

import sys

import pytest

from localpolicy.cli.output import console, show, show_table
from localpolicy.report.table import Table

WHY = "JS 0.0412 ± 0.0003 from mle_0, mle_1; noise floor not known (give a second reference of another seed); " * 3
SHORT = "its lower end must be above 0"
TITLE = "DO NOT DEPLOY: lpi[red]x instead of [/data/x] :apple:"


@pytest.fixture
def shown(monkeypatch, capsys):
    """What a file gets, or a terminal of 80 columns."""

    def show(*rows: tuple[str, ...], note: str = "", terminal: bool = False, columns: int | None = None) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "__stdout__", None)  # not the terminal that runs the tests
        monkeypatch.setenv("TERM", "dumb")  # no codes of colour
        monkeypatch.setenv("COLUMNS", str(columns)) if columns else monkeypatch.delenv("COLUMNS", raising=False)
        show_table(TITLE, ("check", "ok", "why"), rows, note=note)
        return capsys.readouterr().out

    return show


def words(text: str) -> str:
    """The text however it was broken into lines."""
    return " ".join(text.split())


def test_a_file_gets_80_columns(shown):
    text = shown(("gain", "yes", SHORT), ("divergence", "not known", WHY), note=f"A note. {WHY}")
    assert 60 < max(len(line) for line in text.splitlines()) <= 80
    assert words(f"A note. {WHY}") in words(text), "the note below takes the whole width"


def test_a_file_as_wide_as_the_longest_reason_gets_it_on_one_line(shown):
    text = shown(("gain", "yes", SHORT), ("divergence", "not known", WHY), note=f"A note. {WHY}", columns=500)
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


NUMBERS = [
    *(f"0.{place}234 ± 0.0{place}12" for place in range(6)),
    *[f"+0.{place}000 [-0.5608, +0.5608]***" for place in (6, 7)],
]
NOTE = "Ranked over the full catalogue; items with equal scores share their mean rank, and errors are clustered. " * 2
WIDE = Table(
    "figures", ("policy", *(f"purchase.nDCG@{place}" for place in range(8))), [("lpi_cb-seed=2", *NUMBERS)], NOTE
)


@pytest.mark.parametrize("printed", [show, print], ids=["lpi", "python"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_no_number_and_no_name_is_broken(monkeypatch, capsys, printed, terminal):
    """In parts that fit; the note below is as wide as the terminal, not as the last part."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "__stdout__", None)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("COLUMNS", raising=False)
    printed(WIDE)
    text = capsys.readouterr().out
    assert all(number in text for number in NUMBERS) and all(name in text for name in WIDE.columns)
    assert text.count("lpi_cb-seed=2") > 1 and text.count("figures") == 1
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.partition("Ranked")[2].splitlines()) <= 4 and words(NOTE) in words(text)


def test_a_path_in_a_line_is_whole_in_a_file(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    path = "report: /" + "x" * 100 + "/report.html"
    console().print(path)
    assert path in capsys.readouterr().out
