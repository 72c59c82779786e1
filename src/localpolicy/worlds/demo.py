"""`demo`: simulate -> prepare -> train every objective -> evaluate -> report, in minutes on two cores.

The same policies are trained whatever comes out: findings are computed from the figures, in sentences that are true or
marked as not holding, and say where the paper's ordering does not hold.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from localpolicy.data.prepare import prepare
from localpolicy.judge.claims import Claim
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import TRUE_GAIN, Comparison
from localpolicy.judge.findings import LARGEST
from localpolicy.measure.divergence import MOST_JS
from localpolicy.measure.number_text import corrected, interval_text, joined
from localpolicy.objectives import find
from localpolicy.report.comparison import comparison_section
from localpolicy.report.contents import Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import Cell, Table
from localpolicy.report.tables import side_by_side
from localpolicy.runs.run import Run
from localpolicy.runtime.files import write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.simulation import simulate
from localpolicy.training.jobs import Job, train_all
from localpolicy.worlds.scenarios import REFERENCE, SCENARIOS, Scenario

MARKS = {True: "yes", False: "NO ", None: "?  "}
QUICK = 10  # times fewer sequences, and visits to measure by
NEXT = "Do the same with your own log: docs/tutorial.md begins with a CSV file and ends with a page like this one."
DIAL = (2.0, 1.0, 0.5)
LOG = logging.getLogger(__name__)
PAID = ("click", "purchase")  # events whose ranking is shown


def run_scenario(scenario: Scenario, folder: Path, *, seed: int, episodes: int) -> Comparison:
    """Simulate, prepare, train and compare one scenario in `folder`, with display names of the runs."""
    LOG.info("%s: simulating %s sequences", scenario.world, f"{scenario.sequences:,}")
    simulate(scenario.world, folder / "log", sequences=scenario.sequences, items=scenario.items, seed=seed)
    data = prepare("events", [folder / "log" / "events.parquet"], out=folder / "data", seed=seed)
    jobs = []
    for arm in scenario.arms:
        config = scenario.training(arm.objective, seed=10 * seed + arm.seed)
        jobs.append(Job(arm.name, data.path, folder / "runs" / arm.folder, config))
    runs = train_all(jobs, label=f"{scenario.world}: ")
    LOG.info("%s: measuring %d policies", scenario.world, len(scenario.arms))
    measured = [arm for arm in scenario.arms if arm.name != REFERENCE]
    dials = {arm.name: _dial(runs[arm.name]) for arm in measured}
    comparison = compare(
        [runs[arm.name] for arm in measured],
        dials=[(runs[name], beta) for name, betas in dials.items() for beta in betas],
        against=[runs[REFERENCE]],
        world=folder / "log",
        columns=[f"{event}.nDCG@20" for event in PAID if event in data.events],
        baselines=False,
        episodes=episodes,
        device="cpu",
    )
    names = {}
    for arm in scenario.arms:
        betas = dials.get(arm.name, ())
        names[arm.folder] = f"{arm.name} (β chosen)" if betas else arm.name
        names |= {f"{arm.folder} β={beta:g}": f"{arm.name} β={beta:g}" for beta in betas}
    return comparison.renamed(names)


def _dial(run: Run) -> tuple[float, ...]:
    """β values to show in addition: multiples of the advantage's spread; none without a trusted critic."""
    improvement = run.manifest.get("improvement")
    if improvement is None or not improvement["slope"]:
        return ()
    return tuple(float(f"{multiple * improvement['calibration']['spread']:.2g}") for multiple in DIAL)


# ---------------------------------------------------------------------- what was found


def _improved(policy: PolicyInfo) -> bool:
    """Whether a policy's objective has a β, so that π ∝ μ̂ exp(A/β): LPI."""
    return policy.beta is not None


def _by_ratio(policy: PolicyInfo) -> bool:
    """Whether a policy's objective weights the log by π/μ̂, as IPS does."""
    objective = find(policy.objective)
    return objective is not None and objective.weighs_by_ratio


def claims(section: Section) -> list[Claim]:
    """Claims of the paper and of ours about one demo world, each with its outcome."""
    improved = [policy for policy in section.policies if _improved(policy)]
    gains = {policy.name: gain for policy in improved if (gain := section.figure(policy.name, TRUE_GAIN))}
    ordered = sorted(improved, key=lambda policy: -(policy.beta or 0.0))
    moved = [(policy, mean) for policy in ordered if (mean := section.mean(policy.name, "JS")) is not None]
    earned = _ranked(section, "true J")
    return [
        _claim(
            TRUE_GAIN, f"one 95 % interval is above 0{corrected(section.corrected.get(TRUE_GAIN, 1))} (Holm)",
            any(gain.sign > 0 for gain in gains.values()), "the paper's claim: LPI beats the logging policy, at some β",
            ", ".join(f"{name} {interval_text(gain, 4, signed=True)}" for name, gain in gains.items()),
            "The critic has learnt nothing that pays here: stay at μ̂",
        ),
        _claim(
            "JS", "it rises as β falls", all(first < second for (_, first), (_, second) in pairwise(moved)),
            "the paper's claim: a smaller β moves further from the log",
            ", ".join(f"β={policy.beta:.3g}: JS {mean:.3f}" for policy, mean in moved),
            "So β is no dial here: choose it by a sweep over JS",
        ),
        _at_equal_distance(section),
        _claim(
            "true J", LARGEST, _improved(earned[0][0]), "our claim: the policy that earns most is an LPI policy",
            ", ".join(f"{policy.name}: J {mean:.4f}" for policy, mean in earned[:3]),
            "Another objective earns more here; see how far it moves for that",
        ),
    ]  # fmt: skip


