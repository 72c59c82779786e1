"""What a sweep found: every point with its seeds, and the best one within a divergence budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.measure.estimate import Estimate
from localpolicy.results import Result
from localpolicy.study.grid import Point
from localpolicy.study.measured import Measured, Pooled


@dataclass(frozen=True)
class Tried:
    """One point and its seeds."""

    point: Point
    seeds: list[Measured]

    @property
    def good(self) -> list[Measured]:
        """The seeds that could be trained."""
        return [seed for seed in self.seeds if not seed.failed]

    @property
    def selection_score(self) -> float:
        """The validation figure, mean over seeds; a point of which a seed failed is never chosen."""
        return (
            float(np.mean([seed.selection_score for seed in self.seeds]))
            if len(self.good) == len(self.seeds)
            else -math.inf
        )

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return float(np.std([seed.selection_score for seed in self.good], ddof=1)) if len(self.good) > 1 else None

    @property
    def js(self) -> Estimate | None:
        """Validation JS, the mean over seeds, with the largest of their errors."""
        known = [js for seed in self.good if (js := seed.js("validation")) is not None]
        if not known:
            return None
        return known[0]._replace(mean=float(np.mean([js.mean for js in known])), se=max(js.se for js in known))

    def to_dict(self) -> dict[str, Any]:
        """For `sweep.json`."""
        return {
            "settings": dict(self.point.settings),
            "validation": None if self.selection_score == -math.inf else self.selection_score,
            "spread": self.spread,
            "by_seed": [seed.failed or seed.selection_score for seed in self.seeds],
            "js": None if self.js is None else self.js.to_dict(),
            "weights": [seed.record["run"]["weights"] for seed in self.good],
            "epochs": [seed.epoch for seed in self.good],
            "arms": [seed.name for seed in self.seeds],
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
    def runs(self) -> list[Path]:
        """The folders of the chosen point's runs, one per seed."""
        return [] if self.chosen is None else [self.out / "runs" / seed.name for seed in self.chosen.seeds]

    @property
    def test(self) -> Pooled | None:
        """The chosen policy on the test split."""
        return None if self.chosen is None else Pooled(self.chosen.point.name or self.objective, self.chosen.seeds)

    def summary(self) -> str:
        """How many points, and the one chosen."""
        text = f"{self.objective} at {len(self.tried)} points"
        if self.chosen is None:
            return f"{text}; none within JS {self.max_js:g}"
        point, score = self.chosen.point.name or self.objective, self.chosen.selection_score
        return f"{text}; chosen: {point} ({self.select} {score:.4f} on validation)"

    def to_arrow(self) -> pa.Table:
        """One row per point: its settings, the validation figure, its JS, and whether it was chosen."""
        return pa.Table.from_pylist(
            [
                {
                    **dict(tried.point.settings),
                    "validation": None if tried.selection_score == -math.inf else tried.selection_score,
                    "spread": tried.spread,
                    "JS": None if tried.js is None else tried.js.mean,
                    "JS se": None if tried.js is None else tried.js.se,
                    "chosen": self.chosen is not None and tried.point == self.chosen.point,
                }
                for tried in self.tried
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """For `sweep.json`."""
        return {
            "objective": self.objective,
            "data": self.data,
            "search": self.search,
            "select": self.select,
            "seeds": list(range(self.seeds)),
            "references": self.references,
            "floor": None if self.floor is None else {split: value.to_dict() for split, value in self.floor.items()},
            "max_js": self.max_js,
            "points": {each.point.name: each.to_dict() for each in self.tried},
            "chosen": None if self.chosen is None else self.chosen.point.name,
            "runs": [str(run.relative_to(self.out)) for run in self.runs],
            "test": None if self.chosen is None else {seed.name: seed.to_dict("test") for seed in self.chosen.seeds},
        }


def best_within(tried: Sequence[Tried], max_js: float | None) -> Tried | None:
    """The largest validation figure within the budget."""
    within = [
        point
        for point in tried
        if point.selection_score > -math.inf and (max_js is None or (point.js is not None and point.js.mean <= max_js))
    ]
    return max(within, key=lambda point: point.selection_score, default=None)
