"""`go`: from a log to a verdict in one command, made of the other verbs.

OUT/go.yaml       what was guessed and decided; OUT/commands.sh: the same as single commands, to grow out of it
OUT/config.yaml   the training settings, for `lpi train --config`
OUT/data          as `lpi prepare` makes it
OUT/runs          two estimates of the logging policy, as `lpi train` makes them
OUT/sweep         local policy improvement over a few β, as `lpi sweep` makes it
OUT/baselines     the simple baselines, saved
OUT/verdict.json  as `lpi gate --json` writes it

Everything that is there already is taken as it is, so that the same command goes on where it stopped.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.evaluation.baselines import BASELINES
from localpolicy.evaluation.baselines.saved import fit_baseline
from localpolicy.evaluation.compare import Comparison, compare
from localpolicy.evaluation.gate import GateRules, Verdict, gate
from localpolicy.evaluation.segments import is_rating
from localpolicy.experiments.guess import Guess
from localpolicy.experiments.jobs import Job, cores, train_all
from localpolicy.experiments.seeds import REFERENCE_SEEDS
from localpolicy.experiments.sweep import Sweep, sweep
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sha256, whole_file, write_json
from localpolicy.training.loop import Trainer
from localpolicy.training.setup import resolve
from localpolicy.training.validation import validate

LOG = logging.getLogger(__name__)
BETAS = (0.1, 0.3, 1.0)
MINUTES = 15.0  # of training, unless told
FEWEST, MOST_EPOCHS = 3, 20
PROBE = 6  # steps that are timed; the first two warm up
LONGEST = 50  # actions of a context, at most
MANY = 3_000  # events of one sequence that are worth a word


@dataclass(frozen=True)
class Plan:
    """What will be trained, and how long it will take."""

    config: Config  # of the improvement; the estimates differ in objective and seed alone
    betas: tuple[float, ...]  # none where no event is worth more than another
    runs: int
    epoch_seconds: float  # of one run
    seconds: float  # of all, at most: early stopping may end them sooner
    notes: tuple[str, ...] = ()


def prepare_log(log: Path, out: Path, guessed: Guess, *, seed: int) -> Prepared:
    """The data set under `out`, or the one that is there of the same log and the same meaning."""
    place, digest = out / "data", sha256(log)
    asked = {"log": digest, "source": guessed.source, **guessed.settings(), "seed": seed}
    noted = out / "go.yaml"
    if (place / "manifest.json").exists():
        known = yaml.safe_load(noted.read_text()).get("prepare", {}) if noted.exists() else {}
        if known != asked:
            raise RunError(f"{out} holds another log, or the same one read otherwise: choose another --out.")
        LOG.info("%s: prepared before", place)
        return Prepared(place)
    out.mkdir(parents=True, exist_ok=True)
    data = prepare(log, source=guessed.source, out=place, seed=seed, **guessed.settings())
    with whole_file(noted) as partial:
        partial.write_text(yaml.safe_dump({"prepare": asked}, sort_keys=False))
    return data


def make_plan(data: Prepared, *, minutes: float, seed: int, changes: Sequence[str] = (), device: str = "auto") -> Plan:
    """The settings that fit the log, and as many epochs as fit the time; a few steps are timed for it."""
    notes = []
    lengths = np.diff(data["train"].offsets)
    ratings = all(is_rating(event) for event in data.events)
    bandit = ratings or int(lengths.max()) == 1
    rewards = {reward for event, reward in data.manifest["rewards"].items() if event in data.events} or {0.0, 1.0}
    betas = BETAS if len(rewards) > 1 else ()
    if not betas:
        notes.append("all events are worth the same: there is nothing to improve on, and the log is imitated only")
    if (longest := int(max(np.diff(split.offsets).max(initial=0) for split in data.splits.values()))) >= MANY:
        notes.append(
            f"one sequence has {longest:,} events: a robot, or several people? --session-gap of lpi prepare cuts"
        )
    settings: dict[str, Any] = {
        "data": {"length": int(np.clip(np.quantile(lengths, 0.95), 5, LONGEST))},
        "objective": {"name": "mle" if not betas else "lpi_cb" if bandit else "lpi_rl"},
        "train": {"seed": seed, "device": device, "min_history": 0 if int(lengths.max()) == 1 else 1},
    }
    if len(lengths) < 20 * 256:
        settings["train"] |= {"batch_size": 64, "learning_rate": 0.003}  # few sequences give few steps
    config = resolve(Config.parse(settings).with_changes(changes), data)
    # One rule for all, so that no gain is the rule's: the estimates are kept as the improvement is.
    runs = len(REFERENCE_SEEDS) + len(betas)
    epoch = epoch_seconds(data, config)
    together = -(-runs // min(cores(), runs)) if config.train.device == "cpu" else runs
    if not any(change.startswith("train.epochs=") for change in changes):
        epochs = int(np.clip(60 * minutes / (together * epoch), FEWEST, MOST_EPOCHS))
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    seconds = together * epoch * config.train.epochs
    if seconds > 90 * minutes:
        notes.append(f"even {config.train.epochs} epochs take longer than {minutes:g} minutes on this machine")
    return Plan(config, betas, runs, epoch, seconds, tuple(notes))


def epoch_seconds(data: Prepared, config: Config) -> float:
    """How long one epoch takes here: a few steps and one batch of validation, timed, times their number."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.start(data, Run(folder), config)
        batches = trainer.windows.shuffled(config.train.batch_size, seed=0, epoch=0)
        trainer.network.train()
        began, steps = time.perf_counter(), 0
        for number, batch in zip(range(PROBE), batches, strict=False):
            if number == 2:
                began, steps = time.perf_counter(), 0
            if len(batch.scored):
                trainer.step(batch, number)
            steps += 1
        step = (time.perf_counter() - began) / max(steps, 1)
        began = time.perf_counter()
        validate(trainer.policy(), trainer.held_out, config, events=data.events, step=0, ranks=trainer.ranks)
        return step * trainer.batches + time.perf_counter() - began


