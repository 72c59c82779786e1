"""`gate`: deploy, do not deploy, or cannot tell, with reasons. Rules are a small YAML file; each becomes one check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from localpolicy.data.batches import WindowConfig
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.evaluation.baselines import BASELINES
from localpolicy.evaluation.candidates import Candidate, RunLike, as_run, names_of, refuse_incomparable, window_of
from localpolicy.evaluation.evaluation import EvaluateConfig, Evaluation, evaluate_policy, paid_events
from localpolicy.evaluation.gate_checks import (
    Check,
    baselines_check,
    coverage_check,
    divergence_checks,
    events_check,
    gain_check,
    ruler_check,
    segment_check,
    value_check,
)
from localpolicy.evaluation.gate_rules import GateRules, read_rules
from localpolicy.evaluation.off_policy.reward_model import ItemMeans
from localpolicy.evaluation.opening import data_for, kept_alike, open_candidate, shared_seeds
from localpolicy.evaluation.power import sequences_of
from localpolicy.evaluation.run import settings_of
from localpolicy.evaluation.scorer import Scorer
from localpolicy.evaluation.segments import groups
from localpolicy.results import Result
from localpolicy.runs.run import LIKELIHOOD

__all__ = ["Check", "GateRules", "Verdict", "gate", "read_rules"]

THE_LOG = "log"  # names the policy that wrote an impression log, known by its propensities alone
Answer = Literal["deploy", "do not deploy", "cannot tell"]


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The answer, and every check behind it."""

    checks: list[Check]
    evaluation: Evaluation
    deployed: Evaluation | None  # None: the policy that wrote the log
    rules: GateRules
    metric: str = ""
    notes: tuple[str, ...] = ()  # what differs between those compared, in words

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
        new, old = self.evaluation.name, self.against
        gain = next(check for check in self.checks if check.name in ("gain", "value"))
        if self.deploy:
            assert gain.value is not None and gain.low is not None and gain.high is not None
            return f"Deploy {new}: it beats {old} by {gain.value:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})."
        failed = [check for check in self.checks if check.outcome == "no"]
        instead = next((check.instead for check in failed if check.instead), None)
        if instead is not None:
            return f"Do not deploy {new}: the simple baseline '{instead}' does better. Deploy that one."
        if failed:
            rest = "" if len(failed) == 1 else f" Also: {', '.join(check.name for check in failed[1:])}."
            return f"Do not deploy {new} instead of {old}. {failed[0].name}: {failed[0].reason.split('. ')[0]}.{rest}"
        unsure = [check for check in self.checks if check.outcome == "cannot tell"]
        most = max((check.needed for check in unsure if check.needed is not None), default=None)
        more = "" if most is None else f" About {most:,} positions would tell; there are {gain.n or 0:,}."
        return f"Cannot tell whether {new} beats {old}: {', '.join(check.name for check in unsure)} is not sure.{more}"

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
    """Should `run` replace the first of `against`? Divergence is taken from all of these that estimate the log.

    A run, a saved baseline, or a CSV or Parquet file of lists may stand on either side; the word `log` among `against`
    is the policy that wrote an impression log. All are measured on the same rows: `data`, or those that `run` was
    trained on.
    """
    if not against:
        raise RunError("a gate needs what is deployed: name it with --against.")
    rules = rules if isinstance(rules, GateRules) else GateRules() if rules is None else read_rules(rules)
    by_log = str(against[0]) == THE_LOG and not Path(THE_LOG).exists()
    others = list(against[1:] if by_log else against)
    names = names_of([as_run(like) for like in (run, *others)], taken=BASELINES if rules.baselines else ())
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
    measure = _Measure(prepared, window_of(candidate), settings, rules, ItemMeans.fit(prepared))
    rulers = [
        _ruler(reference, prepared, settings.split, device) for reference in references if _is_estimate(reference)
    ]
    evaluation = measure(candidate, rulers)
    metric, chosen_because = deciding_metric(evaluation, paid_events(prepared), rules)
    simple = [Candidate(name, fit(prepared), candidate.about) for name, fit in BASELINES.items()]
    popularity = measure(simple[0], [])
    notes = [*(note for each in opened for note in each.notes), *shared_seeds(candidate, references), *chosen_because]
    checks: list[Check]
    deployed = None
    if by_log:
        # Nothing but the value speaks of that policy, so a gain must show there.
        checks = [value_check(evaluation, None, rules.model_copy(update={"require_value_gain": True}))]
    else:
        deployed = measure(references[0], [])
        checks = [_gain(run, others[0], measure, evaluation, deployed, metric, rules, beta=beta, device=device)]
        leaks = [each for each in opened[:2] if each.leaks]
        if leaks and checks[0].outcome != "no":
            reason = f"{checks[0].reason}. One of the two was trained on some of these rows (see the notes)"
            checks = [replace(checks[0], outcome="cannot tell", reason=reason)]
        checks += [
            events_check(evaluation, deployed, metric, paid_events(prepared), rules),
            value_check(evaluation, deployed, rules),
            segment_check(evaluation, deployed, metric, rules),
            coverage_check(evaluation, deployed, rules),
        ]
    taken = {candidate.about.objective, *(reference.about.objective for reference in references[:1])}
    beside = [baseline for baseline in simple if baseline.name not in taken] if rules.baselines else []
    measured = [popularity if baseline.name == popularity.name else measure(baseline, []) for baseline in beside]
    checks += [
        baselines_check(evaluation, measured, metric, rules),
        *divergence_checks(evaluation.divergence, rules),
        *([ruler_check(evaluation, popularity.scores.logp, prepared.n_items, rules)] if rules.ruler else []),
    ]
    return Verdict(checks, evaluation, deployed, rules, metric, tuple(dict.fromkeys(notes)))


