"""The gate's checks: each a question about two policies on the same rows, with n, interval and reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from localpolicy.errors import ConfigError
from localpolicy.judge.gate_rules import GateRules
from localpolicy.measure.divergence import Divergence
from localpolicy.measure.estimate import Estimate, finite
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import ENOUGH, Values, more_needed, paired, paired_family, sequences_of
from localpolicy.measure.summary import AGREEMENT, LIKED, WEIGHTED, groups, segments

Outcome = Literal["yes", "no", "cannot tell", "not asked"]


@dataclass(frozen=True)
class Check:
    """One rule and what came of it."""

    name: str
    outcome: Outcome
    reason: str
    value: float | None = None
    low: float | None = None  # of its interval
    high: float | None = None
    n: int | None = None  # positions, or decisions, it rests on
    needed: int | None = None  # positions that would tell, where these do not
    instead: str | None = None  # the policy that should be deployed rather than either
    plain: str = ""  # what came of it in a few words, for the answer's sentence
    unit: str = "positions"  # what `n` and `needed` count

    @property
    def passed(self) -> bool | None:
        """None where it could not be told, or was not asked."""
        return {"yes": True, "no": False}.get(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"passed": self.passed, **{name: finite(value) for name, value in vars(self).items()}}


TOO_LITTLE = " by as much as is worth having"
CLOSE = 0.05  # nats: a reference this close to the likelihood of the propensities has learnt them


def outcome_of(low: float, high: float, deployed: float, rules: GateRules) -> tuple[Outcome, str]:
    """Whether a gain with this interval is worth a deployment; and why not, in words.

    No where all of it lies below `smallest_gain` of the deployed figure, however significant it is; yes where it lies
    above `min_gain`; else it cannot tell. A `min_gain` below 0 accepts losses, and so any gain.
    """
    smallest = max(rules.min_gain, rules.smallest_gain * abs(deployed))
    too_little = high < max(smallest, rules.min_gain + 1e-12)
    if low > rules.min_gain and not (too_little and rules.min_gain >= 0):
        return "yes", ""
    if too_little:
        return "no", f". The whole interval is below {smallest:.4f}, the smallest gain worth having"
    return "cannot tell", ""


def gain_check(new: Evaluation, deployed: Evaluation, name: str, rules: GateRules, *, said: str | None = None) -> Check:
    """The lower end of the paired gain's interval is above `min_gain`; `said` is what must be known of the two."""
    (mine, clusters), (old, _) = new.values(name), deployed.values(name)
    if not len(mine):
        return Check("gain", "cannot tell", unmeasured(name), n=0, plain=f"no row can be judged by {name}")
    test = paired(mine, old, clusters, confidence=rules.confidence)
    sequences, smallest = sequences_of(clusters), max(rules.min_gain, rules.smallest_gain * float(old.mean()))
    words = gain_words(name)
    reason = (
        f"{name} {old.mean():.4f} -> {mine.mean():.4f}: gain {test.difference:+.4f}, {rules.confidence:.0%} interval "
        f"{test.low:+.4f} to {test.high:+.4f} over {test.n:,} positions of {sequences:,} sequences; its lower end must "
        f"be above {rules.min_gain:g}" + (f". Note: {said}" if said else "")
    )
    if rules.min_sequences <= sequences < ENOUGH:
        reason += f". Below {ENOUGH} sequences a small gain is missed, and one that is found looks larger than it is"
    outcome: Outcome = "cannot tell"
    needed, plain = None, words["cannot tell"]
    if test.n and np.array_equal(new.scores.rank, deployed.scores.rank) and rules.min_gain >= 0:
        outcome, plain = "no", "the two rank everything alike"
        reason = (
            f"{name} {old.mean():.4f} of both, over {test.n:,} positions of {sequences:,} sequences. The two rank "
            "everything alike: nothing would change" + (f". Note: {said}" if said else "")
        )
    elif sequences < rules.min_sequences:
        needed = math.ceil(test.n * rules.min_sequences / sequences)
        reason += f". {sequences} sequences are too few for a verdict (least: {rules.min_sequences})"
    else:
        outcome, told = outcome_of(test.low, test.high, float(old.mean()), rules)
        reason += told
        plain = words["lower" if outcome == "no" and test.high < 0 else outcome]
        plain += TOO_LITTLE if outcome == "no" and test.low > rules.min_gain else ""
        if outcome == "cannot tell":
            needed = more_needed(test, max(test.difference, smallest) - rules.min_gain, confidence=rules.confidence)
            needed = None if needed is not None and needed <= test.n else needed  # these have not told
            reason += "" if needed is None else f". About {needed:,} positions would tell"
    return Check("gain", outcome, reason, test.difference, test.low, test.high, test.n, needed, plain=plain)


def unmeasured(name: str) -> str:
    """Why a figure has no position, and what to do."""
    if name not in (LIKED, AGREEMENT):
        return f"{name}: no held-out position has it. Hold out more sequences"
    return (
        f"{name} compares items that one person rated after one another, and no held-out sequence has two (a split by "
        "last events leaves one). Prepare the data with --split random or time"
    )


