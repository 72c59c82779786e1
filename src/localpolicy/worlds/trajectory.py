"""Results of a loop: what each objective earned round after round, and which signs of collapse it shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from localpolicy.judge.claims import Claim
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.estimate import CONFIDENCE, Interval, Measurement, as_json
from localpolicy.measure.evaluation import as_arrow
from localpolicy.measure.significance import holm_steps
from localpolicy.results import Result
from localpolicy.simulation.events import World
from localpolicy.study.measured import over_seeds
from localpolicy.version import __version__
from localpolicy.worlds.scenarios import LoopConfig, PolicySpec

# Both by benchmarks/collapse.py: 500 loops in small bandits, judged after ten rounds and watched for ten more. Of 55
# that are stuck below the optimum 96 % are below STILL, of 253 that still rise 26 %. Where J is exact, 28 to 82 % fall
# at some time, 4 to 13 % by more than FALL; where it is not, a fall is reported for at most 0.4 % of loops without one
# (of 20 rounds 4.4 %). Coverage is no sign: it falls to less than half of μ's where J rises most.
STILL = 0.1  # of μ's entropy: below it a policy shows nearly the same item each time
FALL = 0.01  # of the best J: a smaller fall is not spoken of
WEIGHED = "effective share"  # of the log, by the weights of training

Round = dict[str, Any]  # what one policy showed in a round, as its file holds it
Figures = Mapping[str, Interval]  # of one round over seeds, by name; JS and KL are from the first μ


class Symptom(NamedTuple):
    """A sign of collapse: its kind, its first round and a sentence on it."""

    kind: str
    since: int  # round
    text: str


@dataclass(frozen=True)
class Trajectory:
    """One objective's metrics by round in a loop, averaged over seeds, beginning with μ."""

    name: str
    rounds: Sequence[Figures]
    stopped: Mapping[int, str] = field(default_factory=dict)  # round -> why a seed ended
    decided: Interval | None = None  # the last gain, with the interval that decides among several objectives

    @property
    def gain(self) -> Interval:
        """Gain over μ in the last round."""
        return self.last["true gain"] if self.decided is None else self.decided

    @property
    def last(self) -> Figures:
        return self.rounds[-1]

    @property
    def earned(self) -> str:
        """J of the first and the last round, as text."""
        return f"J {self.rounds[0]['true J'].mean:.4f} → {self.last['true J'].mean:.4f}"

    @property
    def change(self) -> str:
        """Relative change of J from the first to the last round, as text (+12 %)."""
        return change(self.rounds[0]["true J"].mean, self.last["true J"].mean)

    @cached_property
    def symptoms(self) -> list[Symptom]:
        """Signs of collapse: loss against μ, a fall of J, low entropy, few effective decisions, a stop."""
        entropy, signs = [each["entropy"].mean for each in self.rounds], []
        if (since := _since([figures["true gain"].high < 0 for figures in self.rounds])) and self.gain.sign < 0:
            said = f"earns significantly less than the policy it started from, since round {since}"
            signs.append(Symptom("loses", since, said))
        signs += self._fell()
        if since := _since([each < STILL * entropy[0] for each in entropy]):
            below = f"entropy {entropy[0]:.2f} → {entropy[-1]:.2f} nats (below {STILL:.0%} of μ's since round {since})"
            meaning = "each history gets nearly one item, so its log cannot tell whether another would have been better"
            signs.append(Symptom("no exploration", since, f"{below}: {meaning}"))
        weighed = {number: each[WEIGHED].mean for number, each in enumerate(self.rounds) if WEIGHED in each}
        low = {number: share for number, share in weighed.items() if share < LEAST_EFFECTIVE}
        if low:
            share, least = min((share, number) for number, share in low.items())
            said = f"only {100 * share:.1f} % of its log counted in training in round {least}"
            many = f"below {LEAST_EFFECTIVE:.0%} in {len(low)} of {len(weighed)} rounds"
            signs.append(Symptom("few decide", min(low), f"{said}; {many}"))
        if self.stopped:
            number, reason = min(self.stopped.items())
            signs.append(Symptom("stopped", number, f"could not be trained in round {number}: {reason}"))
        return signs

    def _fell(self) -> list[Symptom]:
        """Symptom for the deepest fall of J from an earlier best; none if it is within the intervals."""
        values, falls = [figures["true J"] for figures in self.rounds], []
        for low in range(2, len(values)):
            best = max(range(1, low), key=lambda number: values[number].mean)
            depth = values[best].mean - values[low].mean
            if values[best].low > values[low].high and depth > FALL * abs(values[best].mean):
                falls.append((depth, best, low))
        if not falls:
            return []
        _, best, low = max(falls)
        first, then = values[best].mean, values[low].mean
        said = f"J fell from {first:.4f} in round {best} to {then:.4f} in round {low} ({change(first, then)})"
        end = f", and is {values[-1].mean:.4f} at the end" if low < len(values) - 1 else ""
        return [Symptom("fell", best + 1, said + end)]

    def summary(self) -> str:
        """One line: J at the start and the end, JS from μ, and a sentence per symptom."""
        js = self.last["JS"].mean
        wrong = " ".join(f"{sign.text[0].upper()}{sign.text[1:]}." for sign in self.symptoms)
        return f"{self.name}: {self.earned} ({self.change}) at JS {js:.2f} from μ. {wrong or 'Nothing went wrong.'}"

    def claims(self) -> list[Claim]:
        """Claims that the objective earned more at the end, without a sign of collapse."""
        gain, signs = self.gain, [symptom.text for symptom in self.symptoms if symptom.kind != "loses"]
        return [
            Claim(
                "true gain", "the 95 % interval of the gain, corrected for all objectives by Holm's steps, is above 0",
                {1: True, -1: False, 0: None}[gain.sign],
                f"{self.name} ends above the policy it started from",
                f"{self.earned} ({self.change}) in {len(self.rounds) - 1} rounds", gain.mean, gain.low, gain.high,
            ),
            Claim(
                "true J, entropy", "no sign of collapse by the limits of the loop", not signs,
                f"{self.name} shows no sign of collapse",
                "; ".join(signs) or "J, entropy and the effective share of its weights stay in bounds",
            ),
        ]  # fmt: skip


