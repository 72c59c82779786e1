"""`lpi evaluate`: the metrics of one run, its divergence from reference runs, and the noise floor between these."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localpolicy.cli.output import STDOUT, show

if TYPE_CHECKING:
    from localpolicy.report.table import Table

LOG = logging.getLogger(__name__)

# Options that `evaluate`, `compare` and `gate` share.
Against = Annotated[
    list[Path] | None,
    typer.Option(help="a run to measure the divergence from; two runs of different seeds give the noise floor"),
]
Split = Annotated[str, typer.Option(help="the split to score: train, validation or test")]
Data = Annotated[Path | None, typer.Option(help="the prepared data (default: where the run found it)")]
World = Annotated[
    Path | None, typer.Option(help="folder of the simulated world that knows the truth (default: inside the data)")
]
MinHistory = Annotated[int | None, typer.Option(help="smallest history of a scored position (default: as in training)")]
ExcludeSeen = Annotated[bool, typer.Option(help="do not recommend items that the sequence already holds")]
Device = Annotated[str, typer.Option(help="device: cpu, cuda or auto")]
Json = Annotated[Path | None, typer.Option("--json", help="write the result as JSON (-: to stdout, without tables)")]
Markdown = Annotated[Path | None, typer.Option(help="write the tables as Markdown")]
Latex = Annotated[Path | None, typer.Option(help="write the tables as LaTeX")]


def evaluate(
    run: Annotated[Path, typer.Argument(help="the run to measure", show_default=False)],
    against: Against = None,
    split: Split = "test",
    beta: Annotated[
        float | None, typer.Option(help="measure π ∝ μ̂ exp(Q/β) at this β instead of the trained head")
    ] = None,
    data: Data = None,
    world: World = None,
    min_history: MinHistory = None,
    exclude_seen: ExcludeSeen = False,
    lists: Annotated[
        int, typer.Option(help="length K of the lists that coverage@K and popularity@K are measured on")
    ] = 20,
    metrics: Annotated[str | None, typer.Option(help="ranking metrics: HR@5,nDCG@20,MRR")] = None,
    propensities: Annotated[
        str | None, typer.Option(help="use the probabilities of this reference (by name) as logged propensities")
    ] = None,
    imputation: Annotated[
        Path | None,
        typer.Option(help="for ratings: the folder of the model that imputes iAR@1 (fitted if missing)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for values per position (default: RUN/evaluation)")] = None,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
) -> None:
    """Measure one run: ranking, reward, divergence, off-policy estimates, and the truth if the data is simulated."""
    from localpolicy.measure.evaluate import evaluate as measure
    from localpolicy.report.results import evaluation_tables

    result = measure(
        run,
        against=against or (),
        data=data,
        world=world,
        config=settings(split=split, min_history=min_history, exclude_seen=exclude_seen, lists=lists, metrics=metrics),
        beta=beta,
        propensities=propensities,
        imputation=imputation,
        out=out,
        device=device,
    )
    write_and_print(evaluation_tables(result), result.to_dict(), json=json, markdown=markdown, latex=latex)
    for note in result.settings["notes"]:
        LOG.info("note: %s.", note)
    LOG.info("values per position and per sequence: %s", out or run / "evaluation")


def settings(*, metrics: str | None = None, **given: Any) -> dict[str, Any]:
    """The settings that were given; the others keep their defaults."""
    named = {name: value for name, value in given.items() if value is not None}
    return named if metrics is None else {**named, "metrics": tuple(part.strip() for part in metrics.split(","))}


def write_and_print(
    tables: Sequence[Table], content: Any, *, json: Path | None, markdown: Path | None, latex: Path | None
) -> None:
    """Write the files, then print the tables. Printing comes last: in `lpi … | head` it ends the program."""
    from localpolicy.runtime.files import write_json, write_text

    if json is not None and str(json) != STDOUT:
        write_json(json, content)
    for path, text in (
        (markdown, [table.markdown() for table in tables]),
        (latex, [table.latex() for table in tables]),
    ):
        if path is not None:
            write_text(path, "\n".join(text))
    if str(json) == STDOUT:  # the next program of a pipe wants JSON alone
        print(dumps(content, indent=2))
        return
    for table in tables:
        show(table)
