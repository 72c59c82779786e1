"""A loop in words and on a page: what each policy earned round after round, and which sign of collapse it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localpolicy import __version__
from localpolicy.measure.estimate import Measurement
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.html.page import write_report
from localpolicy.report.table import Cell, Table, joined, percent, with_interval
from localpolicy.runtime.files import whole_file, write_json
from localpolicy.simulation import BanditWorld
from localpolicy.study.demo import SCENARIOS, PolicySpec
from localpolicy.study.rounds import SHARES, Figures, Loop, logging_is_served

STILL = 0.1  # of μ's entropy: below it a policy shows nearly the same item each time
NARROW = 0.5  # of μ's coverage
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
    signs = [*_loses(rounds), *_fell(rounds), *_still(rounds), *_narrow(rounds), *_few(rounds)]
    if stopped:
        number, reason = min(stopped.items())
        signs.append(Symptom("stopped", number, f"could not be trained in round {number}: {reason}"))
    return signs


def change(start: float, end: float) -> str:
    """+12%; a change from 0 has no percentage."""
    return f"{(end - start) / start:+.0%}" if start else "from nothing"


def _loses(rounds: Sequence[Figures]) -> list[Symptom]:
    last = len(rounds) - 1
    if not last or rounds[last]["gain"].high >= 0:
        return []
    since = next(number for number in range(1, last + 1) if rounds[number]["gain"].high < 0)
    return [Symptom("loses", since, f"earns less than the policy it started from, beyond chance since round {since}")]


def _fell(rounds: Sequence[Figures]) -> list[Symptom]:
    """The deepest fall of J from an earlier best, if it is larger than the intervals."""
    values = [figures["J(π)"] for figures in rounds]
    falls = []
    for low in range(2, len(values)):
        best = max(range(1, low), key=lambda number: values[number].mean)
        depth = values[best].mean - values[low].mean
        if values[best].low > values[low].high and depth > FALL * abs(values[best].mean):
            falls.append((depth, best, low))
    if not falls:
        return []
    _, best, low = max(falls)
    first, then, last = values[best].mean, values[low].mean, values[-1].mean
    said = f"J fell from {first:.4f} in round {best} to {then:.4f} in round {low}"
    said += f" ({change(first, then)})"
    if low < len(values) - 1:
        said += f", and is {last:.4f} at the end"
    return [Symptom("fell", best + 1, said)]


def _since(rounds: Sequence[Figures], name: str, limit: float) -> int | None:
    """The first round below the limit, if the last one is below it too."""
    if name not in rounds[-1] or rounds[-1][name].mean >= limit:
        return None
    return next(number for number, figures in enumerate(rounds) if name in figures and figures[name].mean < limit)


def _still(rounds: Sequence[Figures]) -> list[Symptom]:
    first, last = rounds[0]["entropy"].mean, rounds[-1]["entropy"].mean
    since = _since(rounds, "entropy", STILL * first)
    if since is None:
        return []
    return [
        Symptom(
            "no exploration",
            since,
            f"entropy {first:.2f} → {last:.2f} nats (below {STILL:.0%} of μ's since round {since}): each history gets "
            "nearly one item, so its log cannot tell whether another would have been better",
        )
    ]


def _narrow(rounds: Sequence[Figures]) -> list[Symptom]:
    first, last = rounds[0]["coverage"].mean, rounds[-1]["coverage"].mean
    since = _since(rounds, "coverage", NARROW * first)
    if since is None:
        return []
    said = f"{percent(first)} → {percent(last)} of the catalogue is shown first somewhere"
    return [Symptom("narrow", since, f"{said} (below half of μ's since round {since})")]


def _few(rounds: Sequence[Figures]) -> list[Symptom]:
    name = "effective share"
    shares = {number: figures[name].mean for number, figures in enumerate(rounds) if name in figures}
    low = [number for number, share in shares.items() if share < LEAST_EFFECTIVE]
    if not low:
        return []
    least = min(low, key=lambda number: shares[number])
    said = f"only {percent(shares[least])} of its log counted in training in round {least}"
    many = f"; below {LEAST_EFFECTIVE:.0%} in {len(low)} of {len(shares)} rounds"
    return [Symptom("few decide", low[0], said + many)]


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
        claims.append(Claim("gain", above, earns, f"{name} ends above the policy it started from", because))
        signs = [symptom.said for symptom in wrong if symptom.kind != "loses"]
        said = "; ".join(signs) or "entropy, coverage and the effective share of its weights stay in bounds"
        claims.append(Claim("J(π), entropy, coverage", healthy, not signs, f"{name} shows no sign of collapse", said))
    return claims


def loop_verdict(by_arm: Mapping[str, Trajectory]) -> str:
    """Which objective earns most at the end, and which lost or fell."""
    last = max(len(rounds) for rounds, _ in by_arm.values()) - 1
    ends = {name: rounds[-1] for name, (rounds, _) in by_arm.items() if len(rounds) == last + 1}
    first = next(iter(by_arm.values()))[0][0]["J(π)"].mean
    best = max(ends, key=lambda name: ends[name]["J(π)"].mean)
    value, js = ends[best]["J(π)"].mean, ends[best]["JS from the first μ"].mean
    said = [
        f"After {last} round{'s' if last > 1 else ''} {best} earns most: J {value:.4f}, {change(first, value)} "
        f"against the first policy, at JS {js:.2f} from it."
    ]
    kinds = {name: {symptom.kind for symptom in symptoms} for name, (_, symptoms) in by_arm.items()}
    stopped = [name for name in by_arm if "stopped" in kinds[name]]
    lost = [name for name in by_arm if "loses" in kinds[name] and name not in stopped]
    fell = [name for name in by_arm if "fell" in kinds[name] and name not in [*stopped, *lost]]
    still = [name for name in by_arm if "no exploration" in kinds[name] and name not in [*stopped, *lost]]
    for names, singular, plural in (
        (stopped, "could not go on", "could not go on"),
        (lost, "ends below where it began", "end below where they began"),
        (fell, "came down from an earlier best", "came down from earlier bests"),
        (still, "no longer explores", "no longer explore"),
    ):
        if names:
            said.append(f"{joined(names)} {plural if len(names) > 1 else singular}.")
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
    out, by_arm = Path(out), trajectories(loop)
    contents = loop_contents(loop, by_arm)
    content = loop_json(loop, by_arm)
    for path in (out / "loop.json", *([json] if json is not None else [])):
        write_json(path, content)
    with whole_file(out / "loop.md") as partial:
        partial.write_text(loop_markdown(loop, by_arm), encoding="utf-8")
    write_report(contents, out / "report.html")
    from localpolicy.report.html.lines import rounds_picture  # after the page: it says what to install

    with whole_file(out / "loop.svg") as partial:
        partial.write_text(rounds_picture(contents, PICTURED), encoding="utf-8")
    return contents


def trajectory(loop: Loop, arm: str) -> Trajectory:
    """One objective's figures by round, and what went wrong."""
    rounds = loop.figures(arm)
    return rounds, symptoms(rounds, loop.stopped(arm))


