"""`sweep`: one objective over a grid or a search, a frontier, and the best policy within a divergence budget.

Everything is chosen on the validation split: points by the runs' own rule (the mean over seeds), the budget against the
validation JS. Test figures do not influence it, and are shown at the chosen point alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from localpolicy.data.rewards import is_rating
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, TrainingError
from localpolicy.measure.estimate import Estimate, Interval, Measurement, as_json, finite
from localpolicy.measure.metrics import AT_K
from localpolicy.measure.position_metrics import WEIGHTED
from localpolicy.objectives.objective import Objective
from localpolicy.results import Result
from localpolicy.runs.config import Config, config_of
from localpolicy.runs.run import Run
from localpolicy.runtime.folders import new_folder, refuse_foreign, training_lock
from localpolicy.study.arms import Arm, Study
from localpolicy.study.measured import REFERENCE_SEEDS, Pooled, best_within, over_seeds
from localpolicy.study.settings import NO_POINT, TRIALS, Axis, Point, SweepConfig, axes, corners, grid
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """Result of a sweep: all points, and the chosen one."""

    objective: str
    select: str  # the rule
    tried: list[Pooled]
    chosen: Pooled | None  # None: nothing within the budget
    floor: dict[str, Estimate] | None
    references: list[str]
    max_js: float | None
    seeds: int
    data: str  # digest
    search: str = "grid"
    out: Path = Path()  # folder of all results

    @property
    def noise(self) -> Estimate | None:
        """Noise floor of JS on validation; None if it is not known."""
        return None if self.floor is None else self.floor["validation"]

    @property
    def nearest(self) -> float:
        """Smallest JS of any point on validation."""
        return min((js.mean for tried in self.tried if (js := tried.js("validation")) is not None), default=math.nan)

    @property
    def runs(self) -> list[Path]:
        """Folders of the chosen point's runs, one per seed."""
        return [] if self.chosen is None else [self.out / "runs" / seed.name for seed in self.chosen.seeds]

    @property
    def tested(self) -> list[str]:
        """Names of the metrics shown for the chosen policy on the test split."""
        if self.chosen is None:
            return []
        left = ("repeat", "new", WEIGHTED)  # the last needs rewards by position, which are not kept
        groups = [name for name in self.chosen.seeds[0].record["test"]["metrics"] if name not in left]
        figures = [f"{group}.{at_k}" for group in groups if not is_rating(group) for at_k in AT_K]
        return figures if self.chosen.js() is None else [*figures, "JS"]

    @property
    def measurements(self) -> list[Measurement]:
        """Rows of the long table, over seeds (seed null) and per seed: all points on validation, the chosen on test."""
        rows = [row for tried in self.tried for row in self._validated(tried)]
        return rows if self.chosen is None else [*rows, *(row for row, _ in self.chosen.rows(self.tested))]

    def _validated(self, tried: Pooled) -> list[Measurement]:
        """Long-table rows of one point on validation: the selection metric and JS."""
        about: dict[str, Any] = {"policy": tried.name, "name": self.figure, "split": "validation", "whole": True}
        scores = {seed.seed: seed.selection_score for seed in tried.good}
        rows = [
            Measurement.of(**about, around=Interval.of(score, math.nan), seed=seed) for seed, score in scores.items()
        ]
        if tried.whole:
            around = over_seeds([*scores.values()], [math.nan])  # with one seed the spread between seeds is unknown
            rows.insert(0, Measurement.of(**about, around=around, se=tried.selection_se))
        divergence = () if tried.js("validation") is None else tried.rows(["JS"], "validation")
        return [*rows, *(row for row, _ in divergence)]

    @property
    def figure(self) -> str:
        """Name of the selection metric in the long table."""
        return f"validation {self.select}"

    def lead(self) -> tuple[Pooled, Interval] | None:
        """Second best point, and the chosen one's lead over it, paired by seed; None without a second.

        It is one test, of any number of points: where several are equally good, the first two lie closer together than
        two picked beforehand, so that a two-sided test errs less often than it says (Gutmann and Maymin 1987).
        """
        others = [tried for tried in self.tried if tried is not self.chosen]
        second = best_within(others, self.max_js)
        if self.chosen is None or second is None:
            return None
        pairs = zip(self.chosen.seeds, second.seeds, strict=True)
        ahead = [ours.selection_score - theirs.selection_score for ours, theirs in pairs]
        return second, over_seeds(ahead, [math.nan])

    def summary(self) -> str:
        text = f"{self.objective} at {len(self.tried)} points"
        if self.chosen is None:
            return f"{text}; none within JS {self.max_js:g}"
        return f"{text}; chosen: {self.chosen.name} ({self.select} {self.chosen.selection_score:.4f} on validation)"

    def to_arrow(self) -> pa.Table:
        """Table with one row per point: settings, validation metric, JS, and whether it was chosen."""
        rows = []
        for tried in self.tried:
            js, score = tried.js("validation"), tried.selection_score if tried.whole else None
            figures = {"validation": score, "validation se": finite(tried.selection_se)}
            figures |= {"JS": js and js.mean, "JS se": js and js.se}
            rows.append({**dict(tried.point.settings), **figures, "chosen": tried is self.chosen})
        return pa.Table.from_pylist(rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "objective": self.objective,
            "data": self.data,
            "search": self.search,
            "select": self.select,
            "seeds": list(range(self.seeds)),
            "references": self.references,
            "floor": as_json(self.floor),
            "max_js": self.max_js,
            "policies": {
                tried.name: {  # its figures are rows of the long table
                    "settings": dict(tried.point.settings),
                    "runs": [seed.name for seed in tried.seeds],
                    "failed": {seed.name: seed.failed for seed in tried.seeds if seed.failed},
                    "epochs": {seed.name: seed.epoch for seed in tried.good},
                    "weights": {seed.name: seed.record["run"]["weights"] for seed in tried.good},
                }
                for tried in self.tried
            },
            "measurements": as_json(self.measurements),
            "chosen": None if self.chosen is None else self.chosen.name,
            "runs": [str(run.relative_to(self.out)) for run in self.runs],
        }


