"""Assembly of the closed form π ∝ μ̂ min(exp(s Â/β), c) from trained towers.

`ClosedForm.fit` (objectives/lpi.py) requests the towers one after another, and `training.fit_context` trains them: μ̂,
and K critics, each a network of its own that is trained by its own loss alone (squared error to r in a bandit, to
r + γ Σ_a μ̂ Q(x',a) otherwise) and kept at its best held-out squared error to the observed return.

Here their weights become one policy (see `model.towers`). On validation sequences that chose no epoch: the critics'
calibration s, and β. If they give no reason to move from an improved policy that served the log, the run is that
policy, not its student. Then the stages are removed.
"""

from __future__ import annotations

import copy
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from localpolicy.catalogue.shards import Shard
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.estimate import as_json
from localpolicy.model.deployable import Origin
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers, build
from localpolicy.model.weights import load_weights, save_weights
from localpolicy.objectives.lpi import ClosedForm
from localpolicy.objectives.observed import LPIObserved
from localpolicy.runs.config import Config
from localpolicy.runs.folder import LIKELIEST
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, sha256
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.beta_selection import Choice, choose
from localpolicy.training.critic_quality import CriticError, credited, fit_plain, read_decisions
from localpolicy.training.selection import selection_score
from localpolicy.training.setup import shard_of
from localpolicy.training.validation import validate
from localpolicy.types import Reads

LOG = logging.getLogger(__name__)
STAYS = "μ̂ is the policy that served the log: this run gives what that one gave."
# μ̂'s tower is selected like every estimate of the log, a critic by its error: no other weights are kept.
WEIGHTS = {
    "policy.safetensors": "policy.safetensors",
    LIKELIEST: "policy.safetensors",
    "last.safetensors": "last.safetensors",
}


