"""Contents of the kinds that a demo makes: invented figures, real shapes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localpolicy.judge.claims import Claim
from localpolicy.measure.estimate import Interval, Measurement
from localpolicy.measure.significance import Paired
from localpolicy.report.contents import Contents, PolicyInfo, SampleLists, Section

EDGES = [0.02 * place for place in range(21)]
LISTS = ("mle", "lpi_cb β=0.1")


@dataclass(frozen=True)
class Row:
    """One policy: who it is, and its figures, which become rows of the long table."""

    name: str
    objective: str
    beta: float | None = None
    figures: Mapping[str, Interval] = field(default_factory=dict)  # by their names there
    rounds: Sequence[Measurement] = ()
    segments: Sequence[Measurement] = ()
    gains: Mapping[str, Paired] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)  # other fields of `PolicyInfo`


NAMES = {"truth": "true J", "gain": "true gain", "js": "JS", "kl": "KL"}


def row(
    name: str, objective: str, beta: float | None = None, *, metrics: Mapping[str, Interval] | None = None,
    coverage: float | None = None, entropy: float | None = None, segments: Sequence[dict[str, Any]] = (),
    rounds: Sequence[dict[str, Any]] = (), gains: Mapping[str, Paired] | None = None, **about: Any,
) -> Row:  # fmt: skip
    """`truth`, `gain`, `js` and `kl` are intervals; a segment or a round may have a mean alone, which is exact."""
    named = {NAMES[short]: figure for short in NAMES if (figure := about.pop(short, None)) is not None}
    plain = {"coverage@20": coverage, "entropy": entropy}
    named |= {figure: exact(value) for figure, value in plain.items() if value is not None}

    def measured(entry: dict[str, Any], **where: Any) -> Measurement:
        mean = entry["mean"]
        around = Interval(mean, entry.get("low", mean), entry.get("high", mean))
        return Measurement.of(name, "", around, n=entry.get("n"))._replace(figure=entry["figure"], **where)

    return Row(
        name, objective, beta, {**(metrics or {}), **named},
        [measured(entry, round=entry["round"]) for entry in rounds],
        [measured(entry, group=entry["group"]) for entry in segments], gains or {}, about,
    )  # fmt: skip


def section_of(title: str, about: str, rows: Sequence[Row], **said: Any) -> Section:
    """A section with the figures of these rows; those with an @ are its columns."""
    known = {*NAMES.values(), "coverage@20", "entropy"}
    columns = {name: name.replace(".", " ", 1) for each in rows for name in each.figures if name not in known}
    return Section(
        title, about, [PolicyInfo(each.name, each.objective, each.beta, **each.about) for each in rows],
        [Measurement.of(each.name, *figure) for each in rows for figure in each.figures.items()]
        + [round_ for each in rows for round_ in each.rounds],
        [segment for each in rows for segment in each.segments],
        gains={each.name: gains for each in rows if (gains := {**each.gains, **_true_gain(each)})},
        **{"columns": columns, **said},
    )  # fmt: skip


def _true_gain(row: Row) -> dict[str, Paired]:
    found, none = row.figures.get("true gain"), math.nan
    return {} if found is None else {"true gain": Paired(found.mean, none, found.low, found.high, none, none, 0, none)}


def gained(mean: float, se: float) -> Paired:
    """A gain with the p-value of a normal deviate, not corrected."""
    around, p = Interval.of(mean, se), math.erfc(abs(mean / se) / math.sqrt(2))
    return Paired(mean, se, around.low, around.high, p, p, 1_000, p)


def claimed(claim: str, holds: bool | None, because: str) -> Claim:
    return Claim("true J", "the larger mean", holds, claim, because)


def exact(value: float) -> Interval:
    return Interval(value, value, value)


def curve(draw: random.Random, *, top: float, share: float, epochs: int = 12, best: int = 7) -> list[dict[str, Any]]:
    """Rises until `best`, then overfits; the weights' effective share falls to `share`."""
    found = []
    for epoch in range(1, epochs + 1):
        height = 1 - math.exp(-epoch / 2.5) - 0.008 * max(epoch - best, 0) ** 1.5
        value = top * height * (1 + 0.006 * draw.gauss(0, 1))
        effective = share + (1 - share) * math.exp(-(epoch - 1) / 3) if share < 1 else 1.0
        found.append(
            {
                "epoch": epoch,
                "losses": {"policy": 5 - height},
                "weights": {"effective_share": effective},
                "validation": {"AR@1": value, "logp": -6 + height},
                "selected_by": value,
            }
        )
    return found


def spread(draw: random.Random, mean: float) -> list[tuple[float, float, int]]:
    counts = [0] * (len(EDGES) - 1)
    for _ in range(600):
        counts[min(int(draw.gammavariate(3, mean / 3) / 0.02), len(counts) - 1)] += 1
    return [(EDGES[place], EDGES[place + 1], count) for place, count in enumerate(counts)]


