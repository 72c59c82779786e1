"""Everything measured of one policy on one split: figures, and the values per position they come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.measure.divergence import Divergence, over_references, two_digits
from localpolicy.measure.estimate import (
    Estimate,
    Interval,
    Measurement,
    as_json,
    group_and_figure,
    mean_estimate,
)
from localpolicy.measure.estimators import INTERVAL
from localpolicy.measure.metrics import AT_20, is_certain
from localpolicy.measure.position_metrics import LIKED, REWARDS, WEIGHTED, Scores, groups, segments, values_of
from localpolicy.measure.truth import Truth
from localpolicy.measure.value import OffPolicy
from localpolicy.results import Result
from localpolicy.runtime.files import whole_file, write_json

SCHEMA = pa.schema(
    [("policy", pa.string()), ("seed", pa.int64()), ("split", pa.string()), ("round", pa.int64()),
     ("group", pa.string()), ("figure", pa.string())]
    + [(name, pa.float64()) for name in ("mean", "se", "low", "high")] + [("n", pa.int64())]
)  # fmt: skip


def as_arrow(rows: Sequence[Measurement]) -> pa.Table:
    """Rows of the long table, for machines."""
    return pa.Table.from_pylist(as_json(rows), schema=SCHEMA)


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """All metrics of one policy on one split."""

    name: str
    figures: dict[str, Estimate | float]  # by name: purchase.nDCG@20, AR@1, logp, coverage@20
    divergence: Divergence | None
    scores: Scores = field(repr=False)
    counts: np.ndarray = field(repr=False)  # [V] how often each item was logged
    settings: dict[str, Any]
    truth: Truth | None = None
    off_policy: OffPolicy | None = None
    imputation: dict[str, Any] | None = None  # held-out quality of the imputed ratings
    events: Sequence[str] = ()  # those that are paid, the best paid first
    known: np.ndarray | None = field(default=None, repr=False)  # [V] what training shows, where there are item features

    def estimate(self, name: str) -> Estimate:
        """Estimate of the metric `purchase.nDCG@20`, `AR@1` or `logp`."""
        value = self.figures[name]
        assert isinstance(value, Estimate), name
        return value

    @cached_property
    def metrics(self) -> dict[str, dict[str, Estimate]]:
        """Metrics of single groups of positions, by group, then by metric."""
        found: dict[str, dict[str, Estimate]] = {}
        for name in self.figures:
            group, _, metric_name = name.rpartition(".")
            if group:
                found.setdefault(group, {})[metric_name] = self.estimate(name)
        return found

    @property
    def rewards(self) -> dict[str, Estimate]:
        """Reward metrics by name: AR@1, on ratings how well top items were liked, iAR@1 if ratings are imputed."""
        return {name: self.estimate(name) for name in REWARDS if name in self.figures}

    @property
    def lists(self) -> int:
        """K of the lists whose coverage is measured."""
        return int(self.settings["lists"])

    @property
    def unit(self) -> str:
        """Unit of an estimated value: a decision or a list."""
        return "decision" if self.off_policy is None else self.off_policy.unit.removesuffix("s")

    @property
    def coverage(self) -> float:
        """Share of the catalogue that is in some list of K items."""
        share = self.figures[f"coverage@{self.lists}"]
        assert not isinstance(share, Estimate)
        return share

    @property
    def left_out(self) -> list[str]:
        """Notes on positions before the window, which were not measured, and on metrics that say nothing here."""
        certain = [name for name in self.settings.get("metrics", ()) if is_certain(name, len(self.counts))]
        items = f"there are {len(self.counts)} items"
        notes = [f"{' and '.join(certain)}: 1 whatever is ranked first, since {items}"] if certain else []
        beyond, length = self.scores.settings.get("beyond_length", 0), self.scores.settings.get("length")
        if not beyond:
            return notes
        lie, are = ("lies", "is") if beyond == 1 else ("lie", "are")
        return [
            *notes,
            f"{beyond:,} of {len(self.scores) + beyond:,} {self.settings['split']} positions {lie} before the last "
            f"{length} actions of their sequence, the window that the run reads (data.length={length}), and {are} not "
            "measured: a larger data.length in training would measure them",
        ]

    @property
    def js(self) -> np.ndarray | None:
        """JS at each position [n], the mean over the references."""
        if self.divergence is None:
            return None
        return over_references(self.scores.js, [reference.name for reference in self.divergence.references])

    def values(self, name: str, within: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Values per position of `purchase.nDCG@20`, `AR@1`, `logp`, `entropy` or `JS` [n], and their sequences.

        Of a part of the positions [N], where `within` says which.
        """
        if name == "JS":
            assert self.js is not None and within is None, "no reference was given"
            return self.js, self.scores.sequence
        values, here = values_of(self.scores, name, within)
        return values, self.scores.sequence[here]

    @property
    def main(self) -> str:
        """Name of the metric that decides."""
        return deciding_figure(self)

    def summary(self) -> str:
        """The evaluation in one line: policy, split, deciding metric with its interval, JS."""
        main = self.row(self.main)
        assert main is not None
        around = f"{main.mean:.4f} (95 %: {main.low:.4f} to {main.high:.4f})"
        text = f"{self.name} on {self.settings['split']}: {self.main} {around}"
        if self.divergence is None:
            return text
        floor = self.divergence.floor_js
        known = "noise floor unknown" if floor is None else f"noise floor {two_digits(floor.overall.mean)}"
        return f"{text}, JS {self.divergence.js.overall.mean:.3f} ({known})"

    def row(self, name: str) -> Measurement | None:
        """Row of the metric `purchase.nDCG@20`, `JS` or `true J`; None if it was not measured."""
        return next((row for row in self.rows if (row.group, row.figure) == group_and_figure(name)), None)

    @cached_property
    def rows(self) -> list[Measurement]:
        rows = [self._row(*group_and_figure(name), value) for name, value in self.figures.items()]
        if (measured := self.divergence) is not None:
            distances = {"JS": measured.js.overall, "KL": measured.kl.overall}
            distances |= {f"JS from {name}": js for name, js in measured.js.by_name.items()}
            distances |= {} if measured.floor_js is None else {"noise floor": measured.floor_js.overall}
            rows += [self._row("all", *distance) for distance in distances.items()]
        seed, split = self.settings.get("seed"), self.settings.get("split")
        if (value := self.off_policy) is not None:
            for name, each in value.estimates.items():
                around = Interval(each.value, *each.intervals.get(INTERVAL, (math.nan, math.nan)))
                about: dict[str, Any] = {"se": each.se, "n": value.overlap.n, "seed": seed, "split": split}
                rows.append(Measurement.of(self.name, name, around, **about))
        if (truth := self.truth) is not None:
            true = {"true J": (truth.value, truth.se), "true gain": (truth.gain, truth.gain_se)}
            rows += [
                Measurement.of(self.name, name, Interval.of(*each), se=each[1], seed=seed)
                for name, each in true.items()
            ]
        return rows

    def by_segment(self, name: str) -> list[Measurement]:
        """Long-table rows of the metric `name` by history length, popularity and repeats."""
        parts = segments(self.scores, self.counts, self.known)
        means = {label: mean_estimate(*self.values(name, here)) for label, here in parts.items()}
        return [self._row(label, name, each) for label, each in means.items() if each.n]

    def _row(self, group: str, figure: str, value: Estimate | float) -> Measurement:
        """Long-table row of a metric: without error for a plain number, within 0 and 1 for a ranking metric."""
        n = value.n if isinstance(value, Estimate) else None
        value = value if isinstance(value, Estimate) else Estimate(value, math.nan, 0, math.nan)
        ranked = group != WEIGHTED and figure in self.metrics.get(group, ())
        around = value.within_unit() if ranked else Interval.from_estimate(value)
        seed, split = self.settings.get("seed"), self.settings.get("split")
        return Measurement(
            self.name, seed, split, None, group, figure, value.mean, value.se, around.low, around.high, n
        )

    def to_arrow(self) -> pa.Table:
        """Long table of this policy: one row per metric and group of positions."""
        return as_arrow(self.rows)

    def to_dict(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"js": None, "kl": None, "floor": None, "reference": []}
        return {
            "metrics": as_json(self.metrics),
            "rewards": as_json(self.rewards),
            "policy": {
                name: as_json(value) for name, value in self.figures.items() if "." not in name and name not in REWARDS
            },
            "divergence": as_json(self.divergence or nothing),
            "off_policy": as_json(self.off_policy),
            "truth": as_json(self.truth),
            "imputation": self.imputation,
            "settings": self.settings,
        }

    def per_sequence(self, metrics: Iterable[str] = AT_20) -> pa.Table:
        """Table with one row per sequence: positions, reward, and the mean of each metric by group of positions."""
        scores = self.scores
        sequence, index = np.unique(scores.sequence, return_inverse=True)

        def mean(values: np.ndarray, here: np.ndarray) -> np.ndarray:
            total = np.bincount(index[here], weights=values[here], minlength=len(sequence))
            count = np.bincount(index[here], minlength=len(sequence))
            return np.asarray(np.divide(total, count, out=np.full(len(sequence), np.nan), where=count > 0))

        everywhere = np.ones(len(scores), dtype=bool)
        columns: dict[str, np.ndarray] = {
            "sequence": sequence,
            "positions": np.bincount(index),
            "reward": np.bincount(index, weights=scores.reward),
        }
        for group, here in groups(scores).items():
            columns[f"{group}.positions"] = np.bincount(index[here], minlength=len(sequence))
            columns |= {f"{group}.{name}": mean(scores.metric(name), here) for name in metrics}
        columns |= {f"js:{name}": mean(values, everywhere) for name, values in scores.js.items()}
        return pa.table(columns)

    def save(self, folder: Path | str) -> None:
        """Write <split>.json, <split>.positions.parquet and <split>.sequences.parquet."""
        folder, split = Path(folder), self.settings["split"]
        write_json(folder / f"{split}.json", self.to_dict())
        for name, table in (("positions", self.scores.to_arrow()), ("sequences", self.per_sequence())):
            with whole_file(folder / f"{split}.{name}.parquet") as partial:
                pq.write_table(table, partial)