@dataclass(frozen=True)
class Assembly:
    """Assembly of trained towers into the run of one policy, with s and β chosen."""

    objective: ClosedForm | LPIObserved
    logging: Run
    critics: Sequence[Run]
    data: Prepared
    run: Run
    config: Config
    ranks: Ranks
    began: float  # by perf_counter
    validation: Windows
    half: Windows  # validation sequences that chose no epoch
    before: Run | None  # the improved policy that served the log, if there is one
    same_items: bool = True  # whether it knows the data's items
    backbone: nn.Module | None = None

    def finish(self) -> Run:
        """Choose s and β, measure the policy, and write it as a run, which is returned. All ranks call."""
        data, ranks, run, config, before = self.data, self.ranks, self.run, self.config, self.before
        seconds = time.perf_counter() - self.began
        if ranks.leads:
            for name, source in WEIGHTS.items():
                save_weights(self._weights(source), run.folder / name)
            self._describe(beta=1.0, slope=1.0)
        ranks.wait()
        policy = self._open(shard_of(data, config, ranks))
        choice = self._choose(policy)
        assert isinstance(policy.network, Towers)
        policy.network.beta, policy.network.slope = choice.beta, choice.slope
        served = before if choice.slope == 0 and self.same_items else None
        if served is not None:  # even its student would lose some of it, round after round
            policy, choice = served.policy(), choice._replace(said=f"{choice.said} {STAYS}")
            policy.network.to(config.train.device)
        # Of all validation sequences, not of the half that chose β: as for other runs, and as `lpi evaluate` gives it.
        figures = validate(policy, self.validation, config, data=data, step=0, ranks=ranks)
        ranks.wait()
        if ranks.leads:
            errors = self._errors(choice)
            if served is None:
                self._describe(beta=choice.beta, slope=choice.slope)
            else:
                self._copy(served, policy)
            places = data.position_bias
            improvement = {"form": self.objective.described, **choice.json()}
            improvement |= {"chosen_twice": self._chosen_twice()}
            improvement |= {} if errors is None else {"critic_error": as_json(errors)}
            improvement |= {} if places is None else {"places": places.json()}
            self._record(figures | choice.figures(), improvement, seconds)
            shutil.rmtree(run.stages, ignore_errors=True)
            notes = choice.said, None if errors is None else errors.warning, self._chosen_twice()
            for said in (*notes, None if places is None else places.warning):
                if said is not None:
                    LOG.info("note: %s", said)
        ranks.wait()
        return run

    def _choose(self, policy: Policy) -> Choice:
        """Choose the slope s and β on validation sequences that selected no epoch; a given β is kept."""
        objective = self.objective
        if not isinstance(objective, ClosedForm):
            return Choice(objective.beta, 1.0, None, "given")
        windows, again = credited(self.half, self._critic), self.before is not None
        return choose(policy, windows, objective, self.data, self.config, ranks=self.ranks, again=again)

    @property
    def _critic(self) -> Reads:
        """What the critics' objective reads: the kind of critic, its discount γ and its crediting."""
        assert isinstance(self.objective, ClosedForm)
        return self.objective.critic_objective("").reads()

    def _weights(self, name: str) -> dict[str, Tensor]:
        """Weights of the towers under their names in `Towers`."""
        towers: dict[str, Path] = {"logging": self.logging.folder}
        towers |= {f"critics.{number}": critic.folder for number, critic in enumerate(self.critics)}
        return {
            f"{prefix}.{key}": tensor
            for prefix, folder in towers.items()
            for key, tensor in load_weights(folder / name).items()
        }

    def _copy(self, served: Run, policy: Policy) -> None:
        """Copy the policy of the run that served the log into this run."""
        for name in WEIGHTS:
            save_weights(load_weights(served.folder / "policy.safetensors"), self.run.folder / name)
        policy.save_description(self.run.folder, catalogue=self.data.path / "items.parquet")

    def _chosen_twice(self) -> str | None:
        """Warning if the rows that choose s and β also chose the epoch of a run that is given as μ̂, else None."""
        if self.objective.logging == "head" or self.before is not None:
            return None
        given = Run(self.objective.logging)
        if given.manifest["data"]["digest"] not in self.data.digests or given.config.train.choose_on == "half":
            return None
        return (
            f"the rows that choose the slope and β also chose the epoch of {given.folder.name}. Train it with "
            "--set train.choose_on=half, and they do not."
        )

    def _errors(self, choice: Choice) -> CriticError | None:
        """Held-out errors of the critics, and of item and user means."""
        if choice.calibration is None:
            return None
        windows = credited(self.half, self._critic)
        gamma, data, config = self._critic.gamma, self.data, self.config
        known = credited(Windows(data, "train", config.data, device=config.train.device), self._critic)
        plain = fit_plain(read_decisions(known, gamma=gamma), n_items=data.n_items)
        held_out = read_decisions(windows, gamma=gamma)
        counted = held_out.history >= config.train.min_history  # as the calibration's positions
        returns, weight, said = held_out.returns[counted], held_out.weight[counted], plain(held_out)[counted]
        mean = np.average(returns, weights=weight)
        plain_error, constant = (float(np.mean(weight * (each - returns) ** 2)) for each in (said, mean))
        return CriticError(choice.calibration.error, plain_error, constant)

    def _open(self, shard: Shard | None) -> Policy:
        policy = Policy.load(self.run.folder, backbone=copy.deepcopy(self.backbone), shard=shard)
        policy.network.to(self.config.train.device)
        return policy

    def _describe(self, *, beta: float, slope: float) -> None:
        made = [read_json(stage.folder / "policy.json")["network"] for stage in (self.logging, *self.critics)]
        towers = {"critics": made[1:], "beta": beta, "slope": slope, "cap": self.objective.largest_factor}
        network = build({**made[0], **towers}, backbone=self.backbone)
        origin = Origin(self.objective.name, self.data.kind, self.data.events, "logging")
        Policy(network, origin, self.data.catalogue).save_description(
            self.run.folder, catalogue=self.data.path / "items.parquet"
        )

    def _record(self, figures: dict[str, float], choice: dict[str, Any], seconds: float) -> None:
        data, run, config, logging = self.data, self.run, self.config, self.logging
        given = None if self.objective.logging == "head" else Run(self.objective.logging)
        stages = {"logging": logging} if given is None or given.folder != logging.folder else {}
        critics = isinstance(self.objective, ClosedForm)
        names = [f"critic-{number + 1}" if critics else "end" for number in range(len(self.critics))]
        stages |= dict(zip(names, self.critics, strict=True))
        step = epoch = 0
        run.keep_metric_lines(0)
        for name, stage in stages.items():
            manifest = stage.manifest
            for line in stage.metrics():
                run.append_metrics({"stage": name, **line, "step": step + line["step"], "epoch": epoch + line["epoch"]})
            step, epoch = step + manifest["steps"], epoch + manifest["epochs"]
        value = selection_score(config.train.select, figures)
        # The policy as it was put together: one step beyond the last, so that it has a line of its own.
        line = {"stage": "policy", "epoch": epoch, "step": step + 1, "losses": {}, "weights": {}}
        run.append_metrics({**line, "validation": figures, "selected_by": value})
        manifests = {name: stage.manifest for name, stage in stages.items()}
        run.finish(
            {
                "objective": self.objective.name,
                "seed": config.train.seed,
                "data": {**run.data_location(data.path), "digest": data.digest, "kind": data.kind},
                "selected": {"by": config.train.select, "value": value, "epoch": epoch, "step": step + 1},
                "likeliest": {"value": figures["logp"], "epoch": epoch, "step": step + 1,
                              "sha256": sha256(run.folder / LIKELIEST)},
                "patience": config.train.patience,
                **({"auto": config.auto} if config.auto else {}),
                "stages": {
                    name: {key: manifest[key] for key in ("selected", "epochs", "steps", "seconds", "parameters")}
                    for name, manifest in manifests.items()
                },
                "improvement": choice,
                **({"warm_start": began} if (began := manifests.get("logging", {}).get("warm_start")) else {}),
                **({"logging": {"run": str(given.folder), "policy_sha256": given.manifest["policy_sha256"]}}
                   if given is not None else {}),
                "made_of": {"logging": logging.manifest["policy_sha256"]},
                "processes": self.ranks.total,
                "epochs": epoch,
                "steps": step,
                "seconds": round(seconds, 3),
                "parameters": sum(manifest["parameters"] for manifest in manifests.values()),
            }
        )  # fmt: skip
