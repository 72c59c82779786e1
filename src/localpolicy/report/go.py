"""The page of `lpi go`: the gate's answer first, then every check, then the whole comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy import __version__
from localpolicy.experiments.go import Went
from localpolicy.report.comparison.section import comparison_section
from localpolicy.report.contents import Contents, Finding
from localpolicy.report.html.page import write_report

NEXT = {
    "deploy": "Next: show it to a small share of the visitors, and count.",
    "do not deploy": "Next: keep what is deployed; the checks below say what fell short.",
    "cannot tell": "Next: collect more of the log, or test online; the checks below say how much would tell.",
}


def write_go(went: Went, path: Path) -> Contents:
    """One HTML file."""
    section = comparison_section(went.comparison, base=path.parent)
    checks = [
        Finding(f"{check.name}", check.passed, check.reason)
        for check in went.verdict.checks
        if check.outcome != "not asked"
    ]
    section = replace(section, findings=[*checks, *section.findings])
    settings = {
        "localpolicy": __version__,
        "judged": str(went.chosen.folder),
        **({"the improvement says": went.said} if went.said else {}),
        "against": went.verdict.against,
        "the figure that decides": went.verdict.metric,
        **{f"note {number}": note for number, note in enumerate(went.verdict.notes, start=1)},
    }
    verdict = f"{went.verdict.sentence} {NEXT[went.verdict.answer]}"
    contents = Contents("From the log to a verdict", verdict, [section], settings)
    write_report(contents, path)
    return contents
