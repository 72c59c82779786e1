"""A claim: a figure, the rule it is judged by, what came of it, and one plain sentence; and the gate's verdict on them.

Comparison, gate, sweep, loop, demo and the paper's tables make claims; pages, terminal and JSON print them. A check of
the gate is a claim that carries its numbers, since answers are made of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from localpolicy.judge.rules import CLOSE, GateRules
from localpolicy.measure.estimate import Measurement, as_json, finite
from localpolicy.measure.metrics import Question
from localpolicy.results import Result

if TYPE_CHECKING:  # rules are read without torch
    from localpolicy.measure.evaluation import Evaluation


Outcome = Literal["yes", "no", "cannot tell", "not asked", "not judged"]


@dataclass(frozen=True)
class Claim:
    """A figure, the rule it is judged by, whether it holds here, in one plain sentence, and the numbers behind it."""

    figure: str  # as in the long table; of a gate the name of the check
    rule: str
    holds: bool | None  # None: cannot tell, not asked, or not judged
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
    judged: bool = True  # where not, it was asked, this log says too little of it, and so it decides nothing either

    @property
    def outcome(self) -> Outcome:
        """What came of it, in a word."""
        if not self.asked:
            return "not asked" if self.judged else "not judged"
        return "cannot tell" if self.holds is None else "yes" if self.holds else "no"

    def as_fact(self, why: str) -> Claim:
        """The same as a fact that refuses nothing; what was not asked before stays as it is."""
        if not self.asked:
            return self
        because = f"not asked, since {why}: {self.because}"
        return replace(self, asked=False, holds=None, because=because, needed=None, instead=None)

    def in_doubt(self, why: str, plain: str) -> Claim:
        """The same, which no more of the log can tell unless it says no, or was not asked; `plain` is why in short."""
        if self.holds is False or not self.asked:
            return self
        return replace(self, holds=None, because=f"{self.because}. {why}", plain=plain, needed=None)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
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
    """The gate's claim called `name`; `numbers` are its value, its interval, its n and how many would be needed."""
    (rule, claim), asked = CHECKS[name], outcome not in ("not asked", "not judged")
    more["judged"] = outcome != "not judged"
    if outcome == "not asked" and name in UNASKED:
        (rule, claim), plain = UNASKED[name], ""
    more |= zip(("value", "low", "high", "n", "needed"), numbers, strict=False)
    return Claim(name, rule, {"yes": True, "no": False}.get(outcome), claim, because, plain=plain, asked=asked, **more)


LEFT_OUT = check("baselines", "not asked", "simple baselines are left out (baselines: false)")
UNJUDGED = "the simple baselines could not be judged from this log"


def unjudged(why: str) -> str:
    """That nothing is known of the simple baselines, why, and what that means."""
    return f"{UNJUDGED}, so they speak neither for the new policy nor against it: {why}"


# ---------------------------------------------------------------------- what the gate says

Answer = Literal["deploy", "do not deploy", "cannot tell", "nothing to decide"]
PASSED = "every check that was asked passed"
BETTER = ("gain", "value", "reward per answer")  # checks of which the first says whether it is better
BY_RULE = Question("metric", "the rules name the figure")


