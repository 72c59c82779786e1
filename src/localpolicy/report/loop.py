"""A loop in words and on a page: what each policy earned round after round, and which sign of collapse it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy import __version__
from localpolicy.measure.estimate import Interval, Measurement, as_json
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.html.page import write_report
from localpolicy.report.numbers import NOTHING, joined, percent, with_interval
from localpolicy.report.table import Cell, Table, cells
from localpolicy.runtime.files import write_json, write_text
from localpolicy.simulation import BanditWorld
from localpolicy.study.demo import PolicySpec
from localpolicy.study.rounds import SHARES, Figures, Loop, logging_is_served, scenario_of

STILL = 0.1  # of μ's entropy: below it a policy shows nearly the same item each time
NARROW = 0.5  # of μ's coverage
WEIGHED = "effective share"  # of the log, by the weights of training
FALL = 0.01  # of the best J: a smaller fall is not spoken of, where J is exact


@dataclass(frozen=True)
class Symptom:
    """One thing that went wrong."""

    kind: str
    since: int  # round
    said: str


Trajectory = tuple[Sequence[Figures], Sequence[Symptom]]  # of one objective: μ and every round, and what went wrong


def symptoms(rounds: Sequence[Figures], stopped: Mapping[int, str]) -> list[Symptom]:
    """All signs of collapse of one objective. `rounds` begins with μ; `stopped`: round -> why a seed ended."""
    return list(_signs(rounds, stopped))


def _signs(rounds: Sequence[Figures], stopped: Mapping[int, str]) -> Iterator[Symptom]:
    lost = [number for number, figures in enumerate(rounds) if number and figures["gain"].high < 0]
    if lost and lost[-1] == len(rounds) - 1:
        yield Symptom(
            "loses", lost[0], f"earns less than the policy it started from, beyond chance since round {lost[0]}"
        )
    yield from _fell([figures["J(π)"] for figures in rounds])
    if (since := _since(rounds, "entropy", STILL)) is not None:
        first, last = rounds[0]["entropy"].mean, rounds[-1]["entropy"].mean
        below = f"entropy {first:.2f} → {last:.2f} nats (below {STILL:.0%} of μ's since round {since})"
        meaning = "each history gets nearly one item, so its log cannot tell whether another would have been better"
        yield Symptom("no exploration", since, f"{below}: {meaning}")
    if (since := _since(rounds, "coverage", NARROW)) is not None:
        first, last = rounds[0]["coverage"].mean, rounds[-1]["coverage"].mean
        said = f"{percent(first)} → {percent(last)} of the catalogue is shown first somewhere"
        yield Symptom("narrow", since, f"{said} (below half of μ's since round {since})")
    shares = {number: each[WEIGHED].mean for number, each in enumerate(rounds) if WEIGHED in each}
    low = {number: share for number, share in shares.items() if share < LEAST_EFFECTIVE}
    if low:
        least = min(low, key=lambda number: low[number])
        said = f"only {percent(low[least])} of its log counted in training in round {least}"
        many = f"below {LEAST_EFFECTIVE:.0%} in {len(low)} of {len(shares)} rounds"
        yield Symptom("few decide", next(iter(low)), f"{said}; {many}")
    if stopped:
        number, reason = min(stopped.items())
        yield Symptom("stopped", number, f"could not be trained in round {number}: {reason}")


def _fell(values: Sequence[Interval]) -> Iterator[Symptom]:
    """The deepest fall of J from an earlier best, if it is larger than the intervals."""
    falls = []
    for low in range(2, len(values)):
        best = max(range(1, low), key=lambda number: values[number].mean)
        depth = values[best].mean - values[low].mean
        if values[best].low > values[low].high and depth > FALL * abs(values[best].mean):
            falls.append((depth, best, low))
    if falls:
        _, best, low = max(falls)
        first, then = values[best].mean, values[low].mean
        said = f"J fell from {first:.4f} in round {best} to {then:.4f} in round {low} ({change(first, then)})"
        end = f", and is {values[-1].mean:.4f} at the end" if low < len(values) - 1 else ""
        yield Symptom("fell", best + 1, said + end)


def _since(rounds: Sequence[Figures], name: str, share: float) -> int | None:
    """The first round below so much of μ's, if the last one is below it too."""
    limit = share * rounds[0][name].mean
    low = [number for number, figures in enumerate(rounds) if figures[name].mean < limit]
    return low[0] if low and low[-1] == len(rounds) - 1 else None


