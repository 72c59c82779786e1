"""Local policy improvement in closed form: π ∝ μ̂ min(exp(s Â/β), c), from towers that are trained one after another.

1. μ̂: maximum likelihood, kept at its best held-out likelihood. Or a run that is given: the one that served the log, or
   an `mle` run. An improved policy that served it has towers of its own. These are distilled into one network on the
   log's contexts: taught by whole rows, it loses far less of the served policy than an estimate from the items shown.
2. K critics, each a network of its own that starts from μ̂'s embeddings and backbone and is then trained by its own
   loss alone (squared error to r in a bandit, to r + γ Σ_a μ̂ Q(x',a) otherwise), kept at its best held-out squared
   error to the observed return.
3. On validation sequences that chose no epoch: the critics' calibration s, and β. Where they give no reason to move
   from an improved policy that served the log, the run is that policy, not its student.

Each tower is an ordinary run under RUN/stages while training lasts, so that a run which was stopped goes on within any
of them to the same bytes. When all are done their weights become one policy (see `model.towers`), and the stages go.
"""

from __future__ import annotations

import copy
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from localpolicy.catalogue.shards import Shard
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, RunError, Stopped
from localpolicy.measure.plain_critic import CriticError, fit_plain, read_decisions
from localpolicy.model.policy import Origin, Policy
from localpolicy.model.towers import Towers, build
from localpolicy.model.weights import load_weights, save_weights
from localpolicy.objectives.critic import Critic
from localpolicy.objectives.distill import Distill
from localpolicy.objectives.lpi import Improvement
from localpolicy.objectives.mle import MLE
from localpolicy.runs.config import Config
from localpolicy.runs.run import LIKELIEST, Run
from localpolicy.runtime.files import read_json, sha256
from localpolicy.runtime.lanes import Steps
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.checkpoint import lasting
from localpolicy.training.checks import check_data
from localpolicy.training.choice import Choice, choose
from localpolicy.training.logging_policy import served as served_by
from localpolicy.training.selection import selection_score
from localpolicy.training.setup import resolve, shard_of
from localpolicy.training.validation import validate

Fit = Callable[..., Steps[Run]]  # trains one run: (run, config, backbone=, held_out=)
LOG = logging.getLogger(__name__)
STAYS = "μ̂ is the policy that served the log: this run gives what that one gave."
# Every tower is kept by one figure of its own, none of them a ranking: the selected weights are the likeliest too.
WEIGHTS = {
    "policy.safetensors": "policy.safetensors",
    LIKELIEST: "policy.safetensors",
    "last.safetensors": "last.safetensors",
}


