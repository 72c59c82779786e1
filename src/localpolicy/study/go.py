"""`go`: from a log to a verdict in one command, made of the other verbs.

OUT/go.yaml       what was guessed and decided; OUT/commands.sh: the same as single commands, to grow out of it
OUT/config.yaml   the training settings, for `lpi train --config`
OUT/data          as `lpi prepare` makes it
OUT/runs          two estimates of the logging policy, and the improvement of the first, as `lpi train` makes them
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
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import THE_LOG, Gate, GateRules, gate
from localpolicy.measure.baselines import BASELINES
from localpolicy.measure.baselines.saved import fit_baseline
from localpolicy.measure.candidates import RunLike
from localpolicy.measure.segments import is_rating
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_yaml, sha256, whole_file, write_json
from localpolicy.study.guess import Guess
from localpolicy.study.jobs import Job, cores, train_all
from localpolicy.study.seeds import REFERENCE_SEEDS
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import validate

LOG = logging.getLogger(__name__)
IMPROVED = "improved"  # the run that is judged
FEWEST, MOST_EPOCHS = 3, 20
FEWEST_STEPS = 2_000  # in batches of 256, with most epochs: where there are fewer, batches are smaller
PROBE = 6  # steps that are timed; the first two warm up
LONGEST = 50  # actions of a context, at most


@dataclass(frozen=True)
class Plan:
    """What will be trained, and how long it will take."""

    config: Config  # of the estimates; the improvement differs in its objective alone
    improve: str | None  # the objective; None where no event is worth more than another
    runs: int
    epoch_seconds: float  # of one run
    seconds: float  # of all, at most: early stopping may end them sooner
    notes: tuple[str, ...] = ()


def prepare_log(log: Path, out: Path, guessed: Guess, *, seed: int) -> Prepared:
    """The data set under `out`, or the one that is there of the same log and the same meaning."""
    folder, digest = out / "data", sha256(log)
    asked = {"log": digest, "source": guessed.source, **guessed.settings(), "seed": seed}
    noted = out / "go.yaml"
    if (folder / "manifest.json").exists():
        if not noted.exists() or _noted(noted).get("prepare") != asked:
            raise RunError(f"{out} holds another log, or the same one read otherwise: choose another --out.")
        LOG.info("%s: prepared before", folder)
        return Prepared(folder)
    out.mkdir(parents=True, exist_ok=True)
    data = prepare(log, source=guessed.source, out=folder, seed=seed, **guessed.settings())
    with whole_file(noted) as partial:
        partial.write_text(yaml.safe_dump({"prepare": asked}, sort_keys=False))
    return data


def plan(
    data: Prepared, out: Path, *, minutes: float, seed: int, changes: Sequence[str] = (), device: str = "auto"
) -> Plan:
    """The plan of an earlier call with the same wishes, or a new one: times differ from call to call."""
    noted = out / "go.yaml"
    content = _noted(noted)
    asked = {"minutes": minutes, "seed": seed, "changes": list(changes)}
    if "plan" in content:
        if content.get("asked") != asked:
            raise RunError(f"{out} was begun with {content.get('asked')}, now {asked}: choose another --out.")
        try:
            known = {**content["plan"]}
            return Plan(**{**known, "notes": tuple(known["notes"]), "config": Config.parse(known["config"])})
        except (KeyError, TypeError):
            raise RunError(f"{noted} was altered: its plan cannot be read. Choose another --out.") from None
    made = make_plan(data, minutes=minutes, seed=seed, changes=changes, device=device)
    plain = {"notes": list(made.notes), "config": made.config.model_dump()}
    content |= {"asked": asked, "plan": {**vars(made), **plain}}
    with whole_file(noted) as partial:
        partial.write_text(yaml.safe_dump(content, sort_keys=False))
    return made


def _noted(path: Path) -> dict[str, Any]:
    """What go.yaml says."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RunError(f"{path} was altered: it holds no settings. Choose another --out.")
    return content