@dataclass(frozen=True)
class Went:
    """What came of it."""

    data: Prepared
    plan: Plan
    sweep: Sweep | None
    chosen: Path  # the run that was judged
    verdict: Verdict
    comparison: Comparison


def carry_out(data: Prepared, plan: Plan, out: Path, *, rules: GateRules | None = None) -> Went:
    """Train, choose β on validation, fit the baselines, and judge on test rows that had no say in it."""
    config = plan.config
    estimates = {f"mle-seed-{seed}": _estimate(config, seed) for seed in REFERENCE_SEEDS}
    with whole_file(out / "config.yaml") as partial:
        partial.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    _write_commands(out, plan)
    jobs = [Job(name, data.path, out / "runs" / name, settings) for name, settings in estimates.items()]
    references = [run.folder for run in train_all(jobs).values()]
    swept = None
    chosen = references[-1]
    if plan.betas:
        over = [f"beta={','.join(f'{beta:g}' for beta in plan.betas)}"]
        swept = sweep(data, config=config, over=over, out=out / "sweep", against=references)
        assert swept.chosen is not None, "there is no budget that could leave nothing"
        chosen = out / "sweep" / "runs" / swept.chosen.seeds[0].name
    for name in BASELINES:
        place = out / "baselines" / name.replace(" ", "-")
        if not (place / "manifest.json").exists():
            fit_baseline(name, data, out=place)
    against = [run for run in references if run != chosen]
    device = config.train.device
    verdict = gate(chosen, against=against, rules=rules, data=data, device=device)
    write_json(out / "verdict.json", verdict.to_dict())
    comparison = compare([*references, *([chosen] if swept else [])], against=references, data=data, device=device)
    return Went(data, plan, swept, chosen, verdict, comparison)


def _estimate(config: Config, seed: int) -> Config:
    """μ̂ with the same network and training, kept by the same figure: a gain must not be the rule's."""
    groups = config.model_dump()
    return Config.parse({**groups, "objective": {"name": "mle"}, "train": {**groups["train"], "seed": seed}})


def _write_commands(out: Path, plan: Plan) -> None:
    """The same steps as single commands."""
    here = shlex.quote(str(out))
    estimates = [f"{here}/runs/mle-seed-{seed}" for seed in REFERENCE_SEEDS]
    lines = [
        "#!/bin/sh",
        "# The steps of `lpi go`, one by one: change what you like. (lpi prepare made the folder data.)",
    ]
    lines += [
        f"lpi train {here}/data --objective mle --config {here}/config.yaml --seed {seed} --out {place} --resume"
        for seed, place in zip(REFERENCE_SEEDS, estimates, strict=True)
    ]
    against = " ".join(f"--against {place}" for place in estimates)
    if plan.betas:
        over = ",".join(f"{beta:g}" for beta in plan.betas)
        name = plan.config.objective.name
        lines.append(
            f"lpi sweep {here}/data --objective {name} --config {here}/config.yaml --over beta={over} {against} "
            f"--out {here}/sweep"
        )
        lines.append(f"lpi gate {here}/sweep/runs/CHOSEN {against}  # CHOSEN: as the sweep says")
    lines.append(f"lpi compare {' '.join(estimates)} --html {here}/report.html")
    with whole_file(out / "commands.sh") as partial:
        partial.write_text("\n".join(lines) + "\n")
