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

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from localpolicy.data.guess.guess import Guess
from localpolicy.data.reading import ROW
from localpolicy.data.store import Prepared
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import Gate, GateRules, gate
from localpolicy.measure.estimate import as_json
from localpolicy.measure.evaluation import Evaluation
from localpolicy.model.baselines import BASELINES
from localpolicy.results import Result
from localpolicy.runs.baselines import fit_baseline
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import write_json, write_text
from localpolicy.study.go_plan import (
    IMPROVED,
    LEAST_TRAINING,
    TRAINING_SHARE,
    Clock,
    Plan,
    affordable,
    judging_seconds,
)
from localpolicy.study.jobs import Job, train_all

NOTHING = "nothing to decide"
RANKED = "all.nDCG@20"  # what models are ranked by where nothing is decided


@dataclass(frozen=True)
class Asked:
    """What is to be judged, and how; the clock and the training settings are the plan's."""

    log: Path
    guessed: Guess
    out: Path
    seed: int = 0  # of the split
    rules: GateRules | None = None
    titles: Path | None = None
    own: Path | None = None  # lists of the recommender that is deployed
    exclude_seen: bool = False

    @property
    def lists(self) -> list[Path]:
        """Of the deployed recommender, where there are any."""
        return [] if self.own is None else [self.own]


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
        listed = ", ".join(f"{each.name} {each.estimate(RANKED).mean:.4f}" for each in self.ranked)
        return (
            "Nothing to decide: all events are worth the same, so no policy can earn more than another. Models ranked "
            f"by how high they place what people took ({RANKED}): {listed}."
        )

    @property
    def ranked(self) -> list[Evaluation]:
        """The models by how high they place what people took, the best first."""
        return sorted(self.comparison.evaluations, key=lambda each: -each.estimate(RANKED).mean)

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
        content = {**verdict, "answer": self.answer, "deploy": deploy, "sentence": self.sentence}
        if self.verdict is None:
            content["ranked"] = [{"policy": each.name, **as_json(each.metrics["all"])} for each in self.ranked]
        return {**content, "read": list(self.notes)}

    def to_arrow(self) -> pa.Table:
        """The comparison's numbers."""
        return self.comparison.to_arrow()


