"""`lpi paper`: the paper's tables and figures, each from one command, beside what was published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.evaluate import write_and_print
from localpolicy.cli.options import Fields, takes

HELP = {
    "table1": "The bandit on ratings: AR@1, iAR@1 and JS, with coverage and entropy beside them.",
    "table2": "What the data sets hold: counted here, and published.",
    "table3": "Seven policies on click-and-purchase logs: HR and nDCG at 5, 10, 20, and JS.",
    "figure-beta": "LPI over β: validation nDCG@20 of purchases and clicks, and JS.",
    "figure-lambda": "LPI over λ: validation nDCG@20 of purchases and clicks, and JS.",
    "figure-breakdown": "SQN, SAC and LPI by number of clicks and purchases per sequence, with paired t-tests.",
}
Out = Annotated[Path, typer.Option(help="folder for results; a stopped command resumes there")]

app = typer.Typer(
    help="The paper's tables and figures beside the published ones, on original, own or simulated data.",
    no_args_is_help=True,
)


def _verb(what: str) -> Callable[..., None]:
    @takes(Fields("localpolicy.study.settings:fields_of", of=what))
    def verb(out: Out, **settings: Any) -> None:
        from localpolicy.report.paper import paper

        result = paper(what, out=out, **settings)
        write_and_print(result.tables, None, json=None, markdown=None, latex=None)
        result.refuse_missing()

    verb.__doc__ = HELP[what]
    return verb


VERBS = {what: _verb(what) for what in HELP}
for _name, _made in VERBS.items():
    app.command(_name)(_made)
