"""`gate`: deploy, do not deploy, or cannot tell, with reasons. Rules are a small YAML file; each becomes one check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from localpolicy.data.batches import WindowConfig
from localpolicy.data.quality import filter_notes
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.judge.gate_baselines import baselines_by_value, baselines_check
from localpolicy.judge.gate_checks import (
    Check,
    coverage_check,
    divergence_checks,
    events_check,
    gain_check,
    ruler_check,
    segment_check,
    value_check,
)
from localpolicy.judge.gate_rules import GateRules, read_rules, rules_of
from localpolicy.judge.like_with_like import has_likeliest, like_with_like
from localpolicy.measure.baselines import BASELINES
from localpolicy.measure.candidates import Candidate, RunLike, as_run, names_of, refuse_incomparable, window_of
from localpolicy.measure.evaluation import (
    EvaluateConfig,
    Evaluation,
    deciding_figure,
    evaluate_policy,
    paid_events,
)
from localpolicy.measure.off_policy.reward_model import ItemMeans
from localpolicy.measure.opening import data_for, open_candidate, open_likeliest, shared_seeds
from localpolicy.measure.recorded import people_of
from localpolicy.measure.run import settings_of
from localpolicy.measure.scorer import Scorer
from localpolicy.measure.segments import groups
from localpolicy.results import Result

__all__ = ["Check", "Gate", "GateRules", "gate", "read_rules"]

THE_LOG = "log"  # names the policy that wrote an impression log, known by its propensities alone
BY_RANK = ("gain", "other events", "segments", "baselines")  # checks that ask where the log's items stand in the lists
Answer = Literal["deploy", "do not deploy", "cannot tell"]


@dataclass(frozen=True, repr=False)
class Gate(Result):
    """What a gate says: the answer, and every check behind it."""

    checks: list[Check]
    evaluation: Evaluation
    deployed: Evaluation | None  # None: the policy that wrote the log
    rules: GateRules
    metric: str = ""
    notes: tuple[str, ...] = ()  # what differs between those compared, in words
    imitates: bool = False  # whether what is deployed is an estimate of the policy that wrote the log

    @property
    def answer(self) -> Answer:
        """No where a check says so; cannot tell where one that was asked for could not be answered."""
        outcomes = {check.outcome for check in self.checks}
        return "do not deploy" if "no" in outcomes else "cannot tell" if "cannot tell" in outcomes else "deploy"

    @property
    def deploy(self) -> bool:
        """Whether the answer is yes."""
        return self.answer == "deploy"

    @property
    def against(self) -> str:
        """What is deployed now."""
        return "the policy that wrote the log" if self.deployed is None else self.deployed.name

    @property
    def sentence(self) -> str:
        """The answer as one says it to somebody who decides."""
        new, old = self.evaluation.name, f"{self.against}{' (which imitates the log)' if self.imitates else ''}"
        gain = next(check for check in self.checks if check.name in ("gain", "value"))
        if self.deploy:
            return f"Deploy {new} instead of {old}: {gain.plain}, and no check speaks against it."
        failed = [check for check in self.checks if check.outcome == "no"]
        instead = next((check.instead for check in failed if check.instead), None)
        if instead is not None:
            return f"Do not deploy {new}: the simple baseline '{instead}' does better. Deploy that one."
        if failed:
            but = f"{gain.plain}, but " if gain.outcome == "yes" else ""
            return f"Do not deploy {new} instead of {old}: {but}{_clauses(failed)}."
        unsure = [check for check in self.checks if check.outcome == "cannot tell"]
        most = max((check.needed for check in unsure if check.needed is not None), default=None)
        more = "" if most is None else f" About {_rounded(most):,} positions would tell; there are {gain.n or 0:,}."
        return f"Cannot tell whether to deploy {new} instead of {old}: {_clauses(unsure)}.{more}"

    def summary(self) -> str:
        """The answer in a sentence."""
        return self.sentence.removesuffix(".")

    def to_arrow(self) -> pa.Table:
        """One row per check: its outcome, value, interval, n and reason."""
        return pa.Table.from_pylist([check.to_dict() for check in self.checks])

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "answer": self.answer,
            "deploy": self.deploy,
            "sentence": self.sentence,
            "metric": self.metric,
            "checks": [check.to_dict() for check in self.checks],
            "notes": list(self.notes),
            "rules": self.rules.model_dump(mode="json"),
            "evaluation": self.evaluation.to_dict(),
            "deployed": None if self.deployed is None else self.deployed.to_dict(),
        }


def _clauses(checks: Sequence[Check]) -> str:
    """The first two checks in words: more would make no sentence."""
    more = f" (and {len(checks) - 2} more)" if len(checks) > 2 else ""
    return " and ".join(check.plain for check in checks[:2]) + more


def _rounded(count: int) -> int:
    """To two digits: more would pretend to know."""
    return int(float(f"{count:.1e}"))


def gate(
    run: RunLike,
    *,
    against: Sequence[RunLike],
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
    if not against:
        raise RunError("a gate needs what is deployed: name it with --against.")
    rules = rules_of(rules)
    by_log = isinstance(against[0], str | Path) and str(against[0]) == THE_LOG and not Path(THE_LOG).exists()
    run, others = as_run(run), [as_run(like) for like in (against[1:] if by_log else against)]
    names = names_of([run, *others], taken=BASELINES if rules.baselines else ())
    prepared = data_for([run, *others], data)
    settings = settings_of(config, 1)
    opened = [
        open_candidate(like, name, prepared, split=settings.split, beta=beta if number == 0 else None, device=device)
        for number, (like, name) in enumerate(zip((run, *others), names, strict=True))
    ]
    candidate, references = opened[0].candidate, [each.candidate for each in opened[1:]]
    refuse_incomparable([candidate, *references])
    settings = settings_of(config, int(candidate.facts.get("train.min_history", 1)))
    # One r̂ for all: a difference in value must be the policies', not their critics'.
    people = people_of(each.policy for each in (candidate, *references))
    measure = _Measure(prepared, window_of(candidate), settings, rules, ItemMeans.fit(prepared), people)
    rulers = [
        _ruler(reference, prepared, settings.split, device) for reference in references if _is_estimate(reference)
    ]
    evaluation = measure(candidate, rulers)
    metric, chosen_because = deciding_metric(evaluation, rules)
    simple = [Candidate(name, fit(prepared), candidate.origin) for name, fit in BASELINES.items()]
    popularity = measure(simple[0], [])
    notes = [*(note for each in opened for note in each.notes), *shared_seeds(candidate, references)]
    notes += [*([] if by_log else chosen_because), *filter_notes(prepared, settings.split)]
    checks: list[Check]
    deployed, leaks = None, [each for each in opened[:2] if each.leaks]
    if by_log:
        # Nothing but the value speaks of that policy, so a gain must show there.
        checks = [value_check(evaluation, None, rules, surely=True)]
    else:
        deployed = measure(references[0], [])
        pair = like_with_like(
            candidate, references[0], (evaluation, deployed),
            lambda other: measure(open_likeliest(other, prepared, split=settings.split, device=device), []),
        )  # fmt: skip
        gain = gain_check(pair.new, pair.old, metric, rules, said=pair.note or pair.refusal)
        checks = [gain if pair.refusal is None else replace(gain, outcome="cannot tell")]
        if leaks and checks[0].outcome != "no":
            reason = f"{checks[0].reason}. One of the two was trained on some of these rows (see the notes)"
            checks = [replace(checks[0], outcome="cannot tell", reason=reason)]
        checks += [
            events_check(evaluation, deployed, metric, paid_events(prepared), rules),
            value_check(evaluation, deployed, rules),
            segment_check(evaluation, deployed, metric, rules),
            coverage_check(evaluation, deployed, rules),
        ]
    taken = {candidate.origin.objective, *(reference.origin.objective for reference in references[:1])}
    beside = [baseline for baseline in simple if baseline.name not in taken] if rules.baselines else []
    measured = [popularity if baseline.name == popularity.name else measure(baseline, []) for baseline in beside]
    checks += [
        baselines_by_value(evaluation, measured, rules)
        if by_log
        else baselines_check(evaluation, measured, metric, rules),
        *divergence_checks(evaluation.divergence, rules),
        *([ruler_check(evaluation, popularity.scores.logp, prepared.n_items, rules)] if rules.ruler else []),
    ]
    if deployed is not None and rules.metric is None and not leaks:
        checks = _decided_by_value(checks, value_check(evaluation, deployed, rules, surely=True))
    imitates = not by_log and references[0].estimates_logging
    return Gate(checks, evaluation, deployed, rules, metric, tuple(dict.fromkeys(notes)), imitates)


def _decided_by_value(checks: list[Check], value: Check) -> list[Check]:
    """Where logged propensities show a sure gain in reward, ranks are facts beside it, and refuse nothing.

    Ranks ask whether the new policy shows what the old one showed. A policy that earns more by moving away ranks the
    log's items lower: the two rules would contradict each other.
    """
    if value.outcome != "yes":
        return checks
    said = "not asked, since the value surely gains: "
    ranks = [
        replace(check, outcome="not asked", reason=said + check.reason, needed=None, instead=None)
        if check.name in BY_RANK
        else check
        for check in checks
        if check.name != "value"
    ]
    return [value, *ranks]


@dataclass(frozen=True)
class _Measure:
    """All are measured alike."""

    data: Prepared
    window: WindowConfig
    settings: EvaluateConfig
    rules: GateRules
    values: Scorer
    people: np.ndarray | None  # the sequences that all have lists for; None: all

    def __call__(self, candidate: Candidate, references: Sequence[Candidate]) -> Evaluation:
        return evaluate_policy(
            candidate.policy, self.data, name=candidate.name, window=self.window, config=self.settings,
            references={reference.name: reference.policy for reference in references},
            described=[reference.origin for reference in references], rules=self.rules.overlap,
            values=self.values, people=self.people,
        )  # fmt: skip


def deciding_metric(evaluation: Evaluation, rules: GateRules) -> tuple[str, list[str]]:
    """The figure that must gain: as asked, or of the best paid event with enough sequences; and why it is that one."""
    measured = groups(evaluation.scores)
    if rules.metric is not None:
        if rules.metric.rpartition(".")[0] not in measured:
            known = [f"{each}.nDCG@20" for each in measured]
            raise ConfigError(f"metric: no figure '{rules.metric}'{nearest(rules.metric, known)}")
        return rules.metric, []
    return deciding_figure(evaluation, least=rules.min_sequences)


def _ruler(candidate: Candidate, data: Prepared, split: str, device: str) -> Candidate:
    """A reference as an estimate of the log: its weights of the best held-out likelihood, whatever figure kept it."""
    run = candidate.run
    assert run is not None
    return open_likeliest(candidate, data, split=split, device=device) if has_likeliest(run) else candidate


def _is_estimate(candidate: Candidate) -> bool:
    """Whether divergence from it is meant: a trained policy; ranks of a file or of neighbours are no probabilities."""
    return candidate.run is not None and candidate.run.started
