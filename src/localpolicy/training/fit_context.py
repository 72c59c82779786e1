"""Context of `Objective.fit`: networks and stages that an objective may request.

Most objectives need one network. The closed form needs stages: each is an ordinary run under RUN/stages while training
lasts, so that a stopped run resumes within any of them to the same bytes.

The first stage is μ̂: maximum likelihood, kept at its best held-out likelihood. Or a run that is given: the one that
served the log, or an `mle` run. An improved policy that served it has towers of its own, and items may have come since.
Then it is distilled into one network on the log's contexts: taught by whole rows, it loses far less of the served
policy than an estimate from the items shown. The critics after it start from its embeddings and backbone.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, RunError, Stopped
from localpolicy.objectives.distill import Distill
from localpolicy.objectives.lpi import ClosedForm
from localpolicy.objectives.mle import MLE
from localpolicy.objectives.objective import Objective
from localpolicy.objectives.observed import LPIObserved
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.checkpoint import lasting
from localpolicy.training.checks import check_data
from localpolicy.training.closed_form import Assembly
from localpolicy.training.logging_policy import served as served_by
from localpolicy.training.selection import imitation
from localpolicy.training.setup import resolved_by
from localpolicy.training.trainer import Trainer

LOG = logging.getLogger(__name__)


@dataclass
class FitContext:
    """Context of one run's `Objective.fit`: data, config and methods that train its stages."""

    data: Prepared
    run: Run
    config: Config  # resolved
    ranks: Ranks
    resume: bool = False
    older: bool = False  # resume from the second newest checkpoint
    backbone: nn.Module | None = None
    towers: Path | None = None  # where the stages stay for runs that differ in the dial alone
    began: float = field(default_factory=time.perf_counter)

    def network(self) -> Run:
        """Train one network by the objective's own terms; return its run."""
        check_data(self.data, self.config.objective)
        return self._trained(self.run, self.config, self.backbone)

    def logging_policy(self, given: str) -> Run:
        """Run that estimates μ: trained as the first stage ('head'), or the one in the folder `given`."""
        check_data(self.data, self.config.objective)
        if given == "head":
            return self._stage("logging", MLE(), select=imitation(self.data))
        run = Run(given)
        policy = run.policy()
        if not served_by(run, self.data) and not (policy.origin.estimates_logging == "policy" and self.same_items(run)):
            raise RunError(
                "objective.logging: the closed form needs the run that served the log, or an mle or sqn run over the "
                f"items of {self.data.path}; {given} is a {policy.origin.objective} run over {policy.n_items} items. "
                "Leave objective.logging out, and μ̂ is estimated from the log."
            )
        if self.improved_before is not None or not self.same_items(run):
            start = self.config.train.warm_start or given
            teacher = Distill(teacher=given)
            return self._stage("logging", teacher, select=teacher.default_selection, warm_start=start)
        return run

    def policy(self, name: str, objective: Objective, number: int = 0) -> Run:
        """A stage of its own seed, trained as the run would be: all of the validation sequences choose its epoch."""
        train = self.config.train
        seed = train.seed + 1_000_003 * number
        return self._stage(name, objective, held_out=self.validation, select=train.select, seed=seed)

    def critic(self, objective: Objective, number: int, *, dropout: float | None, rate: float) -> Run:
        """Train a critic as a stage that starts from μ̂'s weights; `rate` is relative to train.learning_rate."""
        train = self.config.train
        return self._stage(
            f"critic-{number + 1}",
            objective,
            dropout=dropout,
            select=objective.default_selection,
            warm_start=objective.reads().logging,
            seed=train.seed + 1_000_003 * (number + 1),
            learning_rate=train.learning_rate * rate,
        )

    def improved(self, objective: ClosedForm | LPIObserved, logging: Run, critics: Sequence[Run]) -> Run:
        """Assemble the run π ∝ μ̂ exp(s Â/β) from the logging policy and the critics."""
        before = self.improved_before
        return Assembly(
            objective, logging, critics, self.data, self.run, self.config, self.ranks, self.began,
            validation=self.validation, half=self.half(1), before=before,
            same_items=before is None or self.same_items(before), backbone=self.backbone,
        ).finish()  # fmt: skip

    # ------------------------------------------------------------------ stages

    @cached_property
    def improved_before(self) -> Run | None:
        """Improved policy that served the log, if it is given: μ̂ is distilled from it. Else None."""
        given = self.config.objective.reads().logging
        run = None if given == "head" else Run(given)
        return run if run is not None and len(run.policy().network.towers) > 1 else None

    def same_items(self, run: Run) -> bool:
        """Whether a run knows exactly the data's items."""
        return bool(run.policy().items["item_id"].equals(self.data.catalogue["item_id"]))

    @cached_property
    def validation(self) -> Windows:
        """All validation sequences, as `lpi evaluate --split validation` reads them."""
        return Windows(self.data, "validation", self.config.data, device=self.config.train.device)

    def half(self, number: int) -> Windows:
        """Half of the validation sequences: every second one chooses epochs (0), the others the slope and β (1)."""
        if len(self.validation) < 2:
            raise DataError(
                "the closed form needs at least 2 validation sequences, one to choose epochs and one to choose β; "
                f"found {len(self.validation)}. Prepare the data with a larger share for validation."
            )
        return self.validation.part(number, 2)

    def _stage(
        self, name: str, objective: Objective, *, dropout: float | None = None, held_out: Windows | None = None,
        **train: Any,
    ) -> Run:  # fmt: skip
        self.run.folder.mkdir(parents=True, exist_ok=True)
        if self.ranks.leads:
            self._refuse_other_objective()
            self.run.write_config(self.config)
        changes = {
            "objective": resolved_by(objective, self.data),
            "model": self.config.model.model_copy(update={} if dropout is None else {"dropout": dropout}),
            "train": self.config.train.model_copy(update=train),
        }
        config = self.config.model_copy(update=changes)
        run = Run((self.towers or self.run.stages) / name)
        if run.finished:
            self._refuse_other(run, config)
            return run
        LOG.info("%s: training", name)
        check_data(self.data, config.objective)
        try:
            return self._trained(run, config, copy.deepcopy(self.backbone), held_out or self.half(0))
        except Stopped as stopped:
            raise Stopped(f"{str(stopped).rpartition(': ')[0]}: {self.run.folder}") from None

    def _trained(self, run: Run, config: Config, backbone: nn.Module | None, held_out: Windows | None = None) -> Run:
        trainer = Trainer.start(self.data, run, config, ranks=self.ranks, backbone=backbone, held_out=held_out)
        return trainer.train(resume=self.resume, older=self.older)

    def _refuse_other_objective(self) -> None:
        """Raise RunError if the run has checkpoints of another objective, which would be lost."""
        begun = self.run.config.objective.name if self.resume and self.run.started else self.config.objective.name
        if begun != self.config.objective.name:
            raise RunError(
                f"{self.run.folder} was begun with the objective {begun}; it cannot continue with "
                f"{self.config.objective.name}. Name its own settings again, or choose another folder."
            )

    def _refuse_other(self, run: Run, config: Config) -> None:
        """Raise RunError if a finished stage was trained with other data or settings."""
        facts = {
            "data": (run.manifest["data"]["digest"], self.data.digest),
            "config": map(lasting, (run.config, config)),
        }
        for name, (there, here) in facts.items():
            if there != here:
                raise RunError(f"{run.folder} was made with another {name}; it cannot continue with this one.")
