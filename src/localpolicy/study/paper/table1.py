"""Table 1: the contextual bandit on ratings (section 4.1): AR@1, iAR@1 and JS of seven policies.

iAR@1 believes a factorisation about every film that a user did not rate, and likes collapse: entropy and the number of
films that are ever shown first stand beside it. Each epoch was picked by AR@1 on validation, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from localpolicy.errors import ConfigError
from localpolicy.measure.estimate import Estimate, as_json, finite
from localpolicy.measure.imputation import imputation_at
from localpolicy.runs.config import PRESETS, Config
from localpolicy.study.arms import Arm, Study
from localpolicy.study.measured import REFERENCE_SEEDS, Measured, seed_mean
from localpolicy.study.paper.data import DataSet
from localpolicy.study.paper.recipe import Published, paper_form, published_table1

FIGURES = ("AR@1", "iAR@1", "JS")
LABELS = {"mle": "Logging (μ̂)", "reward_weighted": "𝓛_μ", "ips": "IPS"}
# A small honest version: a smaller network, shorter contexts, few epochs.
FAST_CHANGES = (
    "data.length=50", "data.last=20", "model.width=64", "model.heads=2", "model.blocks=1", "train.epochs=10",
    "train.batch_size=32", "train.learning_rate=0.003",
)  # fmt: skip


@dataclass(frozen=True)
class BanditRecipe:
    """What decides the table, data aside."""

    betas: tuple[float, ...] = (0.001, 0.1, 1.0, 1000.0)
    seeds: int = 1
    changes: tuple[str, ...] = ()
    device: str = "auto"
    fast: bool = False

    def arm(self, objective: str, beta: float | None, seed: int) -> Arm:
        """One policy at one seed."""
        preset = {group: dict(settings) for group, settings in PRESETS["bandit"].items()}
        preset["train"] |= {"select": "AR@1", "min_history": 0}
        fixed = [*paper_form(objective), f"train.seed={seed}", f"train.device={self.device}"]
        dial = [] if beta is None else [f"objective.beta={beta:g}"]
        name = "-".join([objective, *([f"beta={beta:g}"] if beta is not None else []), f"seed={seed}"])
        return Arm(name, Config.parse(preset).with_changes([*self.changes, *fixed, *dial]))

    def policies(self) -> dict[str, tuple[str, float | None]]:
        """By name, in the paper's order."""
        dials: dict[str, tuple[str, float | None]] = {f"lpi_cb β={beta:g}": ("lpi_cb", beta) for beta in self.betas}
        return {"mle": ("mle", None), "reward_weighted": ("reward_weighted", None), "ips": ("ips", None), **dials}


@dataclass(frozen=True)
class BanditRow:
    """One policy over its seeds."""

    name: str
    seeds: list[Measured]

    @property
    def label(self) -> str:
        """As the paper calls it."""
        return LABELS.get(self.name, self.name.replace("lpi_cb", "LPI"))

    def by_seed(self, name: str) -> list[Estimate]:
        """A figure of each seed; JS is from the references."""
        figures = [seed.js("test") if name == "JS" else seed.estimate(name) for seed in self.seeds]
        return [figure for figure in figures if figure is not None]

    def estimate(self, name: str) -> Estimate:
        """The same over seeds."""
        return seed_mean(self.by_seed(name))

    def to_dict(self) -> dict[str, Any]:
        """For `table1.json`."""
        return {
            "test": {name: as_json(self.estimate(name)) for name in FIGURES},
            "by_seed": {name: [finite(each.mean) for each in self.by_seed(name)] for name in FIGURES},
            "seeds": [seed.record["run"]["seed"] for seed in self.seeds],
            "entropy": self.estimate("entropy").mean,
            "coverage@1": self.estimate("coverage@1").mean,
            "epoch": [seed.epoch for seed in self.seeds],
            "validation AR@1": [seed.selection_score for seed in self.seeds],
            "weights": [seed.record["run"]["weights"] for seed in self.seeds],
        }


@dataclass(frozen=True)
class Table1:
    """The table of one data set, whole or as far as it has come."""

    data: DataSet
    recipe: BanditRecipe
    rows: list[BanditRow]
    floor: dict[str, Estimate] | None
    quality: dict[str, float]  # of the imputation, on ratings held out of it
    missing: list[str]
    failed: dict[str, str]

    @cached_property
    def published(self) -> dict[str, dict[str, Published]]:
        """The paper's figures; they are of the Netflix Prize."""
        return published_table1() if self.data.source in ("netflix", "movielens") else {}

    def distance(self, row: BanditRow, name: str) -> float | None:
        """(ours - published) in standard errors; None unless the data is the paper's."""
        there = self.published.get(row.name, {}).get(name)
        same = self.data.original and self.data.source == "netflix"
        return there.distance(row.estimate(name)) if there is not None and same else None

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "data": self.data.to_dict(),
            "recipe": {
                "fast": self.recipe.fast,
                "beta": list(self.recipe.betas),
                "seeds": list(range(self.recipe.seeds)),
                "reference_seeds": list(REFERENCE_SEEDS),
                "select": "AR@1",
                "changes": list(self.recipe.changes),
            },
            "policies": {row.name: row.to_dict() for row in self.rows},
            "floor": as_json(self.floor),
            "imputation": self.quality,
            "published": {
                row.name: {
                    name: {"value": printed.value, "se": printed.se, "distance": self.distance(row, name)}
                    for name, printed in self.published.get(row.name, {}).items()
                }
                for row in self.rows
            },
            "missing": self.missing,
            "failed": self.failed,
        }


def table1(data: DataSet, study: Study, recipe: BanditRecipe) -> Table1:
    """Train what is not there, and put the table together."""
    if recipe.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {recipe.seeds}.")
    folder = study.out / "imputation"
    imputation = imputation_at(folder, data.data)  # here, once: many processes read it
    study = replace(study, imputation=folder, references=[recipe.arm("mle", None, seed) for seed in REFERENCE_SEEDS])
    arms = {
        name: [recipe.arm(objective, beta, seed) for seed in range(recipe.seeds)]
        for name, (objective, beta) in recipe.policies().items()
    }
    measured = study.measure_each(arms)
    missing, floor = study.stopped, study.floor()
    rows = [
        BanditRow(name, good) for name, each in measured.items() if (good := [seed for seed in each if not seed.failed])
    ]
    failed = {name: str(each[0].failed) for name, each in measured.items() if each and all(s.failed for s in each)}
    return Table1(data, recipe, rows, floor, imputation.quality, missing, failed)
