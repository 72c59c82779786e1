"""Table 3: seven policies on click-and-purchase logs, by the paper's recipe; and its figures: LPI over β and over λ.

One seed picks the hyperparameters, by r_p nDCG_p@20 + r_c nDCG_c@20 on validation; further seeds are trained at the
chosen point alone, and the test split is read there alone. What the paper leaves open is decided here, and said with
the table: the grids of β and λ, and which μ̂ divergences are taken from (two of other seeds, with the floor between).

Rows of ours may stand beside the paper's (`Recipe.ours`). The paper's claims, stars and bold figures are of its own
seven rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from localpolicy.judge.leads import Bucket, Lead, breakdown, column_leads
from localpolicy.measure.estimate import Estimate, as_json, finite
from localpolicy.study.arms import Arm, Study
from localpolicy.study.grid import Point
from localpolicy.study.measured import Measured, Pooled, seed_mean
from localpolicy.study.paper.data import DataSet
from localpolicy.study.paper.recipe import (
    LABELS,
    METRICS,
    TUNED,
    Published,
    Recipe,
    check,
    published_table3,
    references,
)

COLUMNS, EVENTS = METRICS, ("purchase", "click")


@dataclass(frozen=True)
class Row:
    """One policy of the table: its grid, the point chosen, and its figures over seeds there."""

    objective: str
    grid: dict[str, Measured]  # by point
    chosen: str
    pooled: Pooled

    @property
    def label(self) -> str:
        """The policy, with its hyperparameters."""
        greek = self.chosen.replace("beta=", "β=").replace("td_weight=", "λ=")
        return f"{LABELS[self.objective]} ({greek.replace(' ', ', ')})" if greek else LABELS[self.objective]

    @cached_property
    def js(self) -> Estimate | None:
        """Distance from the references."""
        return self.pooled.js()

    @property
    def improvements(self) -> list[dict[str, Any]]:
        """How β was chosen and how far the critic was believed, of each seed in closed form."""
        return [about for seed in self.pooled.seeds if (about := seed.record["run"].get("improvement")) is not None]

    @property
    def truths(self) -> list[dict[str, Any]]:
        """J(π) and J(μ) of each seed, where they were measured."""
        return [seed.truth for seed in self.pooled.seeds if seed.truth is not None]

    @property
    def truth(self) -> float | None:
        """J(π), the mean over seeds."""
        return float(np.mean([truth["value"] for truth in self.truths])) if self.truths else None

    def to_dict(self) -> dict[str, Any]:
        """For `table3.json`."""
        return {
            "objective": self.objective,
            "chosen": self.chosen,
            "grid": {
                point: {"failed": measured.failed}
                if measured.failed
                else {
                    "validation": measured.selection_score,
                    "js": as_json(measured.js("validation")),
                    "epoch": measured.epoch,
                    "truth": measured.truth,
                }
                for point, measured in self.grid.items()
            },
            "seeds": [int(seed.record["run"]["seed"]) for seed in self.pooled.seeds],
            "test": {name: as_json(self.pooled.estimate(name)) for name in COLUMNS},
            "by_seed": {name: self.pooled.by_seed(name) for name in COLUMNS},
            "js": as_json(self.js),
            "js_by_seed": [as_json(seed.js("test")) for seed in self.pooled.seeds],
            "entropy": self.pooled.by_seed("entropy"),
            "coverage@20": self.pooled.by_seed("coverage@20"),
            "weights": [seed.record["run"]["weights"] for seed in self.pooled.seeds],
            "truth": self.truths,
            **({"improvement": self.improvements} if self.improvements else {}),
            "seconds": [seed.record["run"]["seconds"] for seed in self.pooled.seeds],
        }


@dataclass(frozen=True)
class Table3:
    """The table of one data set, whole or as far as it has come."""

    data: DataSet
    recipe: Recipe
    rows: list[Row]
    floor: dict[str, Estimate] | None
    missing: list[str]  # arms that are still to be trained
    failed: dict[str, str]  # policies of which nothing could be trained, and why
    ours: list[Row] = field(default_factory=list)  # not the paper's

    @cached_property
    def leads(self) -> dict[str, Lead]:
        """By column: the best against the second."""
        return column_leads([row.pooled for row in self.rows], COLUMNS)

    @property
    def published(self) -> dict[str, dict[str, Published]]:
        """The paper's figures for this data, or for the data this imitates."""
        return published_table3(self.data.source)

    @property
    def length(self) -> int:
        """Actions of a sequence that count."""
        return self.recipe.config("mle", Point(), 0).data.length

    def row(self, objective: str) -> Row | None:
        """One policy's row, where it is done."""
        return next((row for row in (*self.rows, *self.ours) if row.objective == objective), None)

    def breakdown(self, event: str) -> list[Bucket]:
        """Sequence-level nDCG@20 of SQN, SAC and LPI by number of events."""
        shown = [row.pooled for row in self.rows if row.objective in TUNED]
        return breakdown(shown, event) if shown else []

    def distance(self, objective: str, name: str) -> float | None:
        """(ours - published) in standard errors of the difference; None unless the data is the paper's."""
        row, there = self.row(objective), self.published.get(objective, {}).get(name)
        if row is None or there is None or not self.data.original:
            return None
        return there.distance(row.js if name == "JS" else row.pooled.estimate(name))

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "data": self.data.to_dict(),
            "recipe": self.recipe.to_dict(),
            "policies": {row.objective: row.to_dict() for row in self.rows},
            **({"ours": {row.objective: row.to_dict() for row in self.ours}} if self.ours else {}),
            "leads": as_json(self.leads),
            "floor": as_json(self.floor),
            "published": {
                policy: {
                    name: {"value": each.value, "se": finite(each.se), "distance": self.distance(policy, name)}
                    for name, each in figures.items()
                }
                for policy, figures in self.published.items()
            },
            "breakdown": {event: as_json(self.breakdown(event)) for event in EVENTS},
            "references": _references([*self.rows, *self.ours]),
            "missing": self.missing,
            "failed": self.failed,
        }


