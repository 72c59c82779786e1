"""`demo`: every scenario played, and what its figures say in sentences that are true or marked as not holding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from localpolicy.report.comparison import comparison_section
from localpolicy.report.comparison_tables import side_by_side
from localpolicy.report.comparison_words import LARGEST
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import NOTHING, Cell, Table, joined, with_interval
from localpolicy.runtime.files import write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.study.demo import SCENARIOS, ScenarioResult, run_scenario


def claims(section: Section) -> list[Claim]:
    """The paper's claims, and whether they hold here."""
    improved = [policy for policy in section.policies if policy.objective.startswith("lpi")]
    return [
        _beats_logging(section, improved), _beta_moves(section, improved),
        _largest(section, "JS", "ips", "IPS, even clipped, moves furthest", "JS {:.3f}"),
        _largest(section, "true J", "lpi", "the policy that earns most is an LPI policy", "J {:.4f}"),
    ]  # fmt: skip


def _beats_logging(section: Section, improved: Sequence[PolicyInfo]) -> Claim:
    """At some β of the grid; all are shown."""
    gains = {policy.name: gain for policy in improved if (gain := section.figure(policy.name, "true gain"))}
    text = ", ".join(f"{name}: {gain.mean:+.4f}" for name, gain in gains.items())
    holds = any(gain.low > 0 for gain in gains.values())
    claim = "LPI beats the logging policy in true reward (at some β)"
    return Claim("true gain", "the whole 95 % interval is above 0", holds, claim, text)


def _beta_moves(section: Section, improved: Sequence[PolicyInfo]) -> Claim:
    ordered = sorted(improved, key=lambda policy: -(policy.beta or 0.0))
    known = [(policy, mean) for policy in ordered if (mean := section.mean(policy.name, "JS")) is not None]
    text = ", ".join(f"β={policy.beta:.3g}: JS {mean:.3f}" for policy, mean in known)
    rises = all(first < second for (_, first), (_, second) in pairwise(known))
    return Claim("JS", "it rises as β falls", rises, "a smaller β moves the policy further from the log", text)


def _largest(section: Section, figure: str, objective: str, claim: str, shown: str) -> Claim:
    """Whether an objective that begins so has the largest figure; the three largest are shown."""
    known = [(policy, mean) for policy in section.policies if (mean := section.mean(policy.name, figure)) is not None]
    ordered = sorted(known, key=lambda pair: -pair[1])
    text = ", ".join(f"{policy.name}: {shown.format(mean)}" for policy, mean in ordered[:3])
    return Claim(figure, LARGEST, ordered[0][0].objective.startswith(objective), claim, text)


def verdict(sections: Sequence[Section]) -> str:
    """What LPI earns in each world, in one sentence."""
    shares = {_world(section): _share(section, _best(section, "lpi")) for section in sections}
    parts = joined(f"{share:+.0%} in the {world}" for world, share in shares.items())
    more = "earns more" if all(share > 0 for share in shares.values()) else "does not always earn more"
    return f"Local policy improvement {more} than the policy that wrote the log: {parts}."


def numbers(sections: Sequence[Section]) -> list[KeyNumber]:
    """The best LPI policy of each world, and what earned more where something did."""
    key_numbers = []
    for section in sections:
        best, top = _best(section, "lpi"), _best(section)
        meaning = f"At JS {section.mean(best, 'JS'):.2f} from the log (0: the same, 0.69: nothing in common)."
        if top != best:
            meaning += f" {top} earns {_share(section, top):+.0%}, but moves to JS {section.mean(top, 'JS'):.2f}."
        name = f"true reward of {best} over the log's policy, {_world(section)}"
        key_numbers.append(KeyNumber(f"{_share(section, best):+.0%}", name, meaning))
    return key_numbers


def _best(section: Section, objective: str = "") -> str:
    """The policy that earns most, among those whose objective begins so."""
    among = [policy.name for policy in section.policies if policy.objective.startswith(objective)]
    return max(among, key=lambda name: section.mean(name, "true gain") or 0.0)


def _share(section: Section, policy: str) -> float:
    gain = section.mean(policy, "true gain")
    assert gain is not None and section.logging_value is not None
    return gain / section.logging_value.mean


def _world(section: Section) -> str:
    return "bandit" if "bandit" in section.title else "store"


def demo_table(section: Section) -> Table:
    """What each policy earns and how far it moved, for a terminal."""
    weights = {policy.name: policy.weights for policy in section.policies}

    def cell(policy: str, figure: str) -> Cell:
        if figure == "effective_share":
            return Cell(f"{weights[policy][figure]:.0%}" if figure in weights[policy] else NOTHING)
        interval, gain = section.figure(policy, figure), figure == "true gain"
        text = with_interval(interval, 4 if figure.startswith("true") else 3, sign="+" if gain else "")
        return Cell(text + ("*" if interval is not None and interval.sign else " ") if gain else text)

    assert section.floor is not None and section.logging_value is not None
    note = (
        f"J(μ) of the logging policy itself: {section.logging_value.mean:.4f}. JS is from {section.reference}; "
        f"two such estimates differ by {with_interval(section.floor, 3)} (the noise floor)."
    )
    metrics = {name: said for name, said in section.columns.items() if "nDCG" in name}
    columns = {"true J": "true reward J", "true gain": "gain over μ", **metrics}
    columns |= {"JS": "JS from μ̂", "effective_share": "effective sample"}
    return side_by_side(section.title, {name: Cell(name) for name in weights}, columns, cell, note)


NEXT = "Do the same with your own log: docs/tutorial.md begins with a CSV file and ends with a page like this one."


def demo(*, out: Path | str, seed: int = 0, force: bool = False, episodes: int = 4_000) -> Contents:
    """Run every scenario into the folder `out`; `report.html` and `demo.json` lie in it when it is done."""
    with whole_folder(Path(out), force=force) as folder:
        played = [
            run_scenario(scenario, folder / world, seed=seed, episodes=episodes)
            for world, scenario in SCENARIOS.items()
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
        claims=claims(section),
    )
