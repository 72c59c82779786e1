"""The verdict of a gate: the answer, its ground, every check behind it, and what to do now."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from localpolicy.judge.case import ONE_RUN, TWO_SEEDS
from localpolicy.judge.claims import Claim, Outcome
from localpolicy.judge.kinds import GROUNDS, KINDS, Answer, Ground
from localpolicy.judge.rules import GateRules
from localpolicy.measure.estimate import Measurement, as_json
from localpolicy.measure.estimators import by_name
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import Question
from localpolicy.results import Result

PASSED = "every check that was asked passed"
BETTER = ("gain", "return", "value", "reward per answer")  # checks of which the first says whether it is better
BY_RULE = Question("metric", "the rules name the figure")


@dataclass(frozen=True, repr=False)
class Gate(Result):
    """Result of the gate: the answer, and every check behind it."""

    checks: list[Claim]
    evaluation: Evaluation
    deployed: Evaluation | None  # None: the policy that wrote the log
    rules: GateRules
    metric: str = ""  # the rank metric that was looked at; `decided_by` says what decided
    notes: tuple[str, ...] = ()  # what differs between those compared, in words
    imitates: bool = False  # whether what is deployed is an estimate of the policy that wrote the log
    question: Question = BY_RULE  # which estimand decides, and why
    kind: str = "value"  # the row of `kinds.KINDS`: what such a log can know
    days: float | None = None  # that the log spans, where it has times
    policy_sha256: str | None = None  # of the candidate's weights, where it is a run
    data: Path | None = None  # the prepared data that they were measured on
    figures: tuple[Measurement, ...] = ()  # rows of the long table: the reward per answer of all that were judged by it
    stays: bool = False  # whether the new policy is the estimate of the log, since its critic is not trusted
    folder: Path | None = None  # of the candidate, where it is a run

    @property
    def answer(self) -> Answer:
        """Answer that follows from the checks: "do not deploy" if one says no, "cannot tell" if one is inconclusive.

        Else the strongest that such a log allows.
        """
        if self.kind == "nothing":
            return "nothing to decide"
        outcomes = {check.outcome for check in self.checks}
        if "no" in outcomes:
            return "do not deploy"
        return "cannot tell" if "cannot tell" in outcomes else KINDS[self.kind].strongest

    @property
    def ground(self) -> Ground:
        """What the answer is based on: randomised, assumed or none (see `kinds.GROUNDS`)."""
        return KINDS[self.kind].ground

    @property
    def next_step(self) -> str:
        return next_step(self)

    @property
    def deploy(self) -> bool:
        return self.answer == "deploy"

    @property
    def better(self) -> Claim:
        """The check on whether the new policy is better: gain, return, value or reward per answer."""
        return next(check for check in self.checks if check.figure in BETTER)

    @property
    def deciding(self) -> Claim:
        """The check that made the answer: the first with its outcome, or the one that names what to deploy instead.

        Where none speaks against it that is the check that says it is better.
        """
        against = [check for check in self.checks if check.outcome == self._against]
        return next((check for check in against if check.instead), against[0]) if against else self.better

    @property
    def _against(self) -> Outcome | None:
        """Outcome of the checks that prevent the strongest answer: no, cannot tell, or None if nothing does."""
        return "no" if self.answer == "do not deploy" else "cannot tell" if self.answer == "cannot tell" else None

    @property
    def decided_by(self) -> str:
        """Name of the metric or check that decided; "nothing" if there was nothing to decide."""
        if self.kind == "nothing":
            return "nothing"
        return self.metric if self.deciding.figure == "gain" else self.deciding.figure

    def figure_of(self, check: Claim) -> str:
        """Name in the long table of the metric that a check tests."""
        named = {"gain": self.metric, "value": by_name(self.rules.estimator).title}
        return named.get(check.figure, check.figure)

    @property
    def against(self) -> str:
        """Name of the deployed policy."""
        return "the policy that wrote the log" if self.deployed is None else self.deployed.name

    @property
    def headline(self) -> str:
        """The answer with the names of both policies, as a phrase without a reason."""
        new, old = self.evaluation.name, self.replaced
        match self.answer:
            case "deploy":
                return f"Deploy {new} instead of {old}"
            case "test online":
                return f"Test {new} online beside {old}"
            case "do not deploy":
                return f"Do not deploy {new}" if self.deciding.instead else f"Do not deploy {new} instead of {old}"
            case "cannot tell":
                return f"Cannot tell whether to deploy {new} instead of {old}"
        return f"Nothing to decide between {new} and {old}"

    @property
    def replaced(self) -> str:
        """Name of the deployed policy, with a note if it imitates the log."""
        return f"{self.against}{' (which imitates the log)' if self.imitates else ''}"

    @property
    def sentence(self) -> str:
        """The answer with its reasons in one sentence without numbers."""
        but = f". But {'; '.join(self.caveats)}" if self.caveats else ""
        return f"{self.headline}: {self._in_words()}{but}."

    @property
    def reason(self) -> str:
        """Finding of the deciding check, with its number."""
        if self.answer == "nothing to decide":
            return self.question.why
        check = self.deciding
        unknown = "" if check.outcome == "yes" else check.because
        what = f"the simple baseline '{check.instead}' does better" if check.instead else check.plain
        found = [what, check.numbers or unknown]
        return ": ".join(part for part in found if part) + self._more([check])

    @property
    def ground_text(self) -> str:
        """Sentence on what the answer is based on, and on what would undo a gain that depends on it."""
        undone = [check.plain for check in self.checks if check.figure == "hidden cause" and check.plain]
        shown = undone if self.answer == "test online" else []
        return "; ".join([f"{self.ground}: {GROUNDS[self.ground]}", *shown])

    @property
    def caveats(self) -> list[str]:
        """Caveats of a positive answer: losses that could not refuse it, and checks that could not be judged."""
        if self.answer not in ("deploy", "test online"):
            return []
        fell = [check.plain for check in self.checks if _fell(check)]
        known = [f"{', and '.join(fell)} (not asked)"] if fell else []
        return [*known, *(each.plain for each in self.checks if each.outcome == "not judged" and each.plain)]

    def _in_words(self) -> str:
        """The reasons in words: that all passed, or the first two checks with the outcome of the answer."""
        gain, clauses = self.better, _clauses([check for check in self.checks if check.outcome == self._against])
        match self.answer:
            case "nothing to decide":
                return self.question.why
            case "deploy" | "test online":
                return f"{gain.plain}, and {PASSED}"
            case "cannot tell":
                return clauses + self._more([check for check in self.checks if check.outcome == "cannot tell"])
        if (instead := self.deciding.instead) is not None:
            do = "Deploy that one" if self.ground == "randomised" else "Try that one online"
            return f"the simple baseline '{instead}' does better. {do}"
        return f"{gain.plain}, but {clauses}" if gain.outcome == "yes" else clauses

    def _more(self, unsure: Sequence[Claim]) -> str:
        """Sentence on the sample size that would settle inconclusive checks; empty if it is not known."""
        known = [check for check in unsure if check.needed is not None and check.n]
        if not known:
            return ""
        most = max(known, key=lambda check: (check.needed or 0) / (check.n or 1))
        assert most.needed is not None and most.n
        days = ""
        if self.days is not None:
            count = _rounded(math.ceil(self.days * most.needed / most.n))
            days = f" ({count:,} day{'s' if count > 1 else ''} of such a log)"
        return f". About {_rounded(most.needed):,} {most.unit}{days} would tell; there are {most.n:,}"

    def summary(self) -> str:
        return self.sentence.removesuffix(".")

    def to_arrow(self) -> pa.Table:
        """One row per check: its outcome, value, interval, n and reason."""
        return pa.Table.from_pylist([check.to_dict() for check in self.checks])

    def to_dict(self) -> dict[str, Any]:
        return {
            "answer": self.answer,
            "deploy": self.deploy,
            "ground": self.ground,
            "ground_means": GROUNDS[self.ground],
            "sentence": self.sentence,
            "reason": self.reason,
            "caveats": self.caveats,
            "next_step": self.next_step,
            "kind": self.kind,
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
    """Whether an informational check found a significant loss, which the answer must then mention."""
    if check.outcome != "not asked" or not check.plain:
        return False
    return check.figure in ("other events", "segments") or (check.figure == "gain" and (check.high or 0.0) < 0)


def _clauses(checks: Sequence[Claim]) -> str:
    """The first two checks as one clause, with the number of the others."""
    said = list(dict.fromkeys(check.plain for check in checks if check.plain))
    more = f" (and {len(said) - 2} more)" if len(said) > 2 else ""
    return " and ".join(said[:2]) + more


def _rounded(count: int) -> int:
    return int(float(f"{count:.1e}"))


# ---------------------------------------------------------------------- the next step

KEEP = "Keep what is deployed."
NEXT = {
    "deploy": "Show it to a small share of the users first, and measure.",
    "do not deploy": f"{KEEP} The checks say what fell short.",
    "nothing to decide": KEEP,
}
NO_BETTER = "It is no better than an imitation of your log."
NOT_JUDGED = "Your own recommender was not judged: give lists of its own (lpi go --own, or lpi gate --against)."
IMITATION = "The imitation of your log may itself be worth a test online."
WORTH = (
    "Log the outcome of each event (a purchase, a rating), prepare the log with that (lpi prepare ... --rewards "
    "purchase=1,view=0.2), and train again: until then nothing says which policy earns more. If ranks alone are what "
    "you want, serve the model that ranks highest."
)
SHOWN = (
    "Log lists with the probability of each item (docs/serving.md), or at least the views with the sales: until then "
    "nothing says which policy earns more. The model that ranks highest predicts the next basket best, and may be "
    "worth a test online."
)
FIRST_STAGE = "Try it on 5 % of the people: {command} (--log LOG says how many persons and days it takes)."
ONLINE = "Test online."
PROPENSITIES = (
    "Log with what probability each item was shown (if a ranker of yours makes the lists, lpi explore plan says what "
    "drawing them costs), or test online."
)
MORE = "Collect more of the log (the answer says how much would tell), or test online."
OPEN = {  # what to do where a check cannot tell, and more of the log would not help
    "order": "Prepare the log with its times, and ask again.",
    "training": "Train for longer (more minutes), and ask again.",
    "value": "Keep what is deployed, or take a larger β, which stays nearer to the log, and ask again.",
    "reward per answer": PROPENSITIES,
    "worth and number of answers": PROPENSITIES,
    "baselines": "Test both online.",
    "direction": "Test online, on a small share of the people.",
    "propensities": "Find out with what probabilities the items were shown (lpi audit), or log them again.",
    "divergence": "Hold out more sequences, or raise the budget (rule max_js).",
    "divergence over floor": "Give a second mle run of another seed with --against, and ask again.",
    "reference fit": "Train the estimates of the log for longer, and ask again.",
}
STAYS = (
    "Collect more of the log, and train again: the new policy is an estimate of the log, so a test online would test a "
    "copy of what wrote it."
)
REMEDY = {  # by the check with the outcome no
    "other events": "Or accept some loss there (rule max_event_loss), or take a larger β, which moves less.",
    "segments": "Or accept some loss there (rule max_segment_loss), or take a larger β, which moves less.",
    "divergence": "Or take a larger β, which moves less.",
}
INSTEAD = "{} '{}' ({} saves it), or find out what it knows that the policy does not."


def next_step(verdict: Gate) -> str:
    """What to do now, by the check with the outcome no, or by the first two that could not tell."""
    if (instead := verdict.deciding.instead) is not None:
        name = instead.replace(" ", "-").lower()
        saves = f"lpi train {shlex.quote(str(verdict.data or 'DATA'))} --objective {name} --out {name}"
        return INSTEAD.format("Serve" if verdict.ground == "randomised" else "Test online", instead, saves)
    if verdict.answer == "test online":
        return FIRST_STAGE.format(command=rollout_command(verdict))
    if verdict.answer == "cannot tell":
        return _where_open(verdict)
    if verdict.answer == "nothing to decide" and verdict.question not in (ONE_RUN, TWO_SEEDS):
        return would_decide(verdict.question)
    failed = {check.figure for check in verdict.checks if check.outcome == "no"}
    remedies = [REMEDY[name] for name in failed if name in REMEDY] if len(failed) == 1 else []
    if verdict.answer == "do not deploy" and verdict.imitates and verdict.ground != "randomised":
        poor = any(check.figure == "reference fit" and check.outcome == "cannot tell" for check in verdict.checks)
        imitation = "" if poor else IMITATION  # no better than chance: nothing to test
        steps = ["" if verdict.better.holds else NO_BETTER, NOT_JUDGED, imitation, *remedies]
        return " ".join(filter(None, steps))
    return " ".join([NEXT[verdict.answer], *remedies])


def would_decide(question: Question) -> str:
    """Sentence on what to log so that policies can be compared, for a log where nothing can be decided."""
    return SHOWN if question.amount else WORTH


def _where_open(verdict: Gate) -> str:
    """Next step if the answer is "cannot tell"."""
    unsure = [check for check in verdict.checks if check.outcome == "cannot tell" and check.plain]
    if verdict.stays and unsure[0].figure not in ("order", "training"):
        return STAYS
    steps = [check.remedy or (MORE if check.needed else OPEN.get(check.figure, ONLINE)) for check in unsure]
    return " ".join(list(dict.fromkeys(steps))[:2])


def rollout_command(verdict: Gate) -> str:
    """Command line that plans a rollout of the candidate from 5 % of the people on."""
    run = "EXPORT" if verdict.folder is None else shlex.quote(str(verdict.folder))
    return f"lpi rollout plan {run} --out rollout.json --stages 5,25,50,100"
