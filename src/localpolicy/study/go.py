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
from localpolicy.study.go_time import (
    ALL_OF_IT,
    FEWEST_JUDGED,
    LEAST_TRAINING,
    OF_AN_ESTIMATE,
    OF_THE_IMPROVEMENT,
    PASSES,
    REPORT_SHARE,
    SIDE_BY_SIDE,
    TRAINING_SHARE,
    Clock,
    affordable,
    epoch_seconds,
)
from localpolicy.study.guess import Guess
from localpolicy.study.jobs import Job, cores, train_all
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
IMPROVED = "improved"  # the run that is judged
FEWEST, ENOUGH_EPOCHS = 3, 40  # of a run: fewer teach little; most runs have found their best by then
NOTHING = "nothing to decide"
LISTED = ("notes", "by_log", "seeds")  # of a plan, as YAML holds them
RANKED = "all.nDCG@20"  # what models are ranked by where nothing is decided


@dataclass(frozen=True)
class Plan:
    """What will be trained, and how long it will take."""

    config: Config  # of the estimates; the improvement differs in its objective alone
    improve: str | None  # the objective; None where no event is worth more than another
    runs: int
    epoch_seconds: float  # of one run
    seconds: float  # of all, at most: early stopping may end them sooner
    scoring_seconds: float = 0.0  # of one pass over the validation split
    seeds: tuple[int, ...] = REFERENCE_SEEDS  # of the estimates: the second one is left out where time is short
    side_by_side: bool = True  # whether the estimates are trained at the same time
    by_log: tuple[str, ...] = ()  # the word `log`, where the value of what wrote it is known
    notes: tuple[str, ...] = ()
    too_short: bool = False  # whether time, and not the user, leaves too few epochs to learn much


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
    data: Prepared, out: Path, *, clock: Clock, seed: int, changes: Sequence[str] = (), device: str = "auto"
) -> Plan:
    """The plan of an earlier call with the same wishes, or a new one: times differ from call to call."""
    noted = out / "go.yaml"
    content = _noted(noted)
    asked = {"minutes": clock.minutes, "seed": seed, "changes": list(changes)}
    if "plan" in content:
        if content.get("asked") != asked:
            raise RunError(f"{out} was begun with {content.get('asked')}, now {asked}: choose another --out.")
        try:
            known = {**content["plan"]}
            listed = {name: tuple(known[name]) for name in LISTED}
            return Plan(**{**known, **listed, "config": Config.parse(known["config"])})
        except (KeyError, TypeError):
            raise RunError(f"{noted} was altered: its plan cannot be read. Choose another --out.") from None
    made = make_plan(data, clock=clock, seed=seed, changes=changes, device=device)
    plain = {**{name: list(getattr(made, name)) for name in LISTED}, "config": made.config.model_dump()}
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