def carry_out(asked: Asked, data: Prepared, plan: Plan, *, clock: Clock) -> GoResult:
    """Train two estimates of the logging policy and the improvement of the first, fit the baselines, and judge.

    The improvement is made of the first estimate and a critic, and judged against that very estimate, or against the
    lists of the recommender that is deployed. No rule that keeps epochs stands between them. β is chosen on validation
    rows, the verdict is the test rows'. Training that is slower than planned ends when its time is over, and of a large
    test split as much is judged as the clock allows.
    """
    out = asked.out
    config, judging = plan.config, judging_seconds(data, plan.scoring_seconds, len(data["test"]))
    until = clock.spent + max(clock.left - judging, TRAINING_SHARE * clock.left)
    write_text(out / "config.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False))
    waiting = [
        Job(run.name, data.path, run, config.trained_with(seed=seed)) for seed, run in _estimates(out, plan).items()
    ]
    stages = [waiting] if plan.side_by_side else [[job] for job in waiting]

    def trained(jobs: Sequence[Job], after: int) -> list[Run]:
        """Trained in an even share of the time, with `after` stages to come; a run ends with a validation or two."""
        share = (until - clock.spent) / (after + 1) - 2 * plan.scoring_seconds
        minutes = max(share, LEAST_TRAINING) / 60  # the clock ends what is slower than planned
        timed = [replace(job, config=job.config.trained_with(minutes=minutes)) for job in jobs]
        return list(train_all(timed, processes=None if plan.side_by_side else 1).values())

    references: list[Run] = []
    for number, jobs in enumerate(stages, start=1):
        references += trained(jobs, len(stages) - number + (plan.improve is not None))
    chosen = max(references, key=lambda run: run.manifest["selected"]["value"])
    if plan.improve is not None:
        objective = {"name": plan.improve, "logging": str(references[0].folder)}
        improved = Config.parse({**config.model_dump(), "objective": objective})
        (chosen,) = trained([Job(IMPROVED, data.path, out / "runs" / IMPROVED, improved)], 0)
    for name, folder in _baselines(out).items():
        if not (folder / "manifest.json").exists():
            fit_baseline(name, data, out=folder, force=True)
    left_out = _cut_short([*references, *([chosen] if plan.improve else [])])
    measure: dict[str, Any] = {"exclude_seen": True} if asked.exclude_seen else {}
    sequences = affordable(data, config, chosen, references, clock)
    if sequences is not None:
        measure |= {"sequences": sequences, "min_history": config.train.min_history}
        left_out.append(
            f"only {sequences:,} of {len(data['test']):,} test sequences are judged, to stay within the time"
        )
    write_commands(asked, plan, judged=sequences)
    device = config.train.device
    verdict = None
    if plan.improve is not None:
        against: list[Any] = [*(asked.lists or plan.by_log), *references]
        verdict = gate(chosen, against=against, rules=asked.rules, data=data, device=device, config=measure or None)
    compared = list(dict.fromkeys([*references, chosen]))
    metrics = {"metrics": ("HR@20", "nDCG@20"), **measure} if measure else None
    comparison = compare([*compared, *asked.lists], against=references, data=data, device=device, config=metrics)
    left_out += comparison.evaluations[0].left_out if verdict is None else []  # else the gate says it
    result = GoResult(asked.guessed, data, plan, chosen, verdict, comparison, out, tuple(left_out))
    write_json(out / "verdict.json", result.to_dict())
    return result


def _cut_short(runs: Sequence[Run]) -> list[str]:
    """Which runs the clock ended."""
    return [
        f"{run.folder.name} stopped in epoch {run.manifest['epochs'] + 1} of {run.config.train.epochs}, since its time "
        "was over: more --minutes would train it further"
        for run in runs
        if run.out_of_time
    ]


# ---------------------------------------------------------------------- the same as single commands


def write_commands(asked: Asked, plan: Plan, *, judged: int | None) -> None:
    """The same steps as single commands, from the log on; `judged` test sequences where not all were."""
    out, data, improved = asked.out, asked.out / "data", asked.out / "runs" / IMPROVED
    estimates = _estimates(out, plan)
    settings = ("--config", out / "config.yaml")
    seen = ["--exclude-seen"] if asked.exclude_seen else []
    judging = [*seen, *([] if judged is None else ["--sequences", judged])]
    if asked.rules is not None:
        rules = out / "rules.yaml"
        write_text(rules, yaml.safe_dump(asked.rules.model_dump(mode="json", exclude_unset=True)))
        judging += ["--rules", rules]

    def lpi(*words: object) -> str:
        return shlex.join(["lpi", *map(str, words)])

    def against(*policies: object) -> list[object]:
        return [word for policy in policies for word in ("--against", policy)]

    preparing = []
    for name, value in asked.guessed.settings().items():
        listed = [f"{a}={b}" for a, b in value.items()] if isinstance(value, dict) else value
        text = ",".join(listed) if isinstance(listed, list) else str(listed)
        preparing += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    first = lpi("prepare", asked.guessed.source, asked.log, *preparing, "--seed", asked.seed, "--out", data)
    first = f"[ -e {shlex.quote(str(data / 'manifest.json'))} ] || {first}"
    if ROW in asked.guessed.columns.values():  # no option of a command line can say so
        first = f"# {data} was prepared by `lpi go`: every row is a sequence of its own"
    lines = [
        "#!/bin/sh",
        "# The steps of `lpi go`, one by one: change what you like. What is there already is not made again.",
        first,
        *(lpi("train", data, *settings, "--seed", seed, "--out", run, "--resume") for seed, run in estimates.items()),
        *(lpi("train", data, "--objective", run.name, "--out", run, "--resume") for run in _baselines(out).values()),
    ]
    runs = [*estimates.values()]
    compared = [*runs, *([improved] if plan.improve else []), *asked.lists]
    if plan.improve:
        made_of = ("--objective", plan.improve, "--set", f"objective.logging={runs[0]}")
        lines.append(lpi("train", data, *settings, *made_of, "--out", improved, "--resume"))
        lines.append(lpi("gate", improved, *against(*(asked.lists or plan.by_log), *runs), *judging))
    shown = ["--html", out / "comparison.html", *(["--titles", asked.titles] if asked.titles else [])]
    lines.append(lpi("compare", *compared, *against(*runs), *seen, *shown))
    write_text(out / "commands.sh", "\n".join(lines) + "\n")


def _estimates(out: Path, plan: Plan) -> dict[int, Path]:
    """The runs that estimate the logging policy, by seed."""
    return {seed: out / "runs" / f"mle-seed-{seed}" for seed in plan.seeds}


def _baselines(out: Path) -> dict[str, Path]:
    """Folders of the simple baselines; `lpi train --objective` knows them by these names too."""
    return {name: out / "baselines" / name.replace(" ", "-").lower() for name in BASELINES}
