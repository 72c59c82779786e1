"""Table 3: seven policies on click-and-purchase logs, by the paper's recipe.

One seed picks the hyperparameters, by r_p nDCG_p@20 + r_c nDCG_c@20 on validation; further seeds are trained at the
chosen point alone, and the test split is read there alone. What the paper leaves open is decided here, and said with
the table: the grids of β and λ, and which μ̂ divergences are taken from (two of other seeds, with the floor between).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from localpolicy.evaluate.breakdown import Bucket, breakdown
from localpolicy.evaluate.figures import Figure, finite
from localpolicy.evaluate.tables import Cell, Table, number
from localpolicy.experiments.arms import Arm, Measured, Pooled, Study
from localpolicy.experiments.grid import Axis, Point, grid
from localpolicy.experiments.paper import published
from localpolicy.experiments.paper.inputs import DataSet
from localpolicy.train.config import PRESETS, Config
from localpolicy.verdict.compare import Lead, leads
from localpolicy.vocabulary.errors import ConfigError, DataError, nearest

POLICIES = {  # as the paper calls them, in its order
    "mle": "μ̂",
    "reward_weighted": "𝓛_μ",
    "pg": "PG",
    "ips_pg": "IPS-PG",
    "sqn": "SQN",
    "sac": "SAC",
    "lpi_rl": "LPI",
}
TUNED = {"sqn": ("td_weight",), "sac": ("td_weight",), "lpi_rl": ("beta", "td_weight")}
SELECT = "1.0*purchase.nDCG@20 + 0.2*click.nDCG@20"
REFERENCE_SEEDS = (101, 102)  # of the μ̂ that divergences are taken from: never a policy's own seed
COLUMNS = published.METRICS


@dataclass(frozen=True)
class Recipe:
    """What decides the table, data aside."""

    betas: tuple[float, ...] = (0.1, 0.3, 1.0)
    lambdas: tuple[float, ...] = (0.3, 1.0, 3.0)
    seeds: int = 3
    policies: tuple[str, ...] = tuple(POLICIES)
    changes: tuple[str, ...] = ()  # of the preset, as key=value
    device: str = "auto"
    fast: bool = False

    def config(self, objective: str, point: Point, seed: int) -> Config:
        """One arm's configuration: the paper's, and what was changed."""
        preset = {group: dict(settings) for group, settings in PRESETS["rl"].items()}
        preset["train"] |= {"select": SELECT, "min_history": 0}
        fixed = [f"objective.name={objective}", f"train.seed={seed}", f"train.device={self.device}"]
        return point.apply(Config.parse(preset).with_changes([*self.changes, *fixed]))

    def arm(self, objective: str, point: Point, seed: int) -> Arm:
        """One policy at one point and seed."""
        words = [objective, *(f"{key.rpartition('.')[2]}={value}" for key, value in point.settings), f"seed={seed}"]
        return Arm("-".join(words), self.config(objective, point, seed))

    def points(self, objective: str) -> list[Point]:
        """The grid of one policy: a single point where it has no hyperparameter."""
        values = {"beta": self.betas, "td_weight": self.lambdas}
        return grid(
            [Axis(f"objective.{key}", tuple(f"{value:g}" for value in values[key])) for key in TUNED.get(objective, ())]
        )

    def json(self) -> dict[str, Any]:
        """For `table3.json`."""
        return {
            "fast": self.fast,
            "grid": {"beta": list(self.betas), "td_weight": list(self.lambdas)},
            "seeds": list(range(self.seeds)),
            "reference_seeds": list(REFERENCE_SEEDS),
            "select": SELECT,
            "changes": list(self.changes),
        }


# A small honest version: fewer epochs and points, one seed. It shows that the recipe runs, and little else.
FAST = Recipe(betas=(0.3, 1.0), lambdas=(1.0,), seeds=1, changes=("train.epochs=6",), fast=True)


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
        return f"{POLICIES[self.objective]} ({greek.replace(' ', ', ')})" if greek else POLICIES[self.objective]

    def json(self) -> dict[str, Any]:
        """For `table3.json`."""
        js = self.pooled.js()
        return {
            "objective": self.objective,
            "chosen": self.chosen,
            "grid": {
                point: {"failed": one.failed}
                if one.failed
                else {"validation": one.worth, "js": _json(one.js("validation")), "epoch": _epoch(one)}
                for point, one in self.grid.items()
            },
            "seeds": [int(one.about["run"]["seed"]) for one in self.pooled.seeds],
            "test": {name: self.pooled.figure(name).json() for name in COLUMNS},
            "by_seed": {name: self.pooled.by_seed(name) for name in COLUMNS},
            "js": _json(js),
            "js_by_seed": [_json(one.js("test")) for one in self.pooled.seeds],
            "entropy": [one.json("test")["policy"]["entropy"]["mean"] for one in self.pooled.seeds],
            "coverage@20": [one.json("test")["policy"]["coverage@20"] for one in self.pooled.seeds],
            "weights": [one.about["run"]["weights"] for one in self.pooled.seeds],
            "truth": [one.about["truth"] for one in self.pooled.seeds if "truth" in one.about],
            "seconds": [one.about["run"]["seconds"] for one in self.pooled.seeds],
        }


def _json(value: Figure | None) -> Any:
    return None if value is None else value.json()


def _epoch(one: Measured) -> int:
    return int(one.about["run"]["selected"]["epoch"])


@dataclass(frozen=True)
class Table3:
    """The table of one data set, whole or as far as it has come."""

    data: DataSet
    recipe: Recipe
    rows: list[Row]
    floor: dict[str, Figure] | None
    missing: list[str]  # arms that are still to be trained
    failed: dict[str, str]  # policies of which nothing could be trained, and why

    @cached_property
    def leads(self) -> dict[str, Lead]:
        """By column: the best against the second."""
        return leads([row.pooled for row in self.rows], COLUMNS)

    @property
    def published(self) -> dict[str, dict[str, published.Published]]:
        """The paper's figures for this data, or for the data this imitates."""
        return published.table3(self.data.source)

    def row(self, objective: str) -> Row | None:
        """One policy's row, where it is done."""
        return next((row for row in self.rows if row.objective == objective), None)

    def breakdown(self, event: str) -> list[Bucket]:
        """Sequence-level nDCG@20 of SQN, SAC and LPI by number of events."""
        shown = [row.pooled for row in self.rows if row.objective in ("sqn", "sac", "lpi_rl")]
        return breakdown(shown, event) if shown else []

    def distance(self, objective: str, name: str) -> float | None:
        """(ours - published) in standard errors of the difference; None unless the data is the paper's."""
        row, there = self.row(objective), self.published.get(objective, {}).get(name)
        if row is None or there is None or not self.data.original:
            return None
        ours = row.pooled.js() if name == "JS" else row.pooled.figure(name)
        if ours is None:
            return None
        error = math.hypot(ours.plain_se, there.se)
        return (ours.mean - there.value) / error if error > 0 else None

    def json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "data": {
                "name": self.data.name,
                "source": self.data.source,
                "original": self.data.original,
                "digest": self.data.data.digest,
                "counts": self.data.data.manifest["counts"],
            },
            "recipe": self.recipe.json(),
            "policies": {row.objective: row.json() for row in self.rows},
            "leads": {column: lead.json() for column, lead in self.leads.items()},
            "floor": None if self.floor is None else {name: value.json() for name, value in self.floor.items()},
            "published": {
                policy: {
                    name: {
                        "value": figure.value,
                        "se": finite(figure.se),
                        "distance": self.distance(policy, name),
                    }
                    for name, figure in figures.items()
                }
                for policy, figures in self.published.items()
            },
            "breakdown": {event: [one.json() for one in self.breakdown(event)] for event in ("purchase", "click")},
            "references": _references(self.rows),
            "missing": self.missing,
            "failed": self.failed,
        }

    def tables(self) -> list[Table]:
        """The paper's table, and how its points were chosen."""
        return [self.table(), self.choices()]

    def table(self) -> Table:
        """Policies by figures, the paper's under each."""
        heads = [f"{'p' if name.startswith('purchase') else 'c'}.{name.partition('.')[2]}" for name in COLUMNS]
        rows = []
        for row in self.rows:
            rows.append([Cell(row.label), *(self._cell(row, name) for name in COLUMNS), self._js(row)])
            there = self.published.get(row.objective)
            if there:
                texts = [number(there[name].value, 3) if name in there else "—" for name in (*COLUMNS, "JS")]
                rows.append([Cell("  published"), *map(Cell, texts)])
            if there and self.data.original:
                apart = [self.distance(row.objective, name) for name in (*COLUMNS, "JS")]
                rows.append([Cell("  difference / s.e."), *(Cell("—" if z is None else f"{z:+.1f}") for z in apart)])
        return Table(f"Table 3: {self.data.name}", ["policy", *heads, "JS"], rows, self._note())

    def _cell(self, row: Row, name: str) -> Cell:
        lead = self.leads.get(name)
        best = lead is not None and lead.best == row.pooled.name
        return Cell(number(row.pooled.figure(name).mean, 3), best, lead.stars if lead is not None and best else "")

    def _js(self, row: Row) -> Cell:
        js = row.pooled.js()
        largest = max((one.mean for each in self.rows if (one := each.pooled.js()) is not None), default=math.nan)
        return Cell(number(None if js is None else js.mean, 3), js is not None and js.mean == largest)

    def _note(self) -> str:
        parts = [self.data.about]
        if self.recipe.fast:
            parts.insert(0, "FAST VERSION: few epochs, a small grid, one seed; its figures say that the recipe runs.")
        if self.missing:
            parts.append(f"NOT COMPLETE: {len(self.missing)} arms are still to be trained.")
        parts += [f"{POLICIES[name]} could not be trained: {reason}" for name, reason in self.failed.items()]
        if not self.rows:
            return " ".join(parts)
        for event in ("purchase", "click"):
            errors = [row.pooled.figure(name) for row in self.rows for name in COLUMNS if name.startswith(event)]
            parts.append(
                f"{event}: largest standard error {max(one.plain_se for one in errors):.4f} over positions (the "
                f"paper's), {max(one.se for one in errors):.4f} clustered by sequence."
            )
        counts = {len(row.pooled.seeds) for row in self.rows}
        over = f"{max(counts)} seeds" if max(counts) > 1 else "one seed"
        fewer = "" if len(counts) == 1 else f" (some rows: {min(counts)})"
        parts.append(
            f"Test split, every position of the latest 20, first actions included; means over {over}{fewer}. Stars: "
            "largest against second largest, paired t-test by sequence, Holm-corrected over columns."
        )
        if self.floor is not None:
            seeds = " and ".join(map(str, REFERENCE_SEEDS))
            parts.append(f"JS from μ̂ of seeds {seeds}; between these two: {self.floor['test'].mean:.3f} (the floor).")
        if self.published and not self.data.original:
            parts.append(
                "Published figures stand here as context alone: they belong to other data, and a difference from them "
                "means nothing."
            )
        return " ".join(parts)

    def choices(self) -> Table:
        """The validation figure at each point of the grids."""
        rows = []
        for row in self.rows:
            for point, one in row.grid.items():
                mark = "chosen" if point == row.chosen else ""
                if one.failed:
                    rows.append([Cell(POLICIES[row.objective]), Cell(point or "—"), Cell("failed"), *[Cell("—")] * 3])
                    continue
                js = one.js("validation")
                rows.append(
                    [
                        Cell(POLICIES[row.objective]),
                        Cell(point or "—"),
                        Cell(number(one.worth), best=bool(mark)),
                        Cell(number(None if js is None else js.mean, 3)),
                        Cell(f"{_epoch(one)} of {one.about['run']['epochs']}"),
                        Cell(mark),
                    ]
                )
        note = f"Seed 0, validation split. Chosen: the largest {SELECT}, which also picked each epoch."
        columns = ["policy", "point", "validation", "JS", "epoch", ""]
        return Table(f"How the points were chosen: {self.data.name}", columns, rows, note)


