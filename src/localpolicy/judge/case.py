"""A case: one policy against what is deployed, on the rows of a harness, and all that checks look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.judge.harness import Harness, Pair
from localpolicy.judge.rules import GateRules
from localpolicy.measure.answers import Answers, answer_rows, answers, choices_of, log_probability
from localpolicy.measure.candidates import DATA, Candidate
from localpolicy.measure.estimate import Measurement
from localpolicy.measure.evaluation import Evaluation, deciding_figure
from localpolicy.measure.later import Later, Returns, later_in, returns_of
from localpolicy.measure.metrics import Question, question_of
from localpolicy.measure.position_metrics import AGREEMENT, LIKED
from localpolicy.measure.returns import Visits
from localpolicy.model.baselines import popularity

CHOSEN_OTHERWISE = "the epochs of the two were chosen by different figures"  # a refusal in short
ONE_RUN = Question(
    "nothing", "they are one trained run, extended by items that this log never showed: on its rows they are the same"
)
TWO_SEEDS = Question("nothing", "they are two seeds of one recipe on the same data, and differ by chance alone")


@dataclass(frozen=True)
class Judged:
    """Rewards per answer: of the new policy with the compared and with the kept weights, the old one, the baselines."""

    new: Answers
    kept: Answers
    old: Answers
    baselines: list[Answers]
    refusal: str | None  # why the two cannot be compared


@dataclass(frozen=True)
class Case:
    """Everything that the gate's checks read about one new policy and the deployed one."""

    harness: Harness
    rules: GateRules
    new: Candidate
    old: Candidate | None  # None: the policy that wrote the log
    references: list[Candidate]  # policies that it is judged against, the deployed one first
    fitted: list[Candidate] | None = None  # the simple baselines, where these were fitted before

    @property
    def data(self) -> Prepared:
        return self.harness.data

    @property
    def split(self) -> str:
        return self.harness.config.split

    @cached_property
    def estimates(self) -> list[Candidate]:
        """The trained references, with their weights of the best held-out likelihood.

        They are what divergence is measured from: ranks of a file or of neighbours are no probabilities. Whichever
        metric selected its epoch, a run estimates the log best with its weights of the best held-out likelihood.
        """
        trained = [each for each in self.references if each.run is not None and each.run.started]
        return [self.harness.likeliest(each) for each in trained]

    @property
    def other_logging(self) -> Path | None:
        """Folder of the given estimate of the log, if the new policy is built on another one; else None."""
        mine = None if self.new.run is None else self.new.run.manifest.get("made_of", {}).get("logging")
        runs = [each.run for each in self.references if each.estimates_logging and each.run is not None]
        if mine is None or not runs or mine in [run.manifest["policy_sha256"] for run in runs]:
            return None
        return runs[0].folder

    @cached_property
    def evaluation(self) -> Evaluation:
        return self.harness.measured(self.new, self.estimates)

    @cached_property
    def deployed(self) -> Evaluation | None:
        """Evaluation of the deployed policy; None for the log itself."""
        return None if self.old is None else self.harness.measured(self.old)

    @cached_property
    def later(self) -> Later:
        """Test whether what is shown now changes later rewards of a visit, on rows outside the judged split."""
        return later_in(self.data)

    @cached_property
    def returns(self) -> Returns | None:
        """Gain in return over the deployed policy; None if the log has no propensities, or visits of one decision."""
        return self.returns_over(self.deployed)

    def returns_over(self, other: Evaluation | None) -> Returns | None:
        """Gain in return over another policy, or over the log for None."""
        if self.evaluation.scores.propensity is None:
            return None
        return returns_of(
            self.evaluation.scores, None if other is None else other.scores, Visits.of_split(self.data, "train"),
            self.later, n_items=self.data.n_items, rules=self.rules.refusals, confidence=self.rules.confidence,
        )  # fmt: skip

    @cached_property
    def simple(self) -> list[Candidate]:
        """Simple baselines, without those that are the new or the deployed policy themselves."""
        if not self.rules.baselines:
            return []
        taken = {each.origin.objective for each in (self.new, *self.references[:1])}
        if self.fitted is None:
            return self.harness.simple(but=taken)
        return [each for each in self.fitted if each.origin.objective not in taken]

    @cached_property
    def baselines(self) -> list[Evaluation]:
        return [self.harness.measured(each) for each in self.simple]

    @cached_property
    def pair(self) -> Pair:
        """Evaluations of the new and the old policy, with weights that one metric selected for both."""
        assert self.old is not None and self.deployed is not None
        return self.harness.like_with_like(self.new, self.old, (self.evaluation, self.deployed))

    @cached_property
    def answers(self) -> Judged:
        """Rewards per answer of all that are judged, weighted by the estimates of the log."""
        every = [self.evaluation, self.pair.new, self.pair.old, *self.baselines]
        choices = [choices_of(each.name, each.scores) for each in every]
        log = log_probability(choices[0], {each.name for each in self.estimates if each.estimates_logging})
        kept, new, old, *rivals = (answers(each, log, self.rules.refusals) for each in choices)
        return Judged(new, kept, old, rivals, self.pair.refusal)

    @property
    def answer_rows(self) -> list[Measurement]:
        found = self.answers
        return [
            row for each in (found.new, found.old, *found.baselines) for row in answer_rows(each, found.old, self.split)
        ]

    @cached_property
    def popular(self) -> np.ndarray:
        """Log-likelihood of each logged item under the popularity of what was shown, which estimates must beat."""
        shown = popularity(self.data, shown=True).log().numpy()
        return np.asarray(shown[self.evaluation.scores.item])

    @cached_property
    def question(self) -> Question:
        """Estimand that decides: the one that the log supports, or the metric that the rules name."""
        new, old = self.new, self.old
        same = old is not None and extended(new, old)
        if same and new.run is not None and new.run.manifest["data"]["digest"] in self.data.digests:
            return ONE_RUN
        question = question_of(self.data, self.split)
        if old is not None and not same and two_seeds(new, old):
            equal = question.kind == "nothing"
            return Question("nothing", f"{question.why}; and {TWO_SEEDS.why}") if equal else TWO_SEEDS
        if old is None and question.kind not in ("value", "nothing"):
            raise RunError(
                f"{self.data.path} states no propensities, so what the policy that wrote it would earn against another "
                "is not known. Name what is deployed with --against: a run, a baseline, or a file of its lists."
            )
        if self.rules.metric is not None and old is not None:
            return Question("metric", f"the rules name {self.rules.metric}")
        return question

    @cached_property
    def metric(self) -> str:
        """Name of the rank metric that must gain if ranks decide: the rules' own, or that of the log's rewards."""
        return deciding_metric(self.evaluation, self.rules, weighted=not question_of(self.data, self.split).amount)

    @property
    def imitates(self) -> bool:
        """Whether the deployed policy is an estimate of the policy that wrote the log."""
        return self.old is not None and self.old.estimates_logging


