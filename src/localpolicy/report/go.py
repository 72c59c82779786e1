"""The page of `lpi go`: the gate's answer first, then every check, then the whole comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy import __version__
from localpolicy.experiments.go import Went
from localpolicy.report.comparison.section import comparison_section
from localpolicy.report.contents import Contents
from localpolicy.report.gate import gate_findings, gate_headline
from localpolicy.report.html.page import write_report


def write_go(went: Went, path: Path) -> Contents:
    """One HTML file."""
    section = comparison_section(went.comparison, base=path.parent)
    section = replace(section, findings=[*gate_findings(went.verdict), *section.findings])
    settings = {
        "localpolicy": __version__,
        "judged": str(went.chosen.folder),
        **({"the improvement says": went.said} if went.said else {}),
        "against": went.verdict.against,
        "the figure that decides": went.verdict.metric,
        **{f"note {number}": note for number, note in enumerate(went.verdict.notes, start=1)},
    }
    contents = Contents.under(gate_headline(went.verdict), "From the log to a verdict", [section], settings)
    write_report(contents, path)
    return contents
