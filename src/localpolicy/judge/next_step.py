"""Next step after a verdict: the remedy of the check that says no, or of the first two that cannot tell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from localpolicy.judge.case import ONE_RUN, TWO_SEEDS
from localpolicy.judge.claims import Claim
from localpolicy.measure.metrics import Question

KEEP = "Keep what is deployed."
NEXT = {
    "deploy": "Show it to a small share of the users first, and measure.",
    "do not deploy": f"{KEEP} The checks say what fell short.",
    "nothing to decide": KEEP,
}
NO_BETTER = "It is no better than an imitation of your log."
NOT_JUDGED = (
    "Your own recommender was not judged: give lists of its own (lpi go --own, or lpi gate --against). The imitation "
    "of your log may itself be worth a test online."
)
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


class Answered(Protocol):
    """Protocol of a verdict, as far as the next step depends on it."""

    @property
    def answer(self) -> str:
        """Answer of the gate."""

    @property
    def ground(self) -> str:
        """What the answer is based on: randomised, assumed or none (see `kinds.GROUNDS`)."""

    @property
    def deciding(self) -> Claim:
        """The check that made the answer."""

    @property
    def better(self) -> Claim:
        """The check on whether the new policy is better."""

    @property
    def checks(self) -> Sequence[Claim]:
        """Every check of the verdict."""

    @property
    def question(self) -> Question:
        """Question that the log was asked."""

    @property
    def imitates(self) -> bool:
        """Whether the deployed policy is an estimate of the log."""

    @property
    def stays(self) -> bool:
        """Whether the new policy is only an estimate of the log."""

    @property
    def data(self) -> Path | None:
        """Folder of the prepared data; None if not known."""

    @property
    def folder(self) -> Path | None:
        """Folder of the candidate's run."""


def next_step(verdict: Answered) -> str:
    """Text of the next step."""
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
        return " ".join([*([] if verdict.better.holds else [NO_BETTER]), NOT_JUDGED, *remedies])
    return " ".join([NEXT[verdict.answer], *remedies])


def would_decide(question: Question) -> str:
    """Sentence on what to log so that policies can be compared, for a log where nothing can be decided."""
    return SHOWN if question.amount else WORTH


def _where_open(verdict: Answered) -> str:
    """Next step if the answer is "cannot tell"."""
    unsure = [check for check in verdict.checks if check.outcome == "cannot tell" and check.plain]
    if verdict.stays and unsure[0].figure not in ("order", "training"):
        return STAYS
    steps = [check.remedy or (MORE if check.needed else OPEN.get(check.figure, ONLINE)) for check in unsure]
    return " ".join(list(dict.fromkeys(steps))[:2])


def rollout_command(verdict: Answered) -> str:
    """Command line that plans a rollout of the candidate from 5 % of the people on."""
    run = "EXPORT" if verdict.folder is None else shlex.quote(str(verdict.folder))
    return f"lpi rollout plan {run} --out rollout.json --stages 5,25,50,100"
