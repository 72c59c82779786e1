"""`demo`: every scene played, and the page that shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy.experiments.demo import Played, play
from localpolicy.experiments.scenes import SCENES
from localpolicy.report.comparison.section import comparison_section
from localpolicy.report.contents import Contents, Section
from localpolicy.report.demo.findings import findings, verdict
from localpolicy.report.html.page import write_report
from localpolicy.runtime.files import whole_folder, write_json


def demo(*, out: Path | str, seed: int = 0, force: bool = False, episodes: int = 4_000) -> Contents:
    """Run every scene into the folder `out`; `report.html` and `demo.json` lie in it when it is done."""
    with whole_folder(Path(out), force=force) as folder:
        played = [play(scene, folder / scene.world, seed=seed, episodes=episodes) for scene in SCENES]
        sections = [_section(one) for one in played]
        contents = Contents(
            title="localpolicy demo",
            verdict=verdict(sections),
            sections=sections,
            settings={"seed": str(seed), "rollouts per policy": f"{episodes:,} visits of 20 impressions"},
        )
        write_report(contents, folder / "report.html")
        write_json(folder / "demo.json", contents.to_dict())
    return contents


def _section(played: Played) -> Section:
    section = comparison_section(played.comparison, names=played.names, base=played.folder.parent)
    return replace(
        section,
        title=played.scene.title,
        about=played.scene.about,
        reference="an mle run of another seed",
        findings=findings(section.rows),
    )
