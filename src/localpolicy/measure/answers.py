"""The reward per answer, on logs of actions without propensities, such as views and purchases.

Such a log does not say what was shown. The *reward per answer*,

    Σ w R / Σ w,    w = min(π(a|x) / μ̂(a|x), 30) at what was answered,

is what an answer would earn if π had drawn the item: self-normalised importance weights, with μ̂ for the unknown μ
of interactions. It knows nothing of how many answers there would be; the nDCG of all that was answered is the nearest
such a log has to that, and alone it asks in part whether a policy shows what the old one showed. So the two are also
taken together: the sum of both relative gains, which is that of their product to first order.

**What is counted is the first time that a person meets an item.** Who buys what they have just viewed does so whatever
is shown: the purchase followed from the view, and no choice of a recommender's. Counted row by row, a policy that
shows again what was just viewed earned twice as much in shops whose products all sell equally well. So R is all that
the sequence earned with the item, over the number of times that it met it (popular items are met more often, and are no
better for that), and π, μ̂ and ranks are among the items that the sequence did not hold
before. Impressions state what was shown: there each row is a choice of its own, with its own reward.

μ̂ is the mean of all estimates of the log. By one of another seed the weights of the deployed policy itself had a
mean of 1.13 to 1.24 instead of 1, since two seeds differ, and the answer was "cannot tell" for 13 gains of
20 % and more. Where the mean of w is still not 1, μ̂ is no estimate of this log, and there is no figure.
docs/results/first-hour.md has the shops that chose this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import torch

from localpolicy.data.first_meetings import earned_by_meeting
from localpolicy.data.store import NO_ANSWER
from localpolicy.measure.decisions import OverlapRules, effective_sample
from localpolicy.measure.estimate import CONFIDENCE, REACH, Interval, Measurement, mean_estimate
from localpolicy.measure.estimators.ips import CAP
from localpolicy.measure.position_metrics import Scores
from localpolicy.measure.significance import Paired, paired

WORTH, TOGETHER = "reward per answer", "worth and number of answers"  # their names in the long table
RANKS, SMALL = "nDCG@20", 1e-12
BIAS_ERRORS = 4.0  # standard errors by which the mean weight may miss 1, as `OverlapRules.max_bias` or this
TOO_POOR = "the estimate of the log is too poor to weight"
NO_ESTIMATE = "no estimate of the policy that wrote the log to weight by: give an mle run with --against"


class Choices(NamedTuple):
    """Arrays [n] for the positions that the reward per answer is measured on: log-probabilities, rewards, ranks."""

    name: str
    logp: np.ndarray  # log π of the item that was taken
    logp_reference: Mapping[str, np.ndarray]
    reward: np.ndarray
    ranks: np.ndarray  # values whose mean is the nDCG of what was answered
    sequence: np.ndarray
    first: bool  # whether these are first meetings


class Answers(NamedTuple):
    """A policy's choices, and values [n] whose mean is its reward per answer; or why there are none."""

    choices: Choices
    values: np.ndarray
    refusal: str = ""
    weight: np.ndarray | None = None  # w, capped; None if there are no values

    @property
    def mean(self) -> float:
        """Estimated reward per answer if this policy chose: the mean of the SNIPS values."""
        return float(self.values.mean())


def choices_of(name: str, scores: Scores) -> Choices:
    """Choices of a policy: first interactions if ranks among unseen items were measured, else every row.

    Rows that nobody answered say nothing of the nDCG of what was.
    """
    reward, logp, by_reference = scores.reward.astype(np.float64), scores.logp, scores.logp_reference
    rows, first = np.ones(len(reward), dtype=bool), scores.rank_unseen is not None
    if first:
        assert scores.logp_unseen is not None
        rows, logp, by_reference = ~scores.repeat, scores.logp_unseen, scores.logp_unseen_reference
        columns = (torch.from_numpy(each) for each in (scores.sequence, scores.item, scores.event, reward))
        reward = earned_by_meeting(*columns).numpy()
    answered = np.array([event != NO_ANSWER for event in scores.events], dtype=float)[scores.event[rows]]
    share = max(float(answered.mean()) if len(answered) else 0.0, SMALL)
    ranks = scores.metric(RANKS, unseen=first)[rows] * answered / share
    known = {name: each[rows].astype(np.float64) for name, each in by_reference.items()}
    return Choices(name, logp[rows].astype(np.float64), known, reward[rows], ranks, scores.sequence[rows], first)


