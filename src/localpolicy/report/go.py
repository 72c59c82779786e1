"""`go` as tables and a page: how the log is read comes first, the answer last; the page has both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Any

from localpolicy.data.guess.guess import Guess
from localpolicy.data.guess.state import Use
from localpolicy.errors import to_caller
from localpolicy.judge.verdict import Gate, would_decide
from localpolicy.measure.answers import TOGETHER
from localpolicy.measure.metrics import AT_K, is_certain
from localpolicy.measure.number_text import percent
from localpolicy.report.comparison import comparison_section
from localpolicy.report.contents import Contents, KeyNumber, Section
from localpolicy.report.gate import decided_by, gate_headline, gate_tables, numbered, value_text
from localpolicy.report.page import can_draw, write_report
from localpolicy.report.table import Column, Table
from localpolicy.study import go as study
from localpolicy.study.go import GoResult
from localpolicy.study.go_commands import Asked
from localpolicy.version import __version__

LOG = logging.getLogger(__name__)
NO_PAGE = "there will be no page: it needs altair and vl-convert (pip install 'localpolicy[report]')."
TRUST = (
    "How much of what the critic says holds on data it has not seen: 1 is all of it. At 0 the log does not tell good "
    "items from bad, and the policy only imitates the log."
)


@wraps(study.go)
def go(log: Any, *, shown: Callable[[Table], object] = print, **options: Any) -> GoResult:
    """Run `go` from a log to its verdict, and write the page."""

    def table(asked: Asked) -> None:
        shown(guess_table(asked.guessed, asked.log, asked.titles))

    if not can_draw():
        LOG.info("note: %s", NO_PAGE)
    return study.go(log, shown=table, page=write_go if can_draw() else None, **options)


def guess_table(guessed: Guess, path: Path, titles: Path | None = None) -> Table:
    """Table of the log's columns: the guessed role of each, or why it is ignored."""

    def kind(use: Use) -> tuple[str, ...]:
        """Columns side by side that are numbered alone (f0, f1, …) and ignored for the same reason share a line."""
        stem = use.column.rstrip("0123456789")
        return (stem, use.why) if stem and not use.role else (use.column,)

    rows = []
    for _, (first, *more) in groupby(guessed.uses, kind):
        name = f"{first.column} to {more[-1].column} ({1 + len(more)} columns)" if more else first.column
        rows.append([name, first.role or "-", to_caller(first.why)])
    said = [
        *(f"{each}." for each in guessed.meaning),
        *([f"Every row is the event '{guessed.event}'."] if guessed.event else []),
        *([f"Rewards: {guessed.rewards}."] if guessed.rewards else []),
        *([f"Renamed: {', '.join(f'{a} is {b}' for a, b in guessed.rename.items())}."] if guessed.rename else []),
        *([f"Titles of items: {titles}."] if titles else []),
        *(f"Note: {to_caller(note)}." for note in guessed.unsure),
    ]
    return Table(f"How {path} is read", ("column", "used as", "why"), rows, " ".join(said))


def go_tables(result: GoResult, *, why: bool = False) -> list[Table]:
    """Tables of a `go` result: how the log was read, and the verdict; with `why` every check's reason."""
    read = guess_table(result.asked.guessed, result.data.path)
    if result.verdict is not None:
        return [read, *([moved_table(result)] if moves(result) else []), *gate_tables(result.verdict, why=why)]
    names = [name for name in AT_K if not is_certain(name, result.data.n_items)]
    rows = [[each.name, *(f"{each.estimate(f'all.{name}').mean:.4f}" for name in names)] for each in result.ranked]
    said = [
        result.sentence,
        f"Next: {would_decide(result.comparison.question)}",
        *(f"Note: {note}." for note in result.comparison.notes),
    ]
    return [read, Table("NOTHING TO DECIDE: models ranked", ("policy", *names), rows, " ".join(said))]


def moves(result: GoResult) -> bool:
    """Whether the judged policy changes how often any item is shown first."""
    return result.moved is not None and bool(result.moved.more or result.moved.less)


def moved_table(result: GoResult) -> Table:
    """Table of the items whose share of first places changes most, with the gain per 1,000 and per day."""
    moved, verdict = result.moved, result.verdict
    assert moved is not None and verdict is not None
    before = "taken, in the log" if verdict.deployed is None else f"first, by {verdict.against}"
    rows = [
        [row.name, how, percent(row.before), percent(row.after)]
        for how, items in (("more", moved.more), ("less", moved.less))
        for row in items
    ]
    said = f"Shares of the first place move by {percent(moved.moved)} in all."
    title = f"What {verdict.evaluation.name} would change"
    columns = ("item", Column("shown", numeric=False), before, f"first, by {verdict.evaluation.name}")
    return Table(title, columns, rows, " ".join([gain_text(result), said]).strip())


