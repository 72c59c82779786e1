"""`train`: one policy, from settings to a finished run folder. The loop over epochs and batches is in `trainer`."""

from __future__ import annotations

import logging
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from localpolicy import plugins
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, LocalPolicyError, RunError
from localpolicy.measure.later import later_in
from localpolicy.measure.metrics import question_of
from localpolicy.model.backbones import remember
from localpolicy.objectives.objective import Objective
from localpolicy.runs.auto import sentence
from localpolicy.runs.baselines import BaselineRun, baseline_called, fit_baseline
from localpolicy.runs.config import Config, config_of
from localpolicy.runs.folder import FOLDERS
from localpolicy.runs.run import Run
from localpolicy.runtime.folders import LOCK, new_folder, refuse_occupied, remove_partial_files, training_lock
from localpolicy.runtime.ranks import joined
from localpolicy.training.checks import check_estimator, check_features, check_history, check_settings
from localpolicy.training.fit_context import FitContext
from localpolicy.training.numerics import deterministic
from localpolicy.training.selection import check_select
from localpolicy.training.setup import resolve, states_propensities

LOG = logging.getLogger(__name__)
AUTO = "auto"  # names the objective that the log decides


def train(
    data: Prepared | Path | str,
    objective: Objective | type[Objective] | str | None = None,
    *,
    out: Path | str | None = None,
    config: Config | None = None,
    resume: bool = False,
    resume_older: bool = False,
    force: bool = False,
    backbone: nn.Module | type[nn.Module] | str | None = None,
    **settings: Any,
) -> Run:
    """Train one policy: `train(data, "lpi_rl", beta=0.3, epochs=5)`.

    `objective` is a name, or an object with settings of its own such as `LPI(beta=0.3)`; `settings` are those of
    docs/settings.md by their names, on top of `config`. The run goes into the folder `out` (default: a new one under
    the working directory, which the log names). `resume` resumes a stopped run, or starts one. `backbone`
    replaces the configured one by any module of the protocol in `localpolicy.model.backbones`, or a class that is
    built as ours are. The log gets one line per epoch.

    The simple baselines (popularity, last-item, item-knn) are fitted by their names, and are runs like the others;
    `auto` is `lpi_cb` or `lpi_rl`, by the log (see `improving_objective`).
    """
    data = data if isinstance(data, Prepared) else Prepared(data)
    if objective == AUTO:
        objective, why = improving_objective(data)
        LOG.info("objective %s: %s", objective, why)
    if isinstance(objective, str) and (baseline := baseline_called(objective)):
        return _fitted(baseline, data, out, resume=resume, force=force, settings=settings)
    if isinstance(backbone, type | str):
        settings["backbone"] = backbone if isinstance(backbone, str) else plugins.name_of(backbone)
        backbone = None
    if backbone is not None:
        remember(backbone)
    config = config_of(objective, config, **settings)
    if out is None:
        beta = config.objective.model_dump().get("beta")  # as given: what a run serves at is known when it is trained
        dial = "" if beta is None else f"-beta={beta:g}"
        out = new_folder(f"{config.objective.name.rpartition(':')[2]}{dial}-seed={config.train.seed}")
    run = Run(out)
    return training(data, run, config, resume=resume, resume_older=resume_older, force=force, backbone=backbone)


def improving_objective(data: Prepared) -> tuple[str, str]:
    """Return the objective that improves the policy of this log, and the reason.

    That is `lpi_rl` if what is shown now may change what is earned later, and `lpi_cb` if each sequence is one action,
    if people chose what they judged, or if the log's propensities show no later effect. The gate asks by the same test
    whether the return decides. If nothing comes later, returns only add the noise of later rewards, and β is chosen by
    them: the policy then stays at μ̂ on logs that show a gain in the next reward.
    """
    if int(np.diff(data["train"].offsets).max()) == 1:
        return "lpi_cb", "each sequence is one action"
    if question_of(data).kind == "liking":
        return "lpi_cb", "people chose what they judged, so a judgement says nothing of the next one"
    if not states_propensities(data):
        return "lpi_rl", "without propensities the log cannot rule out that what is shown now changes later rewards"
    later = later_in(data)
    name, shown = ("lpi_rl", "shows") if later.matters else ("lpi_cb", "does not show")
    return name, f"the log {shown} that what is shown now changes what is earned later (t {later.t:.1f})"


def _fitted(
    name: str, data: Prepared, out: Path | str | None, *, resume: bool, force: bool, settings: dict[str, Any]
) -> Run:
    """Fit a simple baseline: it has no settings, and nothing to resume."""
    if settings:
        raise ConfigError(f"{', '.join(settings)}: {name} is fitted from counts and has no settings. Leave them out.")
    folder = Path(out) if out is not None else new_folder(name.replace(" ", "-"))
    if not (resume and (folder / "manifest.json").exists()):
        fit_baseline(name, data, out=folder, force=force or resume)
    return BaselineRun(folder)


def training(
    data: Prepared,
    run: Run,
    config: Config,
    *,
    resume: bool = False,
    resume_older: bool = False,
    force: bool = False,
    backbone: nn.Module | None = None,
    towers: Path | None = None,
) -> Run:
    """Train a run with a resolved folder and config: the work of `train`.

    `towers` is a folder where the networks of a closed form stay, for the next run that differs in the dial alone.
    """
    if resume and run.finished:
        tidy(run)
        return run
    check_select(config.train.select, data)
    config = resolve(config, data, run if resume and run.started else None)
    check_settings(config, run.folder)
    check_features(data, config)
    check_history(data, config)
    check_estimator(data, config)
    with (
        joined() as ranks,
        deterministic(config.train.deterministic),
        training_lock(run.folder) if ranks.leads else nullcontext(),
    ):
        if ranks.leads:
            if not (resume and run.started):
                refuse_occupied(run.folder, force=force)
                run.clear()
            remove_partial_files(run.folder, within=FOLDERS)
            data.verify()
            if (said := sentence(config, data)) is not None:
                LOG.info(said)
        # All wait for the leader. Another process may have finished the run since it was looked at.
        (finished,) = ranks.summed(ranks.leads and resume and run.finished)
        if finished:
            return run

        fitting = FitContext(data, run, config, ranks, resume, resume_older, backbone, towers)
        try:
            return config.objective.fit(fitting)  # type: ignore[no-any-return]
        except LocalPolicyError:
            if ranks.leads and not run.saved:  # the same command, corrected, must not find the folder occupied
                run.clear()
            raise


def tidy(run: Run) -> None:
    """Remove files that a kill after the end of training left, and that a finished run does not have."""
    left = (run.folder / "checkpoint", run.stages)
    if any(path.exists() for path in (*left, run.folder / LOCK)):
        with suppress(RunError), training_lock(run.folder):  # unless its trainer is just about to do so
            for path in left:
                shutil.rmtree(path, ignore_errors=True)
