"""What is known of an arm, read back from its files; and one policy over its seeds.

figures/<arm>/arm.json       settings, selection, figures on validation and test; or why it failed
figures/<arm>/test.parquet   of each test position: sequence, event, repeat, rank, JS from the references
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import RunError
from localpolicy.measure.divergence import over_references
from localpolicy.measure.estimate import Estimate, Interval, mean_estimate, t_quantile
from localpolicy.measure.score import Scores
from localpolicy.measure.summary import groups
from localpolicy.runs.config import Config
from localpolicy.runtime.files import whole_file

REFERENCE_SEEDS = (101, 102)  # of the μ̂ that divergences are taken from: never a policy's own seed


def over_seeds(means: Sequence[float], errors: Sequence[float]) -> Interval:
    """Of one seed its own interval; of several, Student's over seeds (their spread holds each one's noise too)."""
    if len(means) == 1:
        return Interval.of(means[0], errors[0])
    mean, se = float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(len(means)))
    reach = t_quantile(0.975, len(means) - 1) * se
    return Interval(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Measured:
    """What is known of an arm, read back from its files."""

    name: str
    record: dict[str, Any]
    folder: Path

    @property
    def failed(self) -> str | None:
        """Why it could not be trained."""
        return self.record.get("failed")

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return Config.parse(self.record["config"])

    @property
    def selection_score(self) -> float:
        """The validation figure that picked its epoch."""
        return float(self.record["run"]["selected"]["value"])

    @property
    def epoch(self) -> int:
        """The one whose weights were measured."""
        return int(self.record["run"]["selected"]["epoch"])

    @property
    def truth(self) -> dict[str, Any] | None:
        """J(π) and J(μ), where they were measured."""
        return self.record.get("truth")

    def to_dict(self, split: str) -> dict[str, Any]:
        """The evaluation on a split, as `lpi evaluate --json` gives it."""
        return self.record[split]  # type: ignore[no-any-return]

    def js(self, split: str) -> Estimate | None:
        """Mean JS from the references."""
        js = self.to_dict(split)["divergence"]["js"]
        return None if js is None else _figure(js)

    def js_by_reference(self, split: str) -> dict[str, Estimate]:
        """The same from each reference alone."""
        js = self.to_dict(split)["divergence"]["js"]
        return {} if js is None else {name: _figure(content) for name, content in js["by_reference"].items()}

    @cached_property
    def scores(self) -> Scores:
        """Test positions, with what was kept of them."""
        path = self.folder / "test.parquet"
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise RunError(f"{path} cannot be read ({error}); remove {self.folder}, and it is made again.") from None
        column = {name: table.column(name).to_numpy() for name in table.column_names if name != "event"}
        nothing = np.zeros(table.num_rows, np.float32)
        event = table.column("event").combine_chunks()
        return Scores(
            sequence=column["sequence"], event=event.indices.to_numpy(), repeat=column["repeat"], rank=column["rank"],
            tied=column.get("tied", nothing),
            events=event.dictionary.to_pylist(), js={"references": column["js"]} if "js" in column else {},
            history=nothing, item=nothing, reward=nothing, logp=nothing, top=nothing, entropy=nothing, shown=nothing,
            settings=self.record["test"]["settings"],
        )  # fmt: skip


@dataclass(frozen=True)
class Pooled:
    """One policy over its seeds: the value at a position is the mean over seeds, so tests stay paired by position."""

    name: str
    seeds: list[Measured]

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The test values behind `purchase.nDCG@20` [n], and the sequence of each."""
        group, _, metric_name = name.rpartition(".")
        first = self.seeds[0].scores
        here = groups(first)[group]
        return np.mean([seed.scores.metric(metric_name)[here] for seed in self.seeds], axis=0), first.sequence[here]

    def estimate(self, name: str) -> Estimate:
        """The figure called `purchase.nDCG@20`."""
        if name not in self._figures:
            self._figures[name] = mean_estimate(*self.values(name))
        return self._figures[name]

    @cached_property
    def _figures(self) -> dict[str, Estimate]:
        """A cache: tables, notes and tests ask for the same estimates."""
        return {}

    def by_seed(self, name: str) -> list[float]:
        """The same of each seed alone."""
        group, _, metric_name = name.rpartition(".")
        return [float(seed.to_dict("test")["metrics"][group][metric_name]["mean"]) for seed in self.seeds]

    def js(self) -> Estimate | None:
        """Mean JS from the references on test positions."""
        if any(not seed.scores.js for seed in self.seeds):
            return None
        first = self.seeds[0].scores
        return mean_estimate(np.mean([seed.scores.js["references"] for seed in self.seeds], axis=0), first.sequence)


def _figure(content: dict[str, Any]) -> Estimate:
    mean, se, plain = (np.nan if content[name] is None else content[name] for name in ("mean", "se", "plain_se"))
    return Estimate(mean, se, content["n"], plain)


def save_positions(scores: Scores, path: Path) -> None:
    """The least that paired tests and breakdowns need, a few bytes per position."""
    columns = {
        "sequence": scores.sequence.astype(np.int32),
        "event": pa.DictionaryArray.from_arrays(scores.event.astype(np.int16), scores.events),
        "repeat": scores.repeat,
        "rank": scores.rank.astype(np.float32),
        "tied": scores.tied.astype(np.int32),
    }
    encoding = {"sequence": "DELTA_BINARY_PACKED"}
    if scores.js:
        columns["js"] = over_references(scores.js, scores.js).astype(np.float32)
        encoding["js"] = "BYTE_STREAM_SPLIT"
    with whole_file(path) as partial:
        pq.write_table(
            pa.table(columns), partial, compression="zstd", use_dictionary=["event"], column_encoding=encoding
        )
