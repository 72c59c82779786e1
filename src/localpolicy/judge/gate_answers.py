"""The gate's checks on logs of actions without propensities, such as views and purchases: two figures together.

Such a log does not say what was shown. What a policy earns is how many answers it gets times what an answer is worth.
The *reward per answer*,

    Σ w R / Σ w,    w = min(π(a|x) / μ̂(a|x), 30) at what was answered,

is what an answer would be worth if π had drawn the item: self-normalised importance weights, with μ̂ for the unknown μ
of interactions. It knows nothing of how many answers there would be; the nDCG of all that was answered is the nearest
such a log has to that, and alone it asks in part whether a policy shows what the old one showed. So the reward per
answer must gain significantly, and so must the two together: the sum of both relative gains, which is that of their
product to first order. Each is a check with its own interval.

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
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from localpolicy.data.first_meetings import earned_by_meeting
from localpolicy.data.store import NO_ANSWER
from localpolicy.judge.bench import CHOSEN_OTHERWISE, Bench
from localpolicy.judge.claims import CHECKS, LEFT_OUT, UNJUDGED, Claim, Outcome, check, unjudged
from localpolicy.judge.gate_ranks import ALIKE, best_baseline, gain_claim, too_few, would_tell
from localpolicy.judge.rules import GateRules
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.decisions import effective_sample
from localpolicy.measure.estimate import CONFIDENCE, REACH, Interval, Measurement, mean_estimate, sequences_of
from localpolicy.measure.estimators.ips import CAP
from localpolicy.measure.significance import Paired, paired, paired_family
from localpolicy.measure.summary import Scores

NAME, BOTH = "reward per answer", "worth and number of answers"
RANKS, SMALL = "nDCG@20", 1e-12
UNKNOWN = "what its answers would be worth cannot be told from this log"
NO_ESTIMATE = "no estimate of the policy that wrote the log to weight by: give an mle run with --against"
WORTH = {
    "yes": "its answers would be worth more", "no": "its answers would be worth no more",
    "lower": "its answers would be worth no more", "cannot tell": "its answers would not significantly be worth more",
}  # fmt: skip
FIRST = " (an answer is the first time that a person meets an item, with what the item earned each time they met it)"
MET = " among items that the person had not met before"
TORN = {  # why worth and number together do not tell, by what worth alone says
    "yes": "its answers would be worth more, but there may be fewer of them, and together the gain is not significant",
    "no": "its answers would be worth less, but there may be more of them, and such a log does not tell which counts",
    "cannot tell": "its answers would not significantly be worth more, even with their number",
}
FEWER = {  # the same, where together they are lower
    "yes": "its answers would be worth more, but there may be fewer of them, and such a log does not tell which counts",
    "cannot tell": "there may be fewer of them",
}
MADE_UP = f"A lower worth may be made up by more answers: see '{BOTH}'"
GUESSED = "The number is a guess, so this refuses nothing alone"
CONFOUNDED = (
    "No propensities were logged: where people who answer more were shown other items, these items look better than "
    "they are. Log with what probability each was shown, or test online",
    "without propensities better items and people who answer more look alike",
)


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
    """A policy's choices, and values whose mean is the reward per answer [n]; or why there are none."""

    choices: Choices
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
        columns = (torch.from_numpy(each) for each in (scores.sequence, scores.item, scores.event, reward))
        reward = earned_by_meeting(*columns).numpy()
    answered = np.array([event != NO_ANSWER for event in scores.events], dtype=float)[scores.event[rows]]
    ranks = scores.metric(RANKS)[rows] * answered / max(float(answered.mean()) if len(answered) else 0.0, SMALL)
    known = {name: each[rows].astype(np.float64) for name, each in by_reference.items()}
    return Choices(name, logp[rows].astype(np.float64), known, reward[rows], ranks, scores.sequence[rows], first)


def weights(choices: Choices, logp_log: np.ndarray) -> np.ndarray:
    """w, capped."""
    return np.asarray(np.minimum(np.exp(choices.logp - logp_log), CAP))


def snips(choices: Choices, logp_log: np.ndarray) -> np.ndarray:
    """v + w (r - v) / mean(w): linear in each position, so that differences can be tested in pairs."""
    weight = weights(choices, logp_log)
    value = float((weight * choices.reward).sum() / weight.sum())
    return np.asarray(value + weight * (choices.reward - value) / weight.mean())


