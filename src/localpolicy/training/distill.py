"""`distill`: a run's policy, at one β, as an ordinary run of one network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, LocalPolicyError
from localpolicy.objectives.distill import Distill
from localpolicy.runs.run import Run
from localpolicy.training.train import train


def distill(
    run: Run | Path | str,
    *,
    out: Path | str | None = None,
    beta: float | None = None,
    data: Prepared | Path | str | None = None,
    force: bool = False,
    **settings: Any,
) -> Run:
    """Train one network to imitate `run`, at its own β or at `beta`, over the whole catalogue.

    It starts from the run's estimate of the logging policy, has its settings unless `settings` say otherwise, and is
    kept at its smallest held-out JS from the run. It has no dial of its own.
    """
    source = run if isinstance(run, Run) else Run(run)
    teacher = str(source.folder)
    prepared = _data(source) if data is None else data if isinstance(data, Prepared) else Prepared(data)
    kept = source.config.train.model_copy(update={"select": "auto", "warm_start": teacher})
    objective = Distill.parse({"teacher": teacher, "beta": beta}, prefix="objective.")
    config = source.config.model_copy(update={"objective": objective, "train": kept})
    return train(prepared, out=out, config=config, force=force, **settings)


def _data(source: Run) -> Prepared:
    for folder in source.data_folders:
        try:
            return Prepared(folder)
        except LocalPolicyError:
            continue
    folders = " or ".join(map(str, source.data_folders))
    raise DataError(f"the data of {source.folder} are not at {folders}: name them (data=, or --data).")