def make_plan(data: Prepared, *, minutes: float, seed: int, changes: Sequence[str] = (), device: str = "auto") -> Plan:
    """The settings that fit the log, and as many epochs as fit the time; a few steps are timed for it."""
    notes = []
    lengths = np.diff(data["train"].offsets)
    ratings = all(is_rating(event) for event in data.events)
    bandit = ratings or int(lengths.max()) == 1
    rewards = {reward for event, reward in data.manifest["rewards"].items() if event in data.events} or {0.0, 1.0}
    improve = None if len(rewards) == 1 else "lpi_cb" if bandit else "lpi_rl"
    if improve is None:
        notes.append("all events are worth the same: there is nothing to improve on, and the log is imitated only")
    settings: dict[str, Any] = {
        "data": {"length": int(np.clip(np.quantile(lengths, 0.95), 5, LONGEST))},
        "objective": {"name": "mle"},
        "train": {"seed": seed, "device": device, "min_history": 0 if int(lengths.max()) == 1 else 1},
    }
    if MOST_EPOCHS * len(lengths) / 256 < FEWEST_STEPS:
        settings["train"] |= {"batch_size": 64, "learning_rate": 0.003}  # few sequences give few steps
    config = resolve(Config.parse(settings).with_changes(changes), data)
    runs = len(REFERENCE_SEEDS) + (improve is not None)
    epoch = epoch_seconds(data, config)
    # The estimates are trained side by side, the improvement's critic after them.
    together = -(-len(REFERENCE_SEEDS) // (cores() if config.train.device == "cpu" else 1)) + (improve is not None)
    if not any(change.startswith("train.epochs=") for change in changes):
        epochs = int(np.clip(60 * minutes / (together * epoch), FEWEST, MOST_EPOCHS))
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    seconds = together * epoch * config.train.epochs
    if seconds > 90 * minutes:
        notes.append(f"even {config.train.epochs} epochs take longer than {minutes:g} minutes on this machine")
    return Plan(config, improve, runs, epoch, seconds, tuple(notes))


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
        validate(trainer.policy(), trainer.held_out, config, data=data, step=0, ranks=trainer.ranks)
        return step * trainer.batches + time.perf_counter() - began


@dataclass(frozen=True)
class GoResult:
    """What came of it."""

    data: Prepared
    plan: Plan
    chosen: Run  # the policy that was judged
    verdict: Gate
    comparison: Comparison

    @property
    def said(self) -> str | None:
        """What the improvement says of itself: why it did not move, or how its β was found."""
        improvement = self.chosen.manifest.get("improvement", {})
        return improvement.get("said") or (
            f"β = {improvement['beta']:.3g}, by {improvement['chosen_by']}." if improvement else None
        )


def carry_out(
    data: Prepared, plan: Plan, out: Path, *, rules: GateRules | None = None, titles: Path | None = None
) -> GoResult:
    """Train two estimates of the logging policy and the improvement of the first, fit the baselines, and judge.

    The improvement is made of the first estimate and a critic, and judged against that very estimate: no rule that
    keeps epochs stands between them. β is chosen on validation rows, the verdict is the test rows'.
    """
    config = plan.config
    with whole_file(out / "config.yaml") as partial:
        partial.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    _write_commands(out, plan, titles)
    jobs = [
        Job(f"mle-seed-{seed}", data.path, out / "runs" / f"mle-seed-{seed}", with_seed(config, seed))
        for seed in REFERENCE_SEEDS
    ]
    references = list(train_all(jobs).values())
    chosen = references[-1]
    if plan.improve is not None:
        objective = {"name": plan.improve, "logging": str(references[0].folder)}
        improved = Config.parse({**config.model_dump(), "objective": objective})
        chosen = train_all([Job(IMPROVED, data.path, out / "runs" / IMPROVED, improved)])[IMPROVED]
    for name in BASELINES:
        folder = out / "baselines" / name.replace(" ", "-")
        if not (folder / "manifest.json").exists():
            fit_baseline(name, data, out=folder, force=True)
    device = config.train.device
    # What was shown with known probabilities is judged by what it earned, not by how well its log is imitated.
    known = data.kind == "impressions" and "propensity" in data["test"].arrays
    against: list[RunLike] = [*([THE_LOG] if known else []), *(run for run in references if run is not chosen)]
    verdict = gate(chosen, against=against, rules=rules, data=data, device=device)
    write_json(out / "verdict.json", verdict.to_dict())
    compared = list(dict.fromkeys([*references, chosen]))
    comparison = compare(compared, against=references, data=data, device=device)
    return GoResult(data, plan, chosen, verdict, comparison)


def with_seed(config: Config, seed: int) -> Config:
    """The same with another seed."""
    return config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})


def _write_commands(out: Path, plan: Plan, titles: Path | None) -> None:
    """The same steps as single commands."""
    here = shlex.quote(str(out))
    estimates = [f"{here}/runs/mle-seed-{seed}" for seed in REFERENCE_SEEDS]
    judged = f"{here}/runs/{IMPROVED}" if plan.improve else estimates[-1]
    settings = f"--config {here}/config.yaml"
    lines = [
        "#!/bin/sh",
        "# The steps of `lpi go`, one by one: change what you like. What is there already is not made again.",
        *(
            f"lpi train {here}/data {settings} --seed {seed} --out {folder} --resume"
            for seed, folder in zip(REFERENCE_SEEDS, estimates, strict=True)
        ),
    ]
    if plan.improve:
        lines.append(
            f"lpi train {here}/data {settings} --objective {plan.improve} --set objective.logging={estimates[0]} "
            f"--out {judged} --resume"
        )
    against = [folder for folder in estimates if folder != judged]
    lines += [
        f"lpi gate {judged} {' '.join(f'--against {folder}' for folder in against)}",
        f"lpi compare {' '.join(dict.fromkeys([*estimates, judged]))} --html {here}/comparison.html"
        + (f" --titles {shlex.quote(str(titles))}" if titles else ""),
    ]
    with whole_file(out / "commands.sh") as partial:
        partial.write_text("\n".join(lines) + "\n")