def by_round(start: float, gain: float, js: float, rounds: int = 4) -> list[dict[str, Any]]:
    """As a loop has them: the truth with intervals, a share without."""
    found: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        value = start + gain * number
        found.append({"figure": "true J", "round": number, "mean": value, "low": value - 0.007, "high": value + 0.007})
        if number:
            found.append({"figure": "JS from the round before", "round": number, "mean": js / number})
        found.append({"figure": "coverage@1", "round": number, "mean": 0.4 / (1 + js * number)})
    return found


def bandit() -> Section:
    draw = random.Random(1)
    said = [  # name, objective, β, J, JS, effective share, clipped share
        ("mle", "mle", None, 0.4117, 0.0131, 1.0, 0.0),
        ("reward_weighted", "reward_weighted", None, 0.4402, 0.0442, 0.71, 0.0),
        ("ips", "ips", None, 0.3985, 0.2217, 0.062, 0.014),
        ("lpi_cb β=1", "lpi_cb", 1.0, 0.4291, 0.0187, 0.93, 0.0),
        ("lpi_cb β=0.3", "lpi_cb", 0.3, 0.4688, 0.0663, 0.55, 0.011),
        ("lpi_cb β=0.1", "lpi_cb", 0.1, 0.5034, 0.1688, 0.19, 0.284),
    ]
    rows = []
    for name, objective, beta, value, js, effective, clipped in said:
        lines = curve(draw, top=value, share=effective)
        if objective == "mle":  # another rule picks its epoch, on another scale
            lines = [{**line, "selected_by": line["validation"]["logp"]} for line in lines]
        rows.append(
            row(
                name,
                objective,
                beta,
                truth=exact(value),
                gain=exact(value - 0.4123),
                metrics={"AR@1": Interval.of(value * 0.3, 0.0031)},
                js=Interval.of(js, 0.0008),
                kl=Interval.of(js * 4.1, 0.004),
                coverage=0.31 - js,
                entropy=4.2 - 6 * js,
                weights={
                    "effective_share": effective,
                    "clipped_share": clipped,
                    "mean": 1.0 + js,
                    "q50": 0.8,
                    "max": 20.0 if clipped else 1.0 + 9 * js,
                },
                curve=lines,
                selected_epoch=max(lines, key=lambda line: line["selected_by"])["epoch"],
                selected_by="logp" if objective == "mle" else "AR@1",
                js_histogram=spread(draw, js),
                run=f"bandit/{objective}",
                digest=f"{draw.getrandbits(256):064x}",
            )
        )
    samples = [
        SampleLists(
            history=[f"film {draw.randrange(400)}" for _ in range(length)],
            lists={
                name: [
                    (f"film {film + 3 * place}", (0.21 + 0.1 * place) / (rank + 1.2 - 0.2 * place))
                    for rank, film in enumerate(draw.sample(range(9), 5))
                ]
                for place, name in enumerate(LISTS)
            },
        )
        for length in (3, 15)
    ]
    return section_of(
        "A bandit with a known answer",
        "8,000 sequences over 400 items, logged by a policy whose probabilities are known. Rewards are coins "
        "whose odds the world keeps, so that J(π) is computed, not estimated.",
        rows,
        logging_value=exact(0.4123),
        reference="an mle run of another seed (seed 1)",
        floor=Interval.of(0.0128, 0.0005),
        claims=[
            claimed(
                "Every lpi_cb policy earns more than the logging policy.", True, "Gains of 0.0168, 0.0565, 0.0911."
            ),
            claimed("Reward-weighted learning earns as much.", False, "0.4402 against 0.5034 at β = 0.1."),
            claimed("A smaller β would earn still more.", None, "28 % of the weights are clipped at β = 0.1."),
        ],
        samples=samples,
        facts={
            "sequences": "8,000",
            "items": "400",
            "positions tested": "31,204",
            "seed": "0",
            "data digest": "9f" * 32,
        },
    )


