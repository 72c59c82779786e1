"""`lpi gate`: deploy (exit code 0), do not deploy (3), cannot tell (4) or nothing to decide (6), with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.evaluate import (
    Data,
    Device,
    ExcludeSeen,
    Json,
    Latex,
    Markdown,
    MinHistory,
    Split,
    settings,
    write_and_print,
)

EXIT = {"deploy": 0, "do not deploy": 3, "cannot tell": 4, "nothing to decide": 6}


def gate(
    run: Annotated[
        Path, typer.Argument(help="the candidate: a run, a baseline or a file of lists", show_default=False)
    ],
    against: Annotated[
        list[Path],
        typer.Option(
            help="first, what is deployed now: a run, a baseline, a CSV or Parquet file of its lists, or the word log "
            "(the policy of an impression log); then mle runs of other seeds, for the distance and its noise floor"
        ),
    ],
    rules: Annotated[Path | None, typer.Option(help="a YAML file of rules (default: the built-in ones)")] = None,
    split: Split = "test",
    beta: Annotated[
        float | None, typer.Option(help="judge π ∝ μ̂ exp(Q/β) at this β instead of the trained head")
    ] = None,
    data: Data = None,
    min_history: MinHistory = None,
    exclude_seen: ExcludeSeen = False,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
) -> None:
    """Say whether a policy should replace the deployed one.

    Exit code 0: deploy; 3: do not deploy; 4: cannot tell; 6: nothing to decide.
    """
    from localpolicy.judge.gate import gate as judge
    from localpolicy.report.gate import gate_table

    verdict = judge(
        run,
        against=against,
        rules=rules,
        data=data,
        config=settings(split=split, min_history=min_history, exclude_seen=exclude_seen),
        beta=beta,
        device=device,
    )
    write_and_print([gate_table(verdict)], verdict.to_dict(), json=json, markdown=markdown, latex=latex)
    if not verdict.deploy:
        raise typer.Exit(EXIT[verdict.answer])
