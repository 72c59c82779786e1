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

from localpolicy.data.batches import WindowConfig
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.estimate import Measurement, group_and_figure
from localpolicy.measure.evaluation import SCHEMA, Evaluation, evaluate_policy
from localpolicy.measure.imputation import Imputation
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.off_policy import OverlapRules
from localpolicy.measure.score import Scorer


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

    def row(self, policy: str, figure: str) -> Measurement:
        """The row of `purchase.nDCG@20`, `JS` or `coverage@20`."""
        return next(row for row in self[policy].rows if (row.group, row.figure) == group_and_figure(figure))

    def values(self, policy: str, figure: str) -> tuple[np.ndarray, np.ndarray]:
        """The values behind a row [n], and the sequence of each."""
        return self[policy].values(figure)

    def to_arrow(self) -> pa.Table:
        """One row per measurement."""
        return as_arrow(self.rows)


def as_arrow(rows: Sequence[Measurement]) -> pa.Table:
    """Rows of the long table, for machines."""
    return pa.Table.from_pylist([row.to_dict() for row in rows], schema=SCHEMA)


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
) -> Measurements:
    """Measure policies on the same positions, with their distance from each reference; none is its own reference.

    The options are those of `evaluate_policy`.
    """
    evaluations = []
    for candidate in policies:
        mine = [reference for reference in references if reference.name != candidate.name]
        evaluation = evaluate_policy(
            candidate.policy, data, name=candidate.name, window=window, config=config,
            references={reference.name: reference.policy for reference in mine},
            described=[reference.origin for reference in mine], propensities=propensities, imputation=imputation,
            rules=rules, floor=floor, values=values, people=people,
        )  # fmt: skip
        evaluation.settings["seed"] = candidate.origin.seed
        evaluations.append(evaluation)
    return Measurements(evaluations)