def extended(new: Candidate, old: Candidate) -> bool:
    """Whether two candidates share their trained weights: one is the other with more items (`lpi extend`)."""
    runs = [each.run for each in (new, old) if each.run is not None and each.run.started]
    if len(runs) < 2 or new.beta != old.beta or not any("extended" in run.manifest for run in runs):
        return False
    return runs[0].trained_sha256 == runs[1].trained_sha256


def two_seeds(new: Candidate, old: Candidate) -> bool:
    """Whether two runs differ in nothing but their seed."""
    mine, theirs = new.origin.family, old.origin.family
    alike = mine is not None and mine == theirs and new.beta == old.beta
    return alike and new.facts.get(DATA) is not None and new.facts.get(DATA) == old.facts.get(DATA)


def deciding_metric(evaluation: Evaluation, rules: GateRules, *, weighted: bool = True) -> str:
    """Name of the rank metric that must gain: the one of the rules if set, else the default for the log's rewards."""
    if rules.metric is None:
        return deciding_figure(evaluation, weighted=weighted)
    if rules.metric.rpartition(".")[0] not in evaluation.metrics and rules.metric not in (LIKED, AGREEMENT):
        known = [f"{each}.nDCG@20" for each in evaluation.metrics]
        raise ConfigError(f"metric: no figure '{rules.metric}'{nearest(rules.metric, known)}")
    return rules.metric
