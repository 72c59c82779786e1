"""A loop as tables, a page and files: the policies of the last round side by side, and how they got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localpolicy import __version__
from localpolicy.measure.estimate import Measurement, as_json
from localpolicy.report.contents import Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.loop_words import (
    WEIGHED,
    change,
    last_round,
    loop_claims,
    loop_verdict,
    summary,
    trajectories,
)
from localpolicy.report.numbers import NOTHING, with_interval
from localpolicy.report.page import write_report
from localpolicy.report.table import Cell, Table, cells
from localpolicy.runtime.files import write_json, write_text
from localpolicy.simulation import BanditWorld
from localpolicy.study.demo import SCENARIOS, PolicySpec
from localpolicy.study.rounds import SHARES, Figures, Loop

KEY_NUMBERS = 3  # policies on the first screen
CHARTED = ("J(π)", "JS from the round before", "JS from the first μ", "entropy", "coverage", "effective share")
PICTURED = CHARTED[:3]
ENDS = {  # what the long table calls a figure of the last round
    "true J": "J(π)", "true gain": "gain", "JS": "JS from the first μ", "KL": "KL from the first μ",
    "coverage@1": "coverage", "entropy": "entropy",
}  # fmt: skip


def write_loop(loop: Loop, out: Path | str, *, json: Path | None = None) -> Contents:
    """loop.json, loop.md, report.html and loop.svg into the folder `out`."""
    out, contents = Path(out), loop_contents(loop)
    for path in (out / "loop.json", *([json] if json is not None else [])):
        write_json(path, loop_json(loop))
    write_text(out / "loop.md", loop_markdown(loop))
    write_report(contents, out / "report.html")
    from localpolicy.report.lines import rounds_picture  # after the page: it says what to install

    write_text(out / "loop.svg", rounds_picture(contents, PICTURED))
    return contents


def loop_contents(loop: Loop) -> Contents:
    """The report: the policies of the last round side by side, and how they got there."""
    by_arm = trajectories(loop)
    ends = {name: rounds[-1] for name, (rounds, _) in by_arm.items()}
    first, last = next(iter(by_arm.values()))[0][0], last_round(by_arm)
    section = Section(
        title=SCENARIOS[loop.config.world].title,
        about=f"{_world_about(loop)} {_rules(loop)} Below stand the policies of the last round.",
        policies=[_info(arm, ends[arm.name]) for arm in loop.arms],
        measurements=[*_ends(ends), *_charted(loop)],
        logging_value=first["J(π)"],
        reference="the first logging policy μ, which the world knows exactly",
        claims=loop_claims(by_arm),
        facts=_facts(loop, last),
        lists=1,
    )
    settings = {"localpolicy": __version__, "rounds": str(last)}
    best = max(ends, key=lambda name: ends[name]["J(π)"].mean)
    order = sorted(ends, key=lambda name: name != best)[:KEY_NUMBERS]
    numbers = [_number(name, first, ends[name]) for name in order]
    step = (
        "Before a policy serves round after round, watch its entropy and coverage: when they fall, its log can no "
        "longer show what would have been better."
    )
    return Contents(f"A loop of {last} rounds", loop_verdict(by_arm), [section], settings, numbers, step)


def _number(name: str, first: Figures, last: Figures) -> KeyNumber:
    start, end, js = first["J(π)"].mean, last["J(π)"].mean, last["JS from the first μ"].mean
    meaning = f"J {start:.4f} → {end:.4f}, at JS {js:.2f} from the first policy."
    return KeyNumber(change(start, end), f"true reward of {name}", meaning)


def _info(arm: PolicySpec, last: Figures) -> PolicyInfo:
    weights = {key: last[name].mean for name, key in SHARES.items() if name in last}
    return PolicyInfo(arm.name, arm.objective["name"], arm.objective.get("beta"), weights=weights)


def _ends(ends: Mapping[str, Figures]) -> list[Measurement]:
    """The last round's figures, by the names that any comparison has for them."""
    return [Measurement.of(arm, figure, last[name]) for arm, last in ends.items() for figure, name in ENDS.items()]


def _charted(loop: Loop) -> list[Measurement]:
    """What is drawn round after round, in the order of the charts; before μ there is no round."""
    rows = [row for row in loop.measurements if row.figure in CHARTED and row.seed is None]
    rows = [row for row in rows if row.round or row.figure != "JS from the round before"]
    return sorted(rows, key=lambda row: CHARTED.index(row.figure))


