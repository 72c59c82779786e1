"""A loop in words: what each policy earned round after round, and which sign of collapse it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import Claim
from localpolicy.report.numbers import joined, percent
from localpolicy.study.rounds import Figures, Loop

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
    last = last_round(by_arm)
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


def trajectories(loop: Loop) -> dict[str, Trajectory]:
    """Of every objective: its figures by round, and what went wrong."""
    rounds = {arm.name: loop.figures(arm.name) for arm in loop.arms}
    return {name: (each, symptoms(each, loop.stopped(name))) for name, each in rounds.items()}


def last_round(by_arm: Mapping[str, Trajectory]) -> int:
    """The last round that an objective reached."""
    return max(len(rounds) for rounds, _ in by_arm.values()) - 1
