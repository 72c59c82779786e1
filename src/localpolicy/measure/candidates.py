"""A candidate: a policy and where it comes from; whatever may stand for a run, and a run opened as a candidate."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import pyarrow.parquet as pq

from localpolicy.data.config import WindowConfig
from localpolicy.errors import ConfigError
from localpolicy.measure.divergence import Reference
from localpolicy.model.config import OF_ITEM_TABLE
from localpolicy.model.deployable import Deployable
from localpolicy.model.policy import Policy
from localpolicy.runs.config import COMPUTED_BY, Config
from localpolicy.runs.run import BY_LIKELIHOOD, LIKELIHOOD, Run
from localpolicy.runtime.devices import device_called
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table, table_name

RunLike = Any  # a run, its folder, a saved baseline's, a file of lists, or a frame of lists
DATA = "data (digest)"  # the fact that says which log a run was trained on


@dataclass(frozen=True)
class Candidate:
    """A policy to evaluate, with its run and the training settings that must agree for a comparison."""

    name: str
    policy: Deployable
    origin: Reference
    facts: Mapping[str, Any] = field(default_factory=dict)  # what must agree for two to be compared
    run: Run | None = None  # None: a simple baseline, or a file of lists
    beta: float | None = None  # of the dial, where it is turned
    notes: tuple[str, ...] = ()  # notes about it on the rows it is measured on
    leaks: int = 0  # sequences of these that it was trained on

    @property
    def estimates_logging(self) -> bool:
        """Whether the policy is an estimate of μ: trained on the log's likelihood alone."""
        policy = self.policy
        return isinstance(policy, Policy) and policy.origin.estimates_logging == "policy" and policy.critic is None


class ListsInMemory(Run):
    """A frame of lists written to a temporary file, so that it can be opened as a run is."""

    def __init__(self, frame: Any) -> None:
        scratch = mkdtemp(prefix="lpi-")
        finalize(self, rmtree, scratch, ignore_errors=True)
        path = Path(scratch) / "own lists.parquet"
        pq.write_table(plain_table(arrow_stream(frame)), path)
        super().__init__(path)


def as_run(run: RunLike) -> Run:
    """Convert a run, its folder, a file of lists or a frame of lists to a `Run`."""
    if isinstance(run, Run):
        return run
    if is_table(run):
        return ListsInMemory(run)
    if isinstance(run, str | PathLike):
        return Run(Path(run))
    raise ConfigError(
        f"expected a run, the folder of one, or lists as a file or a frame (item, whose, rank or score), got "
        f"{table_name(run)}."
    )


def as_list(runs: Sequence[RunLike] | RunLike) -> list[RunLike]:
    alone = isinstance(runs, Run | str | PathLike) or is_table(runs)
    return [runs] if alone else list(runs)


def open_run(
    run: Run, name: str, *, beta: float | None = None, likeliest: bool = False, device: str = "auto"
) -> Candidate:
    """Load the selected policy of a run, or that of the best likelihood; with `beta`, at that β."""
    manifest, config = run.manifest, run.config
    policy = run.policy(beta=beta, likeliest=likeliest)
    policy.network.to(device_called(device))
    kept = likeliest and run.kept_by not in BY_LIKELIHOOD
    selected = {**manifest["likeliest"], "by": LIKELIHOOD} if kept else manifest["selected"]
    about = Reference(
        name, manifest["objective"], manifest["seed"], selected["epoch"], selected["by"], family_of(config)
    )
    facts = {
        DATA: manifest["data"]["digest"][:16],
        "data.length": config.data.length,
        "data.last": config.data.last,
        "train.min_history": config.train.min_history,
    }
    return Candidate(name if beta is None else f"{name} β={beta:g}", policy, about, facts, run, beta)


def family_of(config: Config, *, whatever_features: bool = False) -> str:
    """Hash of the configuration without seed and hardware settings: equal for runs that differ in the seed alone.

    With `whatever_features` it is also equal for runs that read different columns of the item table.
    """
    left_out: dict[str, Any] = {"train": {"seed", *COMPUTED_BY}}
    left_out |= {"model": set(OF_ITEM_TABLE), "auto": True} if whatever_features else {}
    return hashlib.sha256(config.model_dump_json(exclude=left_out).encode()).hexdigest()[:12]


def window_of(candidate: Candidate) -> WindowConfig:
    """Window settings of the candidate's run; the defaults for a baseline or a file of lists."""
    run = candidate.run
    return run.config.data if run is not None and run.started else WindowConfig()


def own_logging(candidate: Candidate) -> Candidate | None:
    """The estimate of μ inside a run, as a candidate; None if the run has none or is one itself."""
    policy = candidate.policy
    if not isinstance(policy, Policy) or policy.origin.estimates_logging is None:
        return None
    if policy.origin.estimates_logging == "policy" and policy.beta is None:
        return None
    name = f"own μ̂ of {candidate.name}"
    about = replace(candidate.origin, name=name, objective="logging head", family="")
    return Candidate(name, policy.logging(), about, candidate.facts, candidate.run)