def answers(choices: Choices, logp_log: np.ndarray | None, rules: GateRules) -> Answers:
    """The reward per answer, or why this log does not say it."""
    none = np.empty(0)
    if logp_log is None:
        return Answers(choices, none, NO_ESTIMATE)
    if len(choices.reward) and np.ptp(choices.reward) == 0:
        said = "all held-out answers earned the same, so none can be worth more"
        return Answers(choices, none, f"{said} (of a last action alone nothing can come: hold out more)")
    weight = weights(choices, logp_log)
    share, least = effective_sample(weight) / max(len(weight), 1), rules.refusals.min_effective_share
    if not share >= least:
        said = f"effective sample of {share:.1%} of the answers; {least:.0%} are needed"
        return Answers(choices, none, f"the log says too little of {choices.name}: {said}")
    mean = mean_estimate(weight, choices.sequence)
    if abs(mean.mean - 1) > max(rules.overlap.max_bias, 4 * mean.se):
        said = f"the mean of π/μ̂ is {mean.mean:.2f} ± {REACH * mean.se:.2f} (95 %), and should be 1"
        return Answers(choices, none, f"the estimate of the log is too poor to weight {choices.name} by: {said}")
    return Answers(choices, snips(choices, logp_log))


def of_the_log(choices: Choices, estimates: Collection[str]) -> np.ndarray | None:
    """log μ̂ of what was answered, by the mean of the `estimates` of the log; by the last reference without any."""
    known = choices.logp_reference
    if not known:
        return None
    among = [logp for name, logp in known.items() if name in estimates] or list(known.values())[-1:]
    return np.asarray(np.logaddexp.reduce(among) - math.log(len(among)))


def _share(value: float, old: Answers) -> float:
    """As a share of the old reward per answer."""
    return value / max(abs(float(old.values.mean())), SMALL)


def together(new: Answers, old: Answers, *, confidence: float = CONFIDENCE) -> Paired:
    """The relative gain in the reward per answer and that in the nDCG of all answers, added up."""
    worth, found = float(old.values.mean()), max(float(old.choices.ranks.mean()), SMALL)
    first, second = (
        each.values / max(abs(worth), SMALL) + math.copysign(1, worth) * each.choices.ranks / found
        for each in (new, old)  # more of a loss is a loss
    )
    return paired(first, second, new.choices.sequence, confidence=confidence)


def answers_checks(new: Answers, old: Answers, gain: Claim, rules: GateRules) -> list[Claim]:
    """Whether the reward per answer gains significantly; and whether worth and number of answers together do.

    How many answers there would be is guessed from ranks. So the second turns a yes of the first into "cannot tell",
    and so it does with a lower worth that it does not confirm; it refuses nothing alone.
    """
    if gain.plain == ALIKE:
        count, (rule, claim) = len(new.choices.sequence), CHECKS[NAME]
        level = "" if new.refusal or old.refusal else f", {old.values.mean():.4f} of both"
        reason = f"the two rank all {count:,} answers alike{level}"
        same = replace(gain, figure=NAME, rule=rule, claim=claim, because=reason, n=count, unit="answers")
        return [same, check(BOTH, "not asked", ALIKE, unit="answers")]
    mine, clusters = new.choices, new.choices.sequence
    if refusal := new.refusal or old.refusal:
        alone = check(BOTH, "not judged", "what its answers would be worth is not known", unit="answers")
        return [check(NAME, "cannot tell", refusal, n=len(clusters), plain=UNKNOWN, unit="answers"), alone]
    test = paired(new.values, old.values, clusters, confidence=rules.confidence)
    both = together(new, old, confidence=rules.confidence)
    base, few, words = float(old.values.mean()), too_few(clusters, rules), WORTH
    if few is not None:
        words = WORTH | {"cannot tell": f"{sequences_of(clusters)} sequences are too few"}
    reason = (
        f"{base:.4f} -> {new.values.mean():.4f} by weights π/μ̂: gain {test.difference:+.4f}, {rules.confidence:.0%} "
        f"interval {test.low:+.4f} to {test.high:+.4f} over {test.n:,} answers{FIRST if mine.first else ''}; its lower "
        f"end must be above {rules.min_gain:g}"
    )
    worth = gain_claim(NAME, test, base, reason, words, rules, few=few, unit="answers")
    second = _together_check(new, old, both, worth, rules, few=few)
    if worth.outcome == "no" and test.high < 0 <= both.high:
        return [replace(worth, holds=None, because=f"{reason}. {MADE_UP}", plain=TORN["no"]), second]
    if worth.outcome == "cannot tell" and few is None and both.high < 0:
        worth = replace(worth, because=reason, needed=None)  # more of such a log would hardly turn this into a yes
    return [worth, second]


