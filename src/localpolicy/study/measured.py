"""What is known of an arm, read back from its files, and of one policy over its seeds.

figures/<arm>/arm.json       settings, selection, figures on validation and test; or why it failed
figures/<arm>/test.parquet   of each test position: sequence, event, repeat, rank, JS from the references
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import RunError
from localpolicy.measure.divergence import over_references
from localpolicy.measure.estimate import Estimate, Interval, Measurement, mean_estimate, t_quantile
from localpolicy.measure.summary import Scores, groups
from localpolicy.runs.config import Config
from localpolicy.runtime.files import whole_file

SPLITS = ("validation", "test")
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
    def seed(self) -> int:
        """Of its training."""
        return int(self.record["run"]["seed"])

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

    def estimate(self, name: str, split: str = "test") -> Estimate:
        """The figure called `purchase.nDCG@20`, `JS`, `AR@1`, `entropy` or `coverage@20`."""
        content, (group, _, figure) = self.to_dict(split), name.rpartition(".")
        whole = {**content["rewards"], **content["policy"], "JS": content["divergence"]["js"]}
        return _figure(content["metrics"][group][figure] if group else whole[name])

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
    settings: tuple[tuple[str, str], ...] = ()  # of its point of a grid

    @property
    def good(self) -> list[Measured]:
        """The seeds that could be trained: every figure is theirs."""
        return [seed for seed in self.seeds if not seed.failed]

    @property
    def whole(self) -> bool:
        """Whether all seeds could be trained."""
        return len(self.good) == len(self.seeds)

    @property
    def selection_score(self) -> float:
        """The validation figure, mean over seeds; a point of which a seed failed is never chosen."""
        return float(np.mean([seed.selection_score for seed in self.seeds])) if self.whole else -math.inf

    @property
    def spread(self) -> float | None:
        """Standard deviation of that figure over seeds."""
        return float(np.std([seed.selection_score for seed in self.good], ddof=1)) if len(self.good) > 1 else None

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The test values behind `purchase.nDCG@20` or `JS` [n], and the sequence of each."""
        scores = [seed.scores for seed in self.good]
        if name == "JS":
            return np.mean([each.js["references"] for each in scores], axis=0), scores[0].sequence
        group, _, metric_name = name.rpartition(".")
        here = groups(scores[0])[group]
        return np.mean([each.metric(metric_name)[here] for each in scores], axis=0), scores[0].sequence[here]

    def estimate(self, name: str, split: str = "test") -> Estimate:
        """The figure called `purchase.nDCG@20`, `JS` or `AR@1`: from the positions where they are kept."""
        if (name, split) not in self._figures:
            kept = split == "test" and (name == "JS" or name.rpartition(".")[0] in groups(self.good[0].scores))
            every = [] if kept else [seed.estimate(name, split) for seed in self.good]
            self._figures[name, split] = mean_estimate(*self.values(name)) if kept else seed_mean(every)
        return self._figures[name, split]

    @cached_property
    def _figures(self) -> dict[tuple[str, str], Estimate]:
        """A cache: tables, notes and tests ask for the same estimates."""
        return {}

    def js(self, split: str = "test") -> Estimate | None:
        """Mean JS from the references, where there are any."""
        known = bool(self.good) and all(seed.js(split) is not None for seed in self.good)
        return self.estimate("JS", split) if known else None

    def rows(self, figures: Iterable[str], split: str = "test") -> Iterator[tuple[Measurement, Estimate]]:
        """Of the long table: each figure over seeds (seed null) and of each; beside it the estimate it comes from."""
        for name in figures:
            alone = [(seed.seed, seed.estimate(name, split)) for seed in self.good]
            for seed, value in [(None, self.estimate(name, split)), *alone]:
                around = value.within_unit() if "." in name else Interval.from_estimate(value)
                yield Measurement.of(self.name, name, around, se=value.se, n=value.n, seed=seed, split=split), value


def seed_mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over seeds, with the largest of their errors: seeds share the same positions."""
    means, errors, counts, plain = zip(*estimates, strict=True)
    return Estimate(float(np.mean(means)), float(np.max(errors)), counts[0], float(np.max(plain)))


def _figure(content: dict[str, Any] | float) -> Estimate:
    if not isinstance(content, dict):
        return Estimate(content, math.nan, 0, math.nan)  # of all lists together, as coverage
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
