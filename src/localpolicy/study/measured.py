"""An arm measured, written to its files and read back from them; and one policy over its seeds.

figures/<arm>/arm.json       settings, selection, figures on validation and test; or why it failed
figures/<arm>/test.parquet   of each test position: sequence, event, repeat, rank, JS from the references; on imputed
                             ratings also the terms of AR@1 and iAR@1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.measure.candidates import open_run, window_of
from localpolicy.measure.divergence import over_references
from localpolicy.measure.estimate import (
    CONFIDENCE,
    Estimate,
    Interval,
    Measurement,
    as_json,
    mean_estimate,
    mean_of_estimates,
    standard_error,
)
from localpolicy.measure.evaluate import measure, settings_of, world_of
from localpolicy.measure.imputation import imputation_at, imputed_rewards
from localpolicy.measure.load_candidates import refuse_incomparable
from localpolicy.measure.position_metrics import Scores, groups, reward_at_1, values_of
from localpolicy.measure.truth import true_value
from localpolicy.model.catalogue_mapping import device_of
from localpolicy.runs.run import Run
from localpolicy.runtime.devices import give_back_memory
from localpolicy.runtime.files import whole_file
from localpolicy.simulation.truth import load_world
from localpolicy.study.settings import NO_POINT, Point
from localpolicy.training.validation import ON_A_GPU

SPLITS = ("validation", "test")
EARNED = ("AR@1", "iAR@1")  # rewards of what is shown first, logged and imputed
REFERENCE_SEEDS = (101, 102)  # of the μ̂ that divergences are taken from: never a policy's own seed


def over_seeds(means: Sequence[float], errors: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """Mean over seeds with Student's interval; of a single seed, that seed's own interval."""
    if len(means) == 1:
        return Interval.of(means[0], errors[0], confidence=confidence)
    return Interval.students(float(np.mean(means)), standard_error(means), len(means), confidence=confidence)


@dataclass(frozen=True)
class Measured:
    """Stored result of one arm: its record and folder."""

    name: str
    record: dict[str, Any]  # of a split: its evaluation, as `lpi evaluate --json` gives it
    folder: Path

    @property
    def failed(self) -> str | None:
        """Reason why the arm could not be trained; None if it was."""
        return self.record.get("failed")

    @property
    def seed(self) -> int:
        return int(self.record["run"]["seed"])

    @property
    def selection_score(self) -> float:
        return float(self.record["run"]["selected"]["value"])

    @property
    def epoch(self) -> int:
        return int(self.record["run"]["selected"]["epoch"])

    @property
    def truth(self) -> dict[str, Any] | None:
        """True J(π) and J(μ); None if they were not measured."""
        return self.record.get("truth")

    def estimate(self, name: str, split: str = "test") -> Estimate:
        """Estimate of the metric `purchase.nDCG@20`, `JS`, `AR@1`, `entropy` or `coverage@20`."""
        content, (group, _, figure) = self.record[split], name.rpartition(".")
        whole = {**content["rewards"], **content["policy"], "JS": content["divergence"]["js"]}
        return _figure(content["metrics"][group][figure] if group else whole[name])

    def js_by_reference(self, split: str) -> dict[str, Estimate]:
        """JS from each reference alone; empty without references."""
        js = self.record[split]["divergence"]["js"] or {"by_reference": {}}
        return {name: _figure(content) for name, content in js["by_reference"].items()}

    @cached_property
    def _stored(self) -> pa.Table:
        path = self.folder / "test.parquet"
        try:
            return pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise RunError(f"{path} cannot be read ({error}); remove {self.folder}, and it is made again.") from None

    @cached_property
    def earned(self) -> dict[str, np.ndarray]:
        """Terms of AR@1 and iAR@1 at the test positions [N], by name, as far as they were stored."""
        return {name: self._stored.column(name).to_numpy() for name in EARNED if name in self._stored.column_names}

    @cached_property
    def scores(self) -> Scores:
        """Scores at the test positions, with the columns that were stored."""
        table = self._stored
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
    """One policy over its seeds, with per-position means over seeds, so that tests stay paired by position."""

    name: str  # as tables call it
    seeds: list[Measured]
    point: Point = NO_POINT  # of a grid
    key: str = ""  # of a row of the paper's: an objective, with its β where each β has a row
    grid: Sequence[Pooled] = ()  # what its point was chosen from

    @property
    def good(self) -> list[Measured]:
        """The seeds that could be trained, which all metrics are computed from."""
        return [seed for seed in self.seeds if not seed.failed]

    @property
    def whole(self) -> bool:
        return len(self.good) == len(self.seeds)

    @property
    def selection_score(self) -> float:
        """Validation metric, mean over seeds; -inf if a seed failed, so that the point is never chosen."""
        return float(np.mean([seed.selection_score for seed in self.seeds])) if self.whole else -math.inf

    @property
    def selection_se(self) -> float:
        """Standard error of `selection_score` over seeds; unknown for a single seed."""
        return standard_error([seed.selection_score for seed in self.good])

    @property
    def weights(self) -> dict[str, float]:
        """Weight statistics of training (`effective_share`, ...), mean over seeds; empty for a closed form."""
        every = [seed.record["run"]["weights"] for seed in self.good]
        shared = [name for name in every[0] if all(name in each for each in every)] if every else []
        return {name: float(np.mean([each[name] for each in every])) for name in shared}

    @property
    def truth(self) -> float | None:
        """True J(π), mean over seeds; None if it was not measured."""
        values = [seed.truth["value"] for seed in self.good if seed.truth is not None]
        return float(np.mean(values)) if values else None

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Test values of `purchase.nDCG@20`, `AR@1` or `JS` per position [n], and the sequence of each."""
        scores = [seed.scores for seed in self.good]
        if name == "JS":
            return np.mean([each.js["references"] for each in scores], axis=0), scores[0].sequence
        if name in EARNED:
            return np.mean([seed.earned[name] for seed in self.good], axis=0), scores[0].sequence
        _, here = values_of(scores[0], name)
        return np.mean([values_of(each, name)[0] for each in scores], axis=0), scores[0].sequence[here]

    def estimate(self, name: str, split: str = "test") -> Estimate:
        """Estimate of `purchase.nDCG@20`, `JS` or `AR@1` over seeds, from positions if they were stored."""
        if (name, split) not in self._figures:
            kept = split == "test" and self.kept(name)
            every = [] if kept else [seed.estimate(name, split) for seed in self.good]
            self._figures[name, split] = mean_estimate(*self.values(name)) if kept else mean_of_estimates(every)
        return self._figures[name, split]

    def kept(self, name: str) -> bool:
        """Whether the metric's values at the test positions were stored, so that it can be tested in pairs."""
        if name in EARNED:
            return all(name in seed.earned for seed in self.good)
        return name == "JS" or name.rpartition(".")[0] in groups(self.good[0].scores)

    @cached_property
    def _figures(self) -> dict[tuple[str, str], Estimate]:
        """Cache of estimates by metric and split."""
        return {}

    def js(self, split: str = "test") -> Estimate | None:
        """Mean JS from the references; None without references."""
        known = [bool(seed.js_by_reference(split)) for seed in self.good]
        return self.estimate("JS", split) if known and all(known) else None

    def rows(self, figures: Iterable[str], split: str = "test") -> Iterator[tuple[Measurement, Estimate]]:
        """Yield long-table rows of each metric, over seeds (seed null) and per seed, with their estimates."""
        for name in figures:
            alone = [(seed.seed, seed.estimate(name, split)) for seed in self.good]
            for seed, value in [(None, self.estimate(name, split)), *alone]:
                around = value.within_unit() if "." in name else Interval.from_estimate(value)
                yield Measurement.of(self.name, name, around, se=value.se, n=value.n, seed=seed, split=split), value