def last_round(arms: Sequence[Trajectory]) -> int:
    """Number of the last round that an objective reached."""
    return max(len(arm.rounds) for arm in arms) - 1


def best_of(arms: Sequence[Trajectory]) -> Trajectory:
    """Objective with the largest J in the last round, among those that reached it."""
    last = last_round(arms)
    return max((arm for arm in arms if len(arm.rounds) == last + 1), key=lambda arm: arm.last["true J"].mean)


def change(start: float, end: float) -> str:
    """Text of a relative change: +12%; from 0 there is no percentage."""
    return f"{(end - start) / start:+.0%}" if start else "from nothing"


def _since(signs: Sequence[bool]) -> int:
    """First round from which a sign holds, if it holds in the last round; else 0."""
    after = [False, *signs[1:]]
    return after.index(True) if after[-1] else 0


# ---------------------------------------------------------------------- all objectives


FIGURES = {  # of the long table -> of a round's file; a closed form, which weighs nothing, has no share
    "true J": "truth", "true gain": "gain", "step": "step", "JS from the round before": "js_before",
    "JS": "js_first", "KL": "kl_first", "entropy": "entropy", "coverage@1": "coverage",
    "effective share": "effective_share", "clipped share": "clipped_share",
}  # fmt: skip


def figures_of(entry: Round) -> dict[str, tuple[float, float]]:
    """Mean and standard error of each metric in one seed's round; empty if it had stopped."""
    entry = {**entry, **entry.get("weights", {})}
    values = {name: entry[key] for name, key in FIGURES.items() if key in entry}
    return {
        name: (each["mean"], each["se"]) if isinstance(each, dict) else (each, 0.0) for name, each in values.items()
    }


