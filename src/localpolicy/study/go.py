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
import math
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from localpolicy.data.prepare import prepare
from localpolicy.data.reading import ROW
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import THE_LOG, Check, Gate, GateRules, gate
from localpolicy.measure.baselines import BASELINES, fit_baseline
from localpolicy.measure.question import question_of
from localpolicy.results import Result
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_yaml, sha256, utf8, whole_file, write_json
from localpolicy.runtime.folders import remove_abandoned
from localpolicy.study.guess import Guess
from localpolicy.study.jobs import Job, cores, train_all
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import validate

LOG = logging.getLogger(__name__)
IMPROVED = "improved"  # the run that is judged
FEWEST, ENOUGH_EPOCHS = 3, 40  # of a run: fewer teach little; most runs have found their best by then
NOTHING = "nothing to decide"
RANKED = "all.nDCG@20"  # what models are ranked by where nothing is decided
TRAINING_SHARE = 0.7  # of the minutes; the rest is for judging
LEAST_SHARE = 0.2  # of the minutes, for judging and for training, whatever came before
PASSES = 20  # over the test split, in validations of one policy, that judging all of them costs
FEWEST_JUDGED = 200  # sequences
PROBE = 6  # steps that are timed; the first two warm up


@dataclass(frozen=True)
class Plan:
    """What will be trained, and how long it will take."""

    config: Config  # of the estimates; the improvement differs in its objective alone
    improve: str | None  # the objective; None where no event is worth more than another
    runs: int
    epoch_seconds: float  # of one run
    seconds: float  # of all, at most: early stopping may end them sooner
    scoring_seconds: float = 0.0  # of one pass over the validation split
    by_log: tuple[str, ...] = ()  # the word `log`, where the value of what wrote it is known
    notes: tuple[str, ...] = ()


