"""Does anything get worse: another event, a segment, the order of rated items, the reach of its lists?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from localpolicy.judge.case import Case
from localpolicy.judge.checks.gains import unmeasured
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import paid_events
from localpolicy.measure.position_metrics import AGREEMENT, LIKED, groups, segments
from localpolicy.measure.significance import Values, paired, paired_family


def events_check(new: Evaluation, deployed: Evaluation, name: str, events: list[str], rules: GateRules) -> Claim:
    """Claim that no other event's metric falls significantly by more than allowed (Holm over events)."""
    if name == LIKED:
        return check("other events", "not asked", "ratings are judged together")
    (group, _, metric_name), measured = name.rpartition("."), groups(new.scores)
    others = {event: f"{event}.{metric_name}" for event in events if event in measured and event != group}
    values = {event: (new.values(figure)[0], *deployed.values(figure)) for event, figure in others.items()}
    return no_loss("other events", values, rules.max_event_loss, rules, nothing="the log has no other paid event")


def no_loss(name: str, values: Mapping[str, Values], allowed: float, rules: GateRules, *, nothing: str) -> Claim:
    """Claim that none of the parts `values` loses significantly more than `allowed`; `nothing`: why there are none."""
    if not values:
        return check(name, "not asked", nothing)
    if all(np.allclose(new, old, rtol=0, atol=1e-9) for new, old, _ in values.values()):
        count = max(len(new) for new, _, _ in values.values())
        return check(name, "yes", f"none of {len(values)} changes: the two are alike in all of them", 0.0, n=count)
    raised = {label: (new + allowed, old, clusters) for label, (new, old, clusters) in values.items()}
    tests = paired_family(raised, confidence=rules.confidence)
    lost = {
        label: f"{label} ({test.difference - allowed:+.4f}, n {test.n:,}, p {test.holm_p:.2g})"
        for label, test in tests.items()
        if test.sign < 0
    }
    label, worst = min(tests.items(), key=lambda pair: pair[1].difference)
    difference, low, high = (each - allowed for each in worst.numbers[:3])
    if lost:
        parts = "segment" if len(lost) == 1 else "segments"
        where = f"{', '.join(lost)} events" if name == "other events" else f"the {parts} {', '.join(lost)}"
        outcome: Outcome = "no"
        reason, plain = f"falls significantly for: {', '.join(lost.values())}", f"it ranks {where} lower"
    else:
        outcome, plain = "yes", ""
        reason = (
            f"none of {len(tests)} loses significantly more than {allowed:g}; the least: {label} {difference:+.4f} "
            f"({low:+.4f} to {high:+.4f}, n {worst.n:,})"
        )
    return check(name, outcome, reason, difference, low, high, worst.n, plain=plain)


def segment_check(new: Evaluation, deployed: Evaluation, name: str, rules: GateRules) -> Claim:
    """Claim that no segment loses significantly more than allowed, Holm-corrected over the segments."""
    parts = segments(new.scores, new.counts, new.known)
    every = {label: (new.values(name, here)[0], *deployed.values(name, here)) for label, here in parts.items()}
    values = {label: each for label, each in every.items() if len(each[0]) >= rules.min_segment}
    nothing = f"no segment has {rules.min_segment} positions"
    return no_loss("segments", values, rules.max_segment_loss, rules, nothing=nothing)


def other_events(case: Case) -> list[Claim]:
    """Claims that no event other than the deciding one loses significantly."""
    if case.deployed is None:
        return []
    events = paid_events(case.data)
    return [events_check(case.evaluation, case.deployed, case.metric, events, case.rules)]


def no_segment_loses(case: Case) -> list[Claim]:
    """Claims that no segment of the positions loses significantly."""
    if case.deployed is None:
        return []
    return [segment_check(case.evaluation, case.deployed, case.metric, case.rules)]


# ---------------------------------------------------------------------- the order of rated items


def agreement_check(new: Evaluation, deployed: Evaluation, rules: GateRules) -> Claim:
    """Claim that the order of rated items does not agree significantly less with their ratings than before."""
    mine, old, clusters = new.values(AGREEMENT)[0], *deployed.values(AGREEMENT)
    if not len(mine):
        return check("agreement", "not asked", unmeasured(AGREEMENT), n=0)
    test = paired(mine, old, clusters, confidence=rules.confidence)
    if test.alike:
        reason = f"the two order rated items alike, {old.mean():.4f} of the pairs as the person did (n {test.n:,})"
        return check("agreement", "yes", reason, 0.0, n=test.n)
    reason = (
        f"pairs of rated items ordered as the person rated them: {old.mean():.4f} -> {mine.mean():.4f}, difference "
        f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}, n {test.n:,})"
    )
    plain = "it orders what people rated worse than before"
    return check("agreement", "no" if test.high < 0 else "yes", reason, *test.numbers, plain=plain)


def agreement(case: Case) -> list[Claim]:
    """Claims that rated items are ordered no worse than before; none if the log has no ratings."""
    if case.deployed is None or case.metric != LIKED:
        return []
    return [agreement_check(case.evaluation, case.deployed, case.rules)]


# ---------------------------------------------------------------------- the reach of lists


def coverage_check(new: Evaluation, deployed: Evaluation, rules: GateRules) -> Claim:
    """Claim that the lists reach a fair share of the items that the deployed policy's lists reach (no collapse)."""
    name = f"coverage@{new.settings['lists']}"
    mine, old = new.coverage, deployed.coverage
    ratio = mine / old if old > 0 else np.inf
    reason = (
        f"{name} {old:.3f} -> {mine:.3f}: {ratio:.2f} of the deployed policy's; at least {rules.min_coverage_ratio:g}"
    )
    outcome: Outcome = "yes" if ratio >= rules.min_coverage_ratio else "no"
    plain = f"its lists reach {ratio:.0%} of the items that the deployed policy's lists reach"
    return check("coverage", outcome, reason, float(ratio), n=len(new.scores), plain=plain)


def lists_reach_enough(case: Case) -> list[Claim]:
    """Coverage check against the lists of the deployed policy; none if that is the log itself."""
    return [] if case.deployed is None else [coverage_check(case.evaluation, case.deployed, case.rules)]
