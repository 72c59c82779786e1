"""What went wrong in a loop, in sentences: which sign of collapse a policy shows, since when, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import CheckedClaim
from localpolicy.report.numbers import joined, percent
from localpolicy.study.loop.figures import Figures

STILL = 0.1  # of μ's entropy: below it a policy shows nearly the same item each time
NARROW = 0.5  # of μ's coverage
FALL = 0.01  # of the best J: a smaller fall is not spoken of, where J is exact


@dataclass(frozen=True)
class Symptom:
    """One thing that went wrong."""

    kind: str
    since: int  # round
    said: str


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


def loop_findings(by_arm: Mapping[str, tuple[Sequence[Figures], Sequence[Symptom]]]) -> list[CheckedClaim]:
    """For each objective: did it earn more at the end, and without a sign of collapse?"""
    findings = []
    for name, (rounds, wrong) in by_arm.items():
        start, end, gain = rounds[0]["J(π)"].mean, rounds[-1]["J(π)"].mean, rounds[-1]["gain"]
        earns = True if gain.low > 0 else False if gain.high < 0 else None
        because = f"J {start:.4f} → {end:.4f} ({change(start, end)}) in {len(rounds) - 1} rounds"
        findings.append(CheckedClaim(f"{name} ends above the policy it started from", earns, because))
        signs = [symptom.said for symptom in wrong if symptom.kind != "loses"]
        healthy = "entropy, coverage and the effective share of its weights stay in bounds"
        findings.append(CheckedClaim(f"{name} shows no sign of collapse", not signs, "; ".join(signs) or healthy))
    return findings


def loop_verdict(by_arm: Mapping[str, tuple[Sequence[Figures], Sequence[Symptom]]]) -> str:
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