def prepare_log(log: Path, out: Path, guessed: Guess, *, seed: int) -> Prepared:
    """The data set under `out`, or the one that is there of the same log and the same meaning."""
    folder, digest = out / "data", sha256(log)
    asked = {"log": digest, "source": guessed.source, **guessed.settings(), "seed": seed}
    noted = out / "go.yaml"
    remove_abandoned(folder)
    if (folder / "manifest.json").exists():
        if not noted.exists() or _noted(noted).get("prepare") != asked:
            raise RunError(f"{out} holds another log, or the same one read otherwise: choose another --out.")
        LOG.info("%s: prepared before", folder)
        return Prepared(folder)
    # First: data that a kill left without a note could not be known again.
    with whole_file(noted) as partial:
        partial.write_bytes(utf8(yaml.safe_dump({"prepare": asked}, sort_keys=False)))
    return prepare(log, source=guessed.source, out=folder, seed=seed, **guessed.settings())


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
            listed = {name: tuple(known[name]) for name in ("notes", "by_log")}
            return Plan(**{**known, **listed, "config": Config.parse(known["config"])})
        except (KeyError, TypeError):
            raise RunError(f"{noted} was altered: its plan cannot be read. Choose another --out.") from None
    made = make_plan(data, minutes=minutes, seed=seed, changes=changes, device=device)
    plain = {"notes": list(made.notes), "by_log": list(made.by_log), "config": made.config.model_dump()}
    content |= {"asked": asked, "plan": {**vars(made), **plain}}
    with whole_file(noted) as partial:
        partial.write_bytes(utf8(yaml.safe_dump(content, sort_keys=False)))
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
    question = question_of(data)
    bandit = question.kind == "liking" or int(lengths.max()) == 1
    improve = None if question.kind == "nothing" else "lpi_cb" if bandit else "lpi_rl"
    if improve is None:
        notes.append(f"{question.why}: models are ranked, and nothing is decided")
    settings: dict[str, Any] = {
        "objective": {"name": "mle"},
        "train": {
            "seed": seed, "device": device, "min_history": 0 if int(lengths.max()) == 1 else 1,
            "choose_on": "half",  # the other half chooses β of the improvement
        },
    }  # fmt: skip
    config = resolve(Config.parse(settings).with_changes(changes), data)
    runs = len(REFERENCE_SEEDS) + (improve is not None)
    epoch, scoring = epoch_seconds(data, config)
    # The estimates are trained side by side, the improvement's critic after them.
    together = -(-len(REFERENCE_SEEDS) // (cores() if config.train.device == "cpu" else 1)) + (improve is not None)
    asked = any(change.startswith("train.epochs=") for change in changes)
    if not asked:
        most, wanted = config.train.epochs, min(config.train.epochs, ENOUGH_EPOCHS)
        epochs = int(np.clip(60 * minutes * TRAINING_SHARE / (together * epoch), 1, most))
        if epochs < wanted:
            needed = math.ceil(wanted * together * epoch / (60 * TRAINING_SHARE))
            notes.append(
                f"{minutes:g} minutes allow {epochs} epochs a run, where `lpi train` takes up to {most} and often "
                f"needs {wanted}: the policies may be weaker than they could be. --minutes {needed} allows {wanted}"
            )
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    seconds = together * epoch * config.train.epochs
    if config.train.epochs < FEWEST and not asked:
        notes.append(
            f"{minutes:g} minutes are enough for {config.train.epochs} epochs of this log on this machine: too few to "
            "learn much. Give more --minutes"
        )
    # What was shown with known probabilities is judged by what it earned, not by how well its log is imitated.
    by_log = (THE_LOG,) if question.kind == "value" else ()
    return Plan(config, improve, runs, epoch, seconds, scoring, by_log, tuple(notes))


def epoch_seconds(data: Prepared, config: Config) -> tuple[float, float]:
    """How long an epoch takes here, and a pass over the validation split: a few steps and one validation, timed."""
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
        scoring = time.perf_counter() - began
        return step * trainer.batches + scoring, scoring


@dataclass(frozen=True, repr=False)
class GoResult(Result):
    """What came of it."""

    guessed: Guess
    data: Prepared
    plan: Plan
    chosen: Run  # the policy that was judged, or the likeliest where there is nothing to decide
    verdict: Gate | None  # None: all events are worth the same, so nothing is decided
    comparison: Comparison
    out: Path
    left_out: tuple[str, ...] = ()  # what the time did not allow

    @property
    def answer(self) -> str:
        """The gate's, or that there is nothing to decide."""
        return NOTHING if self.verdict is None else self.verdict.answer

    @property
    def sentence(self) -> str:
        """The answer as one says it to somebody who decides."""
        if self.verdict is not None:
            return self.verdict.sentence
        ranked = sorted(self.comparison.evaluations, key=lambda each: -each.estimate(RANKED).mean)
        listed = ", ".join(f"{each.name} {each.estimate(RANKED).mean:.4f}" for each in ranked)
        return (
            "Nothing to decide: all events are worth the same, so no policy can earn more than another. Models ranked "
            f"by how high they place what people took ({RANKED}): {listed}."
        )

    @property
    def said(self) -> str | None:
        """What the improvement says of itself: why it did not move, or how its β was found."""
        improvement = self.chosen.manifest.get("improvement", {})
        return improvement.get("said") or (
            f"β = {improvement['beta']:.3g}, by {improvement['chosen_by']}." if improvement else None
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of how the log was read, and of what was left out."""
        return (*self.guessed.unsure, *self.left_out)

    def summary(self) -> str:
        """The answer in a sentence."""
        return self.sentence.removesuffix(".")

    def to_dict(self) -> dict[str, Any]:
        """As OUT/verdict.json has it."""
        verdict = {} if self.verdict is None else self.verdict.to_dict()
        deploy = self.verdict is not None and self.verdict.deploy
        return {**verdict, "answer": self.answer, "deploy": deploy, "sentence": self.sentence, "read": list(self.notes)}

    def to_arrow(self) -> pa.Table:
        """The comparison's numbers."""
        return self.comparison.to_arrow()


def carry_out(
    log: Path,
    guessed: Guess,
    data: Prepared,
    plan: Plan,
    out: Path,
    *,
    minutes: float = 15.0,
    seed: int = 0,
    rules: GateRules | None = None,
    titles: Path | None = None,
    own: Path | None = None,
    exclude_seen: bool = False,
    started: float | None = None,
) -> GoResult:
    """Train two estimates of the logging policy and the improvement of the first, fit the baselines, and judge.

    The improvement is made of the first estimate and a critic, and judged against that very estimate, or against `own`:
    the lists of the recommender that is deployed. No rule that keeps epochs stands between them. β is chosen on
    validation rows, the verdict is the test rows'. Training that is slower than planned ends when its time is over; the
    `minutes` are counted from `started` (a time.monotonic()), so that all of it keeps them.
    """
    began = time.monotonic()
    ends = (began if started is None else started) + 60 * minutes
    left = max(ends - began, LEAST_SHARE * 60 * minutes)  # reading and preparing may have taken most of it
    budget = max(left - _judging_seconds(data, plan, len(data["test"])), TRAINING_SHARE * left)
    config = plan.config
    with whole_file(out / "config.yaml") as partial:
        partial.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    _write_commands(out, plan, log, guessed, seed=seed, titles=titles, own=own, exclude_seen=exclude_seen)
    rounds = -(-len(REFERENCE_SEEDS) // (cores() if config.train.device == "cpu" else 1))
    share = budget / (rounds + (plan.improve is not None))
    jobs = [
        Job(f"mle-seed-{seed}", data.path, out / "runs" / f"mle-seed-{seed}", _within(with_seed(config, seed), share))
        for seed in REFERENCE_SEEDS
    ]
    references = list(train_all(jobs).values())
    chosen = max(references, key=lambda run: run.manifest["selected"]["value"])
    if plan.improve is not None:
        objective = {"name": plan.improve, "logging": str(references[0].folder)}
        improved = Config.parse({**config.model_dump(), "objective": objective})
        left = max(budget - (time.monotonic() - began), share / 4)
        job = Job(IMPROVED, data.path, out / "runs" / IMPROVED, _within(improved, left))
        chosen = train_all([job])[IMPROVED]
    for name in BASELINES:
        folder = out / "baselines" / name.replace(" ", "-").lower()
        if not (folder / "manifest.json").exists():
            fit_baseline(name, data, out=folder, force=True)
    left_out = _cut_short([*references, *([chosen] if plan.improve else [])], config.train.epochs)
    measure: dict[str, Any] = {"exclude_seen": True} if exclude_seen else {}
    sequences = _affordable(data, plan, max(ends - time.monotonic(), LEAST_SHARE * 60 * minutes))
    if sequences is not None:
        measure |= {"sequences": sequences, "min_history": config.train.min_history}
        left_out.append(
            f"only about {sequences:,} of {len(data['test']):,} test sequences are judged, to keep the time"
        )
    device = config.train.device
    verdict = None
    mine = [] if own is None else [own]
    if plan.improve is not None:
        against: list[Any] = [*mine, *([] if mine else plan.by_log), *references]
        verdict = gate(chosen, against=against, rules=rules, data=data, device=device, config=measure or None)
        verdict = _ordered(verdict, guessed)
    compared = list(dict.fromkeys([*references, chosen]))
    metrics = {"metrics": ("HR@20", "nDCG@20"), **measure} if measure else None
    comparison = compare([*compared, *mine], against=references, data=data, device=device, config=metrics)
    result = GoResult(guessed, data, plan, chosen, verdict, comparison, out, tuple(left_out))
    write_json(out / "verdict.json", result.to_dict())
    return result


def _ordered(verdict: Gate, guessed: Guess) -> Gate:
    """Without times, in rows that are sorted by something else, what models learn is how the file was written."""
    if guessed.sorted_by is None:
        return verdict
    reason = (
        f"the log has no times and its rows are sorted by {guessed.sorted_by}: a model of sequences predicts that "
        "order, and its figures say nothing of people. Give the times (--columns timestamp=NAME)"
    )
    check = Check("order", "cannot tell", reason, plain="the order of the rows is not that of time")
    idle = [
        replace(
            each, outcome="not asked", reason=f"not asked, since the order is no time's: {each.reason}", instead=None
        )
        for each in verdict.checks
    ]
    return replace(verdict, checks=[check, *idle])


def _within(config: Config, seconds: float) -> Config:
    """The same, ended by the clock where it is slower than planned."""
    return config.model_copy(update={"train": config.train.model_copy(update={"minutes": seconds / 60})})


def _cut_short(runs: Sequence[Run], epochs: int) -> list[str]:
    """Which runs the clock ended."""
    said = []
    for run in runs:
        limit, manifest = run.config.train.minutes, run.manifest
        if limit is not None and manifest["seconds"] >= 60 * limit and manifest["epochs"] < epochs:
            said.append(
                f"{run.folder.name} stopped after {manifest['epochs']} of {epochs} epochs, since its time was over: "
                "more --minutes would train it further"
            )
    return said


def _judging_seconds(data: Prepared, plan: Plan, sequences: int) -> float:
    """How long judging on so many sequences takes, by the validation that was timed."""
    return PASSES * plan.scoring_seconds * sequences / max(len(data["validation"]), 1)


def _affordable(data: Prepared, plan: Plan, seconds: float) -> int | None:
    """How many test sequences can be judged in the time that is left; None: all of them."""
    whole = _judging_seconds(data, plan, len(data["test"]))
    fitting = int(len(data["test"]) * seconds / whole) if whole > 0 else len(data["test"])
    fitting = max(fitting, FEWEST_JUDGED)
    return None if fitting >= len(data["test"]) else fitting


def with_seed(config: Config, seed: int) -> Config:
    """The same with another seed."""
    return config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})


def _write_commands(
    out: Path,
    plan: Plan,
    log: Path,
    guessed: Guess,
    *,
    seed: int,
    titles: Path | None,
    own: Path | None,
    exclude_seen: bool,
) -> None:
    """The same steps as single commands, from the log on."""
    seen = " --exclude-seen" if exclude_seen else ""
    here = shlex.quote(str(out))
    estimates = [f"{here}/runs/mle-seed-{seed}" for seed in REFERENCE_SEEDS]
    judged = f"{here}/runs/{IMPROVED}" if plan.improve else None
    mine = [] if own is None else [shlex.quote(str(own))]
    deployed = mine or list(plan.by_log)
    settings = f"--config {here}/config.yaml"
    told = {name: value for name, value in guessed.settings().items() if value}
    words = " ".join(
        f"--{name} {shlex.quote(value if isinstance(value, str) else ','.join(f'{a}={b}' for a, b in value.items()))}"
        for name, value in told.items()
    )
    prepared = f"lpi prepare {guessed.source} {shlex.quote(str(log))} {words} --seed {seed} --out {here}/data"
    first = f"[ -e {here}/data/manifest.json ] || {' '.join(prepared.split())}"
    if ROW in guessed.columns.values():  # no option of a command line can say so
        first = f"# {here}/data was prepared by `lpi go`: every row is a sequence of its own"
    lines = [
        "#!/bin/sh",
        "# The steps of `lpi go`, one by one: change what you like. What is there already is not made again.",
        first,
        *(
            f"lpi train {here}/data {settings} --seed {seed} --out {folder} --resume"
            for seed, folder in zip(REFERENCE_SEEDS, estimates, strict=True)
        ),
        *(
            f"lpi train {here}/data --objective {name} --out {here}/baselines/{name} --resume"
            for name in ("popularity", "last-item", "item-knn")
        ),
    ]
    if judged:
        lines.append(
            f"lpi train {here}/data {settings} --objective {plan.improve} --set objective.logging={estimates[0]} "
            f"--out {judged} --resume"
        )
        against = " ".join(f"--against {folder}" for folder in [*deployed, *estimates])
        lines.append(f"lpi gate {judged} {against}{seen}")
    compared = [*estimates, *([judged] if judged else []), *mine]
    lines.append(
        f"lpi compare {' '.join(compared)} {' '.join(f'--against {folder}' for folder in estimates)}{seen} --html "
        f"{here}/comparison.html" + (f" --titles {shlex.quote(str(titles))}" if titles else "")
    )
    with whole_file(out / "commands.sh") as partial:
        partial.write_text("\n".join(lines) + "\n")