def sweep(
    data: Prepared | Path | str,
    objective: Objective | type[Objective] | str | None = None,
    *,
    out: Path | str | None = None,
    config: Config | None = None,
    **settings: Any,
) -> Sweep:
    """Train an objective at every point of `over`, or at `trials` points that a search picks.

    `settings` are the fields of `SweepConfig` (over, seeds, max_js, against, search, trials, processes, exclude_seen),
    as the command line has them; `over` may also be {"beta": [0.1, 0.3]}. Others, `objective` and `config` are those of
    `train`. Runs go into the folder `out` (default: a new one under the working directory).
    Divergence is taken from the runs `against`, or from two `mle` runs of other seeds that are trained first. With
    `max_js` the best point whose validation JS is within it is chosen; a budget below the noise floor is refused. With
    `exclude_seen` the figures shown never rank what a sequence held before; points are chosen by the runs' own rule.
    """
    data = data if isinstance(data, Prepared) else Prepared(data)
    asked = SweepConfig.parse({name: settings.pop(name) for name in SweepConfig.model_fields if name in settings})
    config, against, max_js, seeds = config_of(objective, config, **settings), asked.against, asked.max_js, asked.seeds
    if out is None:
        out = new_folder(f"sweep-{config.objective.name.rpartition(':')[2]}")
    refuse_foreign(Path(out))
    swept = axes(asked.over, type(config.objective))
    listed = grid(swept) if asked.search == "grid" else []
    if asked.search == "optuna" and find_spec("optuna") is None:  # reported before anything is trained
        raise ConfigError("--search optuna needs it: pip install 'localpolicy[sweep]'.")
    for point in corners(swept):
        resolve(point.apply(config), data)  # a mistake in any value is reported before the first step
    references = _given(against, seeds) or [_reference(config, seed) for seed in REFERENCE_SEEDS]
    study = Study(data, Path(out), references, asked.processes, exclude_seen=asked.exclude_seen)
    if max_js is not None and not against:
        LOG.info(
            "--max-js %g: whether noise alone exceeds it is known once two mle runs of other seeds are trained, so "
            "these come first (name such runs with --against, and it is known at once).", max_js,
        )  # fmt: skip
    with training_lock(Path(out)):  # the same sweep started twice: the second is refused, and the first continues
        floor = study.floor()
        if max_js is not None:
            _refuse_budget(max_js, floor, references)
        tried: dict[Point, Pooled] = {}
        name = config.objective.name

        def measure(*points: Point) -> float:
            """Train and measure all seeds of these points in parallel; return the last point's selection metric."""
            arms = {
                point: [Arm.at(name, point, point.apply(config).trained_with(seed=seed)) for seed in range(seeds)]
                for point in points
            }
            known = study.measure([arm for each in arms.values() for arm in each])
            for point, each in arms.items():
                tried[point] = Pooled(point.name or name, [known[arm.name] for arm in each], point)
            return tried[points[-1]].selection_score

        if asked.search == "grid":
            measure(*listed)
        else:
            optuna_search(swept, asked.trials or TRIALS, measure)
        every = list(tried.values())
        if not any(point.whole for point in every):
            raise TrainingError(f"no point could be trained; the first: {every[0].seeds[0].failed}")
    return Sweep(
        objective=name,
        select=resolve(config, data).train.select,
        tried=every,
        chosen=best_within(every, max_js),
        floor=floor,
        references=[str(run) for run in against] or [arm.name for arm in references],
        max_js=max_js,
        seeds=seeds,
        data=data.digest,
        search=asked.search,
        out=Path(out),
    )


