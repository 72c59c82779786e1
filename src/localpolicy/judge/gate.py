"""`gate`: deploy, do not deploy, cannot tell, or nothing to decide, with reasons.

What is judged depends on the log (see `measure.question`): the value where propensities were logged, for policies and
baselines alike; else what an answer would be worth, with how many there would be, or how well what is ranked high was
liked. Where rewards do not differ, and between two seeds of one recipe, there is nothing to decide.
Rules are a small YAML file; each becomes one check.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from localpolicy.data.batches import WindowConfig
from localpolicy.data.quality import filter_notes
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.judge.gate_answers import NAME as ANSWERS
from localpolicy.judge.gate_answers import answers_check, baselines_by_answers, of_the_log
from localpolicy.judge.gate_baselines import baselines_check
from localpolicy.judge.gate_checks import (
    Check,
    agreement_check,
    coverage_check,
    divergence_checks,
    events_check,
    gain_check,
    reference_fit_check,
    segment_check,
)
from localpolicy.judge.gate_grounds import training_check, without_grounds
from localpolicy.judge.gate_rules import GateRules, read_rules, rules_of
from localpolicy.judge.gate_value import baselines_by_value, value_check
from localpolicy.judge.like_with_like import has_likeliest, like_with_like
from localpolicy.measure.baselines import BASELINES
from localpolicy.measure.candidates import (
    DATA,
    Candidate,
    RunLike,
    as_list,
    as_run,
    names_of,
    refuse_incomparable,
    window_of,
)
from localpolicy.measure.evaluation import Evaluation, deciding_figure, paid_events
from localpolicy.measure.liking import SELF_CHOSEN
from localpolicy.measure.measurements import measure
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.off_policy.reward_model import ItemMeans
from localpolicy.measure.opening import data_for, open_candidate, open_likeliest, shared_seeds
from localpolicy.measure.question import Question, question_of
from localpolicy.measure.recorded import people_of
from localpolicy.measure.run import settings_of
from localpolicy.measure.score import Scorer
from localpolicy.measure.summary import AGREEMENT, LIKED
from localpolicy.results import Result

__all__ = ["Check", "Gate", "GateRules", "gate", "read_rules"]

THE_LOG = "log"  # names the policy that wrote an impression log, known by its propensities alone
NO_OBJECTION = "no check speaks against it"
BY_RANK = ("gain", "other events", "segments", "baselines")  # checks that ask where the log's items stand in the lists
Answer = Literal["deploy", "do not deploy", "cannot tell", "nothing to decide"]
DAY = 86_400_000  # ms
BY_RULE = Question("metric", "the rules name the figure")


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
    question: Question = BY_RULE  # what was asked of the log
    days: float | None = None  # that the log spans, where it has times
    policy_sha256: str | None = None  # of the candidate's weights, where it is a run

    @property
    def answer(self) -> Answer:
        """No where a check says so; cannot tell where one that was asked for could not be answered."""
        if self.question.kind == "nothing":
            return "nothing to decide"
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
        if self.answer == "nothing to decide":
            return f"Nothing to decide between {new} and {old}: {self.question.why}."
        gain = next(check for check in self.checks if check.name in ("gain", "value", ANSWERS))
        if self.deploy:
            fell = [check for check in self.checks if _fell(check)]
            rest = f"no check that was asked speaks against it, but {_clauses(fell)}" if fell else NO_OBJECTION
            return f"Deploy {new} instead of {old}: {gain.plain}, and {rest}."
        failed = [check for check in self.checks if check.outcome == "no"]
        instead = next((check.instead for check in failed if check.instead), None)
        if instead is not None:
            return f"Do not deploy {new}: the simple baseline '{instead}' does better. Deploy that one."
        if failed:
            but = f"{gain.plain}, but " if gain.outcome == "yes" else ""
            return f"Do not deploy {new} instead of {old}: {but}{_clauses(failed)}."
        unsure = [check for check in self.checks if check.outcome == "cannot tell"]
        return f"Cannot tell whether to deploy {new} instead of {old}: {_clauses(unsure)}.{self._more(unsure)}"

    def _more(self, unsure: Sequence[Check]) -> str:
        """How much of such a log would tell."""
        known = [check for check in unsure if check.needed is not None and check.n]
        if not known:
            return ""
        most = max(known, key=lambda check: (check.needed or 0) / (check.n or 1))
        assert most.needed is not None and most.n
        days = ""
        if self.days is not None:
            count = _rounded(math.ceil(self.days * most.needed / most.n))
            days = f" ({count:,} day{'s' if count > 1 else ''} of such a log)"
        return f" About {_rounded(most.needed):,} {most.unit}{days} would tell; there are {most.n:,}."

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
            "question": self.question._asdict(),
            "metric": self.metric,
            "checks": [check.to_dict() for check in self.checks],
            "notes": list(self.notes),
            "rules": self.rules.model_dump(mode="json"),
            "evaluation": self.evaluation.to_dict(),
            "deployed": None if self.deployed is None else self.deployed.to_dict(),
            "policy_sha256": self.policy_sha256,
        }


def _fell(check: Check) -> bool:
    """Whether a check that was not asked found a significant loss, which the answer must then name."""
    if check.outcome != "not asked" or not check.plain:
        return False
    return check.name in ("other events", "segments") or (check.name == "gain" and (check.high or 0.0) < 0)


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
    measured_alike = _Measure(prepared, window_of(candidate), settings, rules, ItemMeans.fit(prepared), people)
    estimates = [
        _likeliest(reference, prepared, settings.split, device) for reference in references if _is_estimate(reference)
    ]
    evaluation = measured_alike(candidate, estimates)
    question = _asked(prepared, settings.split, candidate, references[0] if not by_log else None, rules)
    metric, chosen_because = deciding_metric(evaluation, rules)
    simple = [Candidate(name, fit(prepared), candidate.origin) for name, fit in BASELINES.items()]
    popularity = measured_alike(simple[0], [])
    notes = [*(note for each in opened for note in each.notes), *shared_seeds(candidate, references)]
    notes += [*([] if by_log else chosen_because), *filter_notes(prepared, settings.split)]
    notes += [SELF_CHOSEN] if metric == LIKED else []
    taken = {candidate.origin.objective, *(reference.origin.objective for reference in references[:1])}
    beside = [baseline for baseline in simple if baseline.name not in taken] if rules.baselines else []
    measured = [popularity if baseline.name == popularity.name else measured_alike(baseline, []) for baseline in beside]
    deployed = None if by_log else measured_alike(references[0], [])
    by_value = by_log or question.kind == "value"
    checks: list[Check] = []
    if deployed is not None:
        pair = like_with_like(
            candidate, references[0], (evaluation, deployed),
            lambda other: measured_alike(open_likeliest(other, prepared, split=settings.split, device=device), []),
        )  # fmt: skip
        gain = gain_check(pair.new, pair.old, metric, rules, said=pair.note or pair.refusal)
        checks = [
            gain if pair.refusal is None else replace(gain, outcome="cannot tell"),
            events_check(evaluation, deployed, metric, paid_events(prepared), rules),
            *([agreement_check(evaluation, deployed, rules)] if metric == LIKED else []),
            *([] if by_value else [value_check(evaluation, deployed, rules, decides=False)]),
            segment_check(evaluation, deployed, metric, rules),
            coverage_check(evaluation, deployed, rules),
        ]
    if by_value:
        value = value_check(evaluation, deployed, rules)
        baselines = baselines_by_value(evaluation, deployed, measured, rules)
        checks = [value, *_not_asked(checks, BY_RANK, "the value decides"), baselines]
    elif question.kind == "rewards" and deployed is not None and not both_imitate(candidate, references[0]):
        log = of_the_log(evaluation, {each.name for each in estimates if each.estimates_logging})
        answer = answers_check(pair.new, pair.old, log, checks[0], rules)
        if pair.refusal is not None and answer.outcome != "no":
            answer = replace(answer, outcome="cannot tell", reason=f"{answer.reason}. {pair.refusal}")
        baselines = baselines_by_answers(evaluation, deployed, measured, log, rules)
        checks = [answer, *_not_asked(checks, BY_RANK, "the log does not say what was shown"), baselines]
    else:
        checks.append(baselines_check(evaluation, measured, metric, rules))
    if any(each.leaks for each in opened[:2]) and checks[0].outcome != "no":
        reason = f"{checks[0].reason}. One of the two was trained on some of these rows (see the notes)"
        checks[0] = replace(checks[0], outcome="cannot tell", reason=reason)
    checks += [
        *divergence_checks(evaluation.divergence, rules),
        *(
            [reference_fit_check(evaluation, popularity.scores.logp, prepared.n_items, rules)]
            if rules.reference_fit
            else []
        ),
    ]
    if question.kind == "nothing":
        checks = _not_asked(checks, {check.name for check in checks}, "there is nothing to decide")
    trained = {each.name: each.run for each in estimates if each.run is not None and rules.reference_fit}
    training = training_check(evaluation, popularity.scores.logp, trained, rules)
    checks = without_grounds(checks, prepared, training, question)
    imitates = not by_log and references[0].estimates_logging
    said = tuple(dict.fromkeys(notes))
    weights = None if candidate.run is None else candidate.run.manifest.get("policy_sha256")
    return Gate(checks, evaluation, deployed, rules, metric, said, imitates, question, log_days(prepared), weights)


def _asked(data: Prepared, split: str, candidate: Candidate, deployed: Candidate | None, rules: GateRules) -> Question:
    """What the log is asked: what it can answer, or what the rules name."""
    same = deployed is not None and extended(candidate, deployed)
    if same and candidate.run is not None and candidate.run.manifest["data"]["digest"] in data.digests:
        why = "they are one trained run, extended by items that this log never showed: on its rows they are the same"
        return Question("nothing", why)
    if deployed is not None and not same and two_seeds(candidate, deployed):
        why = "they are two seeds of one recipe on the same data, and differ by chance alone"
        return Question("nothing", why)
    question = question_of(data, split)
    if deployed is None and question.kind not in ("value", "nothing"):
        raise RunError(
            f"{data.path} states no propensities, so what the policy that wrote it would earn against another is not "
            "known. Name what is deployed with --against: a run, a baseline, or a file of its lists."
        )
    if rules.metric is not None and deployed is not None:
        return Question("metric", f"the rules name {rules.metric}")
    return question


def both_imitate(new: Candidate, old: Candidate) -> bool:
    """Whether both estimate the policy that wrote the log: the better imitation of the two is told by ranks."""
    return new.origin.objective == old.origin.objective == "mle"


def extended(new: Candidate, old: Candidate) -> bool:
    """Whether one is the other with more items (`lpi extend`), or both come from one run."""
    runs = [each.run for each in (new, old) if each.run is not None and each.run.started]
    if len(runs) < 2 or new.beta != old.beta or not any("extended" in run.manifest for run in runs):
        return False
    return runs[0].trained_sha256 == runs[1].trained_sha256


def two_seeds(new: Candidate, old: Candidate) -> bool:
    """Whether two runs differ in nothing but their seed."""
    mine, theirs = new.origin.family, old.origin.family
    alike = mine is not None and mine == theirs and new.beta == old.beta
    return alike and new.facts.get(DATA) is not None and new.facts.get(DATA) == old.facts.get(DATA)


def _not_asked(checks: Sequence[Check], names: Collection[str], why: str) -> list[Check]:
    """The same as facts that refuse nothing.

    Ranks ask whether the new policy shows what the old one showed. A policy that earns more by moving away ranks the
    log's items lower: where the value decides, the two rules would contradict each other.
    """
    return [
        replace(check, outcome="not asked", reason=f"not asked, since {why}: {check.reason}", needed=None, instead=None)
        if check.name in names and check.outcome != "not asked"
        else check
        for check in checks
    ]


def log_days(data: Prepared) -> float | None:
    """How many days a log spans."""
    times = [part.arrays["time"] for part in data.splits.values() if len(part.arrays.get("time", ()))]
    if not times:
        return None
    span = (max(int(each.max()) for each in times) - min(int(each.min()) for each in times)) / DAY
    return span if span > 0 else None


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
        return measure(
            [candidate], self.data, references, window=self.window, config=self.settings, rules=self.rules.overlap,
            values=self.values, people=self.people,
        )[candidate.name]  # fmt: skip


def deciding_metric(evaluation: Evaluation, rules: GateRules) -> tuple[str, list[str]]:
    """The figure that must gain where ranks decide, as asked or as the log's rewards say; and why it is that one."""
    if rules.metric is None:
        return deciding_figure(evaluation, least=rules.min_sequences)
    if rules.metric.rpartition(".")[0] not in evaluation.metrics and rules.metric not in (LIKED, AGREEMENT):
        known = [f"{each}.nDCG@20" for each in evaluation.metrics]
        raise ConfigError(f"metric: no figure '{rules.metric}'{nearest(rules.metric, known)}")
    return rules.metric, []


def _likeliest(candidate: Candidate, data: Prepared, split: str, device: str) -> Candidate:
    """A reference as an estimate of the log: its weights of the best held-out likelihood, whatever figure kept it."""
    run = candidate.run
    assert run is not None
    return open_likeliest(candidate, data, split=split, device=device) if has_likeliest(run) else candidate


def _is_estimate(candidate: Candidate) -> bool:
    """Whether divergence from it is meant: a trained policy; ranks of a file or of neighbours are no probabilities."""
    return candidate.run is not None and candidate.run.started