def _together_check(
    new: Answers, old: Answers, found: Paired, worth: Claim, rules: GateRules, *, few: tuple[int, str] | None
) -> Claim:
    """Worth and number of answers together gain significantly, where the `worth` alone is judged so."""
    base, (mine, theirs), least = float(old.values.mean()), (new.choices, old.choices), _share(rules.min_gain, old)
    more, how = _share(float(new.values.mean()) - base, old), "added" if base >= 0 else "the first less the second"
    number = (float(mine.ranks.mean()) - float(theirs.ranks.mean())) / max(float(theirs.ranks.mean()), SMALL)
    reason = (
        f"worth {more:+.1%}, and number {number:+.1%}, guessed from {RANKS}{MET if mine.first else ''} "
        f"({theirs.ranks.mean():.4f} -> {mine.ranks.mean():.4f}); {how}: "
        f"{found.difference:+.1%}, {rules.confidence:.0%} interval {found.low:+.1%} to {found.high:+.1%} over "
        f"{found.n:,} answers; its lower end must be above {least:.2g}"
    )
    outcome: Outcome = "cannot tell"
    needed, told, plain = None, "", TORN[worth.outcome]
    if few is not None:
        (needed, told), plain = few, worth.plain
    elif found.low > least:
        outcome, plain = "yes", ""
    elif found.high < 0 and worth.outcome == "no":
        outcome, plain = "no", "worth and number of its answers together are lower"
    elif found.high < 0:
        told, plain = f". {GUESSED}", FEWER[worth.outcome]
    elif worth.outcome == "yes":
        needed, told = would_tell(found, found.difference - least, rules, unit="answers")
    elif worth.outcome == "cannot tell":
        plain = ""  # the first says it
    return check(BOTH, outcome, reason + told, *found.numbers, needed, plain=plain, unit="answers")


def baselines_by_answers(new: Answers, baselines: Sequence[Answers], rules: GateRules) -> Claim:
    """No simple baseline's answers would significantly be worth more, alone and with their number.

    One that does keeps the new policy from being deployed, and is not put in its place: it is far from what was shown,
    and so are its weights. One whose answers the log says too little of neither blocks nor passes, and is named.
    """
    if not baselines:
        return LEFT_OUT
    distinct: dict[bytes, Answers] = {}
    for each in baselines:  # among items not met before the last item says what popularity says
        distinct.setdefault(each.choices.logp.tobytes(), each)
    known = {each.choices.name: each for each in distinct.values() if not each.refusal}
    refused = "; ".join(dict.fromkeys(each.refusal for each in (new, *distinct.values()) if each.refusal))
    if new.refusal or not known:
        return check("baselines", "not judged", unjudged(refused), plain=UNJUDGED, unit="answers")
    values = {name: (new.values, each.values, new.choices.sequence) for name, each in known.items()}
    tests = paired_family(values, confidence=rules.confidence)
    means = {name: float(each.values.mean()) for name, each in known.items()}
    best, reason = best_baseline(NAME, float(new.values.mean()), means, tests)
    numbers, beside = tests[best].numbers, f". Not judged: {refused}" if refused else ""
    for name in sorted(tests, key=lambda name: tests[name].difference):
        if tests[name].sign < 0 and together(known[name], new, confidence=rules.confidence).sign > 0:
            plain = f"answers to the simple baseline {name} may be worth more: try both online"
            return check(
                "baselines", "cannot tell", f"{reason}: {plain}{beside}", *numbers, plain=plain, unit="answers"
            )
    plain = "no simple baseline's answers would significantly be worth more"
    return check("baselines", "yes", reason + beside, *numbers, plain=plain, unit="answers")


def by_answers(
    bench: Bench, new: Candidate, old: Candidate, estimates: Sequence[Candidate], beside: Sequence[Candidate],
    gain: Claim, rules: GateRules,
) -> tuple[list[Claim], Claim, list[Measurement]]:  # fmt: skip
    """The checks of `new` against `old` and of the baselines `beside` it, with weights by `estimates` of the log.

    The rows are both figures of all of them, where this log says them.
    """
    unseen = bench.data.kind == "interactions"  # as `by_meetings`: here kinds of action differ in reward
    asked = partial(bench.measured, unseen=unseen)
    mine = asked(new, estimates)
    pair = bench.like_with_like(new, old, (mine, asked(old)), unseen=unseen)
    every = [choices_of(each.name, each.scores) for each in (mine, pair.new, pair.old, *map(asked, beside))]
    log = of_the_log(every[0], {each.name for each in estimates if each.estimates_logging})
    kept, first, second, *rivals = (answers(each, log, rules) for each in every)
    checks, beaten = answers_checks(first, second, gain, rules), baselines_by_answers(kept, rivals, rules)
    rows = [row for each in (first, second, *rivals) for row in _rows(each, second, bench.config.split)]
    if pair.refusal is not None:
        checks = [each.in_doubt(pair.refusal, CHOSEN_OTHERWISE) for each in checks]
    if bench.data.kind == "impressions":
        checks = [each.in_doubt(*CONFOUNDED) for each in checks]
        beaten = beaten.as_fact("no propensities were logged")
    return checks, beaten, rows


def _rows(answers: Answers, old: Answers, split: str) -> list[Measurement]:
    """The reward per answer, and the gain over `old` in worth and number together, as rows of the long table."""
    if answers.refusal:
        return []
    name, found = answers.choices.name, mean_estimate(answers.values, answers.choices.sequence)
    rows = [Measurement.of(name, NAME, Interval.from_estimate(found), se=found.se, n=found.n, split=split)]
    if not old.refusal:
        both = together(answers, old)
        ends = (0.0, 0.0) if both.alike else (both.low, both.high)
        around = Interval(both.difference, *ends)
        rows.append(Measurement.of(name, BOTH, around, se=both.se, n=both.n, split=split))
    return rows