def trajectories(loop: Loop) -> dict[str, Trajectory]:
    """Of every objective."""
    return {arm.name: trajectory(loop, arm.name) for arm in loop.arms}


def loop_contents(loop: Loop, by_arm: Mapping[str, Trajectory]) -> Contents:
    """The report: the policies of the last round side by side, and how they got there."""
    ends = {arm.name: by_arm[arm.name][0][-1] for arm in loop.arms}
    scenario = next(scenario for scenario in SCENARIOS if scenario.world == loop.config.world)
    first = by_arm[loop.arms[0].name][0][0]
    last = _last(by_arm)
    section = Section(
        title=scenario.title,
        about=f"{_world_about(loop)} {_rules(loop)} Below stand the policies of the last round.",
        policies=[_info(arm, ends[arm.name]) for arm in loop.arms],
        measurements=[*_last_round(ends), *_charted(loop)],
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


def _last_round(ends: Mapping[str, Figures]) -> list[Measurement]:
    """The last round's figures, by the names that any comparison has for them."""
    return [Measurement.of(arm, figure, last[name]) for arm, last in ends.items() for figure, name in ENDS.items()]


def _charted(loop: Loop) -> list[Measurement]:
    """What is drawn round after round, in the order of the charts; before μ there is no round."""
    rows = [row for row in loop.measurements if row.figure in CHARTED]
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


def loop_json(loop: Loop, by_arm: Mapping[str, Trajectory]) -> dict[str, Any]:
    """For machines: every figure, the claims, and what went wrong."""
    content = {**loop.to_dict(), "claims": [claim.to_dict() for claim in loop_claims(by_arm)]}
    for name, trajectory in by_arm.items():
        content["arms"][name] |= {
            "symptoms": [asdict(symptom) for symptom in trajectory[1]],
            "summary": summary(name, *trajectory),
        }
    return content


def loop_tables(loop: Loop, by_arm: Mapping[str, Trajectory], *, narrow: bool = False) -> list[Table]:
    """True reward by round, and the last round's other figures; `narrow` leaves intervals out of the first."""
    last = _last(by_arm)
    rows = []
    for name, (rounds, _) in by_arm.items():
        values = [figures["J(π)"] for figures in rounds]
        cells = [f"{value.mean:.4f}" if narrow else with_interval(value, 4) for value in values]
        rows.append([Cell(name), *map(Cell, cells + ["—"] * (last + 1 - len(cells)))])
    widest = max(
        (figures["J(π)"].high - figures["J(π)"].low) / 2 for rounds, _ in by_arm.values() for figures in rounds
    )
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
        f"{last['effective share'].mean:.0%}" if "effective share" in last else "—",
    ]
    return [Cell(name), *map(Cell, texts)]


def loop_markdown(loop: Loop, by_arm: Mapping[str, Trajectory]) -> str:
    """The tables, and what went wrong, for people."""
    facts = [f"| {name} | {value} |" for name, value in _facts(loop, _last(by_arm)).items()]
    parts = [
        f"# A loop in the {loop.config.world}",
        loop_verdict(by_arm),
        _world_about(loop),
        *(table.markdown().rstrip() for table in loop_tables(loop, by_arm)),
        "## What went wrong",
        "\n".join(f"- {summary(name, *trajectory)}" for name, trajectory in by_arm.items()),
        "## Settings",
        "\n".join(["| setting | |", "|---|---|", *facts]),
    ]
    return "\n\n".join(parts) + "\n"


def _last(by_arm: Mapping[str, Trajectory]) -> int:
    return max(len(rounds) for rounds, _ in by_arm.values()) - 1