def weights(choices: Choices, logp_log: np.ndarray) -> np.ndarray:
    """Importance weights π/μ̂ of the choices, capped at `CAP`: [n]."""
    return np.asarray(np.minimum(np.exp(choices.logp - logp_log), CAP))


def snips(choices: Choices, logp_log: np.ndarray) -> np.ndarray:
    """v + w (r - v) / mean(w): linear in each position, so that differences can be tested in pairs."""
    weight = weights(choices, logp_log)
    value = float((weight * choices.reward).sum() / weight.sum())
    return np.asarray(value + weight * (choices.reward - value) / weight.mean())


def answers(choices: Choices, logp_log: np.ndarray | None, rules: OverlapRules) -> Answers:
    """Reward per answer of a policy, or why this log cannot estimate it."""
    none = np.empty(0)
    if logp_log is None:
        return Answers(choices, none, NO_ESTIMATE)
    if len(choices.reward) and np.ptp(choices.reward) == 0:
        said = "all held-out answers earned the same, so none can be worth more"
        return Answers(choices, none, f"{said} (a last action alone has no later rewards: hold out more)")
    weight = weights(choices, logp_log)
    share, least = effective_sample(weight) / max(len(weight), 1), rules.min_effective_share
    if not share >= least:
        said = f"effective sample of {share:.1%} of the answers; {least:.0%} are needed"
        return Answers(choices, none, f"the log says too little of {choices.name}: {said}")
    mean = mean_estimate(weight, choices.sequence)
    if abs(mean.mean - 1) > max(rules.max_bias, BIAS_ERRORS * mean.se):
        said = f"the mean of π/μ̂ is {mean.mean:.2f} ± {REACH * mean.se:.2f} (95 %), and should be 1"
        return Answers(choices, none, f"{TOO_POOR} {choices.name} by: {said}")
    return Answers(choices, snips(choices, logp_log), weight=weight)


def log_probability(choices: Choices, estimates: Collection[str]) -> np.ndarray | None:
    """log μ̂ of what was answered, by the mean of the `estimates` of the log; by the last reference without any."""
    known = choices.logp_reference
    if not known:
        return None
    among = [logp for name, logp in known.items() if name in estimates] or list(known.values())[-1:]
    return np.asarray(np.logaddexp.reduce(among) - math.log(len(among)))


def together(new: Answers, old: Answers, *, confidence: float = CONFIDENCE) -> Paired:
    """Paired test of the relative gains in reward per answer and in nDCG of all answers, added up."""
    mean, found = old.mean, max(float(old.choices.ranks.mean()), SMALL)
    first, second = (
        each.values / max(abs(mean), SMALL) + math.copysign(1, mean) * each.choices.ranks / found
        for each in (new, old)  # more of a loss is a loss
    )
    return paired(first, second, new.choices.sequence, confidence=confidence)


def answer_rows(answers: Answers, old: Answers, split: str) -> list[Measurement]:
    """Long-table rows of the reward per answer, and of the gain over `old` in reward and number together."""
    if answers.refusal:
        return []
    name, found = answers.choices.name, mean_estimate(answers.values, answers.choices.sequence)
    rows = [Measurement.of(name, WORTH, Interval.from_estimate(found), se=found.se, n=found.n, split=split)]
    if not old.refusal:
        both = together(answers, old)
        ends = (0.0, 0.0) if both.alike else (both.low, both.high)
        around = Interval(both.difference, *ends)
        rows.append(Measurement.of(name, TOGETHER, around, se=both.se, n=both.n, split=split))
    return rows
