"""What `go` is asked, where its results lie, and the same steps as single commands."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from localpolicy.data.guess.guess import Guess
from localpolicy.data.log_schema import ROW
from localpolicy.errors import to_caller
from localpolicy.judge.gate import opponents
from localpolicy.judge.rules import GateRules
from localpolicy.measure.metrics import Question
from localpolicy.model.baselines import BASELINES
from localpolicy.runtime.files import write_text
from localpolicy.study.go_plan import FEW, TENTH, Plan, held_out

LOG = logging.getLogger(__name__)
IMPROVED = Path("runs", "improved")  # the run that is judged


@dataclass(frozen=True)
class Asked:
    """Inputs of one `go` call: log, guessed columns, output folder, rules and deployed lists."""

    log: Path
    guessed: Guess
    out: Path
    seed: int = 0  # of the split
    rules: GateRules | None = None
    titles: Path | None = None
    own: tuple[Path, ...] = ()  # lists of the recommender that is deployed
    exclude_seen: bool = False

    @property
    def baselines(self) -> dict[str, Path]:
        """Folders of the simple baselines; `lpi train --objective` knows them by these names too."""
        return {name: self.out / "baselines" / name.replace(" ", "-").lower() for name in BASELINES}

    def noting(self, note: str) -> Asked:
        """A copy with one more note on how the log is read; the note is also printed."""
        tell(note)
        return replace(self, guessed=replace(self.guessed, unsure=(*self.guessed.unsure, note)))

    def held_out(self, minutes: float, preparing: Mapping[str, Any]) -> Asked:
        """A copy with the given settings of `prepare`, and as many sequences held out as fit the time."""
        counted = {"validation", "test", "split", "session_gap"} & preparing.keys()  # then it is the user's choice
        every = self.guessed.sequences
        most = None if counted or self.guessed.split else held_out(every, minutes, decisions=self.guessed.decisions)
        asked = replace(self, guessed=replace(self.guessed, held_out=most, preparing=preparing))
        if most is None or every <= FEW:
            return asked
        why = "to stay within the time" if TENTH * every > most else "so that the gate has enough decisions to judge by"
        return asked.noting(
            f"of {every:,} sequences {most:,} are held out for validation and as many for the test, not a tenth, {why}"
        )

    def estimates(self, plan: Plan) -> dict[int, Path]:
        """Folders of the runs that estimate the logging policy, by seed."""
        return {seed: self.out / "runs" / f"mle-seed-{seed}" for seed in plan.seeds}


def tell(*notes: str) -> None:
    """Log notes for the user."""
    for note in notes:
        LOG.info("note: %s.", to_caller(note))


def write_commands(asked: Asked, plan: Plan, question: Question, *, judged: int | None) -> None:
    """Write commands.sh, which does the same as `go` step by step; `judged` is a limit of test sequences."""
    out, data, improved = asked.out, asked.out / "data", asked.out / IMPROVED
    settings = ("--config", out / "config.yaml")
    seen = ["--exclude-seen"] if asked.exclude_seen else []
    judging = [*seen, *([] if judged is None else ["--sequences", judged])]
    if asked.rules is not None:
        rules = out / "rules.yaml"
        write_text(rules, yaml.safe_dump(asked.rules.model_dump(mode="json", exclude_unset=True)))
        judging += ["--rules", rules]

    def lpi(*words: object) -> str:
        return shlex.join(["lpi", *map(str, words)])

    def train(run: Path, *how: object) -> str:
        return lpi("train", data, *how, "--out", run, "--resume")

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
    estimates = asked.estimates(plan)
    runs = [*estimates.values()]
    lines = [
        "#!/bin/sh",
        "# The steps of `lpi go`, one by one: change what you like. What is there already is not made again.",
        first,
        *(train(run, *settings, "--seed", seed) for seed, run in estimates.items()),
        *(train(run, "--objective", run.name) for run in asked.baselines.values() if (run / "manifest.json").exists()),
    ]
    compared = [*runs, *([improved] if plan.improve else []), *asked.own]
    if plan.improve:
        made_of = ("--objective", plan.improve, "--set", f"objective.logging={runs[0]}")
        lines.append(train(improved, *settings, *made_of))
        lines.append(lpi("gate", improved, *against(*opponents(question, asked.own, runs)), *judging))
    shown = ["--html", out / "comparison.html", *(["--titles", asked.titles] if asked.titles else [])]
    lines.append(lpi("compare", *compared, *against(*runs), *seen, *shown))
    write_text(out / "commands.sh", "\n".join(lines) + "\n")
