"""The gate's checks on logs of actions without propensities, such as views and purchases: two figures must agree.

Such a log does not say what was shown. The reward-weighted nDCG then asks in part whether a policy shows what the old
one showed: in ten simulated shops (benchmarks/figures.py, docs/results/first-hour.md) 38 % of its significant verdicts
were false. The *reward per answer*,

    Σ w r / Σ w,    w = min(π(a|x) / μ̂(a|x), 30) at what was answered,

is what an answer would be worth if π had drawn the item: self-normalised importance weights, with μ̂ for the unknown μ
of interactions; where the mean of w is not 1, μ̂ is no estimate of this log, and nothing is said. It knows nothing of
how often people answer. So the reward per answer decides, and where the nDCG says significantly the opposite nobody
can tell. Alone it is false in 10 % there, so guarded in 0 of 141 verdicts (3 of 141 where a policy shows its twenty
best). Of two imitations of the log the better one is told by ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from localpolicy.judge.gate_checks import Check, outcome_of
from localpolicy.judge.gate_rules import GateRules
from localpolicy.judge.gate_value import LEFT_OUT
from localpolicy.measure.estimate import mean_estimate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.off_policy.overlap import effective_sample
from localpolicy.measure.significance import Paired, more_needed, paired, paired_family, sequences_of

NAME = "reward per answer"
CAP = 30.0
ALIKE = "the two rank everything alike"


class Answers(NamedTuple):
    """Values whose mean is the reward per answer [n], or why there is none."""

    values: np.ndarray
    refusal: str = ""


def answers(evaluation: Evaluation, logp_log: np.ndarray, rules: GateRules) -> Answers:
    """v + w (r - v) / mean(w): linear in each position, so that differences can be tested in pairs."""
    reward = evaluation.scores.reward.astype(np.float64)
    weight = np.minimum(np.exp(evaluation.scores.logp.astype(np.float64) - logp_log), CAP)
    share = effective_sample(weight) / max(len(weight), 1)
    if not share >= rules.min_effective_share:
        said = f"effective sample of {share:.1%} of the answers; {rules.min_effective_share:.0%} are needed"
        return Answers(np.empty(0), f"the log says too little of {evaluation.name}: {said}")
    mean = mean_estimate(weight, evaluation.scores.sequence)
    if abs(mean.mean - 1) > max(rules.overlap.max_bias, 4 * mean.se):
        said = f"the mean of π/μ̂ is {mean.mean:.2f} ± {mean.se:.2f}, and should be 1"
        return Answers(np.empty(0), f"the estimate of the log is too poor to weight {evaluation.name} by: {said}")
    value = float((weight * reward).sum() / weight.sum())
    return Answers(value + weight * (reward - value) / weight.mean())


def of_the_log(evaluation: Evaluation) -> np.ndarray | None:
    """log μ̂ of what was answered, by the last reference: that of another seed, where there are two."""
    known = list(evaluation.scores.logp_reference.values())
    return known[-1].astype(np.float64) if known else None


def answers_check(new: Evaluation, old: Evaluation, log: np.ndarray | None, gain: Check, rules: GateRules) -> Check:
    """The reward per answer gains significantly, and the reward-weighted nDCG does not say the opposite."""
    if gain.plain == ALIKE:
        return replace(gain, name=NAME)
    unsure = "what its answers would be worth cannot be told from this log"
    if log is None:
        reason = "no estimate of the policy that wrote the log to weight by: give an mle run with --against"
        return Check(NAME, "cannot tell", reason, plain=unsure)
    mine, theirs, clusters = answers(new, log, rules), answers(old, log, rules), new.scores.sequence
    if mine.refusal or theirs.refusal:
        return Check(NAME, "cannot tell", mine.refusal or theirs.refusal, n=len(clusters), plain=unsure)
    test = paired(mine.values, theirs.values, clusters, confidence=rules.confidence)
    base = float(theirs.values.mean())
    reason = (
        f"{base:.4f} -> {mine.values.mean():.4f} by weights π/μ̂: gain {test.difference:+.4f}, {rules.confidence:.0%} "
        f"interval {test.low:+.4f} to {test.high:+.4f} over {test.n:,} answers; its lower end must be above "
        f"{rules.min_gain:g}"
    )
    fields = (test.difference, test.low, test.high, test.n)
    if (sequences := sequences_of(clusters)) < rules.min_sequences:
        enough = math.ceil(test.n * rules.min_sequences / max(sequences, 1))
        reason += f". {sequences} sequences are too few for a verdict (least: {rules.min_sequences})"
        return Check(NAME, "cannot tell", reason, *fields, enough, plain=f"{sequences} sequences are too few")
    outcome, told = outcome_of(test.low, test.high, base, rules)
    said = {"yes": "its answers would be worth more", "no": "its answers would be worth no more"}
    plain = said.get(outcome, "its answers would not significantly be worth more")
    if (outcome == "yes" and _sign(gain, rules) < 0) or (outcome == "no" and test.high < 0 and _sign(gain, rules) > 0):
        way, other = ("more", "lower") if outcome == "yes" else ("less", "higher")
        reason += (
            f". But {gain.reason}. The log does not say what was shown, so it cannot tell which of the two is right"
        )
        plain = (
            f"its answers would be worth {way}, but it ranks what is worth most {other}, and what was shown is unknown"
        )
        return Check(NAME, "cannot tell", reason, *fields, plain=plain)
    needed = None
    if outcome == "cannot tell":
        wanted = max(test.difference, rules.smallest_gain * abs(base)) - rules.min_gain
        needed = more_needed(test, wanted, confidence=rules.confidence)
        needed = None if needed is not None and needed <= test.n else needed
        told = "" if needed is None else f". About {needed:,} answers would tell"
    return Check(NAME, outcome, reason + told, *fields, needed, plain=plain, unit="answers")


def _sign(check: Check, rules: GateRules) -> int:
    """Of a gain that its interval tells from what is asked."""
    if check.low is None or check.high is None:
        return 0
    return int(check.low > rules.min_gain) - int(check.high < rules.min_gain)


def baselines_by_answers(
    new: Evaluation, old: Evaluation, baselines: Sequence[Evaluation], log: np.ndarray | None, metric: str,
    rules: GateRules,
) -> Check:  # fmt: skip
    """No simple baseline's answers would significantly be worth more, with ranks that do not say the opposite.

    One whose answers the log says too little of neither blocks nor passes, and is named.
    """
    if not baselines:
        return LEFT_OUT
    mine = None if log is None else answers(new, log, rules)
    if log is None or mine is None or mine.refusal:
        return Check("baselines", "not asked", "what the new policy's answers would be worth is not known")
    known = {each.name: (each, found) for each in baselines if not (found := answers(each, log, rules)).refusal}
    unknown = [each.name for each in baselines if each.name not in known]
    refused = f"Not judged, since the log says too little of their answers: {', '.join(unknown)}" if unknown else ""
    if not known:
        return Check("baselines", "not asked", refused)
    clusters, tests = new.scores.sequence, {}
    for name, (_, found) in known.items():
        tests[name] = (mine.values, found.values, clusters)
    told = paired_family(tests, confidence=rules.confidence)
    best = min(told, key=lambda name: told[name].difference)
    figures = ", ".join(f"{name} {found.values.mean():.4f}" for name, (_, found) in known.items())
    test = told[best]
    reason = (
        f"{NAME} {mine.values.mean():.4f} against {figures}; against {best} {test.difference:+.4f} ({test.low:+.4f} to "
        f"{test.high:+.4f})"
    )
    reason = ". ".join(filter(None, [reason, refused]))
    fields = (test.difference, test.low, test.high, test.n)
    for name in sorted(told, key=lambda name: told[name].difference):
        baseline, found = known[name]
        if told[name].sign < 0 and _ranks(baseline, new, metric, rules).sign >= 0:
            base = answers(old, log, rules)
            above = (
                not base.refusal and paired(found.values, base.values, clusters, confidence=rules.confidence).sign > 0
            )
            instead = name if above and _ranks(baseline, old, metric, rules).sign >= 0 else None
            plain = f"answers to the simple baseline {name} would be worth more"
            return Check("baselines", "no", f"{reason}: {plain}", *fields, instead=instead, plain=plain)
    return Check("baselines", "yes", reason, *fields, plain="no simple baseline's answers would be worth more")


def _ranks(first: Evaluation, second: Evaluation, metric: str, rules: GateRules) -> Paired:
    (mine, clusters), (theirs, _) = first.values(metric), second.values(metric)
    return paired(mine, theirs, clusters, confidence=rules.confidence)
