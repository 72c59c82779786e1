"""`lpi paper`: the paper's tables and figures, each from one command, beside what was published."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localpolicy.cli.evaluate import Device, write_and_print
from localpolicy.cli.paper_options import (
    Betas,
    Changes,
    DataPaths,
    Fast,
    Items,
    Keep,
    Lambdas,
    Lanes,
    Minutes,
    Out,
    Processes,
    Seeds,
    Sequences,
    Simulate,
    data_of,
    numbers,
    recipe_of,
    studies_of,
)

if TYPE_CHECKING:
    from localpolicy.report.table import Table
    from localpolicy.study.arms import Study
    from localpolicy.study.paper.data import DataSet
    from localpolicy.study.paper.recipe import Recipe

LOG = logging.getLogger(__name__)

app = typer.Typer(
    help="The paper's tables and figures beside the published ones, on original, own or simulated data.",
    no_args_is_help=True,
)


@app.command("table1")
def table1(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    betas: Betas = None,
    seeds: Seeds = None,
    changes: Changes = None,
    simulate: Simulate = "netflix",
    sequences: Sequences = None,
    items: Items = None,
    processes: Processes = None,
    lanes: Lanes = None,
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """The bandit on ratings: AR@1, iAR@1 and JS, with coverage and entropy beside them."""
    from localpolicy.report.paper import table1_table
    from localpolicy.study.paper.table1 import FAST_CHANGES, BanditRecipe
    from localpolicy.study.paper.table1 import table1 as run

    default = BanditRecipe()
    recipe = BanditRecipe(
        betas=default.betas if betas is None else numbers(betas, "--betas"),
        seeds=default.seeds if seeds is None else seeds,
        changes=(*(FAST_CHANGES if fast else ()), *(changes or ())),
        device=device,
        fast=fast,
    )
    sets = data_of(data, out, simulate, sequences, items, fast, ratings=True)
    results = [run(*study, recipe) for study in studies_of(sets, out, processes, lanes, minutes, keep, truth=False)]
    content = {result.data.name: result.to_dict() for result in results}
    _write_and_print("table1", [table1_table(result) for result in results], content, out)
    _stop_unless_done([name for result in results for name in result.missing])


@app.command("table2")
def table2(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
) -> None:
    """What the data sets hold: counted here, and published."""
    from localpolicy.report.paper import table2_tables
    from localpolicy.study.paper.data import Table2

    result = Table2(data_of(data, out, simulate, sequences, items, fast, ratings=None))
    _write_and_print("table2", table2_tables(result), result.to_dict(), out)


@app.command("table3")
def table3(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    only: Annotated[str | None, typer.Option(help="train only these policies: mle,sqn,lpi_rl")] = None,
    betas: Betas = None,
    lambdas: Lambdas = None,
    seeds: Seeds = None,
    changes: Changes = None,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
    truth: Annotated[bool, typer.Option("--truth", help="also show J(π), if the data was simulated")] = False,
    ours: Annotated[
        bool, typer.Option("--ours", help="also train four rows of ours: tied heads and LPI in closed form")
    ] = False,
    processes: Processes = None,
    lanes: Lanes = None,
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """Seven policies on click-and-purchase logs: HR and nDCG at 5, 10, 20, and JS."""
    from localpolicy.report.paper import table3_tables
    from localpolicy.study.paper.table3 import table3 as run

    policies = None if only is None else tuple(part.strip() for part in only.split(","))
    recipe = recipe_of(fast, betas, lambdas, seeds, changes, device, policies=policies, ours=ours)
    sets = data_of(data, out, simulate, sequences, items, fast)
    results = [run(*study, recipe) for study in studies_of(sets, out, processes, lanes, minutes, keep, truth=truth)]
    content = {result.data.name: result.to_dict() for result in results}
    _write_and_print("table3", [table for result in results for table in table3_tables(result)], content, out)
    _stop_unless_done([name for result in results for name in result.missing])


@app.command("figure-beta")
def figure_beta(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    betas: Betas = None,
    seeds: Seeds = 1,
    changes: Changes = None,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
    processes: Processes = None,
    lanes: Lanes = None,
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """LPI over β: validation nDCG@20 of purchases and clicks, and JS."""
    recipe = recipe_of(fast, betas or "0.03,0.1,0.3,1,3", None, seeds, changes, device)
    sets = data_of(data, out, simulate, sequences, items, fast)
    _dial("figure-beta", "beta", recipe, studies_of(sets, out, processes, lanes, minutes, keep, truth=False), out)


@app.command("figure-lambda")
def figure_lambda(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    lambdas: Lambdas = None,
    seeds: Seeds = 1,
    changes: Changes = None,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
    processes: Processes = None,
    lanes: Lanes = None,
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """LPI over λ: validation nDCG@20 of purchases and clicks, and JS."""
    recipe = recipe_of(fast, None, lambdas or "0.1,0.3,1,3,10", seeds, changes, device)
    sets = data_of(data, out, simulate, sequences, items, fast)
    _dial(
        "figure-lambda", "td_weight", recipe, studies_of(sets, out, processes, lanes, minutes, keep, truth=False), out
    )


@app.command("figure-breakdown")
def figure_breakdown(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    betas: Betas = None,
    lambdas: Lambdas = None,
    seeds: Seeds = None,
    changes: Changes = None,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
    processes: Processes = None,
    lanes: Lanes = None,
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """SQN, SAC and LPI by number of clicks and purchases per sequence, with paired t-tests."""
    from localpolicy.report.paper_figures import breakdown_spec, breakdown_tables, draw
    from localpolicy.study.paper.recipe import TUNED
    from localpolicy.study.paper.table3 import table3 as run

    recipe = recipe_of(fast, betas, lambdas, seeds, changes, device, policies=tuple(TUNED))
    sets = data_of(data, out, simulate, sequences, items, fast)
    results = [run(*study, recipe) for study in studies_of(sets, out, processes, lanes, minutes, keep, truth=False)]
    content = {result.data.name: result.to_dict()["breakdown"] for result in results}
    name = partial(_figure_name, "figure-breakdown", results=results)
    drawn = [draw(partial(breakdown_spec, result), out, name(result.data)) for result in results if result.rows]
    tables = [table for result in results for table in breakdown_tables(result)]
    _write_and_print("figure-breakdown", tables, content, out, [path for pictures in drawn for path in pictures])
    _stop_unless_done([name for result in results for name in result.missing])


def _dial(name: str, key: str, recipe: Recipe, studies: Sequence[tuple[DataSet, Study]], out: Path) -> None:
    from localpolicy.report.paper_figures import dial_spec, dial_table, draw
    from localpolicy.study.paper.table3 import dial_figure

    results = [dial_figure(*study, recipe, key) for study in studies]
    drawn = [
        draw(partial(dial_spec, result), out, _figure_name(name, result.data, results))
        for result in results
        if result.points
    ]
    content = {result.data.name: result.to_dict() for result in results}
    _write_and_print(
        name,
        [dial_table(result) for result in results],
        content,
        out,
        [path for pictures in drawn for path in pictures],
    )
    _stop_unless_done([arm for result in results for arm in result.missing])


def _figure_name(name: str, data: DataSet, results: Sequence[Any]) -> str:
    return name if len(results) == 1 else f"{name}-{data.folder}"


def _write_and_print(
    name: str, tables: Sequence[Table], content: Any, out: Path, pictures: Sequence[Path] = ()
) -> None:
    """Write the tables in every format, then print them. Printing comes last: in `| head` it ends the program."""
    from localpolicy.report.html.page import tables_page
    from localpolicy.runtime.files import whole_file

    files = {form: out / f"{name}.{form}" for form in ("json", "md", "tex", "html")}
    with whole_file(files["html"]) as file:
        file.write_text(tables_page(tables, title=tables[0].title), encoding="utf-8")
    write_and_print(tables, content, json=files["json"], markdown=files["md"], latex=files["tex"])
    LOG.info("written: %s", ", ".join(map(str, [*files.values(), *pictures])))


def _stop_unless_done(missing: Sequence[str]) -> None:
    from localpolicy.errors import Stopped

    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Stopped(f"still to be trained: {missing[0]}{more}. The same command goes on.")