@dataclass(frozen=True, repr=False)
class Gate(Result):
    """What a gate says: the answer, and every check behind it."""

    checks: list[Claim]
    evaluation: Evaluation
    deployed: Evaluation | None  # None: the policy that wrote the log
    rules: GateRules
    metric: str = ""  # the rank metric that was looked at; `decided_by` says what decided
    notes: tuple[str, ...] = ()  # what differs between those compared, in words
    imitates: bool = False  # whether what is deployed is an estimate of the policy that wrote the log
    question: Question = BY_RULE  # what was asked of the log
    days: float | None = None  # that the log spans, where it has times
    policy_sha256: str | None = None  # of the candidate's weights, where it is a run
    data: Path | None = None  # the prepared data that they were measured on
    figures: tuple[Measurement, ...] = ()  # rows of the long table: the reward per answer of all that were judged by it
    stays: bool = False  # whether the new policy is the estimate of the log, since its critic is not trusted

    @property
    def answer(self) -> Answer:
        """No where a check says so; cannot tell where one that was asked for could not be answered."""
        if self.question.kind == "nothing":
            return "nothing to decide"
        outcomes = {check.outcome for check in self.checks}
        return "do not deploy" if "no" in outcomes else "cannot tell" if "cannot tell" in outcomes else "deploy"

    @property
    def deploy(self) -> bool:
        """Whether the answer is yes."""
        return self.answer == "deploy"

    @property
    def better(self) -> Claim:
        """The check that says whether it is better."""
        return next(check for check in self.checks if check.figure in BETTER)

    @property
    def deciding(self) -> Claim:
        """The check that made the answer: of those that say so the first, or the one that names what to deploy instead.

        Where none speaks against it that is the check that says it is better.
        """
        outcome = {"do not deploy": "no", "cannot tell": "cannot tell"}.get(self.answer)
        against = [check for check in self.checks if check.outcome == outcome]
        return next((check for check in against if check.instead), against[0]) if against else self.better

    @property
    def decided_by(self) -> str:
        """The name of that check, or of the metric where the gain in ranks made the answer; or nothing did."""
        if self.question.kind == "nothing":
            return "nothing"
        return self.metric if self.deciding.figure == "gain" else self.deciding.figure

    @property
    def against(self) -> str:
        """What is deployed now."""
        return "the policy that wrote the log" if self.deployed is None else self.deployed.name

    @property
    def sentence(self) -> str:
        """The answer as one says it to somebody who decides."""
        new, old = self.evaluation.name, f"{self.against}{' (which imitates the log)' if self.imitates else ''}"
        if self.answer == "nothing to decide":
            return f"Nothing to decide between {new} and {old}: {self.question.why}."
        gain = self.better
        if self.deploy:
            fell = [check.plain for check in self.checks if _fell(check)]
            beside = f" Known, but not asked: {', and '.join(fell)}." if fell else ""
            open_ones = [f" Not judged: {check.plain}." for check in self.checks if check.outcome == "not judged"]
            return f"Deploy {new} instead of {old}: {gain.plain}, and {PASSED}.{beside}{''.join(open_ones)}"
        if (instead := self.deciding.instead) is not None:
            return f"Do not deploy {new}: the simple baseline '{instead}' does better. Deploy that one."
        if failed := [check for check in self.checks if check.outcome == "no"]:
            but = f"{gain.plain}, but " if gain.outcome == "yes" else ""
            return f"Do not deploy {new} instead of {old}: {but}{_clauses(failed)}."
        unsure = [check for check in self.checks if check.outcome == "cannot tell"]
        return f"Cannot tell whether to deploy {new} instead of {old}: {_clauses(unsure)}.{self._more(unsure)}"

    def _more(self, unsure: Sequence[Claim]) -> str:
        """How much of such a log would tell."""
        known = [check for check in unsure if check.needed is not None and check.n]
        if not known:
            return ""
        most = max(known, key=lambda check: (check.needed or 0) / (check.n or 1))
        assert most.needed is not None and most.n
        days = ""
        if self.days is not None:
            count = _rounded(math.ceil(self.days * most.needed / most.n))
            days = f" ({count:,} day{'s' if count > 1 else ''} of such a log)"
        return f" About {_rounded(most.needed):,} {most.unit}{days} would tell; there are {most.n:,}."

    def summary(self) -> str:
        """The answer in a sentence."""
        return self.sentence.removesuffix(".")

    def to_arrow(self) -> pa.Table:
        """One row per check: its outcome, value, interval, n and reason."""
        return pa.Table.from_pylist([check.to_dict() for check in self.checks])

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "answer": self.answer,
            "deploy": self.deploy,
            "sentence": self.sentence,
            "question": self.question._asdict(),
            "decided_by": self.decided_by,
            "metric": self.metric,
            "checks": [check.to_dict() for check in self.checks],
            "figures": as_json(self.figures),
            "notes": list(self.notes),
            "rules": self.rules.model_dump(mode="json"),
            "evaluation": self.evaluation.to_dict(),
            "deployed": None if self.deployed is None else self.deployed.to_dict(),
            "policy_sha256": self.policy_sha256,
        }


def _fell(check: Claim) -> bool:
    """Whether a check that was not asked found a significant loss, which the answer must then name."""
    if check.outcome != "not asked" or not check.plain:
        return False
    return check.figure in ("other events", "segments") or (check.figure == "gain" and (check.high or 0.0) < 0)


def _clauses(checks: Sequence[Claim]) -> str:
    """The first two checks in words: more would make no sentence."""
    said = list(dict.fromkeys(check.plain for check in checks if check.plain))
    more = f" (and {len(said) - 2} more)" if len(said) > 2 else ""
    return " and ".join(said[:2]) + more


def _rounded(count: int) -> int:
    """To two digits: more would pretend to know."""
    return int(float(f"{count:.1e}"))
