"""The page of `lpi go`: the gate's answer first, then every check, then the whole comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy import __version__
from localpolicy.evaluation.gate import Verdict
from localpolicy.experiments.go import Went
from localpolicy.report.comparison.section import comparison_section
from localpolicy.report.contents import Contents, Finding, KeyNumber
from localpolicy.report.html.page import write_report

NEXT = {
    "deploy": "Show it to a small share of the visitors, and count.",
    "do not deploy": "Keep what is deployed. The checks below say what fell short.",
    "cannot tell": "Collect more of the log, or test online. The checks below say how much would tell.",
}
CLAIMS = {  # what a check asks, as one says it
    "gain": "It ranks what people wanted higher than what is deployed does",
    "other events": "No other event loses",
    "value": "It is worth no less to the visitors, by the log's propensities",
    "segments": "No group of visitors or items loses",
    "coverage": "It still shows a fair share of the catalogue",
    "baselines": "It is better than every simple baseline",
    "divergence": "It stays within the divergence budget",
    "divergence over floor": "It stays near the noise between two estimates of the log",
    "ruler": "The estimates of the log learned something, so that distance from them means something",
}


def write_go(went: Went, path: Path) -> Contents:
    """One HTML file."""
    verdict = went.verdict
    section = comparison_section(went.comparison, base=path.parent)
    checks = [
        Finding(CLAIMS[check.name], check.passed, check.reason)
        for check in verdict.checks
        if check.outcome != "not asked"
    ]
    section = replace(section, findings=[*checks, *section.findings])
    settings = {
        "localpolicy": __version__,
        "judged": str(went.chosen.folder),
        **({"the improvement says": went.said} if went.said else {}),
        "against": verdict.against,
        "the figure that decides": verdict.metric,
        **{f"note {number}": note for number, note in enumerate(verdict.notes, start=1)},
    }
    said = f" {went.said}" if went.said and not verdict.deploy else ""
    contents = Contents(
        "From the log to a verdict", verdict.sentence + said, [section], settings, key_numbers(verdict),
        NEXT[verdict.answer],
    )  # fmt: skip
    write_report(contents, path)
    return contents


def key_numbers(verdict: Verdict) -> list[KeyNumber]:
    """The gain, the best simple baseline, and the distance."""
    named = {check.name: check for check in verdict.checks}
    titles = {
        "gain": f"gain in {verdict.metric}",
        "value": "gain in estimated value",
        "baselines": "lead over the best simple baseline",
    }
    numbers = [
        KeyNumber(f"{check.value:+.4f}", title, f"95 % sure to lie between {check.low:+.4f} and {check.high:+.4f}.")
        for name, title in titles.items()
        if (check := named.get(name)) is not None and check.value is not None
    ]
    divergence = verdict.evaluation.divergence
    if divergence is not None:
        noise = divergence.floor_js
        meaning = "0 is the log itself, 0.693 has nothing in common with it."
        meaning += "" if noise is None else f" Two estimates of the log differ by {noise.overall.mean:.3f}."
        numbers.append(KeyNumber(f"{divergence.js.overall.mean:.3f}", "distance from the log (JS)", meaning))
    return numbers[:3]
