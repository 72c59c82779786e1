"""`sweep`: one objective over a grid or a search, a frontier, and the best policy within a divergence budget.

Everything is chosen on the validation split: points by the runs' own rule (the mean over seeds), the budget against the
validation JS. Test figures do not influence it, and are shown at the chosen point alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, TrainingError, nearest
from localpolicy.measure.estimate import Estimate
from localpolicy.objectives.objective import Objective
from localpolicy.runs.config import Config, config_of
from localpolicy.runs.run import Run
from localpolicy.runtime.folders import new_folder, refuse_foreign, training_lock
from localpolicy.study.arms import Arm, Study
from localpolicy.study.grid import Point, axes, corners, grid, optuna_search
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.study.swept import Sweep, Tried, best_within
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
SEARCHES = ("grid", "optuna")
TRIALS = 20  # of a search, unless told


def sweep(
    data: Prepared | Path | str,
    objective: Objective | type[Objective] | str | None = None,
    *,
    over: Sequence[str] | Mapping[str, Sequence[Any]],
    out: Path | str | None = None,
    config: Config | None = None,
    seeds: int = 1,
    against: Sequence[Path | str] = (),
    max_js: float | None = None,
    search: str = "grid",
    trials: int | None = None,
    processes: int | None = None,
    exclude_seen: bool = False,
    **settings: Any,
) -> Sweep:
    """Train an objective at every point of `over`, or at `trials` points that a search picks.

    `over` is {"beta": [0.1, 0.3]}, or as on the command line ["beta=0.1,0.3"]; `objective`, `config` and `settings` are
    those of `train`. Runs go into the folder `out` (default: a new one under the working directory).
    Divergence is taken from the runs `against`, or from two `mle` runs of other seeds that are trained first. With
    `max_js` the best point whose validation JS is within it is chosen; a budget below the noise floor is refused. With
    `exclude_seen` the figures shown never rank what a sequence held before; points are chosen by the runs' own rule.
    """
    data = data if isinstance(data, Prepared) else Prepared(data)
    config = config_of(objective, config, **settings)
    if isinstance(over, Mapping):
        over = [f"{key}={','.join(map(str, values))}" for key, values in over.items()]
    if out is None:
        out = new_folder(f"sweep-{config.objective.name.rpartition(':')[2]}")
    if search not in SEARCHES:
        raise ConfigError(f"--search: no search '{search}'{nearest(search, SEARCHES)}")
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}.")
    if max_js is not None and not 0 < max_js < math.inf:
        raise ConfigError(f"--max-js must be a number above 0, got {max_js:g}.")
    if trials is not None and search != "optuna":
        raise ConfigError("--trials is for --search optuna; a grid has as many points as it lists.")
    if trials is not None and trials < 1:
        raise ConfigError(f"--trials must be at least 1, got {trials}.")
    refuse_foreign(Path(out))
    swept = axes(over, type(config.objective))
    listed = grid(swept) if search == "grid" else []
    for point in corners(swept):
        resolve(point.apply(config), data)  # a mistake in any value is told before the first step
    study = Study(
        data,
        Path(out),
        references=[] if against else [_reference(config, seed) for seed in REFERENCE_SEEDS],
        against=[Path(run).resolve() for run in against],
        processes=processes,
        exclude_seen=exclude_seen,
    )
    _refuse_ambiguous(study)
    if max_js is not None and not against:
        LOG.info(
            "--max-js %g: whether noise alone exceeds it is known once two mle runs of other seeds are trained, so "
            "these come first (name such runs with --against, and it is known at once).", max_js,
        )  # fmt: skip
    _warn_of_shared_seeds(study, seeds)
    with training_lock(Path(out)):  # the same sweep started twice: the second is refused, and the first goes on
        floor = study.floor()
        _refuse_budget(max_js, floor, study)
        tried: dict[Point, Tried] = {}

        def measure(points: Sequence[Point]) -> None:
            """All seeds of all these points, several at a time."""
            name = config.objective.name
            arms = {point: [_arm(config, point, seed) for seed in range(seeds)] for point in points}
            measured = study.measure([arm for each in arms.values() for arm in each])
            tried.update(
                {point: Tried(point, [measured[arm.name] for arm in each], name) for point, each in arms.items()}
            )

        def trial(point: Point) -> float:
            measure([point])
            return tried[point].selection_score

        if search == "grid":
            measure(listed)
        else:
            optuna_search(swept, trials or TRIALS, trial)
        every = list(tried.values())
        if all(point.selection_score == -math.inf for point in every):
            raise TrainingError(f"no point could be trained; the first: {every[0].seeds[0].failed}")
    return Sweep(
        objective=config.objective.name,
        select=resolve(config, data).train.select,
        tried=every,
        chosen=best_within(every, max_js),
        floor=floor,
        references=[arm.name for arm in study.references] or [str(run) for run in against],
        max_js=max_js,
        seeds=seeds,
        data=data.digest,
        search=search,
        out=Path(out),
    )


def _arm(config: Config, point: Point, seed: int) -> Arm:
    words = [config.objective.name, *point.name.split(), f"seed={seed}"]
    return Arm("-".join(words).replace("/", "_"), point.apply(config).trained_with(seed=seed))


def _reference(config: Config, seed: int) -> Arm:
    """μ̂: the same network and training, as an estimate of the logging policy, picked by its likelihood."""
    train = config.train.model_dump(exclude_unset=True) | {"seed": seed, "select": "auto"}
    groups = {"data": config.data.model_dump(), "model": config.model.model_dump(), "train": train}
    return Arm(f"mle-seed={seed}", Config.parse({**groups, "objective": {"name": "mle"}}))


def _refuse_ambiguous(study: Study) -> None:
    for run in study.against:
        if not Run(run).finished:
            raise RunError(f"--against {run} is not a finished run; 'lpi train' makes one.")
    names = [run.name for run in study.against]
    if len(set(names)) < len(names):
        raise ConfigError(f"two runs of --against are called '{max(names, key=names.count)}': rename a folder.")


def _warn_of_shared_seeds(study: Study, seeds: int) -> None:
    """Runs of one seed begin with the same weights and read the log in the same order."""
    for run in study.against:
        seed = Run(run).manifest["seed"]
        if seed in range(seeds):
            LOG.warning(
                "--against %s has seed %d, and so have points of this sweep. Runs of one seed look closer than they "
                "are: better take references of seeds that no point has (%d and above).", run.name, seed, seeds,
            )  # fmt: skip


def _refuse_budget(max_js: float | None, floor: dict[str, Estimate] | None, study: Study) -> None:
    """A budget that noise alone would exceed means nothing."""
    if max_js is None:
        return
    if floor is None:
        raise ConfigError(
            "--max-js needs the noise floor: name two --against runs that differ in their seed alone, or none."
        )
    least = floor["validation"].mean
    if max_js < least:
        names = ", ".join([arm.name for arm in study.references] or [run.name for run in study.against])
        raise ConfigError(
            f"--max-js: a budget of {max_js:g} is below the noise floor, {least:.4f} between {names} on "
            "validation: even another seed of the logging policy's estimate would exceed it. Raise the budget."
        )
