"""A loop as tables, a page and files: what each policy earned round after round, and which signs of collapse it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from localpolicy import __version__
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.estimate import Measurement, as_json
from localpolicy.report.contents import Claim, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import NOTHING, Table, joined, percent, with_interval
from localpolicy.runtime.files import write_json, write_text
from localpolicy.simulation import BanditWorld
from localpolicy.study.demo import SCENARIOS, PolicySpec
from localpolicy.study.loop import SHARES, Figures, Loop

CHARTED = ("J(π)", "JS from the round before", "JS from the first μ", "entropy", "coverage", "effective share")
ENDS = {  # what the long table calls a figure of the last round
    "true J": "J(π)", "true gain": "gain", "JS": "JS from the first μ", "KL": "KL from the first μ",
    "coverage@1": "coverage", "entropy": "entropy",
}  # fmt: skip
STILL = 0.1  # of μ's entropy: below it a policy shows nearly the same item each time
NARROW = 0.5  # of μ's coverage
WEIGHED = "effective share"  # of the log, by the weights of training
SAID = {  # in the verdict, the worst first: of one, of several
    "stopped": ("could not go on", "could not go on"),
    "loses": ("ends below where it began", "end below where they began"),
    "fell": ("came down from an earlier best", "came down from earlier bests"),
    "no exploration": ("no longer explores", "no longer explore"),
}
FALL = 0.01  # of the best J: a smaller fall is not spoken of, where J is exact


class Symptom(NamedTuple):
    """One thing that went wrong."""

    kind: str
    since: int  # round
    said: str


@dataclass(frozen=True)
class Trajectory:
    """One objective's loop: its figures by round, those of μ first."""

    name: str
    rounds: Sequence[Figures]
    stopped: Mapping[int, str] = field(default_factory=dict)  # round -> why a seed ended

    @property
    def last(self) -> Figures:
        """The figures of the last round."""
        return self.rounds[-1]

    @property
    def earned(self) -> str:
        """J at the start and at the end."""
        start, end = self.rounds[0]["J(π)"].mean, self.last["J(π)"].mean
        return f"J {start:.4f} → {end:.4f} ({change(start, end)})"

    @cached_property
    def symptoms(self) -> list[Symptom]:
        """All signs of collapse."""
        return list(self._signs())

    def _signs(self) -> Iterator[Symptom]:
        start, end = self.rounds[0], self.last
        if since := self._since(lambda figures: figures["gain"].high < 0):
            said = f"earns less than the policy it started from, beyond chance since round {since}"
            yield Symptom("loses", since, said)
        yield from self._fell()
        if since := self._since(lambda figures: figures["entropy"].mean < STILL * start["entropy"].mean):
            fall = f"entropy {start['entropy'].mean:.2f} → {end['entropy'].mean:.2f} nats"
            below = f"{fall} (below {STILL:.0%} of μ's since round {since})"
            meaning = "each history gets nearly one item, so its log cannot tell whether another would have been better"
            yield Symptom("no exploration", since, f"{below}: {meaning}")
        if since := self._since(lambda figures: figures["coverage"].mean < NARROW * start["coverage"].mean):
            shares = f"{percent(start['coverage'].mean)} → {percent(end['coverage'].mean)} of the catalogue"
            yield Symptom("narrow", since, f"{shares} is shown first somewhere (below half of μ's since round {since})")
        weighed = {number: each[WEIGHED].mean for number, each in enumerate(self.rounds) if WEIGHED in each}
        low = {number: share for number, share in weighed.items() if share < LEAST_EFFECTIVE}
        if low:
            least = min(low, key=lambda number: low[number])
            said = f"only {percent(low[least])} of its log counted in training in round {least}"
            many = f"below {LEAST_EFFECTIVE:.0%} in {len(low)} of {len(weighed)} rounds"
            yield Symptom("few decide", next(iter(low)), f"{said}; {many}")
        if self.stopped:
            number, reason = min(self.stopped.items())
            yield Symptom("stopped", number, f"could not be trained in round {number}: {reason}")

    def _fell(self) -> Iterator[Symptom]:
        """The deepest fall of J from an earlier best, if it is larger than the intervals."""
        values, falls = [figures["J(π)"] for figures in self.rounds], []
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

    def _since(self, sign: Callable[[Figures], bool]) -> int:
        """The first round that has this sign, if the last one has it too, else 0: that is μ."""
        having = [number for number, figures in enumerate(self.rounds) if number and sign(figures)]
        return having[0] if having and having[-1] == len(self.rounds) - 1 else 0

    def summary(self) -> str:
        """It in one sentence, and what went wrong."""
        js, signs = self.last["JS from the first μ"].mean, [symptom.said for symptom in self.symptoms]
        wrong = " ".join(f"{said[0].upper()}{said[1:]}." for said in signs)
        return f"{self.name}: {self.earned} at JS {js:.2f} from μ. {wrong or 'Nothing went wrong.'}"

    def claims(self) -> list[Claim]:
        """Did it earn more at the end, and without a sign of collapse?"""
        gain, above = self.last["gain"], "the 95 % interval of the gain is above 0"
        earns, because = {1: True, -1: False, 0: None}[gain.sign], f"{self.earned} in {len(self.rounds) - 1} rounds"
        ends = f"{self.name} ends above the policy it started from"
        signs = [symptom.said for symptom in self.symptoms if symptom.kind != "loses"]
        said = "; ".join(signs) or "entropy, coverage and the effective share of its weights stay in bounds"
        healthy = "no sign of collapse by the limits of the loop"
        return [
            Claim("gain", above, earns, ends, because, gain.mean, gain.low, gain.high),
            Claim("J(π), entropy, coverage", healthy, not signs, f"{self.name} shows no sign of collapse", said),
        ]


