"""The page of `lpi go`: the gate's answer first, then every check, then the whole comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy import __version__
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.estimate import Interval
from localpolicy.report.comparison.section import comparison_section
from localpolicy.report.contents import Contents, Headline, KeyNumber, Section
from localpolicy.report.gate import gate_findings, gate_headline
from localpolicy.report.html.page import write_report
from localpolicy.study.go import GoResult
from localpolicy.study.titles import Titles

REWARD = "estimated reward per decision"


def write_go(result: GoResult, path: Path, *, titles: Titles | None = None) -> Contents:
    """One HTML file; `titles` say what items are called."""
    section = comparison_section(result.comparison, base=path.parent, titles=titles)
    if result.verdict.deployed is None:
        section = _by_reward(section, result.comparison)
    section = replace(section, findings=[*gate_findings(result.verdict), *section.findings])
    settings = {
        "localpolicy": __version__,
        "judged": str(result.chosen.folder),
        **({"the improvement says": result.said} if result.said else {}),
        "against": result.verdict.against,
        "the figure that decides": result.verdict.metric if result.verdict.deployed else REWARD,
        **{f"note {number}": note for number, note in enumerate(result.verdict.notes, start=1)},
    }
    contents = Contents.under(_headline(result), "From the log to a verdict", [section], settings)
    write_report(contents, path)
    return contents


def _headline(result: GoResult) -> Headline:
    """The gate's answer, and how much of the critic's opinion is in the policy that was judged."""
    headline = gate_headline(result.verdict)
    improvement = result.chosen.manifest.get("improvement")
    if improvement is None:
        return headline
    trust = float(improvement["slope"])
    meaning = (
        "How much of what the critic says holds on data it has not seen: 1 is all of it. At 0 the log does not tell "
        "good items from bad, and the policy only imitates the log."
    )
    return replace(headline, numbers=[*headline.numbers, KeyNumber(f"{trust:.2f}", "trust in the critic", meaning)])


def _by_reward(section: Section, comparison: Comparison) -> Section:
    """The same with the estimated reward as the figure that is drawn: where the log is judged by what it earned."""
    estimates = {
        policy.name: policy.off_policy.estimates["DR"]
        for policy in comparison.evaluations
        if policy.off_policy is not None and policy.off_policy.refusal is None
    }
    if len(estimates) < len(section.rows):
        return section  # a picture without some of the policies would mislead
    rewards = {name: Interval.of(each.value, each.se) for name, each in estimates.items()}
    rows = [replace(row, metrics={REWARD: rewards[row.name], **row.metrics}) for row in section.rows]
    return replace(section, rows=rows, main_metric=REWARD)
