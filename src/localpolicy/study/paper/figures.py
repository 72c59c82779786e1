"""The paper's figures: LPI over β, over λ, and where gains come from.

The first two show the validation split, as the paper's do. The third is drawn on the test split: points were chosen on
validation, whose figures therefore flatter whoever had the larger grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from localpolicy.measure.estimate import Estimate
from localpolicy.study.arms import Study
from localpolicy.study.grid import Point
from localpolicy.study.measured import Measured
from localpolicy.study.paper.inputs import DataSet
from localpolicy.study.paper.recipe import Recipe, check, references

SYMBOLS = {"beta": "β", "td_weight": "λ"}
EVENTS = ("purchase", "click")


@dataclass(frozen=True)
class DialFigure:
    """LPI over one hyperparameter, the other held at 1."""

    data: DataSet
    key: str  # beta or td_weight
    points: dict[float, list[Measured]]  # by value, seeds
    floor: dict[str, Estimate] | None
    missing: list[str]
    failed: dict[str, str]  # arms that could not be trained, and why
    fast: bool

    def figure(self, seeds: Sequence[Measured], series: str) -> tuple[float, float]:
        """Mean over seeds and standard error of a series on validation."""
        estimates = []
        for seed in seeds:
            content = seed.to_dict("validation")
            estimates.append(content["divergence"]["js"] if series == "JS" else content["metrics"][series]["nDCG@20"])
        return float(np.mean([estimate["mean"] for estimate in estimates])), float(
            np.max([estimate["se"] for estimate in estimates])
        )

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "data": self.data.to_dict(),
            "over": self.key,
            "fast": self.fast,
            "floor": None if self.floor is None else self.floor["validation"].to_dict(),
            "points": {
                f"{value:g}": {
                    name: dict(zip(("mean", "se"), self.figure(seeds, name), strict=True)) for name in (*EVENTS, "JS")
                }
                | {"seeds": len(seeds)}
                for value, seeds in self.points.items()
            },
            "missing": self.missing,
            "failed": self.failed,
        }


def dial_figure(data: DataSet, study: Study, recipe: Recipe, key: str) -> DialFigure:
    """LPI at every value of `key`, the other at 1; arms are those of Table 3 where it was made in the same folder."""
    check(data, recipe)
    study = replace(study, references=references(recipe))
    values = recipe.betas if key == "beta" else recipe.lambdas
    arms = {
        value: [recipe.arm("lpi_rl", _point(key, value), seed) for seed in range(recipe.seeds)]
        for value in sorted(values)
    }
    by_arm = study.measure([*study.references, *(arm for each in arms.values() for arm in each)])
    missing, floor = study.stopped, study.floor()
    points = {
        value: good
        for value, each in arms.items()
        if (good := [measured for arm in each if (measured := by_arm.get(arm.name)) and not measured.failed])
    }
    failed = {name: measured.failed for name, measured in by_arm.items() if measured.failed}
    return DialFigure(data, key, points, floor, missing, failed, recipe.fast)


def _point(key: str, value: float) -> Point:
    settings = {"beta": "1", "td_weight": "1"} | {key: f"{value:g}"}
    return Point(tuple((f"objective.{name}", text) for name, text in settings.items()))