def _claim(figure: str, rule: str, holds: bool, claim: str, because: str, otherwise: str) -> Claim:
    return Claim(figure, rule, holds, claim, because if holds else f"{because}. {otherwise}")


def _at_equal_distance(section: Section) -> Claim:
    """Claim that an LPI policy that is no further from the log than IPS earns significantly more."""
    claim, rule = (
        "our claim: at IPS's distance LPI earns more",
        "JS is no larger, and the gain's interval is above IPS's",
    )
    ratio = next((policy for policy, _ in _ranked(section, TRUE_GAIN) if _by_ratio(policy)), None)
    js, gain = (
        (None, None) if ratio is None else (section.mean(ratio.name, "JS"), section.figure(ratio.name, TRUE_GAIN))
    )
    if ratio is None or js is None or gain is None:
        return Claim(TRUE_GAIN, rule, None, claim, "no policy here weighs by π/μ̂")
    within = [
        policy for policy, _ in _ranked(section, TRUE_GAIN)
        if _improved(policy) and (section.mean(policy.name, "JS") or 0.0) <= js
    ]  # fmt: skip
    best = within[0] if within else None
    shown = f"{ratio.name}: {interval_text(gain, 4, signed=True)} at JS {js:.3f}"
    if best is None:
        return _claim(TRUE_GAIN, rule, False, claim, shown, "Every LPI policy moves further: add a larger β")
    mine = section.figure(best.name, TRUE_GAIN)
    assert mine is not None
    shown = f"{best.name}: {interval_text(mine, 4, signed=True)} at JS {section.mean(best.name, 'JS'):.3f}; {shown}"
    return _claim(TRUE_GAIN, rule, mine.low > gain.high, claim, shown, "IPS is as good a choice at its distance here")


def _ranked(section: Section, figure: str) -> list[tuple[PolicyInfo, float]]:
    """Policies with their mean of a metric, the largest first."""
    known = [(policy, mean) for policy in section.policies if (mean := section.mean(policy.name, figure)) is not None]
    return sorted(known, key=lambda pair: -pair[1])


def headline(sections: Mapping[str, Section]) -> tuple[str, list[KeyNumber]]:
    """Sentence and key numbers on the best LPI policy's gain over the log's policy in each world."""
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
    """Table of each policy's reward and divergence for a terminal of 80 columns."""

    def cell(policy: str, figure: str) -> Cell:
        interval, gain = section.figure(policy, figure), figure == TRUE_GAIN
        text = interval_text(interval, 4 if figure.startswith("true") else 3, signed=gain)
        return Cell(text + ("*" if interval is not None and interval.sign else " ") if gain else text)

    assert section.floor is not None and section.logging_value is not None
    note = (
        f"J(μ) of the logging policy itself: {section.logging_value.mean:.4f}. JS is from {section.reference}; "
        f"two such estimates differ by {interval_text(section.floor, 3)} (the noise floor). Intervals: 95 %; of "
        f"gains 95 %{corrected(section.corrected[TRUE_GAIN])} (Holm). *: 0 is outside. More columns: report.html."
    )
    columns = {"true J": "true reward J", TRUE_GAIN: "gain over μ", "JS": "JS from μ̂"}
    return side_by_side(
        section.title, {policy.name: Cell(policy.name) for policy in section.policies}, columns, cell, note
    )


def claim_lines(section: Section) -> list[str]:
    """Text lines of the claims for a terminal of 80 columns."""
    lines = []
    for claim in section.claims:
        lines.append(f"  {MARKS[claim.holds]}  {claim.claim}")
        lines += wrap(claim.because, 78, initial_indent=" " * 7, subsequent_indent=" " * 7)
    return lines


def demo(
    *, out: Path | str, seed: int = 0, quick: bool = False, force: bool = False, episodes: int = 4_000
) -> Contents:
    """Run every scenario and write `report.html` and `demo.json` into the folder `out`.

    `quick` takes a tenth of the log and of the visits that measure: to see that all works, in a minute or two.
    """
    sections = {}
    episodes = episodes // QUICK if quick else episodes
    with whole_folder(Path(out), force=force) as folder:
        for world, scenario in SCENARIOS.items():
            played = replace(scenario, sequences=scenario.sequences // QUICK) if quick else scenario
            comparison = run_scenario(played, folder / world, seed=seed, episodes=episodes)
            section = comparison_section(comparison, base=folder)
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
