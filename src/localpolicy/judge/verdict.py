"""What the gate says: the answer, one sentence for somebody who decides, and the checks behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from localpolicy.judge.claims import Claim
from localpolicy.judge.gate_rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.question import Question
from localpolicy.results import Result

Answer = Literal["deploy", "do not deploy", "cannot tell", "nothing to decide"]
NO_OBJECTION = "no check speaks against it"
DECIDING = ("gain", "value", "reward per answer")  # checks of which one says whether it is better
BY_RULE = Question("metric", "the rules name the figure")


@dataclass(frozen=True, repr=False)
class Gate(Result):
    """What a gate says: the answer, and every check behind it."""

    checks: list[Claim]
    evaluation: Evaluation
    deployed: Evaluation | None  # None: the policy that wrote the log
    rules: GateRules
    metric: str = ""
    notes: tuple[str, ...] = ()  # what differs between those compared, in words
    imitates: bool = False  # whether what is deployed is an estimate of the policy that wrote the log
    question: Question = BY_RULE  # what was asked of the log
    days: float | None = None  # that the log spans, where it has times
    policy_sha256: str | None = None  # of the candidate's weights, where it is a run
    data: Path | None = None  # the prepared data that they were measured on

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
    def against(self) -> str:
        """What is deployed now."""
        return "the policy that wrote the log" if self.deployed is None else self.deployed.name

    @property
    def sentence(self) -> str:
        """The answer as one says it to somebody who decides."""
        new, old = self.evaluation.name, f"{self.against}{' (which imitates the log)' if self.imitates else ''}"
        if self.answer == "nothing to decide":
            return f"Nothing to decide between {new} and {old}: {self.question.why}."
        gain = next(check for check in self.checks if check.figure in DECIDING)
        if self.deploy:
            fell = [check for check in self.checks if _fell(check)]
            rest = f"no check that was asked speaks against it, but {_clauses(fell)}" if fell else NO_OBJECTION
            return f"Deploy {new} instead of {old}: {gain.plain}, and {rest}."
        failed = [check for check in self.checks if check.outcome == "no"]
        instead = next((check.instead for check in failed if check.instead), None)
        if instead is not None:
            return f"Do not deploy {new}: the simple baseline '{instead}' does better. Deploy that one."
        if failed:
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
            "metric": self.metric,
            "checks": [check.to_dict() for check in self.checks],
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
    more = f" (and {len(checks) - 2} more)" if len(checks) > 2 else ""
    return " and ".join(check.plain for check in checks[:2]) + more


def _rounded(count: int) -> int:
    """To two digits: more would pretend to know."""
    return int(float(f"{count:.1e}"))
