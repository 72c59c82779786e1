"""`demo`: every scenario played, and what its figures say in sentences that are true or marked as not holding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from localpolicy.report.comparison import comparison_section
from localpolicy.report.contents import CheckedClaim, Contents, KeyNumber, PolicyRow, Section
from localpolicy.report.html.page import write_report
from localpolicy.report.table import joined
from localpolicy.runtime.files import write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.study.demo import SCENARIOS, ScenarioResult, run_scenario


def findings(rows: Sequence[PolicyRow]) -> list[CheckedClaim]:
    """The paper's claims, and whether they hold here."""
    improved = [row for row in rows if row.objective.startswith("lpi")]
    return [_beats_logging(improved), _beta_moves(improved), _moves_furthest(rows), _earns_most(rows)]


def _beats_logging(improved: Sequence[PolicyRow]) -> CheckedClaim:
    """At some β of the grid, with its whole interval above zero; all are shown."""
    gains = [(row.name, row.gain) for row in improved if row.gain is not None]
    text = ", ".join(f"{name}: {gain.mean:+.4f}" for name, gain in gains)
    return CheckedClaim(
        "LPI beats the logging policy in true reward (at some β)", any(gain.low > 0 for _, gain in gains), text
    )


def _beta_moves(improved: Sequence[PolicyRow]) -> CheckedClaim:
    ordered = sorted((row for row in improved if row.js is not None), key=lambda row: -(row.beta or 0.0))
    means = [row.js.mean for row in ordered if row.js is not None]
    text = ", ".join(f"β={row.beta:.3g}: JS {mean:.3f}" for row, mean in zip(ordered, means, strict=True))
    rises = all(first < second for first, second in pairwise(means))
    return CheckedClaim("a smaller β moves the policy further from the log", rises, text)


def _moves_furthest(rows: Sequence[PolicyRow]) -> CheckedClaim:
    ordered = sorted((row for row in rows if row.js is not None), key=lambda row: -row.js.mean if row.js else 0.0)
    text = ", ".join(f"{row.name}: JS {row.js.mean:.3f}" for row in ordered[:3] if row.js)
    return CheckedClaim("IPS, even clipped, moves furthest", ordered[0].objective.startswith("ips"), text)


def _earns_most(rows: Sequence[PolicyRow]) -> CheckedClaim:
    ordered = sorted(
        (row for row in rows if row.truth is not None), key=lambda row: -row.truth.mean if row.truth else 0.0
    )
    text = ", ".join(f"{row.name}: J {row.truth.mean:.4f}" for row in ordered[:3] if row.truth)
    return CheckedClaim("the policy that earns most is an LPI policy", ordered[0].objective.startswith("lpi"), text)


def verdict(sections: Sequence[Section]) -> str:
    """What LPI earns in each world, in one sentence."""
    parts = [f"{_share(_best_lpi(section), section):+.0%} in the {_world(section)}" for section in sections]
    return (
        f"Local policy improvement earns more than the policy that wrote the log: {joined(parts)}."
        if all(_share(_best_lpi(section), section) > 0 for section in sections)
        else f"Local policy improvement does not always earn more than the policy that wrote the log: {joined(parts)}."
    )


def numbers(sections: Sequence[Section]) -> list[KeyNumber]:
    """The best LPI policy of each world, and what earned more where something did."""
    key_numbers = []
    for section in sections:
        best = _best_lpi(section)
        top = max(section.rows, key=lambda row: row.gain.mean if row.gain else 0.0)
        assert best.js is not None and top.js is not None
        meaning = f"At JS {best.js.mean:.2f} from the log (0: the same, 0.69: nothing in common)."
        if top is not best:
            meaning += f" {top.name} earns {_share(top, section):+.0%}, but moves to JS {top.js.mean:.2f}."
        name = f"true reward of {best.name} over the log's policy, {_world(section)}"
        key_numbers.append(KeyNumber(f"{_share(best, section):+.0%}", name, meaning))
    return key_numbers


def _best_lpi(section: Section) -> PolicyRow:
    lpi = [row for row in section.rows if row.objective.startswith("lpi") and row.gain is not None]
    return max(lpi, key=lambda row: row.gain.mean if row.gain else 0.0)


def _share(row: PolicyRow, section: Section) -> float:
    assert row.gain is not None and section.logging_value is not None
    return row.gain.mean / section.logging_value.mean


def _world(section: Section) -> str:
    return "bandit" if "bandit" in section.title else "store"


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
