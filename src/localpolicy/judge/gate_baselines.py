"""The gate's check against simple baselines: by ranking, or by estimated reward where the log itself is deployed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from localpolicy.judge.gate_checks import Check
from localpolicy.judge.gate_rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.off_policy import decisions
from localpolicy.measure.off_policy.decisions import Decisions
from localpolicy.measure.off_policy.value_bound import CONTRIBUTIONS
from localpolicy.measure.significance import more_needed, paired_family, sequences_of

LEFT_OUT = Check("baselines", "not asked", "simple baselines are left out (baselines: false)")


def baselines_check(new: Evaluation, baselines: list[Evaluation], name: str, rules: GateRules) -> Check:
    """Surely better than every simple baseline, Holm-corrected; one that is surely better should be deployed itself."""
    if not baselines:
        return LEFT_OUT
    mine, clusters = new.values(name)
    values = {baseline.name: baseline.values(name)[0] for baseline in baselines}
    return _against_baselines(name, mine, values, clusters, rules)


def baselines_by_value(new: Evaluation, baselines: list[Evaluation], rules: GateRules) -> Check:
    """The same by estimated reward, where the log's propensities carry an estimate of both."""
    if not baselines:
        return LEFT_OUT
    log = _estimable(new)
    estimable = {baseline.name: _estimable(baseline) for baseline in baselines}
    contributions = CONTRIBUTIONS[rules.estimator]
    values = {name: contributions(theirs) for name, theirs in estimable.items() if theirs is not None}
    if log is None or not values:
        return Check("baselines", "not asked", "they differ too much from the log for an estimate of their reward")
    missing = [baseline.name for baseline in baselines if baseline.name not in values]
    check = _against_baselines("estimated J", contributions(log), values, log.sequence, rules)
    if not missing:
        return check
    return replace(check, reason=f"{check.reason}. The overlap is too small to estimate {', '.join(missing)}")


def _estimable(evaluation: Evaluation) -> Decisions | None:
    """Its decisions, where the log's propensities carry an estimate of its reward."""
    off_policy = evaluation.off_policy
    return None if off_policy is None or off_policy.refusal is not None else decisions(evaluation.scores)


def _against_baselines(
    name: str, mine: np.ndarray, baselines: Mapping[str, np.ndarray], clusters: np.ndarray, rules: GateRules
) -> Check:
    values = {label: (mine, theirs, clusters) for label, theirs in baselines.items()}
    tests = paired_family(values, confidence=rules.confidence)
    best, test = min(tests.items(), key=lambda pair: pair[1].difference)
    figures = ", ".join(f"{label} {theirs.mean():.4f}" for label, theirs in baselines.items())
    reason = (
        f"{name} {mine.mean():.4f} against {figures}; against {best} {test.difference:+.4f} "
        f"({test.low:+.4f} to {test.high:+.4f}, n {test.n:,})"
    )
    fields = (test.difference, test.low, test.high, test.n)
    sequences, unsure = sequences_of(clusters), f"it is not surely better than the simple baseline {best}"
    if sequences < rules.min_sequences:
        needed = math.ceil(test.n * rules.min_sequences / max(sequences, 1))
        reason += f". {sequences} sequences are too few for a verdict (least: {rules.min_sequences})"
        return Check("baselines", "cannot tell", reason, *fields, needed, plain=unsure)
    if test.sign < 0:
        return Check("baselines", "no", f"{reason}: {best} is what should be deployed", *fields, instead=best)
    if all(each.sign > 0 for each in tests.values()):
        return Check("baselines", "yes", reason, *fields, plain="it beats every simple baseline")
    wanted = max(abs(test.difference), rules.smallest_gain * abs(float(mine.mean())))
    needed_to_tell = more_needed(test, wanted)
    more = "" if needed_to_tell is None else f". About {needed_to_tell:,} positions would tell"
    reason = f"{reason}: not surely better than {best}{more}"
    return Check("baselines", "cannot tell", reason, *fields, needed_to_tell, plain=unsure)
