"""One objective's way through a loop: what it earned round after round, and which signs of collapse it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from localpolicy.judge.claims import Claim
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.estimate import Interval

STILL = 0.1  # of μ's entropy: below it a policy shows nearly the same item each time
NARROW = 0.5  # of μ's coverage
FALL = 0.01  # of the best J: a smaller fall is not spoken of, where J is exact
WEIGHED = "effective share"  # of the log, by the weights of training

Figures = Mapping[str, Interval]  # of one round over seeds, by name; JS and KL are from the first μ


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
        return f"J {self.rounds[0]['true J'].mean:.4f} → {self.last['true J'].mean:.4f}"

    @property
    def change(self) -> str:
        """Of J, from the start to the end."""
        return change(self.rounds[0]["true J"].mean, self.last["true J"].mean)

    @cached_property
    def symptoms(self) -> list[Symptom]:
        """All signs of collapse."""
        entropy, coverage = ([each[name].mean for each in self.rounds] for name in ("entropy", "coverage@1"))
        signs = []
        if since := _since([figures["true gain"].high < 0 for figures in self.rounds]):
            said = f"earns significantly less than the policy it started from, since round {since}"
            signs.append(Symptom("loses", since, said))
        signs += self._fell()
        if since := _since([each < STILL * entropy[0] for each in entropy]):
            below = f"entropy {entropy[0]:.2f} → {entropy[-1]:.2f} nats (below {STILL:.0%} of μ's since round {since})"
            meaning = "each history gets nearly one item, so its log cannot tell whether another would have been better"
            signs.append(Symptom("no exploration", since, f"{below}: {meaning}"))
        if since := _since([each < NARROW * coverage[0] for each in coverage]):
            shares = f"{100 * coverage[0]:.1f} % → {100 * coverage[-1]:.1f} % of the catalogue is shown first somewhere"
            signs.append(Symptom("narrow", since, f"{shares} (below {NARROW:.0%} of μ's since round {since})"))
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
        """The deepest fall of J from an earlier best, if it is larger than the intervals."""
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
        """It in one sentence, and what went wrong."""
        js = self.last["JS"].mean
        wrong = " ".join(f"{sign.said[0].upper()}{sign.said[1:]}." for sign in self.symptoms)
        return f"{self.name}: {self.earned} ({self.change}) at JS {js:.2f} from μ. {wrong or 'Nothing went wrong.'}"

    def claims(self) -> list[Claim]:
        """Did it earn more at the end, and without a sign of collapse?"""
        gain, signs = self.last["true gain"], [symptom.said for symptom in self.symptoms if symptom.kind != "loses"]
        return [
            Claim(
                "true gain", "the 95 % interval of the gain is above 0", {1: True, -1: False, 0: None}[gain.sign],
                f"{self.name} ends above the policy it started from",
                f"{self.earned} ({self.change}) in {len(self.rounds) - 1} rounds", gain.mean, gain.low, gain.high,
            ),
            Claim(
                "true J, entropy, coverage@1", "no sign of collapse by the limits of the loop", not signs,
                f"{self.name} shows no sign of collapse",
                "; ".join(signs) or "entropy, coverage and the effective share of its weights stay in bounds",
            ),
        ]  # fmt: skip


def last_round(arms: Sequence[Trajectory]) -> int:
    """The last round that an objective reached."""
    return max(len(arm.rounds) for arm in arms) - 1


def best_of(arms: Sequence[Trajectory]) -> Trajectory:
    """Who earns most in the last round; one that stopped before it is not compared with those that went on."""
    last = last_round(arms)
    return max((arm for arm in arms if len(arm.rounds) == last + 1), key=lambda arm: arm.last["true J"].mean)


def change(start: float, end: float) -> str:
    """+12%; a change from 0 has no percentage."""
    return f"{(end - start) / start:+.0%}" if start else "from nothing"


def _since(signs: Sequence[bool]) -> int:
    """The first round that has a sign, if the last one has it too, else 0: that is μ."""
    after = [False, *signs[1:]]
    return after.index(True) if after[-1] else 0
