"""The gate's check against simple baselines by ranking, where the log has no propensities."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from localpolicy.judge.gate_checks import Check, unmeasured
from localpolicy.judge.gate_rules import GateRules
from localpolicy.judge.gate_value import LEFT_OUT
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import more_needed, paired_family, sequences_of


def baselines_check(new: Evaluation, baselines: list[Evaluation], name: str, rules: GateRules) -> Check:
    """Significantly better than every simple baseline (Holm); one that is better itself should be deployed."""
    if not baselines:
        return LEFT_OUT
    mine, clusters = new.values(name)
    if not len(mine):
        return Check(
            "baselines", "cannot tell", unmeasured(name), n=0, plain=f"no held-out row can be judged by {name}"
        )
    values = {baseline.name: baseline.values(name)[0] for baseline in baselines}
    return _against_baselines(name, mine, values, clusters, rules)


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
    sequences, unsure = sequences_of(clusters), f"it is not significantly better than the simple baseline {best}"
    if sequences < rules.min_sequences:
        needed = math.ceil(test.n * rules.min_sequences / max(sequences, 1))
        reason += f". {sequences} sequences are too few for a verdict (least: {rules.min_sequences})"
        return Check("baselines", "cannot tell", reason, *fields, needed, plain=unsure)
    if test.sign < 0:
        return Check("baselines", "no", f"{reason}: {best} is what should be deployed", *fields, instead=best)
    if all(each.sign > 0 for each in tests.values()):
        return Check("baselines", "yes", reason, *fields, plain="it beats every simple baseline")
    wanted = max(abs(test.difference), rules.smallest_gain * abs(float(mine.mean())))
    needed_to_tell = more_needed(test, wanted, confidence=rules.confidence)
    more = "" if needed_to_tell is None else f". About {needed_to_tell:,} positions would tell"
    reason = f"{reason}: not significantly better than {best}{more}"
    return Check("baselines", "cannot tell", reason, *fields, needed_to_tell, plain=unsure)
