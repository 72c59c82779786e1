"""The gate's checks on logs of actions without propensities, such as views and purchases: two figures together.

Such a log does not say what was shown. What a policy earns is how many answers it gets times what an answer is worth.
The *reward per answer*,

    Σ w R / Σ w,    w = min(π(a|x) / μ̂(a|x), 30) at what was answered,

is what an answer would be worth if π had drawn the item: self-normalised importance weights, with μ̂ for the unknown μ
of interactions. It knows nothing of how many answers there would be; the nDCG of all that was answered is the nearest
such a log has to that, and alone it asks in part whether a policy shows what the old one showed. So the reward per
answer must gain significantly, and so must the two together: the sum of both relative gains, which is that of their
product to first order.

**What is counted is the first time that a person meets an item.** Who buys what they have just viewed does so whatever
is shown: the purchase is what came of the view, and no choice of a recommender's. Counted row by row, a policy that
shows again what was just viewed earned twice as much in shops where all products sell alike. So R is all that the
sequence earned with the item from its first row until it is met again (by a row of the first one's kind: popular items
are met more often, and are no better for that), and π, μ̂ and ranks are among the items that the sequence did not hold
before. Impressions state what was shown: there each row is a choice of its own, with its own reward. But where heavy
clickers were shown other items than light ones, these items look better without propensities, so nobody is deployed.

μ̂ is the mean of all estimates of the log. By one of another seed the weights of the very policy that is deployed had a
mean of 1.13 to 1.24 instead of 1, since two seeds differ, and nothing was told of 13 gains of 20 % and more. Where the
mean of w is still not 1, μ̂ is no estimate of this log, and nothing is said. docs/results/first-hour.md has the shops
that chose this. Of two imitations of the log the better one is told by ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from localpolicy.data.store import NO_ANSWER
from localpolicy.judge.claims import CHECKS, LEFT_OUT, Claim, GateRules, check
from localpolicy.judge.gate_ranks import outcome_of, too_few, would_tell
from localpolicy.measure.decisions import effective_sample
from localpolicy.measure.estimate import mean_estimate, sequences_of
from localpolicy.measure.off_policy import CAP
from localpolicy.measure.significance import Paired, paired, paired_family
from localpolicy.measure.summary import Scores

NAME = "reward per answer"
RANKS, SMALL = "nDCG@20", 1e-12
ALIKE = "the two rank everything alike"
FIRST = " to items that the person had not met before (what came of it until it was met again counts for the first row)"


class Choices(NamedTuple):
    """The rows at which a policy is asked, all arrays [n]."""

    name: str
    logp: np.ndarray  # log π of the item that was taken
    logp_reference: Mapping[str, np.ndarray]
    reward: np.ndarray
    ranks: np.ndarray  # values whose mean is the nDCG of what was answered
    sequence: np.ndarray
    first: bool  # whether these are first meetings


class Answers(NamedTuple):
    """Values whose mean is the reward per answer [n], or why there is none."""

    values: np.ndarray
    refusal: str = ""


def choices_of(name: str, scores: Scores) -> Choices:
    """First meetings, where the likelihood among unseen items was measured; every row of impressions.

    Rows that nobody answered say nothing of the nDCG of what was.
    """
    reward, logp, by_reference = scores.reward.astype(np.float64), scores.logp, scores.logp_reference
    rows, first = np.ones(len(reward), dtype=bool), scores.logp_unseen is not None
    if scores.logp_unseen is not None:
        rows, logp, by_reference = ~scores.repeat, scores.logp_unseen, scores.logp_unseen_reference
        reward = until_met_again(scores.sequence, scores.item, scores.event, reward)
    answered = np.array([event != NO_ANSWER for event in scores.events], dtype=float)[scores.event[rows]]
    ranks = scores.metric(RANKS)[rows] * answered / max(float(answered.mean()) if len(answered) else 0.0, SMALL)
    known = {name: each[rows].astype(np.float64) for name, each in by_reference.items()}
    return Choices(name, logp[rows].astype(np.float64), known, reward[rows], ranks, scores.sequence[rows], first)


def until_met_again(sequence: np.ndarray, item: np.ndarray, event: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """What a sequence earned with an item from its first row until the next one of the same event: [n], at all rows."""
    pair = np.unique(np.stack([sequence, item]), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(pair, kind="stable")
    begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
    group = pair[order]  # numbered from 0 in this order
    meetings = np.cumsum(event[order] == event[order][begins][group])
    first = meetings == meetings[begins][group]
    earned = np.bincount(group, weights=reward[order] * first)
    return np.asarray(earned[pair], dtype=np.float64)


def weights(choices: Choices, logp_log: np.ndarray) -> np.ndarray:
    """w, capped."""
    return np.asarray(np.minimum(np.exp(choices.logp - logp_log), CAP))


def snips(choices: Choices, logp_log: np.ndarray) -> np.ndarray:
    """v + w (r - v) / mean(w): linear in each position, so that differences can be tested in pairs."""
    weight = weights(choices, logp_log)
    value = float((weight * choices.reward).sum() / weight.sum())
    return np.asarray(value + weight * (choices.reward - value) / weight.mean())


def answers(choices: Choices, logp_log: np.ndarray, rules: GateRules) -> Answers:
    """The reward per answer, or why this log does not say it."""
    weight = weights(choices, logp_log)
    share = effective_sample(weight) / max(len(weight), 1)
    if not share >= rules.min_effective_share:
        said = f"effective sample of {share:.1%} of the answers; {rules.min_effective_share:.0%} are needed"
        return Answers(np.empty(0), f"the log says too little of {choices.name}: {said}")
    mean = mean_estimate(weight, choices.sequence)
    if abs(mean.mean - 1) > max(rules.overlap.max_bias, 4 * mean.se):
        said = f"the mean of π/μ̂ is {mean.mean:.2f} ± {mean.se:.2f}, and should be 1"
        return Answers(np.empty(0), f"the estimate of the log is too poor to weight {choices.name} by: {said}")
    return Answers(snips(choices, logp_log))


def of_the_log(choices: Choices, estimates: Collection[str]) -> np.ndarray | None:
    """log μ̂ of what was answered, by the mean of the `estimates` of the log; by the last reference without any."""
    known = choices.logp_reference
    if not known:
        return None
    among = [logp for name, logp in known.items() if name in estimates] or list(known.values())[-1:]
    return np.asarray(np.logaddexp.reduce(among) - math.log(len(among)))


def together(new: Choices, old: Choices, mine: Answers, theirs: Answers, rules: GateRules) -> Paired:
    """The relative gain in the reward per answer and that in the nDCG of all answers, added up."""
    worth, found = float(theirs.values.mean()), max(float(old.ranks.mean()), SMALL)
    first, second = (
        each.values / max(abs(worth), SMALL) + math.copysign(1, worth) * ranks / found  # more of a loss is a loss
        for each, ranks in zip((mine, theirs), (new.ranks, old.ranks), strict=True)
    )
    return paired(first, second, new.sequence, confidence=rules.confidence)


def answers_check(new: Choices, old: Choices, log: np.ndarray | None, gain: Claim, rules: GateRules) -> Claim:
    """The reward per answer gains significantly, and so do worth and number of answers together."""
    if gain.plain == ALIKE:
        return replace(gain, figure=NAME, rule=CHECKS[NAME][0], claim=CHECKS[NAME][1])
    unsure = "what its answers would be worth cannot be told from this log"
    if log is None:
        reason = "no estimate of the policy that wrote the log to weight by: give an mle run with --against"
        return check(NAME, "cannot tell", reason, plain=unsure)
    mine, theirs, clusters = answers(new, log, rules), answers(old, log, rules), new.sequence
    if mine.refusal or theirs.refusal:
        return check(NAME, "cannot tell", mine.refusal or theirs.refusal, n=len(clusters), plain=unsure)
    test = paired(mine.values, theirs.values, clusters, confidence=rules.confidence)
    both = together(new, old, mine, theirs, rules)
    base = float(theirs.values.mean())
    reason = (
        f"{base:.4f} -> {mine.values.mean():.4f} by weights π/μ̂: gain {test.difference:+.4f}, {rules.confidence:.0%} "
        f"interval {test.low:+.4f} to {test.high:+.4f} over {test.n:,} answers{FIRST if new.first else ''}; its lower "
        f"end must be above {rules.min_gain:g}. With the nDCG@20 of all answers, for how many there would be "
        f"({old.ranks.mean():.4f} -> {new.ranks.mean():.4f}): {both.difference:+.1%}, "
        f"interval {both.low:+.1%} to {both.high:+.1%}"
    )
    if (few := too_few(clusters, rules)) is not None:
        plain = f"{sequences_of(clusters)} sequences are too few"
        return check(NAME, "cannot tell", reason + few[1], *test.numbers, few[0], plain=plain)
    outcome, told = outcome_of(test.low, test.high, base, rules)
    least = rules.min_gain / max(abs(base), SMALL)
    if (outcome == "yes" and both.low <= least) or (outcome == "no" and test.high < 0 <= both.high):
        more, fewer = ("more", "fewer") if outcome == "yes" else ("less", "more")
        plain = f"its answers may be worth {more}, but there may be {fewer} of them, and such a log does not tell which"
        return check(NAME, "cannot tell", reason, *test.numbers, plain=plain)
    said = {"yes": "its answers would be worth more", "no": "its answers would be worth no more"}
    plain, needed = said.get(outcome, "its answers would not significantly be worth more"), None
    if outcome == "cannot tell" and both.high < 0:  # more of such a log would hardly turn this into a yes
        plain += ", and there may be fewer of them"
    elif outcome == "cannot tell":
        wanted = max(test.difference, rules.smallest_gain * abs(base)) - rules.min_gain
        needed, told = would_tell(test, wanted, rules, unit="answers")
    return check(NAME, outcome, reason + told, *test.numbers, needed, plain=plain, unit="answers")


def baselines_by_answers(new: Choices, baselines: Sequence[Choices], log: np.ndarray | None, rules: GateRules) -> Claim:
    """No simple baseline's answers would significantly be worth more, alone and with their number.

    One that does keeps the new policy from being deployed, and is not put in its place: it is far from what was shown,
    and so are its weights. One whose answers the log says too little of neither blocks nor passes, and is named.
    """
    if not baselines:
        return LEFT_OUT
    mine = None if log is None else answers(new, log, rules)
    if log is None or mine is None or mine.refusal:
        return check("baselines", "not asked", "what the new policy's answers would be worth is not known")
    # Among items not met before the last item says what popularity says.
    distinct = [each for number, each in enumerate(baselines)
                if not any(np.array_equal(each.logp, other.logp) for other in baselines[:number])]  # fmt: skip
    known = {each.name: (each, found) for each in distinct if not (found := answers(each, log, rules)).refusal}
    unknown = [each.name for each in distinct if each.name not in known]
    refused = f"Not judged, since the log says too little of their answers: {', '.join(unknown)}" if unknown else ""
    if not known:
        return check("baselines", "not asked", refused)
    tests = {name: (mine.values, found.values, new.sequence) for name, (_, found) in known.items()}
    told = paired_family(tests, confidence=rules.confidence)
    best = min(told, key=lambda name: told[name].difference)
    figures = ", ".join(f"{name} {found.values.mean():.4f}" for name, (_, found) in known.items())
    test = told[best]
    reason = (
        f"{NAME} {mine.values.mean():.4f} against {figures}; against {best} {test.difference:+.4f} ({test.low:+.4f} to "
        f"{test.high:+.4f})"
    )
    reason = ". ".join(filter(None, [reason, refused]))
    for name in sorted(told, key=lambda name: told[name].difference):
        baseline, found = known[name]
        if told[name].sign < 0 and together(baseline, new, found, mine, rules).sign > 0:
            plain = f"answers to the simple baseline {name} may be worth more: try both online"
            return check("baselines", "cannot tell", f"{reason}: {plain}", *test.numbers, plain=plain)
    plain = "no simple baseline's answers would significantly be worth more"
    return check("baselines", "yes", reason, *test.numbers, plain=plain)
