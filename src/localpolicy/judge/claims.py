"""A claim: a figure, the rule it is judged by, the outcome, and one plain sentence.

Comparison, gate, sweep, loop, demo and the paper's tables make claims; pages, terminal and JSON print them. A check of
the gate is a claim that carries its numbers, since answers are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from localpolicy.judge.rules import CLOSE
from localpolicy.measure.estimate import finite
from localpolicy.measure.number_text import apart

LEVELS = ("coverage", "divergence", "divergence over floor", "propensities", "hidden cause")  # no differences

Outcome = Literal["yes", "no", "cannot tell", "not asked", "not judged"]


@dataclass(frozen=True)
class Claim:
    """Outcome of one check: metric, rule, whether the rule holds, the claim in plain words, and the numbers."""

    figure: str  # as in the long table; of a gate the name of the check
    rule: str
    holds: bool | None  # None: cannot tell, not asked, or not judged
    claim: str
    because: str
    value: float | None = None
    low: float | None = None  # of its interval
    high: float | None = None
    n: int | None = None  # sample size, in `unit`
    needed: int | None = None  # how many would tell, where these do not
    instead: str | None = None  # the policy that should be deployed rather than either
    plain: str = ""  # the outcome in a few words, for the answer's sentence
    unit: str = "positions"  # what `n` and `needed` count
    asked: bool = True  # where not, it is shown as a fact and decides nothing
    remedy: str = ""  # what to do about it, if that is more than its kind of check says
    least: float | None = None  # the smallest gain worth having, if the whole interval is below it
    judged: bool = True  # where not, it was asked, this log says too little of it, and so it decides nothing either

    @property
    def outcome(self) -> Outcome:
        if not self.asked:
            return "not asked" if self.judged else "not judged"
        return "cannot tell" if self.holds is None else "yes" if self.holds else "no"

    @property
    def found(self) -> tuple[str, str]:
        """The value and its interval as two texts, empty if there is none."""
        if self.value is None:
            return "", ""
        known = [end for end in (self.value, self.low, self.high, self.least) if end is not None]
        texts = apart(*known, form="" if self.figure in LEVELS else "+")
        return texts[0], "" if self.low is None or self.high is None else f"{texts[1]} to {texts[2]}"

    @property
    def numbers(self) -> str:
        """Value, interval, sample size, and the smallest gain worth having if that is what it misses."""
        value, interval = self.found
        if not value:
            return ""
        texts = [f"{value} ({interval})" if interval else value, *([f"{self.n:,} {self.unit}"] if self.n else [])]
        if self.least is not None and self.high is not None:
            texts.append(f"less than {apart(self.high, self.least)[1]}, the smallest gain worth having")
        return ", ".join(texts)

    def as_fact(self, why: str) -> Claim:
        """This check as information that refuses nothing, with `why` as the reason; an unasked check is unchanged."""
        if not self.asked:
            return self
        because = f"not asked, since {why}: {self.because}"
        return replace(self, asked=False, holds=None, because=because, needed=None, instead=None)

    def as_inconclusive(self, why: str, plain: str) -> Claim:
        """This check as inconclusive because of `why` (`plain` in short); a "no" and an unasked check are unchanged."""
        if self.holds is False or not self.asked:
            return self
        return replace(self, holds=None, because=f"{self.because}. {why}", plain=plain, needed=None)

    def to_dict(self) -> dict[str, Any]:
        known = {name: finite(value) for name, value in vars(self).items() if name not in ("asked", "judged")}
        return {**known, "outcome": self.outcome}


# ---------------------------------------------------------------------- the gate's

CHECKS = {  # by name: the rule, and what holds where it says yes
    "reward per answer": (
        "its gain is significantly above min_gain", "its answers would be worth more",
    ),
    "worth and number of answers": (
        "the relative gains in worth and in ranks, added, are significantly above 0",
        "worth and number of its answers together gain",
    ),
    "gain": ("the paired gain is significantly above min_gain", "it gains by ranks"),
    "other events": ("no significant loss above max_event_loss (Holm)", "no other event loses significantly"),
    "value": ("the estimated reward is significantly above what is asked", "its estimated reward is high enough"),
    "return": ("the estimated return is significantly above what is asked", "a visit earns more"),
    "hidden cause": (
        "shown, not judged: such a log cannot rule it out", "how strong a hidden cause must be to undo the gain",
    ),
    "direction": (
        "the reward per answer is not significantly lower", "what an answer would earn is no lower than before",
    ),
    "propensities": (
        "no mean of π/μ is significantly above 1", "the logged propensities are those of what was shown",
    ),
    "agreement": ("no significant loss", "it orders what people rated at least as well as before"),
    "segments": ("no significant loss above max_segment_loss (Holm)", "no segment loses significantly"),
    "coverage": ("at least min_coverage_ratio of the deployed one", "its lists still reach enough of the catalogue"),
    "baselines": ("none is significantly better (Holm)", "no simple baseline does significantly better"),
    "divergence": ("JS is at most max_js", "it stays within the budget of divergence"),
    "divergence over floor": (
        "JS is at most max_floor_ratio times the floor", "it stays within the allowed multiple of the noise floor",
    ),
    "order": ("no rows are sorted by anything but time", "its rows are in the order of time"),
    "training": (
        "the likelihood is significantly above that of popularity", "the models were trained for long enough",
    ),
    "reference fit": (
        f"significantly above uniform, and not significantly more than {CLOSE} nats below the popularity of the shown",
        "the estimates of the log predict it better than chance",
    ),
}  # fmt: skip
UNASKED = {"divergence": ("shown, not judged: no budget was set (max_js)", "how far it moves from the log")}


def check(name: str, outcome: Outcome, because: str, *numbers: Any, plain: str = "", **more: Any) -> Claim:
    """Claim of the gate's check `name`; `numbers` are value, low, high, n and the sample size needed."""
    (rule, claim), asked = CHECKS[name], outcome not in ("not asked", "not judged")
    more["judged"] = outcome != "not judged"
    if outcome == "not asked" and name in UNASKED:
        (rule, claim), plain = UNASKED[name], ""
    more |= zip(("value", "low", "high", "n", "needed"), numbers, strict=False)
    return Claim(name, rule, {"yes": True, "no": False}.get(outcome), claim, because, plain=plain, asked=asked, **more)


LEFT_OUT = check("baselines", "not asked", "simple baselines are left out (baselines: false)")
UNJUDGED = "the simple baselines could not be judged from this log"


def unjudged(why: str) -> str:
    """Sentence that this log cannot judge the simple baselines, and why."""
    return f"{UNJUDGED}, so they speak neither for the new policy nor against it: {why}"
