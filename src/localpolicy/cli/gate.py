"""`lpi gate`: deploy (exit code 0) or not (exit code 3), with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.evaluate import Data, Device, Json, Latex, Markdown, MinHistory, Split, give, settings

REFUSED = 3  # the exit code of "no"


def gate(
    run: Annotated[Path, typer.Argument(help="the run that might be deployed", show_default=False)],
    against: Annotated[
        list[Path], typer.Option(help="the deployed run first; more of other seeds give the noise floor")
    ],
    rules: Annotated[Path | None, typer.Option(help="a YAML file of rules (default: the built-in ones)")] = None,
    split: Split = "test",
    beta: Annotated[float | None, typer.Option(help="the dial: judge π ∝ μ̂ exp(Q/β)")] = None,
    data: Data = None,
    min_history: MinHistory = None,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
) -> None:
    """Say whether a run should replace the deployed one: exit code 0 for yes, 3 for no, with reasons."""
    from localpolicy.evaluation.gate import gate as judge
    from localpolicy.report.gate import gate_table

    verdict = judge(
        run,
        against=against,
        rules=rules,
        data=data,
        config=settings(split=split, min_history=min_history),
        beta=beta,
        device=device,
    )
    give([gate_table(verdict)], verdict.json(), json=json, markdown=markdown, latex=latex)
    if not verdict.deploy:
        raise typer.Exit(REFUSED)