def _world_about(loop: Loop) -> str:
    world = loop.world
    if isinstance(world, BanditWorld):
        return (
            f"A bandit of {world.config.contexts} contexts and {world.n_items} items; J and every divergence are exact "
            f"sums, and no policy can earn more than {world.optimum():.4f}."
        )
    return (
        f"A store of {world.n_items} items whose shoppers change with what they are shown; J is the mean reward per "
        f"impression of {loop.config.episodes:,} visits, the same for every policy."
    )


def _rules(loop: Loop) -> str:
    config = loop.config
    kept = "all logs so far" if config.keep_logs else "that log alone"
    served = "the run that served it (in round 1 it is estimated)"
    logging = served if config.logging_is_served else "estimated from the log"
    seeds = f", over {len(config.seeds)} seeds" if len(config.seeds) > 1 else ""
    return (
        f"Each round a policy serves {config.sequences:,} sequences, and the next is trained on {kept}{seeds}. "
        f"Where an objective needs the logging policy, it is {logging}."
    )


def _facts(loop: Loop, rounds: int) -> dict[str, str]:
    said = {"rounds": str(rounds)}
    for name, value in loop.config.model_dump(mode="json").items():
        said[name.replace("_", " ")] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {name: value for name, value in said.items() if value}


def loop_json(loop: Loop) -> dict[str, Any]:
    """For machines: every figure, the claims, and what went wrong."""
    by_arm, content = trajectories(loop), loop.to_dict()
    for name, trajectory in by_arm.items():
        content["arms"][name] |= {"symptoms": as_json(trajectory[1]), "summary": summary(name, *trajectory)}
    return {**content, "claims": as_json(loop_claims(by_arm))}


def loop_tables(loop: Loop, *, narrow: bool = False) -> list[Table]:
    """True reward by round, and the last round's other figures; `narrow` leaves intervals out of the first."""
    by_arm = trajectories(loop)
    last = last_round(by_arm)
    rewards = {name: [figures["J(π)"] for figures in rounds] for name, (rounds, _) in by_arm.items()}
    rows = []
    for name, values in rewards.items():
        shown = [f"{value.mean:.4f}" if narrow else with_interval(value, 4) for value in values]
        rows.append(cells(name, *shown, *[NOTHING] * (last + 1 - len(shown))))
    widest = max((value.high - value.low) / 2 for values in rewards.values() for value in values)
    note = _rules(loop) + (f" The widest 95 % interval of J is ±{widest:.4f}." if widest else "")
    heads = ["policy", "gain over μ", "JS, last round", "JS from μ", "entropy", "coverage", "effective share"]
    ends = [_end(name, rounds) for name, (rounds, _) in by_arm.items()]
    return [
        Table("True reward J by round", ["policy", "0 (μ)", *map(str, range(1, last + 1))], rows, note),
        Table("The last round", heads, ends, "Intervals of 95 %; a figure without one is exact."),
    ]


def _end(name: str, rounds: Sequence[Figures]) -> list[Cell]:
    last = rounds[-1]
    texts = [
        with_interval(last["gain"], 4, sign="+"),
        with_interval(last["JS from the round before"], 3),
        with_interval(last["JS from the first μ"], 3),
        f"{last['entropy'].mean:.2f}",
        f"{last['coverage'].mean:.0%}",
        f"{last[WEIGHED].mean:.0%}" if WEIGHED in last else NOTHING,
    ]
    return cells(name, *texts)


def loop_markdown(loop: Loop) -> str:
    """The tables, and what went wrong, for people."""
    by_arm = trajectories(loop)
    facts = [f"| {name} | {value} |" for name, value in _facts(loop, last_round(by_arm)).items()]
    parts = [
        f"# A loop in the {loop.config.world}",
        loop_verdict(by_arm),
        _world_about(loop),
        *(table.markdown().rstrip() for table in loop_tables(loop)),
        "## What went wrong",
        "\n".join(f"- {summary(name, *trajectory)}" for name, trajectory in by_arm.items()),
        "## Settings",
        "\n".join(["| setting | |", "|---|---|", *facts]),
    ]
    return "\n\n".join(parts) + "\n"
