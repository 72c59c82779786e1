"""`lpi gate`: deploy (exit code 0), do not deploy (3), cannot tell (4) or nothing to decide (6), with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.evaluate import Data, Device, Json, Latex, Markdown, write_and_print
from localpolicy.cli.evaluate import settings as evaluation_settings
from localpolicy.cli.options import Fields, takes

EXIT = {"deploy": 0, "do not deploy": 3, "cannot tell": 4, "nothing to decide": 6}
MEASURED = ("split", "min_history", "exclude_seen", "sequences")


@takes(
    Fields("localpolicy.measure.metrics:EvaluateConfig", only=MEASURED),
    Fields("localpolicy.judge.claims:GateRules", "Rules"),
)
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
    rules: Annotated[
        Path | None, typer.Option(help="a YAML file of rules (default: the built-in ones); options below change them")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="judge π ∝ μ̂ exp(Q/β) at this β instead of the trained head")
    ] = None,
    data: Data = None,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
    **settings: Any,
) -> None:
    """Say whether a policy should replace the deployed one.

    Exit code 0: deploy; 3: do not deploy; 4: cannot tell; 6: nothing to decide.
    """
    from localpolicy.judge.claims import GateRules, rules_of
    from localpolicy.judge.gate import gate as judge
    from localpolicy.report.gate import gate_table

    measured = {name: settings.pop(name) for name in MEASURED if name in settings}
    ruled = rules_of(rules).model_dump(exclude_unset=True)
    verdict = judge(
        run,
        against=against,
        rules=GateRules.parse({**ruled, **settings}, prefix="rules: "),
        data=data,
        config=evaluation_settings(**measured),
        beta=beta,
        device=device,
    )
    write_and_print([gate_table(verdict)], verdict.to_dict(), json=json, markdown=markdown, latex=latex)
    if not verdict.deploy:
        raise typer.Exit(EXIT[verdict.answer])
