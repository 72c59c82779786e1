"""`gate`: deploy or not, with reasons. Rules are a small YAML file; each becomes one check with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import Field

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.evaluation.candidates import (
    RunLike,
    as_run,
    names_of,
    open_data,
    open_run,
    refuse_incomparable,
    window_of,
)
from localpolicy.evaluation.divergence import Divergence
from localpolicy.evaluation.estimate import Estimate
from localpolicy.evaluation.evaluation import EvaluateConfig, Evaluation, evaluate_policy, paid_events
from localpolicy.evaluation.metrics import metric
from localpolicy.evaluation.off_policy import OverlapRules, decisions
from localpolicy.evaluation.off_policy.estimators import doubly_robust
from localpolicy.evaluation.off_policy.intervals import normal
from localpolicy.evaluation.run import settings_of
from localpolicy.evaluation.segments import groups, segments
from localpolicy.evaluation.significance import holm, paired
from localpolicy.settings import Settings


class GateRules(Settings):
    """What a policy must show before it is deployed."""

    metric: str | None = Field(None, description="what must gain, as purchase.nDCG@20 (default: the best paid event's)")
    min_gain: float = Field(0.0, description="the lower end of the gain's interval must be above this")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="of every interval")
    max_js: float | None = Field(None, gt=0, description="budget: largest mean JS from the references, in nats")
    max_floor_ratio: float | None = Field(None, gt=0, description="largest JS as a multiple of the noise floor")
    max_segment_loss: float = Field(0.0, ge=0, description="a segment may not surely lose more than this")
    min_segment: int = Field(100, ge=2, description="positions a segment needs to be judged")
    min_coverage_ratio: float = Field(0.5, ge=0, description="least coverage, as a share of the deployed policy's")
    require_value_gain: bool = Field(
        False, description="an off-policy estimate must surely gain, not just not surely lose"
    )
    overlap: OverlapRules = Field(OverlapRules(), description="when an off-policy estimate is refused")


@dataclass(frozen=True)
class Check:
    """One rule and what came of it. `passed` is None where it could not be measured and need not be."""

    name: str
    passed: bool | None
    reason: str

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        return dict(vars(self))


@dataclass(frozen=True)
class Verdict:
    """Deploy, or not, with reasons."""

    checks: list[Check]
    evaluation: Evaluation
    deployed: Evaluation
    rules: GateRules

    @property
    def deploy(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "deploy": self.deploy,
            "checks": [check.json() for check in self.checks],
            "rules": self.rules.model_dump(mode="json"),
            "evaluation": self.evaluation.json(),
        }


def read_rules(path: Path | str) -> GateRules:
    """Rules from a YAML file."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: expected a YAML file of gate rules.")
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{path}: expected 'rule: value' lines, got {type(content).__name__}.")
    return GateRules.parse(content or {})


def gate(
    run: RunLike,
    *,
    against: Sequence[RunLike],
    rules: GateRules | Path | str | None = None,
    data: Prepared | Path | str | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    beta: float | None = None,
    device: str = "auto",
) -> Verdict:
    """Should `run` replace the first run of `against`? Divergence is taken from all of them."""
    if not against:
        raise RunError("a gate needs the deployed run: name it with --against.")
    rules = rules if isinstance(rules, GateRules) else GateRules() if rules is None else read_rules(rules)
    opened = [as_run(one) for one in (run, *against)]
    names = names_of(opened)
    candidate = open_run(opened[0], names[0], beta=beta, device=device)
    references = [open_run(one, name, device=device) for one, name in zip(opened[1:], names[1:], strict=True)]
    refuse_incomparable([candidate, *references])
    prepared = open_data(opened[0], data)
    settings = settings_of(config, candidate.facts["train.min_history"])
    name = rules.metric or f"{(paid_events(prepared) or ['all'])[0]}.nDCG@20"
    evaluation, deployed = (
        evaluate_policy(
            one.policy,
            prepared,
            name=one.name,
            window=window_of(candidate),
            config=settings,
            references={reference.name: reference.policy for reference in measured},
            described=[reference.about for reference in measured],
            rules=rules.overlap,
        )
        for one, measured in ((candidate, references), (references[0], []))
    )
    checks = [
        gain_check(evaluation, deployed, name, rules),
        *divergence_checks(evaluation.divergence, rules),
        value_check(evaluation, rules),
        segment_check(evaluation, deployed, name, rules),
        coverage_check(evaluation, deployed, rules),
    ]
    return Verdict(checks, evaluation, deployed, rules)


