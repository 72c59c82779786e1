"""The one long table of measurements, and its only producer.

policy  seed  split  round  group  figure  mean  se  low  high  n

A row is one figure of one policy over one group of positions. The values per position behind it are found by its key:
`measurements.values(policy, "purchase.nDCG@20")`. Whatever is said of policies (a gain, a lead, the noise floor, the
figure that decides) is a function of these rows and values, written once: see CONTRIBUTING, "A number is computed in
one file".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.item_features import learnt_columns
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.divergence import divergence
from localpolicy.measure.estimate import Estimate, Measurement, as_json
from localpolicy.measure.evaluation import SCHEMA, Evaluation, paid_events
from localpolicy.measure.imputation import Imputation, imputed_reward
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.off_policy import OverlapRules, value_of_scores
from localpolicy.measure.off_policy.reward_model import reward_model
from localpolicy.measure.question import question_of
from localpolicy.measure.score import Scorer, device_of, score
from localpolicy.measure.summary import ranking, rewards, shown_figures


@dataclass(frozen=True)
class Measurements:
    """Policies measured on the same positions: by name, and as one long table."""

    evaluations: Sequence[Evaluation]

    def __getitem__(self, name: str) -> Evaluation:
        return next(evaluation for evaluation in self.evaluations if evaluation.name == name)

    def __iter__(self) -> Iterator[str]:
        return (evaluation.name for evaluation in self.evaluations)

    def __len__(self) -> int:
        return len(self.evaluations)

    @property
    def rows(self) -> list[Measurement]:
        """Every figure of every policy."""
        return [row for evaluation in self.evaluations for row in evaluation.rows]

    def values(self, policy: str, figure: str) -> tuple[np.ndarray, np.ndarray]:
        """The values behind a row [n], and the sequence of each."""
        return self[policy].values(figure)

    def to_arrow(self) -> pa.Table:
        """One row per measurement."""
        return as_arrow(self.rows)


def as_arrow(rows: Sequence[Measurement]) -> pa.Table:
    """Rows of the long table, for machines."""
    return pa.Table.from_pylist(as_json(rows), schema=SCHEMA)


def measure(
    policies: Sequence[Candidate],
    data: Prepared,
    references: Sequence[Candidate] = (),
    *,
    window: WindowConfig,
    config: EvaluateConfig | None = None,
    propensities: str | None = None,
    imputation: Imputation | None = None,
    rules: OverlapRules | None = None,
    floor: bool = True,
    values: Scorer | None = None,
    people: np.ndarray | None = None,
    unseen: bool = False,
) -> Measurements:
    """Measure policies on the same positions, with their distance from each reference; none is its own reference.

    Off-policy estimates are made where propensities were logged, or where `propensities` names a reference that
    stands for them. `values` is r̂ (default: the policy's own, or the items' mean rewards). `people` are the
    sequences of the split that are scored (default: all). Without `floor` references are not measured against each
    other. With `unseen` ranks and likelihoods are also asked among what a sequence did not hold before.
    """
    config = config or EvaluateConfig()
    estimable = propensities is not None or "propensity" in data[config.split].arrays
    counts = np.asarray(data.catalogue["count"].to_numpy())
    known = data.known_items if learnt_columns(data.catalogue) else None
    largest = max(data.manifest["rewards"].values(), default=None)

    def evaluated(candidate: Candidate) -> Evaluation:
        policy, name = candidate.policy, candidate.name
        others = {each.name: each for each in references if each.name != name}
        device = device_of(policy, *(other.policy for other in others.values()))
        windows = Windows(data, config.split, window, device=device)
        if config.sequences is not None or people is not None:
            among = np.arange(len(windows)) if people is None else people
            count = min(config.sequences or len(among), len(among))
            windows = windows.only(among[np.linspace(0, max(len(among) - 1, 0), count).astype(np.int64)])
        scores = score(
            policy,
            windows,
            events=data.events,
            references={each: other.policy for each, other in others.items()},
            reward_model=(values or reward_model(policy, data)) if estimable else None,
            min_history=config.min_history,
            exclude_seen=config.exclude_seen,
            unseen=unseen,
            lists=config.lists,
            floor=floor,
            liked=question_of(data, config.split).kind == "liking",
            batch_size=config.batch_size,
            description=f"scoring {name}",
        )
        figures: dict[str, Estimate | float] = {**ranking(scores, config.metrics, known=known), **rewards(scores)}
        if imputation is not None:
            figures["iAR@1"] = imputed_reward(scores, imputation, data, config.split)
        described = [other.origin for other in others.values()]
        return Evaluation(
            name=name,
            figures=figures | shown_figures(scores, counts, config.lists),
            imputation=None if imputation is None else imputation.to_dict(),
            divergence=divergence(scores, described, counts=counts, known=known),
            off_policy=value_of_scores(scores, propensities=propensities, largest_reward=largest, rules=rules),
            events=paid_events(data),
            scores=scores,
            counts=counts,
            known=known,
            settings={
                "policy": name,
                "data": data.digest,
                "kind": data.kind,
                **config.model_dump(mode="json"),
                "length": window.length,
                "last": window.last,
                "beyond_length": scores.settings["beyond_length"],
                "seed": candidate.origin.seed,
            },
        )

    return Measurements([evaluated(candidate) for candidate in policies])
