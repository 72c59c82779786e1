"""The steps of `go` as single commands, to grow out of it: OUT/commands.sh."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml

from localpolicy.data.guess.guess import Guess
from localpolicy.data.reading import ROW
from localpolicy.judge.gate_rules import GateRules
from localpolicy.runtime.files import utf8, whole_file
from localpolicy.study.go_plan import IMPROVED, Plan


def write_commands(
    out: Path,
    plan: Plan,
    log: Path,
    guessed: Guess,
    *,
    seed: int,
    titles: Path | None,
    own: Path | None,
    rules: GateRules | None,
    judged: int | None,
    exclude_seen: bool,
) -> None:
    """The same steps as single commands, from the log on; `judged` test sequences where not all were."""
    here = shlex.quote(str(out))
    seen = " --exclude-seen" if exclude_seen else ""
    asked = seen if judged is None else f"{seen} --sequences {judged}"
    if rules is not None:
        with whole_file(out / "rules.yaml") as partial:
            partial.write_bytes(utf8(yaml.safe_dump(rules.model_dump(mode="json", exclude_unset=True))))
        asked += f" --rules {here}/rules.yaml"
    estimates = [f"{here}/runs/mle-seed-{seed}" for seed in plan.seeds]
    improved = f"{here}/runs/{IMPROVED}" if plan.improve else None
    mine = [] if own is None else [shlex.quote(str(own))]
    deployed = mine or list(plan.by_log)
    settings = f"--config {here}/config.yaml"
    prepared = ["lpi prepare", guessed.source, shlex.quote(str(log))]
    for name, value in guessed.settings().items():
        listed = [f"{a}={b}" for a, b in value.items()] if isinstance(value, dict) else value
        text = ",".join(listed) if isinstance(listed, list) else str(listed)
        prepared += [f"--{name.replace('_', '-')}", *([] if value is True else [shlex.quote(text)])]
    first = f"[ -e {here}/data/manifest.json ] || {' '.join(prepared)} --seed {seed} --out {here}/data"
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
    if improved:
        lines.append(
            f"lpi train {here}/data {settings} --objective {plan.improve} --set objective.logging={estimates[0]} "
            f"--out {improved} --resume"
        )
        against = " ".join(f"--against {folder}" for folder in [*deployed, *estimates])
        lines.append(f"lpi gate {improved} {against}{asked}")
    compared = [*estimates, *([improved] if improved else []), *mine]
    lines.append(
        f"lpi compare {' '.join(compared)} {' '.join(f'--against {folder}' for folder in estimates)}{seen} --html "
        f"{here}/comparison.html" + (f" --titles {shlex.quote(str(titles))}" if titles else "")
    )
    with whole_file(out / "commands.sh") as partial:
        partial.write_text("\n".join(lines) + "\n")