def change(start: float, end: float) -> str:
    """+12%; a change from 0 has no percentage."""
    return f"{(end - start) / start:+.0%}" if start else "from nothing"


def trajectories(loop: Loop) -> list[Trajectory]:
    """Of every objective."""
    return [Trajectory(arm.name, loop.figures(arm.name), loop.stopped(arm.name)) for arm in loop.arms]


def last_round(arms: Sequence[Trajectory]) -> int:
    """The last round that an objective reached."""
    return max(len(arm.rounds) for arm in arms) - 1


def loop_verdict(arms: Sequence[Trajectory]) -> str:
    """Which objective earns most at the end, and which lost or fell."""
    last, first = last_round(arms), arms[0].rounds[0]["J(π)"].mean
    best = max((arm for arm in arms if len(arm.rounds) == last + 1), key=lambda arm: arm.last["J(π)"].mean)
    value, js = best.last["J(π)"].mean, best.last["JS from the first μ"].mean
    said = [
        f"After {last} round{'s' if last > 1 else ''} {best.name} earns most: J {value:.4f}, {change(first, value)} "
        f"against the first policy, at JS {js:.2f} from it."
    ]
    worst: list[str] = []  # of these nothing else is said
    for kind, (singular, plural) in SAID.items():
        having = [arm.name for arm in arms if kind in {symptom.kind for symptom in arm.symptoms}]
        names = [name for name in having if name not in worst]
        if names:
            said.append(f"{joined(names)} {plural if len(names) > 1 else singular}.")
        if kind in ("stopped", "loses"):
            worst += names
    return " ".join(said)


# ---------------------------------------------------------------------- the page and the files


def write_loop(loop: Loop, out: Path | str, *, json: Path | None = None) -> Contents:
    """loop.json, loop.md, report.html and loop.svg into the folder `out`."""
    out, contents = Path(out), loop_contents(loop)
    for path in (out / "loop.json", *([json] if json is not None else [])):
        write_json(path, loop_json(loop))
    write_text(out / "loop.md", loop_markdown(loop, contents))
    write_report(contents, out / "report.html")
    from localpolicy.report.lines import rounds_picture  # after the page: it says what to install

    write_text(out / "loop.svg", rounds_picture(contents, CHARTED[:3]))
    return contents