@dataclass(frozen=True, repr=False)
class Loop(Result):
    """Result of a finished loop."""

    WRITER = "localpolicy.worlds.loop_page"

    config: LoopConfig
    world: World
    arms: list[PolicySpec]
    first: list[Round]  # μ's figures, by seed
    rounds: dict[str, list[list[Round]]]  # by arm, by seed: one entry per round, fewer where it had to stop

    @cached_property
    def measurements(self) -> list[Measurement]:
        """Long table: every metric of every objective and round, over seeds (seed null) and per seed."""
        rows = []
        for arm, seeds in self.rounds.items():
            chains = ([first, *entries] for first, entries in zip(self.first, seeds, strict=True))
            for number, entries in enumerate(zip_longest(*chains, fillvalue={})):  # the 0th is μ
                named = zip(self.config.seeds, map(figures_of, entries), strict=True)
                there = {seed: figures for seed, figures in named if figures}
                shared = [name for name in FIGURES if all(name in figures for figures in there.values())]
                for name in shared if there else ():
                    over = over_seeds(*zip(*(figures[name] for figures in there.values()), strict=True))
                    rows.append(Measurement.of(arm, name, over, round=number))
                rows += [
                    Measurement.of(arm, name, Interval.of(mean, se), se=se, seed=seed, round=number)
                    for seed, figures in there.items()
                    for name, (mean, se) in figures.items()
                ]
        return rows

    @cached_property
    def gains(self) -> dict[str, Interval]:
        """Gain over μ in the last round by objective, Holm-corrected over all objectives."""
        ends: dict[str, Sequence[tuple[float, float]]] = {}
        rows = (row for row in self.measurements if row.figure == "true gain" and row.seed is not None)
        for (arm, _), seeds in groupby(rows, lambda row: (row.policy, row.round)):
            ends[arm] = [(row.mean, row.se) for row in seeds]  # rounds come in their order: the last one stays

        def around(arm: str, confidence: float) -> tuple[float, float]:
            found = over_seeds(*zip(*ends[arm], strict=True), confidence=confidence)
            return found.low, found.high

        own = {arm: over_seeds(*zip(*seeds, strict=True)) for arm, seeds in ends.items()}
        clear = {arm: abs(each.mean) / ((each.high - each.low) or 1e-300) for arm, each in own.items()}
        return {arm: Interval(own[arm].mean, *of) for arm, of in holm_steps(clear, around, CONFIDENCE).items()}

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """Trajectory of every objective, over seeds."""
        over, rounds = (row for row in self.measurements if row.seed is None), defaultdict(list)
        for (arm, _), rows in groupby(over, lambda row: (row.policy, row.round)):
            rounds[arm].append({row.figure: row.interval for row in rows})
        return [
            Trajectory(
                arm,
                rounds[arm],
                {len(seed): seed[-1]["stopped"] for seed in seeds if "stopped" in seed[-1]},
                self.gains[arm],
            )
            for arm, seeds in self.rounds.items()
        ]

    def summary(self) -> str:
        """One line: J of each objective in the last round."""
        ends = {arm.name: arm.last["true J"].mean for arm in self.trajectories}
        order = ", ".join(f"{name} {value:.4f}" for name, value in sorted(ends.items(), key=lambda end: -end[1]))
        last = max(len(seed) for seeds in self.rounds.values() for seed in seeds)
        return f"{self.config.world}, {last} rounds; J at the end: {order}"

    def to_arrow(self) -> pa.Table:
        return as_arrow(self.measurements)

    def to_dict(self) -> dict[str, Any]:
        """JSON content: settings, objectives with symptoms, the long table, and the claims."""
        return {
            "localpolicy": __version__,
            "settings": self.config.model_dump(mode="json"),
            "optimum": self.world.optimum(),
            "arms": {
                arm.name: {
                    "objective": arm.objective, "stopped": went.stopped, "symptoms": as_json(went.symptoms),
                    "summary": went.summary(),
                }
                for arm, went in zip(self.arms, self.trajectories, strict=True)
            },
            "measurements": as_json(self.measurements),
            "claims": as_json([claim for went in self.trajectories for claim in went.claims()]),
        }  # fmt: skip
