"""`gate`: deploy, test online, do not deploy, cannot tell, or nothing to decide, with reasons.

What is judged depends on the log: `kinds.KINDS` has a row for each kind. Rules are a small YAML file; each becomes one
check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.judge.case import Case
from localpolicy.judge.checks.distance import out_of_time
from localpolicy.judge.checks.order import order_check
from localpolicy.judge.claims import Claim
from localpolicy.judge.harness import Harness
from localpolicy.judge.kinds import KINDS, claims_about, kind_of
from localpolicy.judge.rules import GateRules, rules_of
from localpolicy.judge.verdict import Gate
from localpolicy.measure.candidates import Candidate, RunLike, as_list
from localpolicy.measure.effects import log_days
from localpolicy.measure.metrics import EvaluateConfig, Question

THE_LOG = "log"  # names the policy that wrote an impression log, known by its propensities alone


def gate(
    run: RunLike,
    *,
    against: Sequence[RunLike] | RunLike,
    rules: GateRules | Mapping[str, Any] | Path | str | None = None,
    data: Prepared | Path | str | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    beta: float | None = None,
    device: str = "auto",
) -> Gate:
    """Should `run` replace the first of `against`? Divergence is taken from all of these that estimate the log.

    A run, a saved baseline, or a CSV or Parquet file of lists may stand on either side; the word `log` among `against`
    is the policy that wrote an impression log. All are measured on the same rows: `data`, or those that `run` was
    trained on.
    """
    against = as_list(against)
    if not against:
        raise RunError("a gate needs what is deployed: name it with --against.")
    rules = rules_of(rules)
    by_log = is_the_log(against[0])
    runs = [run, *(against[1:] if by_log else against)]
    harness = Harness.of(runs, data, config, baselines=rules.baselines, rules=rules.refusals, beta=beta, device=device)
    candidate, *references = harness.opened
    return verdict_on(harness, candidate, None if by_log else references[0], references, rules)


def verdict_on(
    harness: Harness, new: Candidate, old: Candidate | None, references: Sequence[Candidate], rules: GateRules, *,
    simple: Sequence[Candidate] | None = None,
) -> Gate:  # fmt: skip
    """Verdict on the new policy against the old one, or against the log if `old` is None.

    `simple` are the simple baselines, where these were fitted before.
    """
    case = Case(harness, rules, new, old, list(references), None if simple is None else list(simple))
    name = kind_of(case)
    checks = claims_about(case, KINDS[name])
    if any(each.leaks for each in (new, *references[:1])):
        checks[0] = checks[0].as_inconclusive(
            "The notes say which rows", "one of the two was trained on some of these rows"
        )
    made = {} if new.run is None else new.run.manifest
    return Gate(
        checks=_apply_preconditions(checks, case, name),
        evaluation=case.evaluation,
        deployed=case.deployed,
        rules=rules,
        metric=case.metric,
        notes=tuple(harness.notes([new], references, case.evaluation)),
        imitates=case.imitates,
        question=case.question,
        kind=name,
        days=log_days(case.data),
        policy_sha256=made.get("policy_sha256"),
        data=case.data.path,
        figures=tuple(case.answer_rows) if KINDS[name].weighs_answers else (),
        stays=made.get("improvement", {}).get("slope") == 0,
        folder=None if new.run is None else new.run.folder,
    )


def _apply_preconditions(checks: list[Claim], case: Case, kind: str) -> list[Claim]:
    """The checks, made informational if a precondition fails: rows out of time order, training cut short.

    Where the rows are not in the order of time, or the clock ended training, no other check decides: its figures speak
    of the file, or of the clock. A value of a baseline is estimated without the estimates, and stands.
    """
    if kind == "nothing":
        return checks
    doubt = order_check(case.data) or (out_of_time(case) if KINDS[kind].ground != "randomised" else None)
    return checks if doubt is None else [doubt, *(each.as_fact(doubt.plain) for each in checks)]


def is_the_log(policy: RunLike) -> bool:
    """Whether this names the log itself by the reserved word `log` (a folder of that name is ./log)."""
    return isinstance(policy, str | Path) and str(policy) == THE_LOG


def opponents(question: Question, deployed: Sequence[RunLike], estimates: Sequence[RunLike]) -> list[RunLike]:
    """Opponents of a policy, in the order of `--against`: what is deployed, then estimates of the log.

    Without anything that is known to be `deployed`, the policy that wrote the log is: the log itself, where its
    propensities say what that policy earned; else the first of its estimates stands for it.
    """
    wrote = [THE_LOG] if question.kind == "value" else []
    return [*(deployed or wrote), *estimates]