def _reference(config: Config, seed: int) -> Arm:
    """Arm of an estimate μ̂ with the sweep's network and training, its epoch selected by likelihood."""
    train = config.train.model_dump(exclude_unset=True) | {"seed": seed, "select": "auto"}
    groups = {"data": config.data.model_dump(), "model": config.model.model_dump(), "train": train}
    return Arm.at("mle", NO_POINT, Config.parse({**groups, "objective": {"name": "mle"}}))


def _given(against: Sequence[Path | str], seeds: int) -> list[Arm]:
    """Reference arms of the user's own finished runs; warn of a run whose seed the sweep has too (0 to `seeds` - 1)."""
    runs = [Run(Path(run).resolve()) for run in against]
    for run in runs:
        if not run.finished:
            raise RunError(f"--against {run.folder} is not a finished run; 'lpi train' makes one.")
    names = [run.folder.name for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"two runs of --against are called '{max(names, key=names.count)}': rename a folder.")
    for run in runs:
        if (seed := run.manifest["seed"]) in range(seeds):  # the same first weights, and the same order of the log
            LOG.warning(
                "--against %s has seed %d, and so have points of this sweep. Runs of one seed look closer than they "
                "are: better take references of seeds that no point has (%d and above).", run.folder.name, seed, seeds,
            )  # fmt: skip
    return [Arm(run.folder.name, run.config, given=run.folder) for run in runs]


def _refuse_budget(max_js: float, floor: dict[str, Estimate] | None, references: Sequence[Arm]) -> None:
    """Raise ConfigError for a JS budget below the noise floor, or if the floor is not known."""
    if floor is None:
        raise ConfigError(
            "--max-js needs the noise floor: name two --against runs that differ in their seed alone, or none."
        )
    if max_js < (least := floor["validation"].mean):
        names = ", ".join(arm.name for arm in references)
        raise ConfigError(
            f"--max-js: a budget of {max_js:g} is below the noise floor, {least:.4f} between {names} on "
            "validation: even another seed of the logging policy's estimate would exceed it. Raise the budget."
        )


def optuna_search(axes: Sequence[Axis], trials: int, trial: Callable[[Point], float]) -> None:
    """Call `trial` on `trials` points that TPE proposes one after another; the same results give the same proposals."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def propose(proposed: Any) -> float:
        point = Point(tuple((axis.key, _value(proposed, axis)) for axis in axes))
        score = trial(point)
        if score == -math.inf:
            raise optuna.TrialPruned  # could not be trained: the search goes elsewhere
        return score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(propose, n_trials=trials)


def _value(proposed: Any, axis: Axis) -> str:
    if axis.values:
        return str(proposed.suggest_categorical(axis.key, list(axis.values)))
    if axis.whole:
        return str(proposed.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.low > 0))
    # Rates and prices are searched by their size.
    return f"{proposed.suggest_float(axis.key, axis.low, axis.high, log=axis.low > 0):.3g}"
