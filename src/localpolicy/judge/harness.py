"""Policies opened on the same rows, each scored there once, and which of their weights a gain is taken between."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from localpolicy.data.config import WindowConfig
from localpolicy.data.quality import filter_notes
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate, RunLike, as_run, window_of
from localpolicy.measure.decisions import OverlapRules
from localpolicy.measure.divergence import Reference
from localpolicy.measure.evaluate import measured, scored, settings_of
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.imputation import Imputation
from localpolicy.measure.load_candidates import has_likeliest, made_of, open_all, open_likeliest, shared_seeds
from localpolicy.measure.metrics import EvaluateConfig, by_meetings
from localpolicy.measure.position_metrics import LIKED, Scores
from localpolicy.measure.score import ItemMeans
from localpolicy.model.baselines import BASELINES, simple_baselines
from localpolicy.model.deployable import Deployable
from localpolicy.model.list_policy import people_of
from localpolicy.runs.baselines import is_baseline

SELF_CHOSEN = "people chose themselves what to rate: how they would like other items is not known"


@dataclass(frozen=True)
class Pair:
    """Evaluations of a new policy and the old one on the same positions, or why they cannot be compared."""

    new: Evaluation
    old: Evaluation
    note: str | None = None  # which weights are compared, where these are not the ones that were kept
    refusal: str | None = None  # why no gain can be measured


class Kept(NamedTuple):
    """Cached scores of a policy, with the references they were made with."""

    candidate: Candidate  # its policy stays alive, so that no other takes its place in the memory
    references: dict[str, Candidate]
    scores: Scores


@dataclass(frozen=True)
class Harness:
    """Candidates with shared data and evaluation settings; scores each once."""

    data: Prepared
    opened: list[Candidate]
    config: EvaluateConfig
    rules: OverlapRules  # when a value is refused
    device: str
    window: WindowConfig
    values: ItemMeans  # one r̂ for all: a difference in value must be the policies', not their critics'
    people: np.ndarray | None  # the sequences that are scored; None: all
    meetings: bool  # whether first meetings count, so that ranks among unseen items are asked too
    kept: dict[int, Kept] = field(default_factory=dict, repr=False)  # by the identity of the policy
    likeliest_of: dict[int, Candidate] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, runs: Sequence[RunLike], data: Prepared | Path | str | None,
        config: EvaluateConfig | Mapping[str, Any] | None, *, baselines: bool, rules: OverlapRules | None = None,
        beta: float | None = None, device: str = "auto",
    ) -> Harness:  # fmt: skip
        """Open the runs, the first at `beta`; windows are those of the first trained one."""
        prepared, opened = open_all(
            [as_run(run) for run in runs], data, split=settings_of(config).split, beta=beta,
            taken=BASELINES if baselines else (), device=device,
        )  # fmt: skip
        # A file of lists and a simple baseline know nothing of windows.
        first = next((each for each in opened if each.facts), opened[0])
        settings = settings_of(config, first)
        return cls(
            prepared, opened, settings, rules or OverlapRules(), device, window_of(first), ItemMeans.fit(prepared),
            people_of(each.policy for each in opened), by_meetings(prepared, settings.split),
        )  # fmt: skip

    def scores(self, candidate: Candidate, references: Sequence[Candidate] = ()) -> Scores:
        """Score a policy with the references, or return its scores if these had no fewer references."""
        beside = {each.name: each for each in references if each.name != candidate.name}
        kept = self.kept.get(id(candidate.policy))
        known = {} if kept is None else kept.references
        if kept is None or any(name not in known or known[name].policy is not beside[name].policy for name in beside):
            scores = scored(
                candidate, self.data, references, window=self.window, config=self.config, values=self.values,
                people=self.people, unseen=self.meetings,
            )  # fmt: skip
            self.kept[id(candidate.policy)] = kept = Kept(candidate, beside, scores)
        return kept.scores

    def measured(
        self, candidate: Candidate, references: Sequence[Candidate] = (), *, imputation: Imputation | None = None
    ) -> Evaluation:
        scores = self.scores(candidate, references)
        return measured(
            candidate, self.data, scores, references, config=self.config, imputation=imputation, rules=self.rules
        )

    def likeliest(self, candidate: Candidate) -> Candidate:
        """The candidate's run with its weights of the best held-out likelihood."""
        key = id(candidate.policy)
        if key not in self.likeliest_of:
            opened = open_likeliest(candidate, self.data, split=self.config.split, device=self.device)
            self.likeliest_of[key] = opened
        return self.likeliest_of[key]

    def simple(self, *, but: Collection[str] = (), fitted: Mapping[str, Deployable] | None = None) -> list[Candidate]:
        """The simple baselines, without those named in `but`; they are fitted where `fitted` has none."""
        known = fitted or {}
        kept = {name: fit for name, fit in simple_baselines(self.data).items() if name not in but}
        policies = {name: known[name] if name in known else fit(self.data) for name, fit in kept.items()}
        return [Candidate(name, policy, Reference(name, name)) for name, policy in policies.items()]

    def differences(self, candidates: Sequence[Candidate], references: Sequence[Candidate]) -> list[str]:
        """Differences between runs that should be equal: other data, or a seed on both sides."""
        elsewhere = [note for each in self.opened if each.run is not None for note in each.notes]
        return [*elsewhere, *(note for each in candidates for note in shared_seeds(each, references))]

    def notes(
        self, candidates: Sequence[Candidate], references: Sequence[Candidate], evaluation: Evaluation
    ) -> list[str]:
        """Caveats for the report: differences between runs, shared weights, unlogged filters, limits of such a log."""
        notes = [*(note for each in self.opened for note in each.notes), *self.differences(candidates, references)]
        notes += [note for each in candidates for note in made_of(each, references)]
        notes += [*filter_notes(self.data, self.config.split), *([SELF_CHOSEN] if LIKED in evaluation.rewards else [])]
        return list(dict.fromkeys([*notes, *evaluation.left_out]))

    def like_with_like(
        self, new: Candidate, old: Candidate, kept: tuple[Evaluation, Evaluation], *,
        imputation: Imputation | None = None,
    ) -> Pair:  # fmt: skip
        """Pair two evaluations as kept if one metric selected both, else with best-likelihood weights of both.

        A figure that picks the epoch raises itself: weights kept by purchase nDCG beat weights kept by likelihood in
        purchase nDCG, whatever trained them. So where two runs were kept by different figures, the weights of the best
        held-out likelihood stand for both. Where these are missing there is no gain to speak of.
        """
        selected = [run for run in (new.run, old.run) if run is not None and not is_baseline(run.folder)]
        if len(selected) < 2:
            return Pair(*kept)  # a file of lists and a simple baseline have no epoch that a figure could pick
        rules, (mine, theirs) = [run.kept_by for run in selected], (run.manifest for run in selected)
        if rules[0] == rules[1] or theirs["policy_sha256"] in mine.get("made_of", {}).values():
            return Pair(*kept)  # where the new one is the old one and a critic, both hold the same weights
        why = (
            f"the epoch of {new.name} was chosen by {rules[0]}, that of {old.name} by {rules[1]}, and choosing by a "
            "figure raises that figure"
        )
        remedy = f"train both with one rule (--set train.select='{rules[0]}')"
        without = next((run.folder.name for run in selected if not has_likeliest(run)), None)
        if without is not None:
            lacking = f"{without} has no weights kept by likelihood to compare instead"
            return Pair(*kept, refusal=f"{why}. {lacking}: {remedy}")
        note = f"{why}. So the weights of the best held-out likelihood are compared. To compare as kept, {remedy}"
        likeliest = [self.measured(self.likeliest(each), imputation=imputation) for each in (new, old)]
        return Pair(likeliest[0], likeliest[1], note)

    def asking(self, metrics: Sequence[str]) -> Harness:
        """A copy with the same data and scores that evaluates these ranking metrics."""
        return replace(self, config=self.config.model_copy(update={"metrics": tuple(metrics)}))