def _references(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every μ̂ that a row was measured against, by its weights: more than two where one was trained again."""
    found = {each["weights"]: each for row in rows for one in row.pooled.seeds for each in one.about["against"]}
    return list(found.values())


def references(recipe: Recipe) -> list[Arm]:
    """Two μ̂ of other seeds."""
    return [recipe.arm("mle", Point(), seed) for seed in REFERENCE_SEEDS]


def table3(data: DataSet, study: Study, recipe: Recipe) -> Table3:
    """Train what is wanted and not there, and put the table together from all that is there."""
    check(data, recipe)
    study = replace(study, references=references(recipe))
    floor = study.floor()
    points = {objective: recipe.points(objective) for objective in recipe.policies}
    # Policies without hyperparameters have nothing to choose: all their seeds can be trained at once.
    first = [recipe.arm(objective, point, 0) for objective, each in points.items() for point in each]
    first += [
        recipe.arm(objective, each[0], seed)
        for objective, each in points.items()
        if len(each) == 1
        for seed in range(1, recipe.seeds)
    ]
    found = study.measure(first)
    missing = list(study.stopped)
    chosen = {
        objective: best
        for objective, each in points.items()
        if (best := _best(recipe, objective, each, found)) is not None
    }
    rest = [
        arm
        for objective, point in chosen.items()
        for seed in range(1, recipe.seeds)
        if (arm := recipe.arm(objective, point, seed)) not in first
    ]
    found |= study.measure(rest)
    missing += study.stopped
    rows = [_row(recipe, objective, points[objective], point, found) for objective, point in chosen.items()]
    failed = {
        objective: next(iter(reasons))
        for objective, each in points.items()
        if objective not in chosen
        and (reasons := [one.failed for point in each if (one := _at(recipe, objective, point, found)) and one.failed])
        and len(reasons) == len(each)
    }
    return Table3(data, recipe, rows, floor, missing, failed)


def check(data: DataSet, recipe: Recipe) -> None:
    """Refuse what the table cannot be made of."""
    for name in recipe.policies:
        if name not in POLICIES:
            raise ConfigError(f"--only: no policy '{name}'{nearest(name, POLICIES)}")
    lacking = [event for event in ("purchase", "click") if not data.data.manifest["counts"]["events"].get(event)]
    if lacking:
        found = ", ".join(data.data.events)
        raise DataError(
            f"{data.data.path} has no {' and no '.join(lacking)} (its events: {found}): Table 3 needs both."
        )
    if recipe.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {recipe.seeds}.")


def _at(recipe: Recipe, objective: str, point: Point, found: dict[str, Measured]) -> Measured | None:
    return found.get(recipe.arm(objective, point, 0).name)


def _best(recipe: Recipe, objective: str, points: Sequence[Point], found: dict[str, Measured]) -> Point | None:
    """The point with the largest validation figure; None until the whole grid is there, or where all of it failed."""
    measured = [_at(recipe, objective, point, found) for point in points]
    if any(one is None for one in measured):
        return None
    worth = [-np.inf if one is None or one.failed else one.worth for one in measured]
    return points[int(np.argmax(worth))] if max(worth) > -np.inf else None


def _row(recipe: Recipe, objective: str, points: Sequence[Point], point: Point, found: dict[str, Measured]) -> Row:
    every = [found.get(recipe.arm(objective, point, seed).name) for seed in range(recipe.seeds)]
    seeds = [one for one in every if one is not None and not one.failed]
    measured = {each.name: one for each in points if (one := _at(recipe, objective, each, found)) is not None}
    return Row(objective, measured, point.name, Pooled(POLICIES[objective], seeds))
