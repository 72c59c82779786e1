"""A claim: a figure, the rule it is judged by, what came of it, and one plain sentence.

Comparison, gate, sweep, loop, demo and the paper's tables make claims; pages, terminal and JSON print them. A check of
the gate is a claim that carries its numbers, since answers are made of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from localpolicy.judge.verdict import GateRules
from localpolicy.measure.estimate import finite, more_needed, sequences_of
from localpolicy.measure.estimators import Contributions
from localpolicy.measure.significance import Paired

Outcome = Literal["yes", "no", "cannot tell", "not asked"]
HOLDS: dict[Outcome, bool | None] = {"yes": True, "no": False, "cannot tell": None, "not asked": None}


@dataclass(frozen=True)
class Claim:
    """A figure, the rule it is judged by, whether it holds here, in one plain sentence, and the numbers behind it."""

    figure: str  # as in the long table; of a gate the name of the check
    rule: str
    holds: bool | None  # None: cannot tell, or not asked
    claim: str
    because: str
    value: float | None = None
    low: float | None = None  # of its interval
    high: float | None = None
    n: int | None = None  # positions, or decisions, it rests on
    needed: int | None = None  # how many would tell, where these do not
    instead: str | None = None  # the policy that should be deployed rather than either
    plain: str = ""  # what came of it in a few words, for the answer's sentence
    unit: str = "positions"  # what `n` and `needed` count
    asked: bool = True  # where not, it is shown as a fact and decides nothing

    @property
    def outcome(self) -> Outcome:
        """What came of it, in a word."""
        if not self.asked:
            return "not asked"
        return "cannot tell" if self.holds is None else "yes" if self.holds else "no"

    def as_fact(self, why: str) -> Claim:
        """The same as a fact that refuses nothing; what was not asked before stays as it is."""
        if not self.asked:
            return self
        because = f"not asked, since {why}: {self.because}"
        return replace(self, asked=False, holds=None, because=because, needed=None, instead=None)

    def in_doubt(self, why: str, plain: str | None = None) -> Claim:
        """The same, which can no longer be told unless it says no."""
        if self.holds is False:
            return self
        return replace(self, holds=None, because=f"{self.because}. {why}", plain=plain or self.plain)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        known = {name: finite(value) for name, value in vars(self).items() if name != "asked"}
        return {**known, "outcome": self.outcome}


# ---------------------------------------------------------------------- the gate's


CHECKS = {  # by name: the rule, and what holds where it says yes
    "reward per answer": (
        "worth of answers, and worth and number together, gain significantly", "its answers would be worth more",
    ),
    "gain": ("the paired gain is significantly above min_gain", "it gains in the figure that decides"),
    "other events": ("no significant loss above max_event_loss (Holm)", "no other event loses significantly"),
    "value": ("the estimated reward is significantly above what is asked", "its estimated reward is high enough"),
    "agreement": ("no significant loss", "it orders what people rated at least as well as before"),
    "segments": ("no significant loss above max_segment_loss (Holm)", "no segment loses significantly"),
    "coverage": ("at least min_coverage_ratio of the deployed one", "its lists still reach enough of the catalogue"),
    "baselines": ("none is better (Holm)", "no simple baseline does better"),
    "divergence": ("JS is at most max_js", "it stays within the budget of divergence"),
    "divergence over floor": (
        "JS is at most max_floor_ratio times the floor", "it stays within the allowed multiple of the noise floor",
    ),
    "order": ("no rows are sorted by anything but time", "its rows are in the order of time"),
    "training": (
        "the likelihood is significantly above that of popularity", "the models were trained for long enough",
    ),
    "reference fit": (
        "above uniform, and not below popularity", "the estimates of the log predict it better than chance",
    ),
}  # fmt: skip


UNASKED = {"divergence": ("shown, not judged: no budget was set (max_js)", "how far it moves from the log")}


def check(name: str, outcome: Outcome, because: str, *numbers: Any, plain: str = "", **more: Any) -> Claim:
    """The gate's claim called `name`; `numbers` are its value, its interval, its n and how many would be needed."""
    (rule, claim), asked = CHECKS[name], outcome != "not asked"
    if not asked and name in UNASKED:
        (rule, claim), plain = UNASKED[name], ""
    more |= zip(("value", "low", "high", "n", "needed"), numbers, strict=False)
    return Claim(name, rule, HOLDS[outcome], claim, because, plain=plain, asked=asked, **more)


LEFT_OUT = check("baselines", "not asked", "simple baselines are left out (baselines: false)")
TOO_LITTLE = " by as much as is worth having"


def outcome_of(low: float, high: float, deployed: float, rules: GateRules) -> tuple[Outcome, str]:
    """Whether a gain with this interval is worth a deployment; and why not, in words.

    No where all of it lies below `smallest_gain` of the deployed figure, however significant it is; yes where it lies
    above `min_gain`; else it cannot tell. A `min_gain` below 0 accepts losses, and so any gain.
    """
    smallest = max(rules.min_gain, rules.smallest_gain * abs(deployed))
    too_little = high < max(smallest, rules.min_gain + 1e-12)
    if low > rules.min_gain and not (too_little and rules.min_gain >= 0):
        return "yes", ""
    if too_little:
        return "no", f". The whole interval is below {smallest:.4f}, the smallest gain worth having"
    return "cannot tell", ""


def too_few(clusters: np.ndarray, rules: GateRules) -> tuple[int, str] | None:
    """How many positions such sequences would need for a verdict, and that in words; None where there are enough."""
    sequences = sequences_of(clusters)
    if sequences >= rules.min_sequences:
        return None
    needed = math.ceil(len(clusters) * rules.min_sequences / max(sequences, 1))
    return needed, f". {sequences} sequences are too few for a verdict (least: {rules.min_sequences})"


def would_tell(
    found: Paired | Contributions, gain: float, rules: GateRules, *, unit: str = "positions"
) -> tuple[int | None, str]:
    """How many would tell a difference of `gain` from none, and that in words; None where these should have told."""
    needed = more_needed(found, gain, confidence=rules.confidence)
    if needed is None or needed <= found.n:
        return None, ""
    return needed, f". About {needed:,} {unit} would tell"
