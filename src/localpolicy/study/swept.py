"""What came of a sweep: its points, each over its seeds, and the best one within a divergence budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.measure.estimate import Estimate, Interval, Measurement, as_json
from localpolicy.measure.metrics import AT_K
from localpolicy.measure.question import is_rating
from localpolicy.measure.summary import WEIGHTED
from localpolicy.results import Result
from localpolicy.study.grid import Point
from localpolicy.study.measured import Measured, Pooled, over_seeds


@dataclass(frozen=True)
class Tried:
    """One point and its seeds."""

    point: Point
    seeds: list[Measured]
    objective: str = ""

    @property
    def name(self) -> str:
        """As tables call it."""
        return self.point.name or self.objective

    @property
    def good(self) -> list[Measured]:
        """The seeds that could be trained."""
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
        """Standard deviation over seeds."""
        return float(np.std([seed.selection_score for seed in self.good], ddof=1)) if len(self.good) > 1 else None

    @property
    def js(self) -> Estimate | None:
        """Validation JS, the mean over seeds, with the largest of their errors."""
        return Pooled(self.point.name, self.good).js("validation") if self.good else None

    def rows(self, figure: str) -> list[Measurement]:
        """Of the long table: what chooses, called `figure`, and JS; over seeds (seed null) and of each."""
        scores = {seed.seed: Interval.of(seed.selection_score, math.nan) for seed in self.good}
        rows = [Measurement.of(self.name, figure, each, seed=seed, split="validation") for seed, each in scores.items()]
        if self.whole:
            means = [score.mean for score in scores.values()]
            se = math.nan if self.spread is None else self.spread / math.sqrt(len(means))
            around = over_seeds(means, [math.nan])  # with one seed the spread between seeds is unknown
            rows.insert(0, Measurement.of(self.name, figure, around, se=se, split="validation"))
        pooled = Pooled(self.name, self.good).rows(["JS"], "validation") if self.js is not None else ()
        return [*rows, *(row for row, _ in pooled)]

    def to_dict(self) -> dict[str, Any]:
        """How it was trained, for `sweep.json`; its figures are rows of the long table."""
        return {
            "settings": dict(self.point.settings),
            "runs": [seed.name for seed in self.seeds],
            "failed": {seed.name: seed.failed for seed in self.seeds if seed.failed},
            "epochs": {seed.name: seed.epoch for seed in self.good},
            "weights": {seed.name: seed.record["run"]["weights"] for seed in self.good},
        }


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """All points, and the one chosen."""

    objective: str
    select: str  # the rule
    tried: list[Tried]
    chosen: Tried | None  # None: nothing within the budget
    floor: dict[str, Estimate] | None
    references: list[str]
    max_js: float | None
    seeds: int
    data: str  # digest
    search: str = "grid"
    out: Path = Path()  # where everything lies

    @property
    def noise(self) -> Estimate | None:
        """The noise floor on validation, where points are chosen."""
        return None if self.floor is None else self.floor["validation"]

    @property
    def nearest(self) -> float:
        """The smallest JS of a point."""
        return min((tried.js.mean for tried in self.tried if tried.js is not None), default=math.nan)

    @property
    def runs(self) -> list[Path]:
        """The folders of the chosen point's runs, one per seed."""
        return [] if self.chosen is None else [self.out / "runs" / seed.name for seed in self.chosen.seeds]

    @property
    def test(self) -> Pooled | None:
        """The chosen policy on the test split."""
        return None if self.chosen is None else Pooled(self.chosen.name, self.chosen.seeds)

    @property
    def tested(self) -> list[str]:
        """The figures that are shown of the chosen policy on the test split."""
        if self.test is None:
            return []
        left = ("repeat", "new", WEIGHTED)  # the last needs rewards by position, which are not kept
        groups = [name for name in self.test.seeds[0].to_dict("test")["metrics"] if name not in left]
        figures = [f"{group}.{at_k}" for group in groups if not is_rating(group) for at_k in AT_K]
        return figures if self.test.js() is None else [*figures, "JS"]

    @property
    def measurements(self) -> list[Measurement]:
        """The long table, over seeds (seed null) and of each: every point on validation, the chosen one on test."""
        rows = [row for tried in self.tried for row in tried.rows(self.figure)]
        return rows if self.test is None else [*rows, *(row for row, _ in self.test.rows(self.tested))]

    @property
    def figure(self) -> str:
        """What chooses, as the long table calls it."""
        return f"validation {self.select}"

    def lead(self) -> tuple[Tried, Interval] | None:
        """The second best point, and how far the chosen one is ahead of it, paired by seed."""
        others = [tried for tried in self.tried if tried is not self.chosen]
        second = best_within(others, self.max_js)
        if self.chosen is None or second is None:
            return None
        pairs = zip(self.chosen.seeds, second.seeds, strict=True)
        ahead = [ours.selection_score - theirs.selection_score for ours, theirs in pairs]
        return second, over_seeds(ahead, [math.nan])

    def summary(self) -> str:
        """How many points, and the one chosen."""
        text = f"{self.objective} at {len(self.tried)} points"
        if self.chosen is None:
            return f"{text}; none within JS {self.max_js:g}"
        return f"{text}; chosen: {self.chosen.name} ({self.select} {self.chosen.selection_score:.4f} on validation)"

    def to_arrow(self) -> pa.Table:
        """One row per point: its settings, the validation figure, its JS, and whether it was chosen."""
        rows = []
        for tried in self.tried:
            js, score = tried.js, tried.selection_score if tried.whole else None
            figures = {"validation": score, "spread": tried.spread, "JS": js and js.mean, "JS se": js and js.se}
            rows.append({**dict(tried.point.settings), **figures, "chosen": tried is self.chosen})
        return pa.Table.from_pylist(rows)

    def to_dict(self) -> dict[str, Any]:
        """For `sweep.json`: who was measured, the long table, and which point was chosen."""
        return {
            "objective": self.objective,
            "data": self.data,
            "search": self.search,
            "select": self.select,
            "seeds": list(range(self.seeds)),
            "references": self.references,
            "floor": as_json(self.floor),
            "max_js": self.max_js,
            "policies": {each.name: each.to_dict() for each in self.tried},
            "measurements": as_json(self.measurements),
            "chosen": None if self.chosen is None else self.chosen.name,
            "runs": [str(run.relative_to(self.out)) for run in self.runs],
        }


def best_within(tried: Sequence[Tried], max_js: float | None) -> Tried | None:
    """The largest validation figure within the budget."""
    within = [
        point
        for point in tried
        if point.selection_score > -math.inf and (max_js is None or (point.js is not None and point.js.mean <= max_js))
    ]
    return max(within, key=lambda point: point.selection_score, default=None)
