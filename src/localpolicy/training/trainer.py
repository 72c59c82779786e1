"""Training loop: the epochs and batches of one run.

Every epoch: batch after batch, one step each (`step`: readout -> objective -> terms -> mean -> gradient); then
validation (and in between if set), and the best weights so far are kept. A CPU run that is killed and resumed ends with
the same bytes as an uninterrupted one (see `checkpoint`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from localpolicy.data.batches import Windows
from localpolicy.data.buckets import Planned
from localpolicy.data.store import Prepared
from localpolicy.errors import Stopped
from localpolicy.model.deployable import Origin
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.runs.config import Config
from localpolicy.runs.folder import LIKELIEST
from localpolicy.runs.run import LIKELIHOOD, Run
from localpolicy.runtime.devices import keep_freed_memory
from localpolicy.runtime.interrupt import stop_requested
from localpolicy.runtime.progress import EPOCH_LINES
from localpolicy.runtime.progress import progress as progress_bar
from localpolicy.runtime.ranks import ALONE, Ranks
from localpolicy.training.average import averaged, keep_average
from localpolicy.training.checkpoint import Progress
from localpolicy.training.critic_init import informed, start_at_item_means, unit_of
from localpolicy.training.critic_quality import credited
from localpolicy.training.cuda_graphs import CapturedSteps, refusal
from localpolicy.training.display import Display
from localpolicy.training.epoch_log import EpochLog
from localpolicy.training.finite import refuse_broken_sums
from localpolicy.training.logging_policy import logging_facts, origin_of
from localpolicy.training.manifest import manifest_of
from localpolicy.training.run_saver import RunSaver
from localpolicy.training.selection import choosing, imitation, selection_score
from localpolicy.training.setup import build_losses, build_optimiser, build_reader, shard_of
from localpolicy.training.step import Step
from localpolicy.training.tensorboard import event_writer
from localpolicy.training.validation import distance, validate, validate_critic, warn_of_propensities
from localpolicy.training.warm_start import warm_start
from localpolicy.types import Batch

LOG = logging.getLogger(__name__)
EPOCHS = logging.getLogger(EPOCH_LINES)
CHECK_EVERY = 200  # steps between checks that the losses are finite, if steps are captured


@dataclass
class Trainer:
    """State of one run while it trains."""

    data: Prepared
    run: Run
    config: Config
    ranks: Ranks
    network: Network
    losses: nn.Module  # batch -> loss, means, terms; wrapped in DDP if there are several ranks
    optimiser: torch.optim.Optimizer
    one_step: Step
    windows: Windows
    held_out: Windows
    saver: RunSaver
    logging: dict[str, Any] | None = None  # facts of the frozen μ̂, if there is one
    record: Callable[[dict[str, Any]], None] = field(default=lambda line: None)  # gets the lines of metrics.jsonl, too
    captured: CapturedSteps | None = None  # runner of steps if they may be replayed
    not_captured: str | None = None  # reason why they may not
    teacher: Policy | None = None  # policy that is imitated
    ends: float | None = None  # end of the time limit, by perf_counter

    @classmethod
    def start(
        cls,
        data: Prepared,
        run: Run,
        config: Config,
        *,
        ranks: Ranks = ALONE,
        backbone: nn.Module | None = None,
        held_out: Windows | None = None,
    ) -> Trainer:
        """Build the network, optimiser and checkpoints of a resolved config (see `setup.resolve`).

        `held_out` are the sequences that pick the epoch (default: the validation split, or half of it).
        """
        shard = shard_of(data, config, ranks)
        reader = build_reader(data, config, backbone=backbone, shard=shard)
        losses = build_losses(reader, config, ranks)
        device = config.train.device
        if device == "cpu":
            keep_freed_memory()
        windows = credited(Windows(data, "train", config.data, device=device), reader.reads, repeats=True)
        critic = informed(config.objective, data)
        unit = 1.0 if critic is None else unit_of(critic, windows)
        optimiser = build_optimiser(reader.network, config, unit=unit)
        keep_average(optimiser, config.train.average)
        network, not_captured = reader.network, refusal(config, reader, windows, ranks)
        one_step = Step(network, losses, optimiser, config.train, ranks)
        held_out = held_out or choosing(Windows(data, "validation", config.data, device=device), config.train)
        held_out = credited(held_out, reader.reads)
        logging = logging_facts(reader.logging_policy, data, config.objective)
        digest = None if logging is None else logging["policy_sha256"]
        return cls(
            data, run, config, ranks, network, losses, optimiser, one_step, windows, held_out,
            RunSaver(data, run, config, ranks, network, optimiser, held_out, digest),
            logging,
            captured=None if not_captured else CapturedSteps(one_step, windows, config),
            not_captured=not_captured,
            teacher=reader.logging_policy if reader.reads.teacher else None,
        )  # fmt: skip

    # ------------------------------------------------------------------ the run

    @property
    def batches(self) -> int:
        """Number of batches per epoch."""
        return -(-len(self.windows) // self.config.train.batch_size)

    def train(self, *, resume: bool, older: bool = False) -> Run:
        """Train all epochs, from the start or from a checkpoint; return the run."""
        began = time.perf_counter()
        config, run = self.config.train, self.run
        run.folder.mkdir(parents=True, exist_ok=True)
        done = (self.saver.load(older=older) if resume else None) or Progress()
        if config.warm_start is not None and not done.step:
            done = done._replace(began=warm_start(self.network, config.warm_start, self.data))
        critic = informed(self.config.objective, self.data)
        if critic is not None and not done.step:
            start_at_item_means(self.network, critic, self.windows)
        self.ranks.wait()  # until all have read the checkpoint
        if self.ranks.leads:
            run.write_config(self.config)
            run.keep_metric_lines(done.metric_lines)
        display = Display(
            done, sequences=len(self.windows), batch_size=config.batch_size, epochs=config.epochs,
            patience=config.patience,
        )  # fmt: skip
        bar = progress_bar(self.config.objective.name, self.batches * config.epochs)
        writes_events = config.tensorboard and self.ranks.leads
        records = event_writer(run.folder / "tensorboard", run.metrics() if writes_events else (), wanted=writes_events)
        with stop_requested() as asked, bar as advance, records as self.record:
            advance(done.step)
            if critic is not None and not done.metric_lines:
                done = self._validated(done, self._log(done), epoch=0)  # its start is one of the candidates
            self.ends = None if config.minutes is None else began + 60 * config.minutes
            while done.epoch < config.epochs and not self._out_of_patience(done) and not self._late(done):
                done = self._epoch(done, display, advance, asked)
        return self._finish(done, time.perf_counter() - began)

    def _epoch(self, done: Progress, display: Display, advance: Any, asked: Callable[[], bool]) -> Progress:
        config = self.config.train
        ranks, log = self.ranks, self._log(done)
        self.network.train()
        checked = done.step
        for batch in self._batches(done):
            (positions,) = ranks.summed(batch.positions)
            if positions:
                self.step(batch, done.step, positions=positions, log=log)
            done = done._replace(step=done.step + 1, batch=done.batch + 1)
            advance(1, note=partial(display.note, done, log))
            # A GPU's first steps are compiled and captured: they say nothing of the others.
            if not config.device.startswith("cuda") and ranks.leads and (said := display.forecast(done)) is not None:
                LOG.warning(said)
            (stop,) = ranks.summed(asked())
            # At the epoch's end there is a validation anyway.
            late = self._late(done)
            validates = (late or done.due(config.validate_every)) and done.batch < self.batches
            if stop or validates or done.due(CHECK_EVERY) or done.due(config.checkpoint_every):
                refuse_broken_sums(log, checked, done.step)  # captured steps do not check for themselves
                checked = done.step
            if validates:
                done = self._validated(done, log.over(ranks), epoch=done.epoch + 1)
                self.network.train()
            if stop or (validates and self.saver.due) or done.due(config.checkpoint_every):
                self.saver.save(done._replace(log=log.over(ranks).state()))
            if stop:
                raise Stopped(f"stopped after step {done.step}, as asked. Continue with --resume: {self.run.folder}")
            if validates and (late or self._out_of_patience(done)):
                return done
        refuse_broken_sums(log, checked, done.step)
        log = log.over(ranks)
        done = self._validated(done._replace(epoch=done.epoch + 1, batch=0, log=None), log, epoch=done.epoch + 1)
        if ranks.leads and EPOCHS.isEnabledFor(logging.INFO):
            EPOCHS.info(display.line(done, log))
        if self.saver.due:
            self.saver.save(done)
        return done

    def _validated(self, done: Progress, log: EpochLog, *, epoch: int) -> Progress:
        """Validate the averaged weights, if weights are averaged."""
        with averaged(self.optimiser), self.saver.calibrated() as temperature, self.network.evaluation_embeddings():
            self.saver.fit_rise()
            return self._judged(done, log, epoch=epoch, also=temperature)

    def _judged(self, done: Progress, log: EpochLog, *, epoch: int, also: dict[str, float]) -> Progress:
        """Measure on the validation split, keep the weights if none were better, and record it.

        `epoch` counts from 1; within an epoch the record says how much of it was done, and its losses are those so far.
        `also` are further metrics to record.
        """
        figures = (validate if self.config.objective.reads().policy else validate_critic)(
            self.policy(), self.held_out, self.config, data=self.data, step=done.step, ranks=self.ranks
        )
        if self.teacher is not None:
            figures["teacher_js"] = distance(self.policy(), self.teacher, self.held_out, self.config, self.ranks)
        select, by = self.config.train.select, imitation(self.data)
        value = selection_score(select, figures)
        likely = None  # a critic has no likelihood
        if LIKELIHOOD in figures:
            likely = value if select == by else selection_score(by, figures)
        before, done = done, done.judged(value, likely, epoch=epoch)
        if not done.stale:
            self.saver.choose("policy.safetensors")
        if done.likeliest_step != before.likeliest_step and select != by:  # else they are the selected ones
            self.saver.choose(LIKELIEST)
        if self.ranks.leads:
            line = {
                "epoch": epoch,
                "step": done.step,
                **({"epoch_share": done.batch / self.batches} if done.batch else {}),
                "losses": log.mean_losses(),
                "weights": log.weights(),
                "validation": figures | also,
                "selected_by": value,
            }
            self.run.append_metrics(line)
            self.record(line)
        return done

    def _batches(self, done: Progress) -> Iterator[Batch] | Iterator[Planned]:
        """Remaining batches of this epoch."""
        config, ranks = self.config.train, self.ranks
        if self.captured is not None:
            return self.captured.planner.epoch(seed=config.seed, epoch=done.epoch, skip=done.batch)
        return self.windows.shuffled(
            config.batch_size, seed=config.seed, epoch=done.epoch, skip=done.batch, rank=ranks.rank, ranks=ranks.total
        )

    def _log(self, done: Progress) -> EpochLog:
        """Log of this epoch, with its steps so far."""
        state = done.log if self.ranks.leads else None
        if self.captured is None:
            return EpochLog(self.config.train.device, state)
        self.captured.log.restart(state)
        return self.captured.log

    def step(
        self, batch: Batch | Planned, number: int, *, positions: float | None = None, log: EpochLog | None = None
    ) -> None:
        """Take one optimiser step, replayed if possible. `positions` counts those of all ranks."""
        coin = self.one_step.begin(number)
        if isinstance(batch, Planned):
            assert self.captured is not None
            self.captured.step(batch, number, coin)
        else:
            self.one_step(batch, number, coin, count=batch.positions if positions is None else positions, log=log)

    # ------------------------------------------------------------------ records

    def policy(self) -> Policy:
        """Policy with the present weights."""
        return Policy(self.network, self._origin, self.data.catalogue)

    @cached_property
    def _origin(self) -> Origin:
        return origin_of(self.config.objective, self.data, heads=tuple(self.network.heads))

    @property
    def not_captured_because(self) -> str | None:
        """Reason why steps were not replayed as a captured graph, or None if they were."""
        return self.not_captured if self.captured is None else self.captured.refused

    def _out_of_patience(self, done: Progress) -> bool:
        patience = self.config.train.patience
        return patience is not None and done.stale >= patience

    def _late(self, done: Progress) -> bool:
        """Whether the time limit is over, on any rank; a first step is always made."""
        if self.ends is None or not done.step:
            return False
        (late,) = self.ranks.summed(time.perf_counter() > self.ends)
        return bool(late)

    def _finish(self, done: Progress, seconds: float) -> Run:
        with averaged(self.optimiser), self.network.evaluation_embeddings():
            self.saver.fit_rise()
            self.saver.finish()
        if self.ranks.leads:
            self.policy().save_description(self.run.folder, catalogue=self.data.path / "items.parquet")
            about = manifest_of(
                self.run, self.data, self.config, self.network, done, processes=self.ranks.total, seconds=seconds,
                logging=self.logging, captured=self.captured is not None and self.captured.refused is None,
                not_captured=self.not_captured_because,
            )  # fmt: skip
            self.run.finish(about)
            objective = self.config.objective
            if objective.estimates_logging and "logged_propensity" in objective.reads().fields:
                warn_of_propensities(self.run.selected_metrics()["validation"], self.data)
            self.saver.checkpoints.clear()
        self.ranks.wait()
        return self.run
