"""`demo`: every scenario played, and what its figures say in sentences that are true or marked as not holding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from localpolicy.judge.comparison import TRUE_GAIN
from localpolicy.judge.findings import LARGEST
from localpolicy.measure.divergence import MOST_JS
from localpolicy.measure.number_text import NOTHING, corrected, interval_text, joined
from localpolicy.objectives import find
from localpolicy.report.comparison import comparison_section
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import Cell, Table
from localpolicy.report.tables import side_by_side
from localpolicy.runtime.files import write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.study.demo import SCENARIOS, run_scenario

NEXT = "Do the same with your own log: docs/tutorial.md begins with a CSV file and ends with a page like this one."


def _improved(policy: PolicyInfo) -> bool:
    """Whether its objective has a β: π ∝ μ̂ exp(A/β), which is LPI."""
    return policy.beta is not None


def _by_ratio(policy: PolicyInfo) -> bool:
    """Whether its objective weighs by π/μ̂, as IPS."""
    objective = find(policy.objective)
    return objective is not None and objective.weighs_by_ratio


def claims(section: Section) -> list[Claim]:
    """The paper's claims, and whether they hold here."""
    improved = [policy for policy in section.policies if _improved(policy)]
    gains = {policy.name: gain for policy in improved if (gain := section.figure(policy.name, TRUE_GAIN))}
    ordered = sorted(improved, key=lambda policy: -(policy.beta or 0.0))
    moved = [(policy, mean) for policy in ordered if (mean := section.mean(policy.name, "JS")) is not None]
    return [
        Claim(
            TRUE_GAIN, f"one 95 % interval is above 0{corrected(section.corrected.get(TRUE_GAIN, 1))} (Holm)",
            any(gain.sign > 0 for gain in gains.values()), "LPI beats the logging policy in true reward (at some β)",
            ", ".join(f"{name}: {interval_text(gain, 4, signed=True)}" for name, gain in gains.items()),
        ),
        Claim(
            "JS", "it rises as β falls", all(first < second for (_, first), (_, second) in pairwise(moved)),
            "a smaller β moves the policy further from the log",
            ", ".join(f"β={policy.beta:.3g}: JS {mean:.3f}" for policy, mean in moved),
        ),
        _largest(section, "JS", _by_ratio, "IPS, even clipped, moves furthest", "JS {:.3f}"),
        _largest(section, "true J", _improved, "the policy that earns most is an LPI policy", "J {:.4f}"),
    ]  # fmt: skip


def _largest(section: Section, figure: str, meant: Callable[[PolicyInfo], bool], claim: str, shown: str) -> Claim:
    """Whether a policy that is meant has the largest figure; the three largest are shown."""
    ordered = _ranked(section, figure)
    text = ", ".join(f"{policy.name}: {shown.format(mean)}" for policy, mean in ordered[:3])
    return Claim(figure, LARGEST, meant(ordered[0][0]), claim, text)


def _ranked(section: Section, figure: str) -> list[tuple[PolicyInfo, float]]:
    """Policies and their figure, the largest first."""
    known = [(policy, mean) for policy in section.policies if (mean := section.mean(policy.name, figure)) is not None]
    return sorted(known, key=lambda pair: -pair[1])


def headline(sections: Mapping[str, Section]) -> tuple[str, list[KeyNumber]]:
    """What the best LPI policy of each world earns over the log's, and what earned more where something did."""
    shares, signs, numbers = {}, [], []
    for world, section in sections.items():
        order = [policy for policy, _ in _ranked(section, TRUE_GAIN)]
        top, best = order[0], next(filter(_improved, order))
        gain = section.figure(best.name, TRUE_GAIN)
        signs.append(0 if gain is None else gain.sign)
        shares[world] = section.true_share(best.name) or 0.0
        js = section.mean(best.name, "JS")
        meaning = f"At JS {js:.2f} from the log (0: the same, {MOST_JS:.2f}: nothing in common)."
        if top != best:
            js = section.mean(top.name, "JS")
            meaning += f" {top.name} earns {section.true_share(top.name):+.0%}, but moves to JS {js:.2f}."
        name = f"true reward of {best.name} over the log's policy, {world}"
        numbers.append(KeyNumber(f"{shares[world]:+.0%}", name, meaning))
    parts = joined(f"{share:+.0%} in the {world}" for world, share in shares.items())
    more = "earns significantly more" if min(signs) > 0 else "does not always earn significantly more"
    return f"Local policy improvement {more} than the policy that wrote the log: {parts}.", numbers


def demo_table(section: Section) -> Table:
    """What each policy earns and how far it moved, for a terminal."""
    weights = {policy.name: policy.weights for policy in section.policies}

    def cell(policy: str, figure: str) -> Cell:
        if figure == "effective_share":
            return Cell(f"{weights[policy][figure]:.0%}" if figure in weights[policy] else NOTHING)
        interval, gain = section.figure(policy, figure), figure == TRUE_GAIN
        text = interval_text(interval, 4 if figure.startswith("true") else 3, signed=gain)
        return Cell(text + ("*" if interval is not None and interval.sign else " ") if gain else text)

    assert section.floor is not None and section.logging_value is not None
    note = (
        f"J(μ) of the logging policy itself: {section.logging_value.mean:.4f}. JS is from {section.reference}; "
        f"two such estimates differ by {interval_text(section.floor, 3)} (the noise floor). Intervals: 95 %; of "
        f"gains 95 %{corrected(section.corrected[TRUE_GAIN])} (Holm). *: 0 is outside."
    )
    metrics = {name: said for name, said in section.columns.items() if "nDCG" in name}
    columns = {"true J": "true reward J per decision", TRUE_GAIN: "gain over μ", **metrics}
    columns |= {"JS": "JS from μ̂", "effective_share": "effective sample"}
    names, missing = {name: Cell(name) for name in weights}, "a closed form has no weights"
    return side_by_side(section.title, names, columns, cell, note, missing=missing)


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
