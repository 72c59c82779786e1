"""The paper's tables 1 and 3, and its figures of LPI over β and over λ: each is rows of policies, measured over seeds.

Table 1 is the contextual bandit on ratings (section 4.1). iAR@1 believes a factorisation about every film that a user
did not rate, and likes collapse: entropy and the number of films that are ever shown first stand next to it.

Table 3 is of seven policies on clicks and purchases (section 4.2). One seed picks the hyperparameters, on validation by
the rule that keeps epochs; further seeds are trained at the chosen point alone, and the test split is read there alone.
What the paper leaves open is decided here, and noted with the table: the grids of β and λ, and which μ̂ divergences are
taken from (two of other seeds, with the floor between). Rows of ours may be added to the paper's (`Recipe.ours`): its
claims, stars and bold figures are of its own seven rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from localpolicy.measure.estimate import Estimate, as_json, finite
from localpolicy.measure.gains import Exchange, exchanges
from localpolicy.measure.imputation import imputation_at
from localpolicy.measure.significance import Bucket, Lead, Paired, breakdown, column_leads, paired_family
from localpolicy.reproduction.data_sets import DataSet
from localpolicy.reproduction.recipe import (
    BANDIT_LABELS,
    CURVES,
    EVENTS,
    LABELS,
    METRICS,
    SYMBOLS,
    TUNED,
    Published,
    Recipe,
    check,
    greek,
    published,
)
from localpolicy.study.arms import Arm, Study
from localpolicy.study.measured import Measured, Pooled, best_within
from localpolicy.study.settings import Point

REWARDS = ("AR@1", "iAR@1")
FIGURES, BESIDE = (*REWARDS, "JS"), ("entropy", "coverage@1")  # of Table 1, and what one must know to read it
DIALLED = (*(f"{event}.nDCG@20" for event in EVENTS), "JS")  # what is drawn over β and λ
REFERENCES = "references"  # key of the row of those that divergences are taken from
RIVAL = "sac"  # whose clicks a row that gives away none keeps


@dataclass(frozen=True)
class PaperTable:
    """A table or figure on one data set, complete or with the arms that are done."""

    data: DataSet
    recipe: Recipe
    figures: tuple[str, ...]
    rows: list[Pooled]
    floor: dict[str, Estimate] | None
    missing: list[str]  # arms that are still to be trained
    failed: dict[str, str]  # what could not be trained, and why
    published: Mapping[str, Mapping[str, Published]] = field(default_factory=dict)  # by row: what the paper printed
    ours: list[Pooled] = field(default_factory=list)  # not the paper's
    quality: dict[str, float] = field(default_factory=dict)  # of the imputation, on ratings held out of it
    over: str = ""  # the hyperparameter that a figure turns
    curves: Mapping[str, Sequence[Pooled]] = field(default_factory=dict)  # by policy: every point, over all seeds

    @property
    def split(self) -> str:
        """Split that the metrics were measured on."""
        return "validation" if self.over else "test"

    @property
    def _ranked(self) -> list[str]:
        """Figures whose values at test positions are kept."""
        return [] if self.over else [name for name in self.figures if "." in name]

    @cached_property
    def leads(self) -> dict[str, Lead]:
        """Paired test of the best against the second best policy, by column."""
        return column_leads(self.rows, self._ranked)

    def row(self, key: str) -> Pooled | None:
        """Row of one policy; None if it is not done."""
        return next((row for row in (*self.rows, *self.ours) if row.key == key), None)

    def both(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[Pooled, Pooled]]:
        """Pairs of rows for these pairs of policies, if both are done."""
        rows = ((self.row(upper), self.row(lower)) for upper, lower in pairs)
        return [(high, low) for high, low in rows if high is not None and low is not None]

    def differences(
        self, pairs: Iterable[tuple[str, str]], figures: Sequence[str]
    ) -> dict[tuple[str, str, str], Paired]:
        """Paired tests of pairs of policies by metric, Holm-corrected together; of metrics whose values were stored."""
        values = {
            (high.key, low.key, name): (high.values(name)[0], *low.values(name))
            for high, low in self.both(pairs)
            for name in figures
            if high.kept(name) and low.kept(name)
        }
        return paired_family(values)

    @cached_property
    def frontier(self) -> list[Exchange]:
        """Gains over μ̂ in purchases and clicks: rivals at their point, observed weights at every β.

        A point that lacks a seed is compared with μ̂ of the seeds it has.
        """
        base = self.row("mle")
        if base is None or self.over:
            return []
        points = list[Pooled]()
        for row in self.rows:
            if row is base or row.key in CURVES.values():
                continue
            curve = [replace(tried, name=row.name) for tried in self.curves.get(row.key, [row])]
            points += [replace(tried, name=label_of(tried), seeds=tried.good) for tried in curve]
        pairs = [_of_one_seed(point, base) for point in points]
        return exchanges([(point, there) for point, there in pairs if point.seeds], DIALLED[:2])

    def breakdown(self, event: str) -> list[Bucket]:
        """Sequence-level nDCG@20 of SQN, SAC and LPI by number of events."""
        shown = [row for row in self.rows if row.key in TUNED]
        return breakdown(shown, event) if shown else []

    def distance(self, key: str, figure: str) -> float | None:
        """(ours - published) in standard errors of the difference; None unless the data is the paper's."""
        row, there = self.row(key), self.published.get(key, {}).get(figure)
        if row is None or there is None or not self.data.original:
            return None
        ours = row.estimate(figure)
        error = math.hypot(ours.plain_se, there.se)
        return (ours.mean - there.value) / error if error > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Content of the JSON output: long table, how policies were trained, published numbers."""
        every = (*self.rows, *self.ours)
        against = [each for row in every for seed in row.seeds for each in seed.record["against"]]
        return {
            "data": self.data.to_dict(),
            "recipe": as_json(self.recipe),
            "policies": {row.key: _how(row) for row in every},
            "measurements": [
                {**as_json(line), "policy": row.key, "plain_se": finite(value.plain_se)}  # the paper's error
                for row in every
                for line, value in row.rows(self.figures, self.split)
            ],
            "leads": as_json(self.leads),
            "floor": as_json(self.floor),
            "published": {
                policy: {
                    name: {"value": each.value, "se": finite(each.se), "distance": self.distance(policy, name)}
                    for name, each in printed.items()
                }
                for policy, printed in self.published.items()
            },
            "frontier": as_json(self.frontier) if self._ranked else [],
            "breakdown": {event: as_json(self.breakdown(event)) for event in EVENTS} if self._ranked else {},
            "imputation": self.quality,
            # Every μ̂ that a row was measured against, by its weights: more than two where one was trained again.
            "references": list({each["weights"]: each for each in against}.values()),
            "missing": self.missing,
            "failed": self.failed,
        }


def _of_one_seed(row: Pooled, base: Pooled) -> tuple[Pooled, Pooled]:
    """Both rows, restricted to the seeds that they share."""
    shared = {seed.seed for seed in row.seeds} & {seed.seed for seed in base.seeds}
    alike = [replace(each, seeds=[seed for seed in each.seeds if seed.seed in shared]) for each in (row, base)]
    return alike[0], alike[1]


def label_of(row: Pooled) -> str:
    """Name of a policy with its chosen point: LPI (β=0.3, λ=1)."""
    return f"{row.name} ({greek(row.point.name).replace(' ', ', ')})" if row.point.name else row.name


def _how(row: Pooled) -> dict[str, Any]:
    """JSON content on how a policy was trained: chosen point, grid and seeds."""
    tried = {point.name: point.seeds[0] for point in row.grid}
    return {
        "label": label_of(row),
        "chosen": row.point.name,
        "grid": {name: {"failed": arm.failed} if arm.failed else _trained(arm) for name, arm in tried.items()},
        "seeds": [
            {"seed": arm.seed, **_trained(arm), "seconds": arm.record["run"]["seconds"]} for arm in row.seeds
        ],
    }  # fmt: skip


def _trained(arm: Measured) -> dict[str, Any]:
    run = arm.record["run"]
    return {
        "validation": arm.selection_score,
        "js": as_json(arm.estimate("JS", "validation")),
        "epoch": arm.epoch,
        "weights": run["weights"],
        "truth": arm.truth,
        **({"improvement": run["improvement"]} if "improvement" in run else {}),
    }


# ---------------------------------------------------------------------- made


def table1(data: DataSet, study: Study, recipe: Recipe) -> PaperTable:
    """Train and measure Table 1: as Table 3, but with a row for every β, since the paper shows them all."""
    folder = study.out / "imputation"
    imputation = imputation_at(folder, data.data)  # here, once: many processes read it
    search = _Search(replace(study, imputation=folder), recipe, recipe.policies, drawn=("lpi_cb",))
    rows = []
    for objective in recipe.policies:
        best = search.best(objective)
        every = search.points[objective] if objective == "lpi_cb" else [best.point] if best is not None else []
        for point in every:
            dial = f" {greek(point.name)}" if objective == "lpi_cb" else ""
            grid = search.grid(objective) if best is not None and point == best.point else []
            rows.append(search.row(objective, point, f"{BANDIT_LABELS[objective]}{dial}", f"{objective}{dial}", grid))
    about: dict[str, Any] = {"published": published(data.source, ratings=True), "quality": imputation.quality}
    failed = search.failed() | {name: each.failed for name, each in search.known.items() if each.failed}
    rows = [row for row in rows if row.seeds]
    references = [search.known[arm.name] for arm in recipe.references() if arm.name in search.known]
    about["ours"] = [Pooled("μ̂, the references", references, key=REFERENCES)] if references else []
    return PaperTable(data, recipe, (*FIGURES, *BESIDE), rows, search.floor, search.stopped, failed, **about)


def dial_figure(data: DataSet, study: Study, recipe: Recipe, key: str) -> PaperTable:
    """Train and measure LPI at every value of `key`, with the other hyperparameter at 1."""
    check(data, recipe, splits=("validation",))
    arms = {}
    for value in sorted(recipe.betas if key == "beta" else recipe.lambdas):
        settings = {"beta": "1", "td_weight": "1"} | {key: f"{value:g}"}
        point = Point(tuple((f"objective.{name}", text) for name, text in settings.items()))
        arms[f"{value:g}", f"{SYMBOLS[key]}={value:g}"] = recipe.arms("lpi_rl", point)
    return _each(data, study, recipe, arms, figures=DIALLED, over=key)


def _each(
    data: DataSet, study: Study, recipe: Recipe, arms: Mapping[tuple[str, str], Sequence[Arm]], **about: Any
) -> PaperTable:
    """Train and measure the given arms, and assemble the table of their policies."""
    study = replace(study, references=recipe.references())
    known = study.measure([*study.references, *(arm for each in arms.values() for arm in each)])
    missing, floor = study.stopped, study.floor()
    rows, failed = [], dict[str, str]()
    for (key, name), each in arms.items():
        row = Pooled(name, [known[arm.name] for arm in each if arm.name in known], key=key)
        failed |= {seed.name: seed.failed for seed in row.seeds if seed.failed}
        if row.good:
            rows.append(replace(row, seeds=row.good))
    return PaperTable(data, recipe, rows=rows, floor=floor, missing=missing, failed=failed, **about)


class _Search:
    """Grids trained at one seed, and further seeds at the chosen points: the test split is read there alone.

    Of the objectives `drawn` every point is trained with every seed.
    """

    def __init__(self, study: Study, recipe: Recipe, objectives: Sequence[str], drawn: Iterable[str]) -> None:
        self.recipe, self.points = recipe, {objective: recipe.points(objective) for objective in objectives}
        self.known: Mapping[str, Measured] = {}
        study, drawn = replace(study, references=recipe.references()), set(drawn)

        def further_seeds(known: Mapping[str, Measured]) -> list[Arm]:
            self.known = known
            best = {objective: self.best(objective) for objective in self.points}
            chosen = {objective: each.point for objective, each in best.items() if each is not None}
            first = [arm for objective, point in chosen.items() for arm in recipe.arms(objective, point)[1:]]
            points = [
                (objective, point) for objective in chosen if objective in drawn for point in self.points[objective]
            ]
            return [*first, *(arm for objective, point in points for arm in recipe.arms(objective, point)[1:])]

        # The largest grids come first, since further seeds wait for them. Policies without hyperparameters have nothing
        # to choose: all their seeds are trained as well; ours before the paper's, since the closed form takes longest.
        grids = sorted(self.points.items(), key=lambda each: (-len(each[1]), each[0] not in recipe.ours))
        first = [recipe.arm(objective, point, 0) for objective, each in grids for point in each]
        first += [arm for objective, each in grids if len(each) == 1 for arm in recipe.arms(objective, each[0])[1:]]
        self.known = study.measure([*study.references, *first], then=further_seeds)
        self.stopped, self.floor = study.stopped, study.floor()

    def grid(self, objective: str) -> list[Pooled]:
        """Measured points of an objective, at the seed that chooses."""
        arms = {point: self.recipe.arm(objective, point, 0).name for point in self.points[objective]}
        return [Pooled(point.name, [self.known[name]], point) for point, name in arms.items() if name in self.known]

    def best(self, objective: str) -> Pooled | None:
        """Chosen point of an objective."""
        return best_of(self.grid(objective), self.points[objective])

    def row(self, objective: str, point: Point, name: str, key: str, grid: Sequence[Pooled] = ()) -> Pooled:
        """Row of a policy at one point, over its trained seeds."""
        seeds = [self.known[arm.name] for arm in self.recipe.arms(objective, point) if arm.name in self.known]
        row = Pooled(name, seeds, point, key, grid)
        return replace(row, seeds=row.good)

    def failed(self) -> dict[str, str]:
        """Objectives of which no point could be trained, and why."""
        reasons = {name: [tried.seeds[0].failed for tried in self.grid(name)] for name in self.points}
        every = {name: each for name, each in reasons.items() if each and len(each) == len(self.points[name])}
        return {name: each[0] for name, each in every.items() if each[0] is not None and all(each)}


def table3(data: DataSet, study: Study, recipe: Recipe) -> PaperTable:
    """Train and measure Table 3: grids at one seed, further seeds at the chosen points."""
    check(data, recipe)
    search = _Search(study, recipe, (*recipe.policies, *recipe.ours), drawn=CURVES)
    rows, curves = dict[str, Pooled](), dict[str, list[Pooled]]()
    for objective in search.points:
        grid, best, label = search.grid(objective), search.best(objective), LABELS[objective]
        if best is not None:
            rows[objective] = search.row(objective, best.point, label, objective, grid)
        if objective in CURVES:
            every = (search.row(objective, tried.point, label, objective) for tried in grid)
            curves[objective] = [point for point in every if point.seeds]
    theirs, ours = ([rows[name] for name in names if name in rows] for names in (recipe.policies, recipe.ours))
    for curve, even in CURVES.items():
        kept = even_point(curves[curve], rows[RIVAL]) if curve in rows and RIVAL in rows else None
        if kept is not None and kept.point != rows[curve].point:
            theirs.append(replace(kept, name=LABELS[even], key=even))
    shown, failed = (*METRICS, "JS", "entropy", "coverage@20"), search.failed()
    about: dict[str, Any] = {"published": published(data.source), "ours": ours, "curves": curves}
    return PaperTable(data, recipe, shown, theirs, search.floor, search.stopped, failed, **about)


def even_point(curve: Sequence[Pooled], rival: Pooled) -> Pooled | None:
    """Return the point with the largest purchase nDCG among those no lower in clicks than the rival, by validation."""
    purchase, click = DIALLED[:2]
    least = rival.estimate(click, "validation").mean
    even = [tried for tried in curve if tried.good and tried.estimate(click, "validation").mean >= least]
    return max(even, key=lambda tried: tried.estimate(purchase, "validation").mean, default=None)


def best_of(grid: Sequence[Pooled], points: Sequence[Point]) -> Pooled | None:
    """The grid point with the largest validation metric; None until all points are measured, or if all failed."""
    return best_within(grid) if len(grid) == len(points) else None