@dataclass
class ClosedForm:
    """One run in closed form while it trains."""

    data: Prepared
    run: Run
    config: Config
    ranks: Ranks
    fit: Fit
    backbone: nn.Module | None = None
    towers: Path | None = None  # where the stages stay for runs that differ in the dial alone

    @cached_property
    def _improved(self) -> Run | None:
        """The improved policy that served the log, where one is given: μ̂ is distilled from it."""
        run = None if self.objective.logging == "head" else Run(self.objective.logging)
        return run if run is not None and isinstance(run.policy().network, Towers) else None

    @property
    def objective(self) -> Improvement:
        """Its settings."""
        assert isinstance(self.config.objective, Improvement)
        return self.config.objective

    def steps(self) -> Steps[Run]:
        """All stages, from the start or from where they stopped; it pauses after every step."""
        began = time.perf_counter()
        check_data(self.data, self.objective)
        self.run.folder.mkdir(parents=True, exist_ok=True)
        if self.ranks.leads:
            self.run.write_config(self.config)
        try:
            logging = yield from self._logging()
            critics = []
            for number in range(self.objective.critics):
                critics.append((yield from self._critic(logging, number)))
        except Stopped as stopped:
            raise Stopped(f"{str(stopped).rpartition(': ')[0]}: {self.run.folder}") from None
        return self._finish(logging, critics, time.perf_counter() - began)

    # ------------------------------------------------------------------ the towers

    def _logging(self) -> Steps[Run]:
        given = self.objective.logging
        if given == "head":
            return (yield from self._stage("logging", self._changed(MLE(), select="logp")))
        run = Run(given)
        policy = run.policy()
        known = policy.origin.estimates_logging == "policy" or served_by(run, self.data)
        if not known or not policy.items["item_id"].equals(self.data.catalogue["item_id"]):
            raise RunError(
                "objective.logging: the closed form needs an mle or sqn run, or the run that served the log, over the "
                f"items of {self.data.path}; {given} is a {policy.origin.objective} run over {policy.n_items} items. "
                "Leave objective.logging out, and μ̂ is estimated from the log."
            )
        if self._improved is not None:
            start = self.config.train.warm_start or given
            config = self._changed(Distill(teacher=given), select=Distill.default_selection, warm_start=start)
            return (yield from self._stage("logging", config))
        return run

    def _critic(self, logging: Run, number: int) -> Steps[Run]:
        objective = self.objective.critic_objective(str(logging.folder))
        seed = self.config.train.seed + 1_000_003 * (number + 1)
        config = self._changed(
            objective,
            dropout=self.objective.tower_dropout,
            select=objective.default_selection,
            warm_start=str(logging.folder),
            seed=seed,
            learning_rate=self.config.train.learning_rate * self.objective.critic_rate,
        )
        return (yield from self._stage(f"critic-{number + 1}", config))

    def _changed(self, objective: MLE | Distill | Critic, *, dropout: float | None = None, **train: Any) -> Config:
        model = {} if dropout is None else {"dropout": dropout}
        changes = {
            "objective": objective,
            "model": self.config.model.model_copy(update=model),
            "train": self.config.train.model_copy(update=train),
        }
        return self.config.model_copy(update=changes)

    def _stage(self, name: str, config: Config) -> Steps[Run]:
        run = Run((self.towers or self.run.stages) / name)
        config = resolve(config, self.data)
        if run.finished:
            self._refuse_other(run, config)
        else:
            LOG.info("%s: training", name)
            # Every second sequence chooses epochs; the others are for the slope and for β.
            held_out = self._half(0)
            yield from self.fit(run, config, backbone=copy.deepcopy(self.backbone), held_out=held_out)
        return run

    def _refuse_other(self, run: Run, config: Config) -> None:
        """A stage that is done must be one of this very run."""
        facts = {
            "data": (run.manifest["data"]["digest"], self.data.digest),
            "config": map(lasting, (run.config, config)),
        }
        for name, (there, here) in facts.items():
            if there != here:
                raise RunError(f"{run.folder} was made with another {name}; it cannot go on with this one.")

    def _half(self, number: int) -> Windows:
        windows = Windows(self.data, "validation", self.config.data, device=self.config.train.device)
        if len(windows) < 2:
            raise DataError(
                "the closed form needs at least 2 validation sequences, one to choose epochs and one to choose β; "
                f"found {len(windows)}. Prepare the data with a larger share for validation."
            )
        return windows.part(number, 2)

    # ------------------------------------------------------------------ one policy

    def _finish(self, logging: Run, critics: list[Run], seconds: float) -> Run:
        ranks, run, config = self.ranks, self.run, self.config
        if ranks.leads:
            for name, source in WEIGHTS.items():
                save_weights(_together(logging, critics, source), run.folder / name)
            self._describe(logging, critics, beta=1.0, slope=1.0)
        ranks.wait()
        policy = self._open(shard_of(self.data, config, ranks))
        windows = self._half(1)
        again = self._improved is not None
        choice = choose(policy, windows, self.objective, self.data, config, ranks=ranks, again=again)
        network = policy.network
        assert isinstance(network, Towers)
        network.beta, network.slope = choice.beta, choice.slope
        served = self._improved if choice.slope == 0 else None
        if served is not None:  # even its student would lose some of it, round after round
            policy, choice = served.policy(), choice._replace(said=f"{choice.said} {STAYS}")
            policy.network.to(config.train.device)
        figures = validate(policy, windows, config, data=self.data, step=0, ranks=ranks)
        ranks.wait()
        if ranks.leads:
            errors = self._errors(windows, choice)
            if served is None:
                self._describe(logging, critics, beta=choice.beta, slope=choice.slope)
            else:
                self._copy(served, policy)
            improvement = {**choice.json(), "critic_error": errors.json()}
            self._record(logging, critics, figures | choice.figures(), improvement, seconds)
            shutil.rmtree(run.stages, ignore_errors=True)
            for said in (choice.said, errors.said):
                if said is not None:
                    LOG.info("note: %s", said)
        ranks.wait()
        return run

    def _copy(self, served: Run, policy: Policy) -> None:
        """Give this run the policy of that one."""
        for name in WEIGHTS:
            save_weights(load_weights(served.folder / "policy.safetensors"), self.run.folder / name)
        policy.save_description(self.run.folder, catalogue=self.data.path / "items.parquet")

    def _errors(self, windows: Windows, choice: Choice) -> CriticError:
        """The critics' held-out error, beside that of item and user means."""
        gamma = self.objective.critic_objective("").gamma
        known = Windows(self.data, "train", self.config.data, device=self.config.train.device)
        plain = fit_plain(read_decisions(known, gamma=gamma), n_items=self.data.n_items)
        held_out = read_decisions(windows, gamma=gamma)
        error = float(np.mean((plain(held_out) - held_out.returns) ** 2))
        return CriticError(choice.calibration.error, error, float(held_out.returns.var()))

    def _open(self, shard: Shard | None) -> Policy:
        policy = Policy.load(self.run.folder, backbone=copy.deepcopy(self.backbone), shard=shard)
        policy.network.to(self.config.train.device)
        return policy

    def _describe(self, logging: Run, critics: list[Run], *, beta: float, slope: float) -> None:
        made = [read_json(stage.folder / "policy.json")["network"] for stage in (logging, *critics)]
        towers = {"critics": made[1:], "beta": beta, "slope": slope, "cap": self.objective.closed_cap}
        network = build({**made[0], **towers}, backbone=self.backbone)
        origin = Origin(self.objective.name, self.data.kind, self.data.events, "logging")
        Policy(network, origin, self.data.catalogue).save_description(
            self.run.folder, catalogue=self.data.path / "items.parquet"
        )

    def _record(
        self, logging: Run, critics: list[Run], figures: dict[str, float], choice: dict[str, Any], seconds: float
    ) -> None:
        run, config = self.run, self.config
        given = None if self.objective.logging == "head" else Run(self.objective.logging)
        stages = {"logging": logging} if given is None or given.folder != logging.folder else {}
        stages |= {f"critic-{number + 1}": critic for number, critic in enumerate(critics)}
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
                "data": {**run.data_location(self.data.path), "digest": self.data.digest, "kind": self.data.kind},
                "selected": {"by": config.train.select, "value": value, "epoch": epoch, "step": step + 1},
                "likeliest": {"value": figures["logp"], "epoch": epoch, "step": step + 1,
                              "sha256": sha256(run.folder / LIKELIEST)},
                "patience": config.train.patience,
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


def _together(logging: Run, critics: list[Run], name: str) -> dict[str, Tensor]:
    """The towers' weights under the names they have in `Towers`."""
    towers: dict[str, Path] = {"logging": logging.folder}
    towers |= {f"critics.{number}": critic.folder for number, critic in enumerate(critics)}
    return {
        f"{prefix}.{key}": tensor
        for prefix, folder in towers.items()
        for key, tensor in load_weights(folder / name).items()
    }
