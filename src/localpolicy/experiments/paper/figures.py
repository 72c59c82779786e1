"""The paper's figures: LPI over β, over λ, and where gains come from.

The first two show the validation split, as the paper's do. The third is drawn on the test split: points were chosen on
validation, whose figures therefore flatter whoever had the larger grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from localpolicy.evaluate.figures import Figure
from localpolicy.evaluate.tables import Cell, Table, with_error
from localpolicy.experiments.arms import Study
from localpolicy.experiments.grid import Point
from localpolicy.experiments.jobs import Say
from localpolicy.experiments.measured import Measured
from localpolicy.experiments.paper.inputs import DataSet
from localpolicy.experiments.paper.recipe import POLICIES, TUNED, Recipe, check, references
from localpolicy.experiments.paper.table3 import Table3
from localpolicy.report.contents import Interval
from localpolicy.report.numbers import ends
from localpolicy.report.pictures import MISSING, can_draw, write_picture
from localpolicy.verdict.comparison_pages import bucket_cell

SYMBOLS = {"beta": "β", "td_weight": "λ"}
EVENTS = ("purchase", "click")


@dataclass(frozen=True)
class DialFigure:
    """LPI over one hyperparameter, the other held at 1."""

    data: DataSet
    key: str  # beta or td_weight
    points: dict[float, list[Measured]]  # by value, seeds
    floor: dict[str, Figure] | None
    missing: list[str]
    failed: dict[str, str]  # arms that could not be trained, and why
    fast: bool

    def figure(self, seeds: Sequence[Measured], series: str) -> tuple[float, float]:
        """Mean over seeds and standard error of a series on validation."""
        found = []
        for one in seeds:
            content = one.json("validation")
            found.append(content["divergence"]["js"] if series == "JS" else content["metrics"][series]["nDCG@20"])
        return float(np.mean([one["mean"] for one in found])), float(np.max([one["se"] for one in found]))

    def json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "data": self.data.json(),
            "over": self.key,
            "fast": self.fast,
            "floor": None if self.floor is None else self.floor["validation"].json(),
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

    def table(self) -> Table:
        """The numbers behind the picture."""
        symbol = SYMBOLS[self.key]
        rows = [
            [Cell(f"{symbol}={value:g}"), *(Cell(with_error(*self.figure(seeds, name))) for name in (*EVENTS, "JS"))]
            for value, seeds in self.points.items()
        ]
        other = next(mark for key, mark in SYMBOLS.items() if key != self.key)
        floor = "" if self.floor is None else f" Noise floor of JS: {self.floor['validation'].mean:.4f}."
        fast = "FAST VERSION. " if self.fast else ""
        incomplete = f" NOT COMPLETE: {len(self.missing)} arms are still to be trained." if self.missing else ""
        failed = "".join(f" {name} could not be trained: {reason}" for name, reason in self.failed.items())
        about = f"LPI at {other}=1, validation split; errors by sequence."
        note = f"{fast}{self.data.about} {about}{floor}{incomplete}{failed}"
        heads = [symbol, "purchase nDCG@20", "click nDCG@20", "JS"]
        return Table(f"LPI over {symbol}: {self.data.name}", heads, rows, note)

    def spec(self) -> dict[str, Any]:
        """The picture."""
        from localpolicy.report.paper_figures import dial

        points = []
        for value, seeds in self.points.items():
            for name in (*EVENTS, "JS"):
                mean, se = self.figure(seeds, name)
                low, high = ends(Interval.of(mean, se), "JS" if name == "JS" else "nDCG@20")
                points.append({"x": value, "series": name, "y": mean, "low": low, "high": high})
        floor = None if self.floor is None else self.floor["validation"].mean
        return dial(points, symbol=SYMBOLS[self.key], floor=floor, title=_title(self.data, self.fast))


def dial_figure(data: DataSet, study: Study, recipe: Recipe, key: str) -> DialFigure:
    """LPI at every value of `key`, the other at 1; arms are those of Table 3 where it was made in the same folder."""
    check(data, recipe)
    study = replace(study, references=references(recipe))
    values = recipe.betas if key == "beta" else recipe.lambdas
    arms = {
        value: [recipe.arm("lpi_rl", _point(key, value), seed) for seed in range(recipe.seeds)]
        for value in sorted(values)
    }
    floor = study.floor()
    found = study.measure([arm for each in arms.values() for arm in each])
    points = {
        value: good
        for value, each in arms.items()
        if (good := [one for arm in each if (one := found.get(arm.name)) is not None and not one.failed])
    }
    failed = {name: one.failed for name, one in found.items() if one.failed}
    return DialFigure(data, key, points, floor, study.stopped, failed, recipe.fast)


def _point(key: str, value: float) -> Point:
    settings = {"beta": "1", "td_weight": "1"} | {key: f"{value:g}"}
    return Point(tuple((f"objective.{name}", text) for name, text in settings.items()))


def breakdown_tables(table: Table3) -> list[Table]:
    """nDCG@20 per sequence by number of events: the numbers behind the picture."""
    found = []
    for event in EVENTS:
        buckets = table.breakdown(event)
        names = list(buckets[0].means) if buckets else []
        rows = [[Cell(name), *(bucket_cell(bucket, name) for bucket in buckets)] for name in names]
        heads = [f"{bucket.label} (n={next(iter(bucket.means.values())).n:,})" for bucket in buckets]
        fast = "FAST VERSION. " if table.recipe.fast else ""
        note = (
            f"{fast}{table.data.about} Test split, means over sequences. Stars: the largest against the second, "
            "paired t-test (* .05, ** .01, *** .001), as in the paper."
        )
        found.append(Table(f"nDCG@20 by number of {event}s: {table.data.name}", ["policy", *heads], rows, note))
    return found


def breakdown_spec(table: Table3) -> dict[str, Any]:
    """The picture."""
    from localpolicy.report.paper_figures import bars

    rows = [
        {
            "event": event,
            "bucket": bucket.label.removeprefix(f"{event} "),
            "n": one.n,
            "place": place,
            "policy": name,
            "y": one.mean,
            **dict(zip(("low", "high"), ends(_interval(one), "nDCG@20"), strict=True)),
            "stars": bucket.stars if bucket.best == name else "",
        }
        for event in EVENTS
        for place, bucket in enumerate(table.breakdown(event))
        for name, one in bucket.means.items()
    ]
    policies = [POLICIES[name] for name in TUNED if table.row(name) is not None]
    return bars(rows, policies=policies, title=_title(table.data, table.recipe.fast))


def _interval(one: Figure) -> Interval:
    """Student's over the sequences of a bucket, which may be few; none of a single one."""
    reach = float(stats.t.ppf(0.975, one.n - 1)) * one.se if one.n > 1 else 0.0
    return Interval(one.mean, one.mean - reach, one.mean + reach)


def _title(data: DataSet, fast: bool) -> str:
    return f"{data.name}: FAST VERSION" if fast else data.name


def draw(spec: Callable[[], dict[str, Any]], out: Path, name: str, *, say: Say) -> list[Path]:
    """SVG and PNG; a line where nothing can be drawn. `spec` is called only where it can."""
    if not can_draw():
        say(MISSING)
        return []
    content = spec()
    return [write_picture(content, out / f"{name}.{form}") for form in ("svg", "png")]