def gain_text(result: GoResult) -> str:
    """Text of the gain per 1,000 decisions, lists, visits or answers, and per day; empty if unknown."""
    found, verdict = result.gain, result.verdict
    if found is None or verdict is None:
        return ""
    share = f"{verdict.rules.confidence:.0%}"
    gain, low, high = (f"{each:+,.4g}" for each in (found.gain, found.low, found.high))
    text = f"Gain per {found.per:,} {found.counted}, in {found.unit}: {gain} ({low} to {high} with {share} confidence)"
    if found.daily is not None:
        gain, low, high = (f"{each:+,.4g}" for each in found.daily)
        text += f"; a day like those of the log: {gain} ({low} to {high})"
    return f"{text}."


def money_numbers(result: GoResult) -> list[KeyNumber]:
    """Key numbers: gain in the unit of the log's reward column; none without such a column."""
    found, verdict = result.gain, result.verdict
    if found is None or verdict is None or not found.named:
        return []
    gain, low, high = (f"{each:+,.4g}" for each in (found.gain, found.low, found.high))
    meaning = f"{low} to {high} with {verdict.rules.confidence:.0%} confidence."
    return [KeyNumber(gain, f"{found.unit} per {found.per:,} {found.counted}", meaning)]


def write_go(result: GoResult, path: Path) -> Contents:
    """Write the page of a `go` result as one HTML file: verdict, trust in the critic, all metrics."""
    verdict, improvement = result.verdict, result.chosen.manifest.get("improvement")
    section = comparison_section(
        result.comparison, base=path.parent, titles=result.titles, of=result.chosen.folder.name, verdict=verdict
    )
    if verdict is None:
        question = result.comparison.question
        answer = {"why": question.why, "known": result.known}
        headline = Contents("", "Nothing to decide.", answer=answer, next_step=would_decide(question))
    else:
        headline, section = gate_headline(verdict), as_judged(section, verdict)
        section = replace(section, moved=moved_table(result) if moves(result) else None)
    notes = [*result.notes, *(result.comparison if verdict is None else verdict).notes]
    settings = {
        "localpolicy": __version__,
        **{f"column {use.column}": f"{use.role or 'not used'}: {use.why}" for use in result.asked.guessed.uses},
        "judged": "nothing" if verdict is None else str(result.chosen.folder),
        **({"the improvement says": result.said} if result.said else {}),
        "against": "nothing" if verdict is None else verdict.against,
        "decided by": "nothing" if verdict is None else decided_by(verdict),
        **numbered(notes),
    }
    numbers = [*money_numbers(result), *headline.numbers]
    if improvement is not None:
        numbers.append(trust_in_critic(improvement))
    contents = replace(
        headline, title="From the log to a verdict", sections=[section], settings=settings, numbers=numbers
    )
    write_report(contents, path)
    return contents


def trust_in_critic(improvement: Mapping[str, Any]) -> KeyNumber:
    """Key number: share of the critic's advantage that is used, with a caveat if its error is large."""
    error, text = improvement.get("critic_error"), TRUST
    label = "trust in the critic"
    if error is not None and error["critic"] > error["plain"]:
        label += ", which predicts returns worse than plain means do"
        text += (
            f" Its squared error on such data is {error['critic'] / error['plain']:.2f} times that of item and user "
            "means: it may still rank the items of one person rightly."
        )
    return KeyNumber(f"{float(improvement['slope']):.2f}", label, text)


def as_judged(section: Section, verdict: Gate) -> Section:
    """Section that draws the metric behind the verdict, or else the one that says whether it is better.

    A figure that the policy does not have is not drawn; the caption names the other policies that have none.
    """
    words = {TOGETHER: f"gain in {TOGETHER} over {verdict.against}"}
    for check in (verdict.better, verdict.deciding):
        figure = verdict.figure_of(check)
        if section.figure(verdict.evaluation.name, figure) is not None:
            said = value_text(check) if check.figure == "value" else words.get(figure, figure)
            section = replace(
                section, columns={figure: section.columns.get(figure, said), **section.columns}, main=figure
            )
    return section
