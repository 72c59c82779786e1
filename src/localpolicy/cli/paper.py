"""`lpi paper`: the paper's tables and figures, each from one command, beside what was published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.evaluate import write_and_print
from localpolicy.cli.options import Fields, takes

SETTINGS = "localpolicy.study.paper.settings"
Out = Annotated[Path, typer.Option(help="folder for results; a stopped command resumes there")]

app = typer.Typer(
    help="The paper's tables and figures beside the published ones, on original, own or simulated data.",
    no_args_is_help=True,
)


@takes(Fields(f"{SETTINGS}:table1"))
def table1(out: Out, **settings: Any) -> None:
    """The bandit on ratings: AR@1, iAR@1 and JS, with coverage and entropy beside them."""
    _make("table1", out, settings)


@takes(Fields(f"{SETTINGS}:table2"))
def table2(out: Out, **settings: Any) -> None:
    """What the data sets hold: counted here, and published."""
    _make("table2", out, settings)


@takes(Fields(f"{SETTINGS}:table3"))
def table3(out: Out, **settings: Any) -> None:
    """Seven policies on click-and-purchase logs: HR and nDCG at 5, 10, 20, and JS."""
    _make("table3", out, settings)


@takes(Fields(f"{SETTINGS}:figure_beta"))
def figure_beta(out: Out, **settings: Any) -> None:
    """LPI over β: validation nDCG@20 of purchases and clicks, and JS."""
    _make("figure-beta", out, settings)


@takes(Fields(f"{SETTINGS}:figure_lambda"))
def figure_lambda(out: Out, **settings: Any) -> None:
    """LPI over λ: validation nDCG@20 of purchases and clicks, and JS."""
    _make("figure-lambda", out, settings)


@takes(Fields(f"{SETTINGS}:figure_breakdown"))
def figure_breakdown(out: Out, **settings: Any) -> None:
    """SQN, SAC and LPI by number of clicks and purchases per sequence, with paired t-tests."""
    _make("figure-breakdown", out, settings)


VERBS = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "figure-beta": figure_beta,
    "figure-lambda": figure_lambda,
    "figure-breakdown": figure_breakdown,
}
for _name, _verb in VERBS.items():
    app.command(_name)(_verb)


def _make(what: str, out: Path, settings: dict[str, Any]) -> None:
    from localpolicy.report.paper_files import paper

    result = paper(what, out=out, **settings)
    write_and_print(result.tables, None, json=None, markdown=None, latex=None)
    result.refuse_missing()