@dataclass(frozen=True)
class _Measure:
    """All are measured alike."""

    data: Prepared
    window: WindowConfig
    settings: EvaluateConfig
    rules: GateRules
    values: Scorer

    def __call__(self, candidate: Candidate, references: Sequence[Candidate]) -> Evaluation:
        return evaluate_policy(
            candidate.policy, self.data, name=candidate.name, window=self.window, config=self.settings,
            references={reference.name: reference.policy for reference in references},
            described=[reference.about for reference in references], rules=self.rules.overlap,
            values=self.values,
        )  # fmt: skip


def _gain(
    run: RunLike, other: RunLike, measure: _Measure, evaluation: Evaluation, deployed: Evaluation, metric: str,
    rules: GateRules, *, beta: float | None, device: str,
) -> Check:  # fmt: skip
    """The gain between weights that were kept by one figure; refused where there are none."""
    alike, said, refusal = kept_alike(as_run(run), as_run(other))
    if refusal is not None:
        return replace(gain_check(evaluation, deployed, metric, rules, said=refusal), outcome="cannot tell")
    if not alike:
        return gain_check(evaluation, deployed, metric, rules)
    split = measure.settings.split
    kept = [
        open_candidate(like, name, measure.data, split=split, beta=dial, likeliest=True, device=device).candidate
        for like, name, dial in ((run, evaluation.name, beta), (other, deployed.name, None))
    ]
    new, old = (measure(candidate, []) for candidate in kept)
    return gain_check(new, old, metric, rules, said=said)


def deciding_metric(evaluation: Evaluation, events: list[str], rules: GateRules) -> tuple[str, list[str]]:
    """The figure that must gain: as asked, or of the best paid event with enough sequences; and why it is that one."""
    measured = groups(evaluation.scores)
    if rules.metric is not None:
        if rules.metric.rpartition(".")[0] not in measured:
            known = [f"{each}.nDCG@20" for each in measured]
            raise ConfigError(f"metric: no figure '{rules.metric}'{nearest(rules.metric, known)}")
        return rules.metric, []
    few: list[str] = []
    for event in [*(event for event in events if event in measured), "all"]:
        count = sequences_of(evaluation.scores.sequence[measured[event]])
        if count >= rules.min_sequences or event == "all":
            said = f"{', '.join(few)}: too few for a verdict (least: {rules.min_sequences}), so {event}.nDCG@20 decides"
            return f"{event}.nDCG@20", [said] if few else []
        few.append(f"only {count} sequences with {event}")
    raise AssertionError("'all' is a group of every log")


def _ruler(candidate: Candidate, data: Prepared, split: str, device: str) -> Candidate:
    """A reference as an estimate of the log: its weights of the best held-out likelihood, whatever figure kept it."""
    run = candidate.run
    assert run is not None
    if run.kept_by == LIKELIHOOD or "sha256" not in run.manifest.get("likeliest", {}):
        return candidate
    return open_candidate(run, candidate.name, data, split=split, likeliest=True, device=device).candidate


def _is_estimate(candidate: Candidate) -> bool:
    """Whether divergence from it is meant: a trained policy; ranks of a file or of neighbours are no probabilities."""
    return candidate.run is not None and candidate.run.started