def change(start: float, end: float) -> str:
    """+12%; a change from 0 has no percentage."""
    return f"{(end - start) / start:+.0%}" if start else "from nothing"


def summary(name: str, rounds: Sequence[Figures], symptoms: Sequence[Symptom]) -> str:
    """One objective's loop in one sentence."""
    start, end = rounds[0]["J(π)"].mean, rounds[-1]["J(π)"].mean
    text = f"{name}: J {start:.4f} → {end:.4f} ({change(start, end)})"
    text += f" at JS {rounds[-1]['JS from the first μ'].mean:.2f} from μ"
    wrong = " ".join(_sentence(symptom.said) for symptom in symptoms)
    return f"{text}. {wrong or 'Nothing went wrong.'}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def loop_claims(by_arm: Mapping[str, Trajectory]) -> list[Claim]:
    """For each objective: did it earn more at the end, and without a sign of collapse?"""
    claims = []
    above, healthy = "the 95 % interval of the gain is above 0", "no sign of collapse by the limits of the loop"
    for name, (rounds, wrong) in by_arm.items():
        start, end, gain = rounds[0]["J(π)"].mean, rounds[-1]["J(π)"].mean, rounds[-1]["gain"]
        earns = True if gain.low > 0 else False if gain.high < 0 else None
        because = f"J {start:.4f} → {end:.4f} ({change(start, end)}) in {len(rounds) - 1} rounds"
        claim = f"{name} ends above the policy it started from"
        claims.append(Claim("gain", above, earns, claim, because, gain.mean, gain.low, gain.high))
        signs = [symptom.said for symptom in wrong if symptom.kind != "loses"]
        said = "; ".join(signs) or "entropy, coverage and the effective share of its weights stay in bounds"
        claims.append(Claim("J(π), entropy, coverage", healthy, not signs, f"{name} shows no sign of collapse", said))
    return claims


def loop_verdict(by_arm: Mapping[str, Trajectory]) -> str:
    """Which objective earns most at the end, and which lost or fell."""
    last = _last(by_arm)
    ends = {name: rounds[-1] for name, (rounds, _) in by_arm.items() if len(rounds) == last + 1}
    first = next(iter(by_arm.values()))[0][0]["J(π)"].mean
    best = max(ends, key=lambda name: ends[name]["J(π)"].mean)
    value, js = ends[best]["J(π)"].mean, ends[best]["JS from the first μ"].mean
    said = [
        f"After {last} round{'s' if last > 1 else ''} {best} earns most: J {value:.4f}, {change(first, value)} "
        f"against the first policy, at JS {js:.2f} from it."
    ]
    worst: list[str] = []  # of these nothing else is said
    for kind, singular, plural in (
        ("stopped", "could not go on", "could not go on"),
        ("loses", "ends below where it began", "end below where they began"),
        ("fell", "came down from an earlier best", "came down from earlier bests"),
        ("no exploration", "no longer explores", "no longer explore"),
    ):
        having = [name for name, (_, wrong) in by_arm.items() if kind in {symptom.kind for symptom in wrong}]
        names = [name for name in having if name not in worst]
        if names:
            said.append(f"{joined(names)} {plural if len(names) > 1 else singular}.")
        if kind in ("stopped", "loses"):
            worst += names
    return " ".join(said)


# ---------------------------------------------------------------------- tables and pages


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
    from localpolicy.report.html.lines import rounds_picture  # after the page: it says what to install

    write_text(out / "loop.svg", rounds_picture(contents, PICTURED))
    return contents


def trajectories(loop: Loop) -> dict[str, Trajectory]:
    """Of every objective: its figures by round, and what went wrong."""
    rounds = {arm.name: loop.figures(arm.name) for arm in loop.arms}
    return {name: (each, symptoms(each, loop.stopped(name))) for name, each in rounds.items()}


def loop_contents(loop: Loop) -> Contents:
    """The report: the policies of the last round side by side, and how they got there."""
    by_arm = trajectories(loop)
    ends = {name: rounds[-1] for name, (rounds, _) in by_arm.items()}
    first, last = next(iter(by_arm.values()))[0][0], _last(by_arm)
    section = Section(
        title=scenario_of(loop.config.world).title,
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
    logging = served if logging_is_served(config) else "estimated from the log"
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
    last = _last(by_arm)
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
    facts = [f"| {name} | {value} |" for name, value in _facts(loop, _last(by_arm)).items()]
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


def _last(by_arm: Mapping[str, Trajectory]) -> int:
    return max(len(rounds) for rounds, _ in by_arm.values()) - 1