def best_within(tried: Sequence[Pooled], max_js: float | None = None) -> Pooled | None:
    """Point with the largest validation metric whose JS is within the budget; None without any."""
    good = [point for point in tried if point.selection_score > -math.inf]
    if max_js is not None:
        good = [point for point in good if (js := point.js("validation")) is not None and js.mean <= max_js]
    return max(good, key=lambda point: point.selection_score, default=None)


def _figure(content: dict[str, Any] | float) -> Estimate:
    if not isinstance(content, dict):
        return Estimate(content, math.nan, 0, math.nan)  # of all lists together, as coverage
    mean, se, plain = (np.nan if content[name] is None else content[name] for name in ("mean", "se", "plain_se"))
    return Estimate(mean, se, content["n"], plain)


# ---------------------------------------------------------------------- how an arm is measured


def measure_arm(
    run: Run, data: Prepared, against: Sequence[Run], folder: Path, *, device: str, exclude_seen: bool,
    imputation: Path | None, truth: bool,
) -> dict[str, Any]:  # fmt: skip
    """Measure a trained run; return the content of `arm.json` and write its positions into `folder`."""
    give_back_memory()  # training needs other sizes than measuring
    candidate, *references = (open_run(each, each.folder.name, device=device) for each in (run, *against))
    refuse_incomparable([candidate, *references])
    settings = settings_of({"exclude_seen": exclude_seen}, candidate)
    if device_of(candidate.policy).type == "cuda":
        settings = settings.model_copy(update={"batch_size": max(settings.batch_size, ON_A_GPU)})
    # The references are measured against each other once, not for every arm: hence no floor.
    options: dict[str, Any] = {"window": window_of(candidate), "floor": False}
    options["imputation"] = imputed = None if imputation is None else imputation_at(imputation, data)
    about: dict[str, Any] = {}
    for split in SPLITS:
        config = settings.model_copy(update={"split": split})
        evaluation = measure(candidate, data, references, config=config, **options)
        about[split] = evaluation.to_dict()
    if truth and (world := world_of(data, None)) is not None:
        about["truth"] = as_json(true_value(candidate.policy, load_world(world)))
    earned = {}
    if imputed is not None:
        terms = reward_at_1(evaluation.scores), imputed_rewards(evaluation.scores, imputed, data, SPLITS[-1])
        earned = dict(zip(EARNED, terms, strict=True))
    save_positions(evaluation.scores, folder / "test.parquet", earned)
    manifest = {key: value for key, value in run.manifest.items() if key != "data"}
    about["run"] = {**manifest, "weights": run.selected_metrics()["weights"]}
    about["curve"] = [{"epoch": line["epoch"], "selected_by": line["selected_by"]} for line in run.metrics()]
    about["against"] = [
        {**as_json(reference.origin), "weights": other.manifest["policy_sha256"]}
        for reference, other in zip(references, against, strict=True)
    ]
    return about


def save_positions(scores: Scores, path: Path, earned: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
    """Write the scores per position that paired tests and breakdowns need, a few bytes each; and rewards `earned`."""
    columns = {
        "sequence": scores.sequence.astype(np.int32),
        "event": pa.DictionaryArray.from_arrays(scores.event.astype(np.int16), scores.events),
        "repeat": scores.repeat,
        "rank": scores.rank.astype(np.float32),
        "tied": scores.tied.astype(np.int32),
        **{name: values.astype(np.float32) for name, values in earned.items()},
    }
    encoding = {"sequence": "DELTA_BINARY_PACKED"}
    if scores.js:
        columns["js"] = over_references(scores.js, scores.js).astype(np.float32)
        encoding["js"] = "BYTE_STREAM_SPLIT"
    with whole_file(path) as partial:
        pq.write_table(
            pa.table(columns), partial, compression="zstd", use_dictionary=["event"], column_encoding=encoding
        )