def make_plan(data: Prepared, *, clock: Clock, seed: int, changes: Sequence[str] = (), device: str = "auto") -> Plan:
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
    epoch, scoring = epoch_seconds(data, config)
    side_by_side = clock.minutes >= SIDE_BY_SIDE and config.train.device == "cpu" and cores() > 1
    seeds: tuple[int, ...] = REFERENCE_SEEDS
    minutes = "1 minute" if clock.minutes == 1 else f"{clock.minutes:g} minutes"
    asked = any(change.startswith("train.epochs=") for change in changes)
    budget = TRAINING_SHARE * clock.left

    def together() -> int:
        """How many times as long as one run all of them take: the improvement's critic comes after the estimates."""
        return (1 if side_by_side else len(seeds)) + (improve is not None)

    if budget < FEWEST * together() * epoch and not asked:
        seeds = REFERENCE_SEEDS[:1]
        notes.append(
            f"there is little time ({minutes}) for this log on this machine: the second estimate of the "
            "logging policy is left out, so how far two seeds differ (the noise floor) is not known"
        )
    if not asked:
        most, wanted = config.train.epochs, min(config.train.epochs, ENOUGH_EPOCHS)
        epochs = int(np.clip(budget / (together() * epoch), 1, most))
        if epochs < wanted:
            needed = math.ceil(wanted * together() * epoch / (60 * TRAINING_SHARE * (1 - REPORT_SHARE)))
            notes.append(
                f"there is time ({minutes}) for {epochs} epochs a run, where `lpi train` takes up to {most} and "
                f"often needs {wanted}: the policies may be weaker than they could be. --minutes {needed} allows "
                f"{wanted}"
            )
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    too_short = config.train.epochs < FEWEST and not asked
    if too_short:
        notes.append(
            f"there is time ({minutes}) for {config.train.epochs} epochs of this log on this machine: too few to learn "
            "much. Give more --minutes"
        )
    judged = min(len(data["test"]), FEWEST_JUDGED) / max(len(data["validation"]), 1)
    runs = len(seeds) + (improve is not None)
    passes = len(seeds) * OF_AN_ESTIMATE + (improve is not None) * OF_THE_IMPROVEMENT + PASSES * ALL_OF_IT * judged
    least = clock.spent + passes * scoring + REPORT_SHARE * clock.total
    if least > clock.total:
        notes.insert(
            0,
            f"even the least takes about {math.ceil(least / 60)} minutes for this log on this machine: {minutes} "
            "cannot be kept",
        )
    # What was shown with known probabilities is judged by what it earned, not by how well its log is imitated.
    by_log = (THE_LOG,) if question.kind == "value" else ()
    seconds = together() * epoch * config.train.epochs
    return Plan(config, improve, runs, epoch, seconds, scoring, seeds, side_by_side, by_log, tuple(notes), too_short)


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
    seed: int = 0,
    rules: GateRules | None = None,
    titles: Path | None = None,
    own: Path | None = None,
    exclude_seen: bool = False,
    clock: Clock,
) -> GoResult:
    """Train two estimates of the logging policy and the improvement of the first, fit the baselines, and judge.

    The improvement is made of the first estimate and a critic, and judged against that very estimate, or against `own`:
    the lists of the recommender that is deployed. No rule that keeps epochs stands between them. β is chosen on
    validation rows, the verdict is the test rows'. Training that is slower than planned ends when its time is over,
    and of a large test split as much is judged as the clock allows.
    """
    config, judging = plan.config, _judging_seconds(data, plan, len(data["test"]))
    until = clock.spent + max(clock.left - judging, TRAINING_SHARE * clock.left)
    with whole_file(out / "config.yaml") as partial:
        partial.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    _write_commands(out, plan, log, guessed, seed=seed, titles=titles, own=own, exclude_seen=exclude_seen)
    waiting = [
        Job(f"mle-seed-{seed}", data.path, out / "runs" / f"mle-seed-{seed}", with_seed(config, seed))
        for seed in plan.seeds
    ]
    stages = [waiting] if plan.side_by_side else [[job] for job in waiting]

    def trained(jobs: Sequence[Job], after: int) -> list[Run]:
        """Trained in an even share of the time, with `after` stages to come; a run ends with a validation or two."""
        share = (until - clock.spent) / (after + 1) - 2 * plan.scoring_seconds
        timed = [replace(job, config=_within(job.config, max(share, LEAST_TRAINING))) for job in jobs]
        return list(train_all(timed, processes=None if plan.side_by_side else 1).values())

    references: list[Run] = []
    for number, jobs in enumerate(stages, start=1):
        references += trained(jobs, len(stages) - number + (plan.improve is not None))
    chosen = max(references, key=lambda run: run.manifest["selected"]["value"])
    if plan.improve is not None:
        objective = {"name": plan.improve, "logging": str(references[0].folder)}
        improved = Config.parse({**config.model_dump(), "objective": objective})
        (chosen,) = trained([Job(IMPROVED, data.path, out / "runs" / IMPROVED, improved)], 0)
    for name in BASELINES:
        folder = out / "baselines" / name.replace(" ", "-").lower()
        if not (folder / "manifest.json").exists():
            fit_baseline(name, data, out=folder, force=True)
    left_out = _cut_short([*references, *([chosen] if plan.improve else [])], config.train.epochs)
    measure: dict[str, Any] = {"exclude_seen": True} if exclude_seen else {}
    sequences = affordable(data, config, chosen, references, clock)
    if sequences is not None:
        measure |= {"sequences": sequences, "min_history": config.train.min_history}
        left_out.append(f"only {sequences:,} of {len(data['test']):,} test sequences are judged, to keep the time")
    device = config.train.device
    verdict = None
    mine = [] if own is None else [own]
    if plan.improve is not None:
        against: list[Any] = [*mine, *([] if mine else plan.by_log), *references]
        verdict = gate(chosen, against=against, rules=rules, data=data, device=device, config=measure or None)
        verdict = _ordered(_learned(verdict, short=plan.too_short or bool(left_out)), guessed)
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
    return _only(verdict, check, "the order is no time's")


def _learned(verdict: Gate, *, short: bool) -> Gate:
    """Where the time was over before the estimates had learned the log, verdicts would speak of the time alone.

    Before, an untrained model was refused for popularity, and popularity was to be deployed. The value of a baseline is
    estimated without them, and stands.
    """
    fit = next((check for check in verdict.checks if check.name == "reference fit"), None)
    if not short or fit is None or fit.outcome != "cannot tell" or verdict.question.kind in ("value", "nothing"):
        return verdict
    reason = (
        f"training was cut short, and has learned no more of the log than popularity: {fit.reason}. What was measured "
        "says nothing of what these models can do. Give more --minutes"
    )
    check = Check("training", "cannot tell", reason, plain="the time was over before the models had learned the log")
    return _only(verdict, check, "the models have not learned the log")


def _only(verdict: Gate, check: Check, why: str) -> Gate:
    """The same decided by this check alone."""
    idle = [
        replace(each, outcome="not asked", reason=f"not asked, since {why}: {each.reason}", instead=None)
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
                f"{run.folder.name} stopped in epoch {manifest['epochs'] + 1} of {epochs}, since its time was over: "
                "more --minutes would train it further"
            )
    return said


def _judging_seconds(data: Prepared, plan: Plan, sequences: int) -> float:
    """How long judging on so many sequences takes, by the validation that was timed."""
    return PASSES * plan.scoring_seconds * sequences / max(len(data["validation"]), 1)


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
    estimates = [f"{here}/runs/mle-seed-{seed}" for seed in plan.seeds]
    judged = f"{here}/runs/{IMPROVED}" if plan.improve else None
    mine = [] if own is None else [shlex.quote(str(own))]
    deployed = mine or list(plan.by_log)
    settings = f"--config {here}/config.yaml"
    told = {name: value for name, value in guessed.settings().items() if value}
    texts = {
        name: ",".join(f"{a}={b}" for a, b in value.items()) if isinstance(value, dict) else str(value)
        for name, value in told.items()
    }
    options = {name.replace("_", "-"): text for name, text in texts.items()}
    words = " ".join(
        f"--{name}" + ("" if text == "True" else f" {shlex.quote(text)}") for name, text in options.items()
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
            for seed, folder in zip(plan.seeds, estimates, strict=True)
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