def gain_check(evaluation: Evaluation, deployed: Evaluation, name: str, rules: GateRules) -> Check:
    """The lower end of the paired gain's interval is above `min_gain`."""
    group = name.rpartition(".")[0]
    if group not in groups(evaluation.scores):
        known = [f"{each}.nDCG@20" for each in groups(evaluation.scores)]
        raise ConfigError(f"metric: no figure '{name}'{nearest(name, known)}")
    (new, clusters), (old, _) = evaluation.values(name), deployed.values(name)
    test = paired(new, old, clusters, confidence=rules.confidence)
    reason = (
        f"{name} {old.mean():.4f} -> {new.mean():.4f}: gain {test.difference:+.4f}, {rules.confidence:.0%} interval "
        f"{test.low:+.4f} to {test.high:+.4f}; its lower end must be above {rules.min_gain:g}"
    )
    return Check("gain", bool(test.low > rules.min_gain), reason)


def divergence_checks(divergence: Divergence | None, rules: GateRules) -> list[Check]:
    """JS within the budget, and within so many times the floor. A budget below the floor is refused."""
    assert divergence is not None
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
    found = f"JS {js.mean:.4f} ± {js.se:.4f} from {names}; {beside}"
    budget = "no budget set (max_js)" if rules.max_js is None else f"budget {rules.max_js:g}"
    within = None if rules.max_js is None else js.mean <= rules.max_js
    checks = [Check("divergence", within, f"{found}; {budget}")]
    if rules.max_floor_ratio is not None:
        ratio = divergence.above_floor
        if ratio is None:
            checks.append(Check("divergence over floor", False, f"{beside}, and max_floor_ratio asks for it"))
        else:
            reason = f"{ratio:.1f} times the floor; at most {rules.max_floor_ratio:g}"
            checks.append(Check("divergence over floor", ratio <= rules.max_floor_ratio, reason))
    return checks


def value_check(evaluation: Evaluation, rules: GateRules) -> Check:
    """By the doubly robust estimate the policy does not surely lose: the gain's interval reaches 0 or more.

    That it might lose is let pass; `require_value_gain` asks for the whole interval above 0.
    """
    found, log = evaluation.off_policy, decisions(evaluation.scores)
    if found is None or log is None:
        return Check("value", False if rules.require_value_gain else None, "the log has no propensities")
    if found.refusal is not None:
        passed = False if rules.require_value_gain else None
        return Check("value", passed, f"overlap is too small for an estimate: {found.refusal}")
    # Paired: both are read off the same decisions, so what luck gave the log it also gave the estimate.
    gain = doubly_robust(log) - log.reward
    interval = normal(gain, log.sequence, confidence=rules.confidence)
    reason = (
        f"estimated J {found.estimates['DR'].value:.4f} against {found.logged.value:.4f} logged: gain "
        f"{gain.mean():+.4f}, interval {interval.low:+.4f} to {interval.high:+.4f} ({found.overlap.effective:,.0f} "
        f"effective decisions); {'all of it must be above 0' if rules.require_value_gain else 'it must reach 0'}"
    )
    return Check("value", bool(interval.low > 0 if rules.require_value_gain else interval.high >= 0), reason)


def segment_check(evaluation: Evaluation, deployed: Evaluation, name: str, rules: GateRules) -> Check:
    """No segment surely loses more than allowed: the loss exceeds it, Holm-corrected over the segments."""
    group, _, metric_name = name.rpartition(".")
    scores = evaluation.scores
    counted = groups(scores)[group]
    value = metric(metric_name)
    tests = {}
    for label, here in segments(scores, evaluation.counts).items():
        chosen = here & counted
        if chosen.sum() >= rules.min_segment:
            new, old = value(scores.rank[chosen]), value(deployed.scores.rank[chosen])
            tests[label] = paired(new + rules.max_segment_loss, old, scores.sequence[chosen])
    if not tests:
        return Check("segments", None, f"no segment has {rules.min_segment} positions")
    corrected = holm([test.p for test in tests.values()])
    lost = [
        f"{label} ({test.difference - rules.max_segment_loss:+.4f}, p {p:.2g})"
        for (label, test), p in zip(tests.items(), corrected, strict=True)
        if test.difference < 0 and p < 1 - rules.confidence
    ]
    if lost:
        return Check("segments", False, f"{name} surely falls for: {', '.join(lost)}")
    return Check("segments", True, f"none of {len(tests)} segments surely loses more than {rules.max_segment_loss:g}")


def coverage_check(evaluation: Evaluation, deployed: Evaluation, rules: GateRules) -> Check:
    """Lists still reach a fair share of what the deployed policy's lists reach: a collapse shows here first."""
    name = f"coverage@{evaluation.settings['lists']}"
    new, old = evaluation.policy[name], deployed.policy[name]
    assert not isinstance(new, Estimate) and not isinstance(old, Estimate)
    ratio = new / old if old > 0 else np.inf
    reason = (
        f"{name} {old:.3f} -> {new:.3f}: {ratio:.2f} of the deployed policy's; at least {rules.min_coverage_ratio:g}"
    )
    return Check("coverage", bool(ratio >= rules.min_coverage_ratio), reason)