def loop_contents(loop: Loop) -> Contents:
    """The report: the policies of the last round side by side, and how they got there."""
    arms = trajectories(loop)
    first, last = arms[0].rounds[0]["J(π)"], last_round(arms)
    settings = {"localpolicy": __version__, "rounds": str(last)}
    # What is drawn round after round, in the order of the charts; before μ there is no round.
    charted = [row for row in loop.measurements if row.figure in CHARTED and row.seed is None]
    charted = [row for row in charted if row.round or row.figure != "JS from the round before"]
    facts = {"rounds": last, **loop.config.model_dump(mode="json")}
    said = {name: ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact) for name, fact in facts.items()}
    section = Section(
        title=SCENARIOS[loop.config.world].title,
        about=f"{_world_about(loop)} {_rules(loop)} Below stand the policies of the last round.",
        policies=[_info(*each) for each in zip(loop.arms, arms, strict=True)],
        measurements=[
            *(Measurement.of(arm.name, figure, arm.last[name]) for arm in arms for figure, name in ENDS.items()),
            *sorted(charted, key=lambda row: CHARTED.index(row.figure)),
        ],
        logging_value=first,
        reference="the first logging policy μ, which the world knows exactly",
        claims=[claim for arm in arms for claim in arm.claims()],
        facts={name.replace("_", " "): value for name, value in said.items() if value},
        lists=1,
    )
    best = max(arms, key=lambda arm: arm.last["J(π)"].mean)
    numbers = []
    for arm in sorted(arms, key=lambda arm: arm is not best)[:3]:  # on the first screen
        end, js = arm.last["J(π)"].mean, arm.last["JS from the first μ"].mean
        meaning = f"J {first.mean:.4f} → {end:.4f}, at JS {js:.2f} from the first policy."
        numbers.append(KeyNumber(change(first.mean, end), f"true reward of {arm.name}", meaning))
    step = (
        "Before a policy serves round after round, watch its entropy and coverage: when they fall, its log can no "
        "longer show what would have been better."
    )
    return Contents(f"A loop of {last} rounds", loop_verdict(arms), [section], settings, numbers, step)


def _info(spec: PolicySpec, arm: Trajectory) -> PolicyInfo:
    weights = {key: arm.last[name].mean for name, key in SHARES.items() if name in arm.last}
    return PolicyInfo(arm.name, spec.objective["name"], spec.objective.get("beta"), weights=weights)


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


def loop_json(loop: Loop) -> dict[str, Any]:
    """For machines: every figure, the claims, and what went wrong."""
    arms, content = trajectories(loop), loop.to_dict()
    for arm in arms:
        content["arms"][arm.name] |= {"symptoms": as_json(arm.symptoms), "summary": arm.summary()}
    return {**content, "claims": as_json([claim for arm in arms for claim in arm.claims()])}


def loop_tables(loop: Loop, *, narrow: bool = False) -> list[Table]:
    """True reward by round, and the last round's other figures; `narrow` leaves intervals out of the first."""
    arms = trajectories(loop)
    last, rows, ends = last_round(arms), [], []
    for arm in arms:
        values = [figures["J(π)"] for figures in arm.rounds]
        shown = [f"{value.mean:.4f}" if narrow else with_interval(value, 4) for value in values]
        rows.append([arm.name, *shown, *[NOTHING] * (last + 1 - len(shown))])
        end, moved = arm.last, [with_interval(arm.last[name], 3) for name in CHARTED[1:3]]
        spread = f"{end['entropy'].mean:.2f}", f"{end['coverage'].mean:.0%}"
        weighed = f"{end[WEIGHED].mean:.0%}" if WEIGHED in end else NOTHING
        ends.append([arm.name, with_interval(end["gain"], 4, sign="+"), *moved, *spread, weighed])
    widest = max((each["J(π)"].high - each["J(π)"].low) / 2 for arm in arms for each in arm.rounds)
    note = _rules(loop) + (f" The widest 95 % interval of J is ±{widest:.4f}." if widest else "")
    heads = ["policy", "gain over μ", "JS, last round", "JS from μ", "entropy", "coverage", "effective share"]
    return [
        Table("True reward J by round", ["policy", "0 (μ)", *map(str, range(1, last + 1))], rows, note),
        Table("The last round", heads, ends, "Intervals of 95 %; a figure without one is exact."),
    ]


def loop_markdown(loop: Loop, contents: Contents) -> str:
    """The tables, and what went wrong, for people."""
    facts = [f"| {name} | {value} |" for name, value in contents.sections[0].facts.items()]
    parts = [
        f"# A loop in the {loop.config.world}",
        contents.verdict,
        _world_about(loop),
        *(table.markdown().rstrip() for table in loop_tables(loop)),
        "## What went wrong",
        "\n".join(f"- {arm.summary()}" for arm in trajectories(loop)),
        "## Settings",
        "\n".join(["| setting | |", "|---|---|", *facts]),
    ]
    return "\n\n".join(parts) + "\n"
