"""A loop as tables, a page and files: what each policy earned round after round, and which signs of collapse it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localpolicy.judge.comparison import TRUE_GAIN
from localpolicy.measure.estimate import Measurement
from localpolicy.measure.number_text import NOTHING, corrected, interval_text, joined, sentences
from localpolicy.measure.significance import Paired
from localpolicy.report.contents import Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import Table
from localpolicy.runtime.files import write_json, write_text
from localpolicy.version import __version__
from localpolicy.worlds.scenarios import SCENARIOS
from localpolicy.worlds.trajectory import FIGURES, WEIGHED, Loop, Trajectory, best_of, last_round

CHARTED = ("true J", "JS from the round before", "JS", "entropy", "coverage@1", "effective share")
ENDS = ("true J", TRUE_GAIN, "JS", "KL", "coverage@1", "entropy")  # of the last round, side by side
SHARES = ("effective share", "clipped share")
SAID = {  # in the verdict, the worst first: of one, of several
    "stopped": ("could not go on", "could not go on"),
    "loses": ("ends below where it began", "end below where they began"),
    "fell": ("came down from an earlier best", "came down from earlier bests"),
    "no exploration": ("no longer explores", "no longer explore"),
}
NEXT = (
    "Before a policy serves round after round, watch its entropy: when it falls, its log can no longer show what would "
    "have been better."
)


def loop_verdict(arms: Sequence[Trajectory]) -> str:
    """Sentences on which objective earns most at the end, and which lost or fell."""
    last, best = last_round(arms), best_of(arms)
    value, js = (best.last[name].mean for name in ("true J", "JS"))
    said = [
        f"After {last} round{'s' if last > 1 else ''} {best.name} earns most: J {value:.4f}, {best.change} "
        f"against the first policy, at JS {js:.2f} from it."
    ]
    worst: list[str] = []  # with no other note
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
    """Write loop.json, loop.md, report.html and loop.svg into the folder `out`."""
    out, contents = Path(out), loop_contents(loop)
    for path in (out / "loop.json", *([json] if json is not None else [])):
        write_json(path, loop.to_dict())
    write_text(out / "loop.md", loop_markdown(loop, contents))
    write_report(contents, out / "report.html")
    from localpolicy.report.lines import rounds_picture  # after the page: it says what to install

    write_text(out / "loop.svg", rounds_picture(contents, CHARTED[:3]))
    return contents


def write_page(loop: Loop, path: Path) -> None:
    """Write a loop's report as one self-contained HTML file."""
    write_report(loop_contents(loop), path)


def loop_contents(loop: Loop) -> Contents:
    """Content of a loop's report: policies of the last round, and metrics by round."""
    arms = loop.trajectories
    last = last_round(arms)
    facts = {"rounds": last, **loop.config.model_dump(mode="json")}
    said = {name: ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact) for name, fact in facts.items()}
    section = Section(
        title=SCENARIOS[loop.config.world].title,
        about=f"{_world_about(loop)} {_rules(loop)} Below stand the policies of the last round.",
        policies=[
            PolicyInfo(
                arm.name, spec.objective["name"], spec.objective.get("beta"),
                weights={FIGURES[name]: arm.last[name].mean for name in SHARES if name in arm.last},
            )
            for spec, arm in zip(loop.arms, arms, strict=True)
        ],
        measurements=[
            *(
                Measurement.of(arm.name, name, arm.gain if name == TRUE_GAIN else arm.last[name])
                for arm in arms
                for name in ENDS
            ),
            # What is drawn round after round, in the order of the charts; before μ there is no round.
            *(
                row
                for name in CHARTED
                for row in loop.measurements
                if row.figure == name and row.seed is None and (row.round or name != "JS from the round before")
            ),
        ],
        gains={arm.name: {TRUE_GAIN: Paired.around(arm.gain)} for arm in arms},
        corrected={TRUE_GAIN: len(arms)},
        logging_value=arms[0].rounds[0]["true J"],
        reference="the first logging policy μ, which the world knows exactly",
        claims=[claim for arm in arms for claim in arm.claims()],
        facts={name.replace("_", " "): value for name, value in said.items() if value},
        lists=1,
    )  # fmt: skip
    best, numbers = best_of(arms), []
    for arm in sorted(arms, key=lambda arm: arm is not best)[:3]:  # on the first screen
        meaning = f"{arm.earned}, at JS {arm.last['JS'].mean:.2f} from the first policy."
        numbers.append(KeyNumber(arm.change, f"true reward of {arm.name}", meaning))
    settings = {"localpolicy": __version__, "rounds": str(last)}
    return Contents(f"A loop of {last} rounds", loop_verdict(arms), [section], settings, numbers, NEXT)


def _world_about(loop: Loop) -> str:
    world, best = loop.world, loop.world.optimum()
    visits = f"J is the mean reward per impression of {loop.config.episodes:,} visits, the same for every policy"
    known = "J and every divergence are exact sums" if world.exact else visits
    most = "" if best is None else f", and no policy can earn more than {best:.4f}"
    return f"{world.about[0].upper()}{world.about[1:]}; {known}{most}."


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


def tables_of(loop: Loop, *, narrow: bool = False) -> list[Table]:
    """Tables of true reward by round and of the last round's metrics; `narrow` omits intervals by round."""
    arms = loop.trajectories
    last, rows, ends = last_round(arms), [], []
    for arm in arms:
        values = [figures["true J"] for figures in arm.rounds]
        shown = [f"{value.mean:.4f}" if narrow else interval_text(value, 4) for value in values]
        rows.append([arm.name, *shown, *[NOTHING] * (last + 1 - len(shown))])
        end, moved = arm.last, [interval_text(arm.last[name], 3) for name in CHARTED[1:3]]
        shares = [f"{end[name].mean:.0%}" if name in end else NOTHING for name in ("coverage@1", WEIGHED)]
        ends.append([arm.name, interval_text(arm.gain, 4, signed=True), *moved, f"{end['entropy'].mean:.2f}", *shares])
    widest = max((each["true J"].high - each["true J"].low) / 2 for arm in arms for each in arm.rounds)
    note = _rules(loop) + (f" The widest 95 % interval of J is ± {widest:.4f}." if widest else "")
    told = sentences({f"Those of gains: 95 %{corrected(len(arms))} (Holm).": len(arms) > 1})
    heads = ["policy", "gain over μ", "JS, last round", "JS from μ", "entropy", "coverage", "effective share"]
    return [
        Table("True reward J per decision, by round", ["policy", "0 (μ)", *map(str, range(1, last + 1))], rows, note,
              missing="it had stopped before"),
        Table("The last round", heads, ends, f"Intervals of 95 %; a figure without one is exact. {told}".rstrip(),
              missing="its objective has no weights"),
    ]  # fmt: skip


def loop_markdown(loop: Loop, contents: Contents) -> str:
    """Markdown text of a loop's tables and symptoms."""
    facts = [f"| {name} | {value} |" for name, value in contents.sections[0].facts.items()]
    parts = [
        f"# A loop in the {loop.config.world}",
        contents.verdict,
        _world_about(loop),
        *(table.markdown().rstrip() for table in tables_of(loop)),
        "## What went wrong",
        "\n".join(f"- {arm.summary()}" for arm in loop.trajectories),
        "## Settings",
        "\n".join(["| setting | |", "|---|---|", *facts]),
    ]
    return "\n\n".join(parts) + "\n"
