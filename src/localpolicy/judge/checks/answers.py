"""Would its answers earn more, alone and with their number, and what would undo that? Of logs without propensities.

The figures are those of `measure.answers`: the reward per answer must gain significantly, and so must reward and number
together. Each is a check with its own interval. Where impressions were logged without propensities heavy clickers may
have been shown other items than light ones, and these look better than they are: nobody is deployed there.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

from localpolicy.judge.case import CHOSEN_OTHERWISE, Case
from localpolicy.judge.checks.gains import ALIKE, gain, gain_claim, too_few, would_tell
from localpolicy.judge.claims import CHECKS, Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.answers import RANKS, SMALL, TOGETHER, TOO_POOR, WORTH, Answers, together
from localpolicy.measure.estimate import sequences_of
from localpolicy.measure.sensitivity import STRONGEST, Sensitivity, sensitivity
from localpolicy.measure.significance import Paired, paired

WORDS = {  # by outcome of the check of the reward per answer
    "yes": "its answers would be worth more", "no": "its answers would be worth no more",
    "lower": "its answers would be worth no more", "cannot tell": "its answers would not significantly be worth more",
}  # fmt: skip
UNKNOWN = "what its answers would be worth cannot be told from this log"
FIRST = " (an answer is the first time that a person meets an item, with what the item earned each time they met it)"
MET = " among items that the person had not met before"
TORN = {  # why both together are inconclusive, by the outcome of the reward alone
    "yes": "its answers would be worth more, but there may be fewer of them, and together the gain is not significant",
    "no": "its answers would be worth less, but there may be more of them, and such a log does not tell which counts",
    "cannot tell": "its answers would not significantly be worth more, even with their number",
}
FEWER = {  # the same, where together they are lower
    "yes": "its answers would be worth more, but there may be fewer of them, and such a log does not tell which counts",
    "cannot tell": "there may be fewer of them",
}
MADE_UP = f"A lower worth may be made up by more answers: see '{TOGETHER}'"
GUESSED = "The number is a guess, so this refuses nothing alone"
SAME_LOGGING = "Train it on the estimate of the log that judges it (lpi train ... --logging {}), and ask again."
CONFOUNDED = (
    "No propensities were logged: where people who answer more were shown other items, these items look better than "
    "they are. Log with what probability each was shown, or test online",
    "without propensities better items and people who answer more look alike",
)


def _share(value: float, old: Answers) -> float:
    """Ratio of `value` to the old reward per answer."""
    return value / max(abs(float(old.values.mean())), SMALL)


def answers_checks(new: Answers, old: Answers, gain: Claim, rules: GateRules) -> list[Claim]:
    """Whether the reward per answer gains significantly; and whether reward and number of answers together do.

    How many answers there would be is guessed from ranks. So the second turns a yes of the first into "cannot tell",
    and so it does with a lower reward that it does not confirm; it refuses nothing alone.
    """
    if gain.plain == ALIKE:
        count, (rule, claim) = len(new.choices.sequence), CHECKS[WORTH]
        level = "" if new.refusal or old.refusal else f", {old.values.mean():.4f} of both"
        reason = f"the two rank all {count:,} answers alike{level}"
        same = replace(gain, figure=WORTH, rule=rule, claim=claim, because=reason, n=count, unit="answers")
        return [same, check(TOGETHER, "not asked", ALIKE, unit="answers")]
    mine, clusters = new.choices, new.choices.sequence
    if refusal := new.refusal or old.refusal:
        both = check(TOGETHER, "not judged", "what its answers would be worth is not known", unit="answers")
        return [check(WORTH, "cannot tell", refusal, n=len(clusters), plain=UNKNOWN, unit="answers"), both]
    test = paired(new.values, old.values, clusters, confidence=rules.confidence)
    relative = together(new, old, confidence=rules.confidence)
    base, few, words = old.mean, too_few(clusters, rules), WORDS
    if few is not None:
        words = WORDS | {"cannot tell": f"{sequences_of(clusters)} sequences are too few"}
    reason = (
        f"{base:.4f} -> {new.values.mean():.4f} by weights π/μ̂: gain {test.difference:+.4f}, {rules.confidence:.0%} "
        f"interval {test.low:+.4f} to {test.high:+.4f} over {test.n:,} answers{FIRST if mine.first else ''}; its lower "
        f"end must be above {rules.min_gain:g}"
    )
    alone = gain_claim(WORTH, test, base, reason, words, rules, few=few, unit="answers")
    second = _together_check(new, old, relative, alone, rules, few=few)
    if alone.outcome == "no" and test.high < 0 <= relative.high:
        return [replace(alone, holds=None, because=f"{reason}. {MADE_UP}", plain=TORN["no"]), second]
    if alone.outcome == "cannot tell" and few is None and relative.high < 0:
        alone = replace(alone, because=reason, needed=None)  # more of such a log would hardly turn this into a yes
    return [alone, second]


def _together_check(
    new: Answers, old: Answers, found: Paired, alone: Claim, rules: GateRules, *, few: tuple[int, str] | None
) -> Claim:
    """Whether reward and number of answers gain significantly together, given the claim on the reward alone."""
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
    needed, told, plain = None, "", TORN[alone.outcome]
    if few is not None:
        (needed, told), plain = few, alone.plain
    elif found.low > least:
        outcome, plain = "yes", ""
    elif found.high < 0 and alone.outcome == "no":
        outcome, plain = "no", "worth and number of its answers together are lower"
    elif found.high < 0:
        told, plain = f". {GUESSED}", FEWER[alone.outcome]
    elif alone.outcome == "yes":
        needed, told = would_tell(found, found.difference - least, rules, unit="answers")
    elif alone.outcome == "cannot tell":
        plain = ""  # the first says it
    return check(TOGETHER, outcome, reason + told, *found.numbers, needed, plain=plain, unit="answers")


def gain_in_answers(case: Case) -> list[Claim]:
    """Claims that the reward per answer is higher, alone and together with the number of answers."""
    found, (ranks, *_) = case.answers, gain(case)
    checks = answers_checks(found.new, found.old, ranks, case.rules)
    if found.new.refusal.startswith(TOO_POOR) and (logging := case.other_logging) is not None:
        checks[0] = replace(checks[0], remedy=SAME_LOGGING.format(shlex.quote(str(logging))))
    return (
        checks if found.refusal is None else [each.as_inconclusive(found.refusal, CHOSEN_OTHERWISE) for each in checks]
    )


def confounded_answers(case: Case) -> list[Claim]:
    """Claims of `gain_in_answers` on impressions without propensities: never a yes."""
    return [each.as_inconclusive(*CONFOUNDED) for each in gain_in_answers(case)]


# ---------------------------------------------------------------------- where another figure decides

# A figure such as liked@1 is of the item that is ranked first among those that a person rated. A policy can raise it by
# ranking few dear items first for everybody. The reward per answer is of all that it would show: nothing is recommended
# if the two disagree.

EARNS_UNKNOWN = "what an answer would earn is not known"
FALLS = "the figure that decides rises, but what an answer would earn falls"


def direction_check(new: Answers, old: Answers, rules: GateRules) -> Claim:
    """Claim that the reward per answer is not significantly lower than before."""
    if refusal := new.refusal or old.refusal:
        return check("direction", "not judged", f"{EARNS_UNKNOWN}: {refusal}", plain=EARNS_UNKNOWN, unit="answers")
    test = paired(new.values, old.values, new.choices.sequence, confidence=rules.confidence)
    outcome: Outcome = "cannot tell" if test.high < 0 else "yes"
    reason = (
        f"reward per answer {old.mean:.4f} -> {new.mean:.4f} by weights π/μ̂: {test.difference:+.4f} "
        f"({test.low:+.4f} to {test.high:+.4f}, n {test.n:,})"
    )
    return check("direction", outcome, reason, *test.numbers, plain=FALLS, unit="answers")


def no_lower_reward(case: Case) -> list[Claim]:
    """Claim on the reward per answer, if another metric decides."""
    return [] if case.old is None else [direction_check(case.answers.new, case.answers.old, case.rules)]


# ---------------------------------------------------------------------- a figure for a person, never a threshold

ASSUMED = "each weight within [w/Γ, Γw]: the marginal sensitivity model"


def hidden_cause_check(found: Sensitivity, n: int) -> Claim:
    """Claim, for information, with Γ* of the gain and the Γ of the strongest cause that the log shows."""
    seen = "the log shows no cause to compare it with"
    if found.yardstick is not None:
        seen = f"leaving out {found.cause} amounts to {found.yardstick:.2f}"
    if found.strength <= 1:
        return check("hidden cause", "not asked", f"there is no significant gain to undo; {seen} ({ASSUMED})", 1.0, n=n)
    if math.isinf(found.strength):
        plain = f"no hidden cause that changes choices by a factor below {STRONGEST:g} undoes the gain ({seen})"
    else:
        plain = f"a hidden cause that changes choices by a factor of {found.strength:.2f} undoes the gain ({seen})"
    return check("hidden cause", "not asked", f"{plain} ({ASSUMED})", found.strength, n=n, plain=plain, unit="answers")


def hidden_cause(case: Case) -> list[Claim]:
    """Claim on how strong a hidden cause must be to undo the gain in the reward per answer; none if that is unknown."""
    new, old = case.answers.new, case.answers.old
    if new.refusal or old.refusal or new.weight is None:
        return []
    choices = new.choices
    found = sensitivity(
        case.data, case.split, new.weight, choices.reward, choices.sequence, old.values,
        confidence=case.rules.confidence,
    )  # fmt: skip
    return [hidden_cause_check(found, len(choices.reward))]
