"""The kinds of log as a table: what each can know, which checks decide, and the strongest answer it allows.

ground       *randomised*: what was shown was drawn with known probabilities. *assumed*: what people chose themselves,
             so a hidden cause may drive both what they chose and what it earned. *none*: nothing is known of a policy
             other than the one that wrote the log.
asks         the estimand in words
decides      the checks that say whether it is better
asked        the other checks of the kind that may refuse it
known        checks that are measured and shown, but refuse nothing, and `why`
strongest    the answer where every check that was asked passed

A kind is found by `kind_of`; docs/evaluation.md has the same table for readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from localpolicy.judge.case import Case
from localpolicy.judge.checks.answers import confounded_answers, gain_in_answers, hidden_cause, no_lower_reward
from localpolicy.judge.checks.baselines import by_answers, by_ranks, by_value
from localpolicy.judge.checks.distance import reference_fit, within_budget
from localpolicy.judge.checks.gains import gain
from localpolicy.judge.checks.losses import agreement, lists_reach_enough, no_segment_loses, other_events
from localpolicy.judge.checks.propensities import true_propensities
from localpolicy.judge.checks.returns import gain_in_reward
from localpolicy.judge.checks.value import no_lower_value
from localpolicy.judge.claims import Claim
from localpolicy.measure.metrics import question_of

Ground = Literal["randomised", "assumed", "none"]
Answer = Literal["deploy", "test online", "do not deploy", "cannot tell", "nothing to decide"]
Check = Callable[[Case], Sequence[Claim]]

GROUNDS: dict[Ground, str] = {
    "randomised": "what was shown was drawn with known probabilities",
    "assumed": "people chose themselves, and what made them choose may have made the reward too",
    "none": "the log does not tell what another policy would earn",
}


class Kind(NamedTuple):
    """What a gate asks of one kind of log: a row of `KINDS`, with the columns above."""

    ground: Ground
    asks: str
    decides: tuple[Check, ...]
    asked: tuple[Check, ...]
    known: tuple[Check, ...]
    strongest: Answer
    why: str = ""  # the checks `known` refuse nothing

    @property
    def weighs_answers(self) -> bool:
        """Whether checks of the reward per answer decide."""
        return bool({gain_in_answers, confounded_answers} & {*self.decides})


BY_RANK: tuple[Check, ...] = (gain, other_events, no_segment_loses)
EVERY: tuple[Check, ...] = (lists_reach_enough, within_budget, reference_fit)
RANKS: tuple[Check, ...] = (other_events, agreement, no_lower_value, no_segment_loses)
# Checks by rank ask in part whether the new policy shows what the old one showed. One that earns more by moving away
# ranks these items lower: where the value decides, the two rules contradict each other.
SHOWN_BEFORE = "ranks partly measure whether it shows what was shown before"

KINDS: dict[str, Kind] = {
    "value": Kind(
        "randomised",
        "the reward per decision, or per whole list, had it shown the items; per visit where the future matters",
        (gain_in_reward,), (true_propensities, agreement, by_value, *EVERY), BY_RANK, "deploy", "the value decides",
    ),
    "rewards": Kind(
        "assumed", "the reward per answer, alone and with the number of answers",
        (gain_in_answers,), (by_answers, *EVERY), (hidden_cause, no_lower_value, *BY_RANK), "test online",
        SHOWN_BEFORE,
    ),
    "imitations": Kind(
        "assumed", "which of two imitations of the log ranks higher what people took",
        (gain,), (*RANKS, by_ranks, *EVERY), (), "test online",
    ),
    "liking": Kind(
        "assumed", "how well what is ranked high was liked, of what people chose to rate",
        (gain,), (no_lower_reward, *RANKS, by_ranks, *EVERY), (), "test online",
    ),
    "metric": Kind(
        "assumed", "the figure that the rules name",
        (gain,), (no_lower_reward, *RANKS, by_ranks, *EVERY), (), "test online",
    ),
    "metric and value": Kind(
        "randomised", "the figure that the rules name, at no loss of value",
        (gain,), (true_propensities, *RANKS, by_ranks, *EVERY), (), "deploy",
    ),
    "deterministic": Kind(
        "none", "the reward per answer, had it not mattered who was shown what",
        (confounded_answers,), EVERY, (no_lower_value, *BY_RANK), "cannot tell", SHOWN_BEFORE,
    ),
    "nothing": Kind(
        "none", "how high what was taken is ranked",
        (), (), (gain, *RANKS, by_ranks, *EVERY), "nothing to decide", "there is nothing to decide",
    ),
}  # fmt: skip


def kind_of(case: Case) -> str:
    """Name of the row of `KINDS` for a case, by its question and its log."""
    question, log = case.question.kind, question_of(case.data, case.split).kind
    if question == "metric":
        return "metric and value" if log == "value" else "metric"
    if question in ("rewards", "liking") and case.data.kind == "impressions":
        return "deterministic"
    old = case.old
    if question == "rewards" and old is not None and case.new.origin.objective == old.origin.objective == "mle":
        return "imitations"
    return question


def claims_about(case: Case, kind: Kind) -> list[Claim]:
    """Claims of all checks of a kind of log: deciding ones, others that may refuse, and informational ones."""
    known = [claim.as_fact(kind.why) for check in kind.known for claim in check(case)]
    return [*(claim for check in (*kind.decides, *kind.asked) for claim in check(case)), *known]
