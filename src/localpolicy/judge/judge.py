"""`judge`: one policy against what is deployed, and all policies side by side, each of them scored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.judge.compare import compared
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import is_the_log, verdict_on
from localpolicy.judge.harness import Harness
from localpolicy.judge.rules import GateRules, rules_of
from localpolicy.judge.verdict import Gate
from localpolicy.measure.candidates import RunLike, as_run
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.model.deployable import Deployable


@dataclass(frozen=True)
class Judgement:
    """Comparison of all policies, and the gate's verdict on one of them."""

    comparison: Comparison
    verdict: Gate | None  # None: no policy was named to be judged


def judge(
    policies: Sequence[RunLike],
    *,
    estimates: Sequence[RunLike],
    policy: RunLike | None = None,
    against: Sequence[RunLike] = (),
    data: Prepared | Path | str | None = None,
    rules: GateRules | Mapping[str, Any] | Path | str | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    device: str = "auto",
    fitted: Mapping[str, Deployable] | None = None,
) -> Judgement:
    """Compare the policies, whose divergence is taken from the `estimates` of the log, and judge one of them.

    `policy`, one of the policies, is judged as by `gate`: should it replace the first of `against` (a policy, or the
    word `log`)? All that is named must be among the policies. `fitted` are simple baselines of this very data.
    """
    rules, runs = rules_of(rules), [as_run(each) for each in policies]
    harness = Harness.of(runs, data, config, baselines=True, rules=rules.refusals, device=device)
    places = {run.folder.resolve(): place for place, run in enumerate(runs)}

    def opened(named: Sequence[RunLike]) -> list[Any]:
        return [harness.opened[places[as_run(each).folder.resolve()]] for each in named if not is_the_log(each)]

    references, simple = opened(estimates), harness.simple(fitted=fitted)
    comparison = compared(harness, [*harness.opened, *simple], references, rules=rules)
    if policy is None:
        return Judgement(comparison, None)
    (new,), rivals = opened([policy]), opened(against)
    old = None if not against or is_the_log(against[0]) else rivals[0]
    return Judgement(comparison, verdict_on(harness, new, old, rivals, rules, simple=simple))