def gain_words(name: str) -> dict[str, str]:
    """What came of a figure such as purchase.nDCG@20, in words, by outcome."""
    if name == LIKED:
        first = "what it ranks first was liked"
        return {
            "yes": f"{first} better", "no": f"{first} no better", "lower": f"{first} less",
            "cannot tell": f"{first} not significantly better",
        }  # fmt: skip
    group = name.rpartition(".")[0]
    named = {"all": "what people took", "repeat": "repeats", "new": "new items", WEIGHTED: "what is worth most"}
    what = named.get(group, f"{group} events")
    return {
        "yes": f"it ranks {what} higher", "no": f"it ranks {what} no higher", "lower": f"it ranks {what} lower",
        "cannot tell": f"it does not significantly rank {what} higher",
    }  # fmt: skip


def agreement_check(new: Evaluation, deployed: Evaluation, rules: GateRules) -> Check:
    """Beside the value at the top: rated items are not significantly ordered worse than before."""
    (mine, clusters), (old, _) = new.values(AGREEMENT), deployed.values(AGREEMENT)
    if not len(mine):
        return Check("agreement", "not asked", unmeasured(AGREEMENT), n=0)
    test = paired(mine, old, clusters, confidence=rules.confidence)
    reason = (
        f"pairs of rated items ordered as the person rated them: {old.mean():.4f} -> {mine.mean():.4f}, difference "
        f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}, n {test.n:,})"
    )
    plain = "it orders what people rated worse than before"
    outcome: Outcome = "no" if test.high < 0 else "yes"
    return Check("agreement", outcome, reason, test.difference, test.low, test.high, test.n, plain=plain)


def events_check(new: Evaluation, deployed: Evaluation, name: str, events: list[str], rules: GateRules) -> Check:
    """No other event loses significantly more than allowed, Holm-corrected over them."""
    if name == LIKED:
        return Check("other events", "not asked", "ratings are judged together")
    measured, metric_name = groups(new.scores), name.rpartition(".")[2]
    others = [event for event in events if event in measured and event != name.rpartition(".")[0]]
    tests = {}
    for event in others:
        (mine, clusters), (old, _) = (policy.values(f"{event}.{metric_name}") for policy in (new, deployed))
        tests[event] = mine + rules.max_event_loss, old, clusters
    return _no_sure_loss("other events", tests, rules.max_event_loss, rules, nothing="the log has no other paid event")


def segment_check(new: Evaluation, deployed: Evaluation, name: str, rules: GateRules) -> Check:
    """No segment loses significantly more than allowed, Holm-corrected over the segments."""
    (mine, clusters), (old, _) = new.values(name), deployed.values(name)
    tests = {}
    for label, here in segments(new.scores, new.counts, new.known).items():
        if (chosen := here[new.positions(name)]).sum() >= rules.min_segment:
            tests[label] = mine[chosen] + rules.max_segment_loss, old[chosen], clusters[chosen]
    nothing = f"no segment has {rules.min_segment} positions"
    return _no_sure_loss("segments", tests, rules.max_segment_loss, rules, nothing=nothing)


def _no_sure_loss(name: str, values: Mapping[str, Values], allowed: float, rules: GateRules, *, nothing: str) -> Check:
    """`values` of the new policy have the allowed loss added."""
    if not values:
        return Check(name, "not asked", nothing)
    tests = paired_family(values, confidence=rules.confidence)
    lost = {
        label: f"{label} ({test.difference - allowed:+.4f}, n {test.n:,}, p {test.holm_p:.2g})"
        for label, test in tests.items()
        if test.sign < 0
    }
    worst = min(tests.values(), key=lambda test: test.difference)
    fields = (worst.difference - allowed, worst.low - allowed, worst.high - allowed, worst.n)
    if lost:
        where = f"{' and '.join(lost)} events" if name == "other events" else f"the segment {' and '.join(lost)}"
        plain = f"it ranks {where} lower"
        return Check(name, "no", f"falls significantly for: {', '.join(lost.values())}", *fields, plain=plain)
    label = next(label for label, test in tests.items() if test is worst)
    reason = (
        f"none of {len(tests)} loses significantly more than {allowed:g}; the least: {label} {fields[0]:+.4f} "
        f"({fields[1]:+.4f} to {fields[2]:+.4f}, n {worst.n:,})"
    )
    return Check(name, "yes", reason, *fields)


