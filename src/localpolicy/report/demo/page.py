"""`demo`: every scenario played, and the page that shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy.report.comparison.section import comparison_section
from localpolicy.report.contents import Contents, Section
from localpolicy.report.demo.findings import findings, numbers, verdict
from localpolicy.report.html.page import write_report
from localpolicy.runtime.files import write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.study.demo import ScenarioResult, run_scenario
from localpolicy.study.scenarios import SCENARIOS

NEXT = "Do the same with your own log: docs/tutorial.md begins with a CSV file and ends with a page like this one."


def demo(*, out: Path | str, seed: int = 0, force: bool = False, episodes: int = 4_000) -> Contents:
    """Run every scenario into the folder `out`; `report.html` and `demo.json` lie in it when it is done."""
    with whole_folder(Path(out), force=force) as folder:
        played = [
            run_scenario(scenario, folder / scenario.world, seed=seed, episodes=episodes) for scenario in SCENARIOS
        ]
        sections = [_section(result) for result in played]
        contents = Contents(
            title="localpolicy demo",
            verdict=verdict(sections),
            sections=sections,
            settings={"seed": str(seed), "rollouts per policy": f"{episodes:,} visits of 20 impressions"},
            numbers=numbers(sections),
            next_step=NEXT,
        )
        write_report(contents, folder / "report.html")
        write_json(folder / "demo.json", contents.to_dict())
    return contents


def _section(played: ScenarioResult) -> Section:
    section = comparison_section(played.comparison, names=played.names, base=played.folder.parent)
    return replace(
        section,
        title=played.scenario.title,
        about=played.scenario.about,
        reference="an mle run of another seed",
        findings=findings(section.rows),
    )