def _references(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every μ̂ that a row was measured against, by its weights: more than two where one was trained again."""
    by_weights = {each["weights"]: each for row in rows for seed in row.pooled.seeds for each in seed.record["against"]}
    return list(by_weights.values())


def table3(data: DataSet, study: Study, recipe: Recipe) -> Table3:
    """Train what is wanted and not there, and put the table together from all that is there."""
    check(data, recipe)
    study = replace(study, references=references(recipe))
    points = {objective: recipe.points(objective) for objective in (*recipe.policies, *recipe.ours)}

    def best(by_arm: Mapping[str, Measured]) -> dict[str, Point]:
        """The points that can be chosen by now."""
        every = {objective: best_point(recipe, objective, each, by_arm) for objective, each in points.items()}
        return {objective: point for objective, point in every.items() if point is not None}

    def further_seeds(by_arm: Mapping[str, Measured]) -> list[Arm]:
        return [
            recipe.arm(objective, point, seed)
            for objective, point in best(by_arm).items()
            for seed in range(1, recipe.seeds)
        ]

    # The largest grids come first, since further seeds wait for them. Policies without hyperparameters have nothing to
    # choose: all their seeds are trained beside; ours before the paper's, since the closed form takes longest.
    grids = sorted(points.items(), key=lambda each: (-len(each[1]), each[0] not in recipe.ours))
    first = [recipe.arm(objective, point, 0) for objective, each in grids for point in each]
    first += [
        recipe.arm(objective, each[0], seed)
        for objective, each in grids
        if len(each) == 1
        for seed in range(1, recipe.seeds)
    ]
    by_arm = study.measure([*study.references, *first], then=further_seeds)
    missing, floor, chosen = study.stopped, study.floor(), best(by_arm)
    rows = {name: _row(recipe, name, points[name], point, by_arm) for name, point in chosen.items()}
    failed = {
        objective: next(iter(reasons))
        for objective, each in points.items()
        if objective not in chosen
        and (
            reasons := [
                measured.failed
                for point in each
                if (measured := _at(recipe, objective, point, by_arm)) and measured.failed
            ]
        )
        and len(reasons) == len(each)
    }
    theirs, ours = ([rows[name] for name in names if name in rows] for names in (recipe.policies, recipe.ours))
    return Table3(data, recipe, theirs, floor, missing, failed, ours)


def _at(recipe: Recipe, objective: str, point: Point, by_arm: Mapping[str, Measured]) -> Measured | None:
    return by_arm.get(recipe.arm(objective, point, 0).name)


def best_point(recipe: Recipe, objective: str, points: Sequence[Point], by_arm: Mapping[str, Measured]) -> Point | None:
    """The point with the largest validation figure; None until the whole grid is there, or where all of it failed."""
    measured = [_at(recipe, objective, point, by_arm) for point in points]
    if None in measured:
        return None
    selection_score = [-np.inf if each is None or each.failed else each.selection_score for each in measured]
    return points[int(np.argmax(selection_score))] if max(selection_score) > -np.inf else None


def _row(recipe: Recipe, objective: str, points: Sequence[Point], point: Point, by_arm: dict[str, Measured]) -> Row:
    every = [by_arm.get(recipe.arm(objective, point, seed).name) for seed in range(recipe.seeds)]
    seeds = [seed for seed in every if seed is not None and not seed.failed]
    measured = {
        each.name: at_point for each in points if (at_point := _at(recipe, objective, each, by_arm)) is not None
    }
    return Row(objective, measured, point.name, Pooled(LABELS[objective], seeds))


# ---------------------------------------------------------------------- the figures


SYMBOLS = {"beta": "β", "td_weight": "λ"}


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
        """Mean over seeds and standard error of a series on validation: JS, or nDCG@20 of an event."""
        if series == "JS":
            over = seed_mean([js for seed in seeds if (js := seed.js("validation")) is not None])
        else:
            over = seed_mean([seed.estimate(f"{series}.nDCG@20", "validation") for seed in seeds])
        return over.mean, over.se

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "data": self.data.to_dict(),
            "over": self.key,
            "fast": self.fast,
            "floor": as_json(self.floor and self.floor["validation"]),
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
    check(data, recipe, splits=("validation",))
    study = replace(study, references=references(recipe))
    values = recipe.betas if key == "beta" else recipe.lambdas
    arms = {
        value: [recipe.arm("lpi_rl", _dial_point(key, value), seed) for seed in range(recipe.seeds)]
        for value in sorted(values)
    }
    measured = study.measure_each(arms)
    missing, floor = study.stopped, study.floor()
    points = {value: good for value, each in measured.items() if (good := [seed for seed in each if not seed.failed])}
    failed = {seed.name: seed.failed for each in measured.values() for seed in each if seed.failed}
    return DialFigure(data, key, points, floor, missing, failed, recipe.fast)


def _dial_point(key: str, value: float) -> Point:
    settings = {"beta": "1", "td_weight": "1"} | {key: f"{value:g}"}
    return Point(tuple((f"objective.{name}", text) for name, text in settings.items()))