def store() -> Section:
    draw = random.Random(2)
    said = [
        ("mle", "mle", None, 0.0, 0.0143, 1.0),
        ("reward_weighted", "reward_weighted", None, 0.0061, 0.0312, 0.62),
        ("pg", "pg", None, 0.0072, 0.0401, 0.51),
        ("ips_pg", "ips_pg", None, -0.0198, 0.1844, 0.08),
        ("sqn", "sqn", None, 0.0018, 0.0151, 1.0),
        ("sac", "sac", None, 0.0049, 0.0266, 0.83),
        ("lpi_rl β=1", "lpi_rl", 1.0, 0.0109, 0.0388, 0.77),
        ("lpi_rl β=0.3", "lpi_rl", 0.3, 0.0203, 0.0871, 0.34),
    ]
    rows = []
    for name, objective, beta, gain, js, effective in said:
        lines = curve(draw, top=0.2 + gain, share=effective, epochs=8, best=5)
        if objective == "mle":
            lines = [{**line, "selected_by": line["validation"]["logp"]} for line in lines]
        purchase, click = 0.1423 + 1.3 * gain, 0.2077 + 0.4 * gain
        rows.append(
            row(
                name,
                objective,
                beta,
                truth=Interval.of(0.2871 + gain, 0.0034),
                gain=Interval.of(gain, 0.0021),
                metrics={
                    "purchase.nDCG@20": Interval.of(purchase, 0.0041),
                    "click.nDCG@20": Interval.of(click, 0.0019),
                    "purchase.HR@20": Interval.of(purchase * 1.7, 0.0062),
                },
                gains={"purchase.nDCG@20": gained(purchase - 0.1423, 0.0036)},
                rounds=by_round(0.2871, gain, js),
                js=Interval.of(js, 0.0006),
                kl=Interval.of(js * 3.2, 0.003),
                coverage=0.44 - js,
                entropy=5.1 - 5 * js,
                weights={
                    "effective_share": effective,
                    "clipped_share": 0.02 * (1 - effective),
                    "mean": 1.1,
                    "max": 20.0,
                },
                curve=lines,
                selected_by="logp" if objective == "mle" else "1*purchase.nDCG@20 + 0.2*click.nDCG@20",
                selected_epoch=6,
                segments=[
                    {
                        "group": group,
                        "figure": "purchase.nDCG@20",
                        "mean": (mean := purchase + shift + 0.004 * draw.gauss(0, 1)),
                        "low": mean - wide,
                        "high": mean + wide,
                        "n": n,
                    }
                    for group, shift, wide, n in (
                        ("history 1–3", -0.03, 0.006, 9312),
                        ("history 4–8", 0.0, 0.007, 6120),
                        ("history 9 or more", 0.025, 0.011, 2011),
                        ("repeat", 0.12, 0.009, 4420),
                        ("new", -0.05, 0.005, 13023),
                    )
                ],
                run=f"store/{objective}",
                digest=f"{draw.getrandbits(256):064x}",
            )
        )
    return section_of(
        "A store with shoppers",
        "20,000 visits to a simulated shop of 1,000 items; clicks pay 0.2 and purchases 1. J(π) is the mean reward of "
        "fresh visits under each policy, on the same shoppers.",
        rows,
        logging_value=Interval.of(0.2874, 0.0034),
        reference="an mle run of another seed (seed 1)",
        floor=Interval.of(0.0139, 0.0004),
        claims=[
            claimed("lpi_rl earns more than the logging policy.", True, "At β = 0.3 by 0.0203 ± 0.0041 per visit."),
            claimed("Importance weights help.", False, "ips_pg loses 0.0198; its effective share is 8 %."),
        ],
        facts={"visits": "20,000", "items": "1,000"},
    )


def crowded(policies: int = 30) -> Section:
    """Many policies, some with very long names, none with a truth, some with little to say."""
    draw = random.Random(3)
    objectives = ("mle", "reward_weighted", "ips", "lpi_cb", "item-kNN", "popularity", "last item")
    rows = []
    for place in range(policies):
        objective = objectives[place % len(objectives)]
        beta = round(2.0 / (1 + place), 3) if objective == "lpi_cb" else None
        name = f"{objective}{f' β={beta}' if beta else ''} seed {place}"
        if place % 10 == 3:
            name += " with a name that goes on and on because somebody put every_single_setting=into_it_without_a_break"
        js = 0.02 + 0.3 * draw.random()
        rows.append(
            row(
                name,
                objective,
                beta,
                metrics={"click.nDCG@20": Interval.of(0.1 + 0.1 * draw.random(), 0.004)} if place % 11 else {},
                js=Interval.of(js, 0.004) if place % 13 else None,
                curve=curve(draw, top=0.2 * draw.random(), share=draw.random(), epochs=30) if place % 5 else (),
                selected_epoch=9,
                selected_by="AR@1",
                js_histogram=spread(draw, js) if place % 2 else (),
                segments=[
                    {"group": f"popularity {segment}", "figure": "click.nDCG@20", "mean": 0.1 + js, "n": 5}
                    for segment in ("head", "middle", "tail")
                ],
            )
        )
    return section_of("Your own log", "What a log of your own styles like: nobody knows the truth.", rows)


def usual() -> Contents:
    return Contents(
        "Local policy improvement: a demo",
        "lpi_cb at β = 0.3 is worth an online test: it earns 14 % more than the policy that wrote the log, and has "
        "moved five times as far from it as another seed would.",
        [bandit(), store()],
        {"seed": "0", "version": "0.1.0", "device": "cpu"},
    )


def three() -> Contents:
    return replace(usual(), sections=[bandit(), store(), crowded()])