def divergence_checks(divergence: Divergence | None, rules: GateRules) -> list[Check]:
    """JS within the budget, and within so many times the floor. A budget below the floor is refused."""
    asked = rules.max_js is not None or rules.max_floor_ratio is not None
    if divergence is None:
        reason = "no reference estimates the logging policy: give an mle run with --against"
        plain = "its distance from the log is not known"
        return [Check("divergence", "cannot tell" if asked else "not asked", reason, plain=plain)]
    js = divergence.js.overall
    floor = None if divergence.floor_js is None else divergence.floor_js.overall.mean
    beside = (
        "noise floor not known (give a second reference of another seed)" if floor is None else f"floor {floor:.4f}"
    )
    names = ", ".join(reference.name for reference in divergence.references)
    if rules.max_js is not None and floor is not None and rules.max_js < floor:
        raise ConfigError(
            f"max_js: a budget of {rules.max_js:g} is below the noise floor ({floor:.4f} between {names}): a retrained "
            "copy of the deployed policy would fail it. Raise the budget."
        )
    low, high = js.mean - 1.96 * js.se, js.mean + 1.96 * js.se
    reason = f"JS {js.mean:.4f} ({low:.4f} to {high:.4f}, n {js.n:,}) from {names}; {beside}"
    if rules.max_js is None:
        outcome: Outcome = "not asked"
        reason += "; no budget set (max_js)"
    else:
        outcome = "yes" if high <= rules.max_js else "no" if low > rules.max_js else "cannot tell"
        reason += f"; budget {rules.max_js:g}"
    plain = f"it {'moves' if outcome == 'no' else 'may move'} further from the log than the budget allows"
    checks = [Check("divergence", outcome, reason, js.mean, low, high, js.n, plain=plain)]
    if rules.max_floor_ratio is not None:
        ratio = divergence.above_floor
        if ratio is None:
            reason = f"{beside}, and max_floor_ratio asks for it"
            plain = "the noise floor is not known"
            checks.append(Check("divergence over floor", "cannot tell", reason, plain=plain))
        else:
            reason = f"{ratio:.1f} times the floor; at most {rules.max_floor_ratio:g}"
            within: Outcome = "yes" if ratio <= rules.max_floor_ratio else "no"
            plain = f"it moves {ratio:.1f} times as far from the log as noise does"
            checks.append(Check("divergence over floor", within, reason, ratio, n=js.n, plain=plain))
    return checks


def coverage_check(new: Evaluation, deployed: Evaluation, rules: GateRules) -> Check:
    """Lists still reach a fair share of what the deployed policy's lists reach: a collapse shows here first."""
    name = f"coverage@{new.settings['lists']}"
    mine, old = new.policy[name], deployed.policy[name]
    assert not isinstance(mine, Estimate) and not isinstance(old, Estimate)
    ratio = mine / old if old > 0 else np.inf
    reason = (
        f"{name} {old:.3f} -> {mine:.3f}: {ratio:.2f} of the deployed policy's; at least {rules.min_coverage_ratio:g}"
    )
    outcome: Outcome = "yes" if ratio >= rules.min_coverage_ratio else "no"
    plain = f"its lists reach {ratio:.0%} of the items that the deployed policy's lists reach"
    return Check("coverage", outcome, reason, float(ratio), n=len(new.scores), plain=plain)


def reference_fit_check(new: Evaluation, popularity: np.ndarray, items: int, rules: GateRules) -> Check:
    """Every reference predicts the log significantly better than uniform, and no worse than popularity.

    Where propensities were logged and μ̂ reaches their likelihood it has learned all there is, even if that is uniform.
    """
    scores, (tests, reasons), beaten_by = new.scores, ({}, []), set()
    for name, logp in scores.logp_reference.items():
        over_uniform = paired(logp, np.full(len(logp), -math.log(items)), scores.sequence, confidence=rules.confidence)
        over_popular = paired(logp, popularity, scores.sequence, confidence=rules.confidence)
        learned = over_uniform.low > 0 and over_popular.high > 0
        among = scores.logp_open_reference.get(name, logp)  # as propensities are: of what could be chosen
        if scores.propensity is not None and (known := ~np.isnan(scores.propensity + among)).any():
            true = np.log(scores.propensity[known])
            learned |= paired(among[known], true, scores.sequence[known], confidence=rules.confidence).low > -CLOSE
        tests[name] = learned
        if not learned:
            beaten_by.add("popularity" if over_uniform.low > 0 else "chance")
        reasons.append(
            f"{name}: log-likelihood {logp.mean():.3f}, uniform {-math.log(items):.3f}, popularity "
            f"{popularity.mean():.3f} (n {len(logp):,})"
        )
    if not tests:
        return Check("reference fit", "not asked", "no reference to measure the distance from")
    if all(tests.values()):
        return Check("reference fit", "yes", "; ".join(reasons), n=len(scores))
    bad, what = ", ".join(name for name, learned in tests.items() if not learned), " or ".join(sorted(beaten_by))
    reason = (
        f"{'; '.join(reasons)}. {bad} predicts the log no better than {what}, so no distance can be measured from it: "
        "train it longer"
    )
    plain = f"a reference predicts the log no better than {what}, so no distance can be measured from it"
    return Check("reference fit", "cannot tell", reason, n=len(scores), plain=plain)
