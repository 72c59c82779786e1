"""`demo`: every scenario played, and what its figures say in sentences that are true or marked as not holding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from localpolicy.measure.divergence import MOST_JS
from localpolicy.report.comparison import comparison_section
from localpolicy.report.comparison_tables import side_by_side
from localpolicy.report.comparison_words import LARGEST
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import NOTHING, Cell, Table, joined, with_interval
from localpolicy.runtime.files import write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.study.demo import SCENARIOS, run_scenario

GAIN = "true gain"
NEXT = "Do the same with your own log: docs/tutorial.md begins with a CSV file and ends with a page like this one."


def claims(section: Section) -> list[Claim]:
    """The paper's claims, and whether they hold here."""
    improved = [policy for policy in section.policies if policy.objective.startswith("lpi")]
    gains = {policy.name: gain for policy in improved if (gain := section.figure(policy.name, "true gain"))}
    ordered = sorted(improved, key=lambda policy: -(policy.beta or 0.0))
    moved = [(policy, mean) for policy in ordered if (mean := section.mean(policy.name, "JS")) is not None]
    return [
        Claim(
            "true gain", "the whole 95 % interval is above 0", any(gain.low > 0 for gain in gains.values()),
            "LPI beats the logging policy in true reward (at some β)",
            ", ".join(f"{name}: {gain.mean:+.4f}" for name, gain in gains.items()),
        ),
        Claim(
            "JS", "it rises as β falls", all(first < second for (_, first), (_, second) in pairwise(moved)),
            "a smaller β moves the policy further from the log",
            ", ".join(f"β={policy.beta:.3g}: JS {mean:.3f}" for policy, mean in moved),
        ),
        _largest(section, "JS", "ips", "IPS, even clipped, moves furthest", "JS {:.3f}"),
        _largest(section, "true J", "lpi", "the policy that earns most is an LPI policy", "J {:.4f}"),
    ]  # fmt: skip


def _largest(section: Section, figure: str, objective: str, claim: str, shown: str) -> Claim:
    """Whether an objective that begins so has the largest figure; the three largest are shown."""
    ordered = _ranked(section, figure)
    text = ", ".join(f"{policy.name}: {shown.format(mean)}" for policy, mean in ordered[:3])
    return Claim(figure, LARGEST, ordered[0][0].objective.startswith(objective), claim, text)


def _ranked(section: Section, figure: str, objective: str = "") -> list[tuple[PolicyInfo, float]]:
    """Policies whose objective begins so and their figure, the largest first."""
    among = [policy for policy in section.policies if policy.objective.startswith(objective)]
    known = [(policy, mean) for policy in among if (mean := section.mean(policy.name, figure)) is not None]
    return sorted(known, key=lambda pair: -pair[1])


def headline(sections: Mapping[str, Section]) -> tuple[str, list[KeyNumber]]:
    """What the best LPI policy of each world earns over the log's, and what earned more where something did."""
    shares, numbers = {}, []
    for world, section in sections.items():
        (top, _), (best, _) = _ranked(section, GAIN)[0], _ranked(section, GAIN, "lpi")[0]
        shares[world] = section.true_share(best.name) or 0.0
        js = section.mean(best.name, "JS")
        meaning = f"At JS {js:.2f} from the log (0: the same, {MOST_JS:.2f}: nothing in common)."
        if top != best:
            js = section.mean(top.name, "JS")
            meaning += f" {top.name} earns {section.true_share(top.name):+.0%}, but moves to JS {js:.2f}."
        name = f"true reward of {best.name} over the log's policy, {world}"
        numbers.append(KeyNumber(f"{shares[world]:+.0%}", name, meaning))
    parts = joined(f"{share:+.0%} in the {world}" for world, share in shares.items())
    more = "earns more" if all(share > 0 for share in shares.values()) else "does not always earn more"
    return f"Local policy improvement {more} than the policy that wrote the log: {parts}.", numbers


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


def demo(*, out: Path | str, seed: int = 0, force: bool = False, episodes: int = 4_000) -> Contents:
    """Run every scenario into the folder `out`; `report.html` and `demo.json` lie in it when it is done."""
    sections = {}
    with whole_folder(Path(out), force=force) as folder:
        for world, scenario in SCENARIOS.items():
            comparison, names = run_scenario(scenario, folder / world, seed=seed, episodes=episodes)
            section = comparison_section(comparison, names=names, base=folder)
            sections[world] = replace(
                section, title=scenario.title, about=scenario.about, reference="an mle run of another seed",
                claims=claims(section),
            )  # fmt: skip
        verdict, numbers = headline(sections)
        settings = {"seed": str(seed), "rollouts per policy": f"{episodes:,} visits of 20 impressions"}
        contents = Contents("localpolicy demo", verdict, [*sections.values()], settings, numbers, NEXT)
        write_report(contents, folder / "report.html")
        write_json(folder / "demo.json", contents.to_dict())
    return contents