def deciding_figure(evaluation: Evaluation, columns: Sequence[str] = (), *, weighted: bool = True) -> str:
    """Name of the metric that policies are judged by.

    On ratings it is how well what is ranked first was liked. Else it is nDCG@20 of all that was taken, `weighted` by
    rewards if these differ: never by amounts, where dear items first would win. If `columns` were asked for, it is
    one of them: that figure, else the first nDCG that has positions.
    """
    if LIKED in evaluation.rewards and (not columns or LIKED in columns):
        return LIKED
    taken = [event for event in evaluation.events if event in evaluation.metrics]
    group = WEIGHTED if weighted and WEIGHTED in evaluation.metrics else taken[0] if len(taken) == 1 else "all"
    metrics = evaluation.metrics[group]
    figure = f"{group}.{'nDCG@20' if 'nDCG@20' in metrics else next(iter(metrics))}"
    if columns and figure not in columns:
        filled = [column for column in columns if evaluation.estimate(column).n]
        ranked = [column for column in filled if column.rpartition(".")[2].startswith("nDCG")]
        return (ranked or filled or list(columns))[0]
    return figure


def rank_correlations(evaluations: Sequence[Evaluation], metrics: Sequence[str]) -> dict[str, float]:
    """Spearman's ρ over policies of each metric with the true J; empty for fewer than three policies, or equal ones."""
    rows = {name: [row for each in evaluations if (row := each.row(name))] for name in ("true J", *metrics)}
    means = {name: [row.mean for row in found] for name, found in rows.items() if len(found) == len(evaluations) >= 3}
    truth = means.pop("true J", [])
    if not truth or np.ptp(truth) == 0:
        return {}
    from scipy import stats  # half a second to import, for worlds whose truth is known alone

    differing = {name: values for name, values in means.items() if np.ptp(values) > 0}
    return {name: float(stats.spearmanr(values, truth).statistic) for name, values in differing.items()}
