"""`lpi paper`: the paper's tables and figures, each from one command, beside what was published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localpolicy.cli.evaluate import Device, give
from localpolicy.cli.output import say

if TYPE_CHECKING:
    from localpolicy.evaluate.tables import Table
    from localpolicy.experiments.paper.inputs import DataSet

app = typer.Typer(
    help="The paper's tables and figures beside the published ones, on original, own or simulated data.",
    no_args_is_help=True,
)

# Options that the subcommands share.
DataPaths = Annotated[
    list[Path] | None,
    typer.Option("--data", help="prepared data, or a folder of the original files (default: simulated)"),
]
Out = Annotated[Path, typer.Option(help="folder of results; the same one goes on where it stopped")]
Simulate = Annotated[str, typer.Option(help="what to simulate where no data is given")]
Sequences = Annotated[int | None, typer.Option(help="sequences to simulate, before the recipe's filters")]
Items = Annotated[int | None, typer.Option(help="items to simulate")]
Fast = Annotated[bool, typer.Option("--fast", help="a small version: minutes on a CPU, and it says so")]
Processes = Annotated[int | None, typer.Option(min=1, help="arms trained at a time (default: one per core)")]
Minutes = Annotated[
    float | None, typer.Option(help="stop after so long; the same command goes on (exit code 130 until all is done)")
]
Keep = Annotated[str, typer.Option(help="runs: keep all weights; figures: only what going on and tests need")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the paper's settings")]


@app.command("table3")
def table3(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    only: Annotated[str | None, typer.Option(help="some policies alone: mle,sqn,lpi_rl")] = None,
    betas: Annotated[str | None, typer.Option(help="grid of β: 0.1,0.3,1")] = None,
    lambdas: Annotated[str | None, typer.Option(help="grid of λ: 0.3,1,3")] = None,
    seeds: Annotated[int | None, typer.Option(help="seeds at the chosen point (default: 3; fast: 1)")] = None,
    changes: Changes = None,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
    truth: Annotated[bool, typer.Option("--truth", help="also J(π), where simulated data holds its truth")] = False,
    processes: Processes = None,
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """Seven policies on click-and-purchase logs: HR and nDCG at 5, 10, 20, and JS."""
    from dataclasses import replace

    from localpolicy.experiments.paper.recipe import FAST, Recipe
    from localpolicy.experiments.paper.table3 import table3 as run
    from localpolicy.experiments.paper.table3_pages import pages

    base = FAST if fast else Recipe()
    recipe = replace(
        base,
        device=device,
        changes=(*base.changes, *(changes or ())),
        betas=base.betas if betas is None else _numbers(betas, "--betas"),
        lambdas=base.lambdas if lambdas is None else _numbers(lambdas, "--lambdas"),
        seeds=base.seeds if seeds is None else seeds,
        policies=base.policies if only is None else tuple(part.strip() for part in only.split(",")),
    )
    deadline = None if minutes is None else time.time() + 60 * minutes
    found = []
    for one in _data(data, out, simulate, sequences, items, fast):
        study = _study(one, out, processes=processes, deadline=deadline, keep=keep, truth=truth)
        found.append(run(one, study, recipe))
    content = {one.data.name: one.json() for one in found}
    _give("table3", [table for one in found for table in pages(one)], content, out)
    _stop_unless_done([name for one in found for name in one.missing])


def _data(
    paths: Sequence[Path] | None, out: Path, simulate: str, sequences: int | None, items: int | None, fast: bool
) -> list[DataSet]:
    from localpolicy.experiments.paper.inputs import data_sets

    return data_sets(paths or (), out, simulated=simulate, sequences=sequences, items=items, fast=fast, say=say)


def _study(one: DataSet, out: Path, *, keep: str, **options: Any) -> Any:
    from localpolicy.experiments.arms import KEEP, Study
    from localpolicy.vocabulary.errors import ConfigError, nearest

    if keep not in KEEP:
        raise ConfigError(f"--keep: no '{keep}'{nearest(keep, KEEP)}")
    return Study(one.data, out / one.folder, keep=keep, say=say, **options)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    from localpolicy.vocabulary.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option}: expected numbers as 0.1,0.3,1; got '{text}'.") from None


def _give(name: str, tables: Sequence[Table], content: Any, out: Path) -> None:
    """Print the tables, and write them in every form."""
    from localpolicy.evaluate.tables import html_page
    from localpolicy.vocabulary.files import whole_file

    places = {form: out / f"{name}.{form}" for form in ("json", "md", "tex", "html")}
    give(tables, content, json=places["json"], markdown=places["md"], latex=places["tex"])
    with whole_file(places["html"]) as partial:
        partial.write_text(html_page(tables, title=tables[0].title))
    say(f"written: {', '.join(map(str, places.values()))}")


def _stop_unless_done(missing: Sequence[str]) -> None:
    from localpolicy.vocabulary.errors import Stopped

    if missing:
        raise Stopped(f"{len(missing)} arms are still to be trained ({missing[0]}, …): the same command goes on.")
