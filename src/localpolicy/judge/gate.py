"""`gate`: deploy, do not deploy, cannot tell, or nothing to decide, with reasons.

What is judged depends on the log (see `measure.metrics`): the value where propensities were logged, for policies and
baselines alike; else what an answer would be worth, with how many there would be, or how well what is ranked high was
liked. Where rewards do not differ, and between two seeds of one recipe, there is nothing to decide.
Rules are a small YAML file; each becomes one check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.judge.bench import CHOSEN_OTHERWISE, Bench
from localpolicy.judge.claims import Claim, Gate
from localpolicy.judge.gate_answers import by_answers
from localpolicy.judge.gate_grounds import divergence_checks, reference_fit_check, training_check, without_grounds
from localpolicy.judge.gate_ranks import (
    agreement_check,
    baselines_check,
    coverage_check,
    events_check,
    gain_check,
    segment_check,
)
from localpolicy.judge.gate_value import baselines_by_value, value_check
from localpolicy.judge.rules import GateRules, rules_of
from localpolicy.measure.candidates import DATA, Candidate, RunLike, as_list
from localpolicy.measure.estimate import Measurement
from localpolicy.measure.evaluation import Evaluation, deciding_figure
from localpolicy.measure.metrics import EvaluateConfig, Question, paid_events, question_of
from localpolicy.measure.summary import AGREEMENT, LIKED
from localpolicy.model.baselines import popularity

__all__ = ["Gate", "GateRules", "gate"]

THE_LOG = "log"  # names the policy that wrote an impression log, known by its propensities alone
# Checks that ask where the log's items stand in the lists: whether the new policy shows what the old one showed. One
# that earns more by moving away ranks these items lower: where the value decides, the two rules contradict each other.
BY_RANK = ("gain", "other events", "segments")
DAY = 86_400_000  # ms
ONE_RUN = Question(
    "nothing", "they are one trained run, extended by items that this log never showed: on its rows they are the same"
)
TWO_SEEDS = Question("nothing", "they are two seeds of one recipe on the same data, and differ by chance alone")


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
    runs = [run, *(against[1:] if by_log else against)]
    bench = Bench.of(runs, data, config, baselines=rules.baselines, beta=beta, rules=rules.refusals, device=device)
    prepared, split, (candidate, *references) = bench.data, bench.config.split, bench.opened
    old = None if by_log else references[0]
    # Divergence from a trained policy is meant: ranks of a file or of neighbours are no probabilities. Whatever figure
    # kept it, an estimate of the log is best by its weights of the best held-out likelihood.
    estimates = [bench.likeliest(each) for each in references if each.run is not None and each.run.started]
    evaluation, deployed = bench.measured(candidate, estimates), None if old is None else bench.measured(old)
    question = _asked(prepared, split, candidate, old, rules)
    metric = deciding_metric(evaluation, rules)
    taken = {each.origin.objective for each in (candidate, *references[:1])}
    beside = bench.simple(but=taken) if rules.baselines else []
    baselines = [bench.measured(each) for each in beside]
    shown = popularity(prepared, shown=True).log().numpy()  # what an estimate of the log is compared with
    popular = shown[evaluation.scores.item]
    ranks: list[Claim] = []
    by_value = by_log or question.kind == "value"
    if old is not None and deployed is not None:
        pair = bench.like_with_like(candidate, old, (evaluation, deployed))
        gain = gain_check(pair.new, pair.old, metric, rules, said=pair.note or pair.refusal)
        ranks = [
            gain if pair.refusal is None else replace(gain, holds=None, plain=CHOSEN_OTHERWISE, needed=None),
            events_check(evaluation, deployed, metric, paid_events(prepared), rules),
            *([agreement_check(evaluation, deployed, rules)] if metric == LIKED else []),
            *([] if by_value else [value_check(evaluation, deployed, rules, decides=False)]),
            segment_check(evaluation, deployed, metric, rules),
            coverage_check(evaluation, deployed, rules),
        ]
    why, decides, rows = "", list[Claim](), list[Measurement]()
    imitations = old is not None and candidate.origin.objective == old.origin.objective == "mle"
    if by_value:
        why, decides = "the value decides", [value_check(evaluation, deployed, rules)]
        beaten = baselines_by_value(evaluation, deployed, baselines, rules)
    elif old is not None and question.kind == "rewards" and not imitations:
        decides, beaten, rows = by_answers(bench, candidate, old, estimates, beside, ranks[0], rules)
        why = "ranks partly measure whether it shows what was shown before"
    else:  # of two imitations the better one is told by ranks
        beaten = baselines_check(evaluation, baselines, metric, rules)
        if question.kind == "metric" and question_of(prepared, split).kind == "rewards":
            beaten = replace(beaten, instead=None)  # ranks of actions say what was done again, not what to show
    checks = [*decides, *(each.as_fact(why) if decides and each.figure in BY_RANK else each for each in ranks), beaten]
    if any(each.leaks for each in bench.opened[:2]):
        checks[0] = checks[0].in_doubt("The notes say which rows", "one of the two was trained on some of these rows")
    checks += divergence_checks(evaluation.divergence, rules)
    if rules.reference_fit:
        checks.append(reference_fit_check(evaluation, popular, prepared.n_items, rules))
    trained = {each.name: each.run for each in estimates if each.run is not None and rules.reference_fit}
    training = training_check(evaluation, popular, trained, rules)
    notes = bench.notes([candidate], references, evaluation)
    made = {} if candidate.run is None else candidate.run.manifest
    return Gate(
        without_grounds(checks, prepared, training, question), evaluation, deployed, rules, metric,
        tuple(notes), old is not None and old.estimates_logging, question, log_days(prepared),
        made.get("policy_sha256"), prepared.path, tuple(rows), made.get("improvement", {}).get("slope") == 0,
    )  # fmt: skip


def opponents(question: Question, deployed: Sequence[RunLike], estimates: Sequence[RunLike]) -> list[RunLike]:
    """Whom a policy is judged against, in the order of `--against`: what is deployed, then estimates of the log.

    Without anything that is known to be `deployed`, the policy that wrote the log is: the log itself, where its
    propensities say what that policy earned; else the first of its estimates stands for it.
    """
    wrote = [THE_LOG] if question.kind == "value" else []
    return [*(deployed or wrote), *estimates]


def _asked(data: Prepared, split: str, candidate: Candidate, deployed: Candidate | None, rules: GateRules) -> Question:
    """What the log is asked: what it can answer, or what the rules name."""
    same = deployed is not None and extended(candidate, deployed)
    if same and candidate.run is not None and candidate.run.manifest["data"]["digest"] in data.digests:
        return ONE_RUN
    question = question_of(data, split)
    if deployed is not None and not same and two_seeds(candidate, deployed):
        equal = question.kind == "nothing"
        return Question("nothing", f"{question.why}; and {TWO_SEEDS.why}") if equal else TWO_SEEDS
    if deployed is None and question.kind not in ("value", "nothing"):
        raise RunError(
            f"{data.path} states no propensities, so what the policy that wrote it would earn against another is not "
            "known. Name what is deployed with --against: a run, a baseline, or a file of its lists."
        )
    if rules.metric is not None and deployed is not None:
        return Question("metric", f"the rules name {rules.metric}")
    return question


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


def log_days(data: Prepared) -> float | None:
    """How many days a log spans."""
    times = [part.arrays["time"] for part in data.splits.values() if len(part.arrays.get("time", ()))]
    if not times:
        return None
    span = (max(int(each.max()) for each in times) - min(int(each.min()) for each in times)) / DAY
    return span if span > 0 else None


def deciding_metric(evaluation: Evaluation, rules: GateRules) -> str:
    """The figure that must gain where ranks decide, as asked or as the log's rewards say."""
    if rules.metric is None:
        return deciding_figure(evaluation)
    if rules.metric.rpartition(".")[0] not in evaluation.metrics and rules.metric not in (LIKED, AGREEMENT):
        known = [f"{each}.nDCG@20" for each in evaluation.metrics]
        raise ConfigError(f"metric: no figure '{rules.metric}'{nearest(rules.metric, known)}")
    return rules.metric
