"""`evaluate`: the figures of one run, its divergence from others, and the floor between these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localpolicy.data.quality import filter_notes
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import RunLike, as_list, as_run, own_logging, window_of
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.imputation import imputation_at
from localpolicy.measure.measurements import measure
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.opening import open_all, shared_seeds
from localpolicy.measure.recorded import people_of
from localpolicy.measure.truth import true_value
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sha256
from localpolicy.simulation.truth import load_world


def evaluate(
    run: RunLike,
    *,
    against: Sequence[RunLike] | RunLike = (),
    data: Prepared | Path | str | None = None,
    world: Path | str | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    beta: float | None = None,
    propensities: str | None = None,
    imputation: Path | str | None = None,
    out: Path | str | None = None,
    device: str = "auto",
) -> Evaluation:
    """Measure one run on a split: ranking, reward, divergence from each run of `against`, truth where there is one.

    A saved baseline or a CSV or Parquet file of lists is measured likewise. `data` may be newer than what the run was
    trained on: what it does not know of it counts against it, and is said in `settings["notes"]`.
    Without `against` the divergence is taken from the run's own logging head, where it has one; its noise floor is
    then not known. `world` is the folder of a simulated world (default: the data's own, where it was simulated).
    `propensities` names a reference whose probabilities stand for logged ones. `imputation` is the folder of imputed
    ratings behind iAR@1 (fitted where it is not there). `out` keeps the values per position and per sequence
    (default: the run's folder, under `evaluation/`).
    """
    run, others = as_run(run), [as_run(other) for other in as_list(against)]
    split = settings_of(config, 1).split
    prepared, opened = open_all([run, *others], data, split=split, beta=beta, device=device)
    candidate, *references = [each.candidate for each in opened]
    notes = [*(note for each in opened for note in each.notes), *shared_seeds(candidate, references)]
    notes += filter_notes(prepared, split)
    if not references and (own := own_logging(candidate)):
        references = [own]
    evaluation = measure(
        [candidate],
        prepared,
        references,
        window=window_of(candidate),
        config=settings_of(config, int(candidate.facts.get("train.min_history", 1))),
        propensities=propensities,
        imputation=None if imputation is None else imputation_at(imputation, prepared),
        people=people_of(each.policy for each in (candidate, *references)),
    )[candidate.name]
    evaluation = replace(
        evaluation, settings={**evaluation.settings, **_origin(run, beta), "notes": [*notes, *evaluation.left_out]}
    )
    if (world_folder := world_of(prepared, world)) is not None:
        evaluation = replace(evaluation, truth=true_value(candidate.policy, load_world(world_folder)))
    beside = run.folder.parent / f"{run.folder.name}.evaluation" if run.folder.is_file() else run.folder / "evaluation"
    evaluation.save(Path(out) if out is not None else beside)
    return evaluation


def _origin(run: Run, beta: float | None) -> dict[str, Any]:
    """Values on disk outlive a run that is trained again: the digest says whose they are."""
    if run.folder.is_file():
        return {"weights": sha256(run.folder), "seed": None, "beta": None}
    return {"weights": run.manifest["policy_sha256"], "seed": run.manifest["seed"], "beta": beta}


def settings_of(config: EvaluateConfig | Mapping[str, Any] | None, min_history: int) -> EvaluateConfig:
    """The settings asked for; `min_history` is the run's own where none is given."""
    if isinstance(config, EvaluateConfig):
        return config
    return EvaluateConfig.parse({"min_history": min_history, **(config or {})})


def world_of(data: Prepared, world: Path | str | None) -> Path | None:
    """The folder of the simulated world: as given, or inside the data."""
    if world is not None:
        return Path(world)
    inside = data.path / "truth"
    return inside if (inside / "world.json").exists() else None
