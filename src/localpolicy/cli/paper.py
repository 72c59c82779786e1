"""`lpi paper`: the paper's tables and figures, each from one command, beside what was published."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localpolicy.cli.evaluate import Device, give

if TYPE_CHECKING:
    from localpolicy.experiments.arms import Study
    from localpolicy.experiments.paper.inputs import DataSet
    from localpolicy.experiments.paper.recipe import Recipe
    from localpolicy.report.table import Table

LOG = logging.getLogger(__name__)

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
Sequences = Annotated[int | None, typer.Option(min=1, help="sequences to simulate, before the recipe's filters")]
Items = Annotated[int | None, typer.Option(min=2, help="items to simulate")]
Fast = Annotated[bool, typer.Option("--fast", help="few epochs, small grids, and little data where it is simulated")]
Betas = Annotated[str | None, typer.Option(help="grid of β, as 0.1,0.3,1")]
Lambdas = Annotated[str | None, typer.Option(help="grid of λ, as 0.3,1,3")]
Seeds = Annotated[int | None, typer.Option(min=1, help="seeds of what is shown; grids are searched with one")]
Processes = Annotated[int | None, typer.Option(min=1, help="arms trained at a time (default: one per core)")]
Minutes = Annotated[
    float | None, typer.Option(help="stop after so long; the same command goes on (exit code 130 until all is done)")
]
Keep = Annotated[str, typer.Option(help="runs: keep all weights; figures: only what going on and tests need")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the paper's settings")]


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
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """The bandit on ratings: AR@1, iAR@1 and JS, with coverage and entropy beside them."""
    from localpolicy.experiments.paper.table1 import FAST_CHANGES, BanditRecipe
    from localpolicy.experiments.paper.table1 import table1 as run
    from localpolicy.report.paper.table1 import table1_table

    default = BanditRecipe()
    recipe = BanditRecipe(
        betas=default.betas if betas is None else _numbers(betas, "--betas"),
        seeds=default.seeds if seeds is None else seeds,
        changes=(*(FAST_CHANGES if fast else ()), *(changes or ())),
        device=device,
        fast=fast,
    )
    found = [
        run(one, study, recipe)
        for one, study in _studies(
            _data(data, out, simulate, sequences, items, fast, ratings=True), out, processes, minutes, keep, truth=False
        )
    ]
    _give("table1", [table1_table(one) for one in found], {one.data.name: one.to_dict() for one in found}, out)
    _stop_unless_done([name for one in found for name in one.missing])


@app.command("table2")
def table2(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    simulate: Simulate = "retailrocket",
    sequences: Sequences = None,
    items: Items = None,
) -> None:
    """What the data sets hold, found beside published."""
    from localpolicy.experiments.paper.table2 import Table2
    from localpolicy.report.paper.table2 import table2_tables

    result = Table2(_data(data, out, simulate, sequences, items, fast, ratings=None))
    _give("table2", table2_tables(result), result.to_dict(), out)


@app.command("table3")
def table3(
    out: Out,
    data: DataPaths = None,
    fast: Fast = False,
    only: Annotated[str | None, typer.Option(help="some policies alone: mle,sqn,lpi_rl")] = None,
    betas: Betas = None,
    lambdas: Lambdas = None,
    seeds: Seeds = None,
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
    from localpolicy.experiments.paper.table3 import table3 as run
    from localpolicy.report.paper.table3 import table3_tables

    policies = None if only is None else tuple(part.strip() for part in only.split(","))
    recipe = _recipe(fast, betas, lambdas, seeds, changes, device, policies=policies)
    sets = _data(data, out, simulate, sequences, items, fast)
    found = [run(one, study, recipe) for one, study in _studies(sets, out, processes, minutes, keep, truth=truth)]
    content = {one.data.name: one.to_dict() for one in found}
    _give("table3", [table for one in found for table in table3_tables(one)], content, out)
    _stop_unless_done([name for one in found for name in one.missing])


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
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """LPI over β: validation nDCG@20 of purchases and clicks, and JS."""
    recipe = _recipe(fast, betas or "0.03,0.1,0.3,1,3", None, seeds, changes, device)
    sets = _data(data, out, simulate, sequences, items, fast)
    _dial("figure-beta", "beta", recipe, _studies(sets, out, processes, minutes, keep, truth=False), out)


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
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """LPI over λ: validation nDCG@20 of purchases and clicks, and JS."""
    recipe = _recipe(fast, None, lambdas or "0.1,0.3,1,3,10", seeds, changes, device)
    sets = _data(data, out, simulate, sequences, items, fast)
    _dial("figure-lambda", "td_weight", recipe, _studies(sets, out, processes, minutes, keep, truth=False), out)


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
    device: Device = "auto",
    minutes: Minutes = None,
    keep: Keep = "runs",
) -> None:
    """SQN, SAC and LPI by number of clicks and purchases per sequence, with paired t-tests."""
    from localpolicy.experiments.paper.recipe import TUNED
    from localpolicy.experiments.paper.table3 import table3 as run
    from localpolicy.report.paper.figures import breakdown_spec, breakdown_tables, draw

    recipe = _recipe(fast, betas, lambdas, seeds, changes, device, policies=tuple(TUNED))
    sets = _data(data, out, simulate, sequences, items, fast)
    found = [run(one, study, recipe) for one, study in _studies(sets, out, processes, minutes, keep, truth=False)]
    content = {one.data.name: one.to_dict()["breakdown"] for one in found}
    name = partial(_figure_name, "figure-breakdown", found=found)
    drawn = [draw(partial(breakdown_spec, one), out, name(one.data)) for one in found if one.rows]
    tables = [table for one in found for table in breakdown_tables(one)]
    _give("figure-breakdown", tables, content, out, [path for each in drawn for path in each])
    _stop_unless_done([name for one in found for name in one.missing])


def _dial(name: str, key: str, recipe: Recipe, studies: Sequence[tuple[DataSet, Study]], out: Path) -> None:
    from localpolicy.experiments.paper.figures import dial_figure
    from localpolicy.report.paper.figures import dial_spec, dial_table, draw

    found = [dial_figure(one, study, recipe, key) for one, study in studies]
    drawn = [draw(partial(dial_spec, one), out, _figure_name(name, one.data, found)) for one in found if one.points]
    content = {one.data.name: one.to_dict() for one in found}
    _give(name, [dial_table(one) for one in found], content, out, [path for each in drawn for path in each])
    _stop_unless_done([arm for one in found for arm in one.missing])


def _figure_name(name: str, data: DataSet, found: Sequence[Any]) -> str:
    return name if len(found) == 1 else f"{name}-{data.folder}"


def _recipe(
    fast: bool,
    betas: str | None,
    lambdas: str | None,
    seeds: int | None,
    changes: Sequence[str] | None,
    device: str,
    *,
    policies: tuple[str, ...] | None = None,
) -> Recipe:
    from dataclasses import replace

    from localpolicy.experiments.paper.recipe import FAST, Recipe

    base = FAST if fast else Recipe()
    return replace(
        base,
        betas=base.betas if betas is None else _numbers(betas, "--betas"),
        lambdas=base.lambdas if lambdas is None else _numbers(lambdas, "--lambdas"),
        seeds=base.seeds if seeds is None else seeds,
        changes=(*base.changes, *(changes or ())),
        device=device,
        policies=policies or base.policies,
    )


def _data(
    paths: Sequence[Path] | None,
    out: Path,
    simulate: str,
    sequences: int | None,
    items: int | None,
    fast: bool,
    *,
    ratings: bool | None = False,
) -> list[DataSet]:
    """Of ratings, of clicks and purchases, or (None) of either."""
    from localpolicy.experiments.paper.inputs import RATINGS, SHOPS, data_sets

    among = {True: RATINGS, False: SHOPS, None: (*RATINGS, *SHOPS)}[ratings]
    return data_sets(paths or (), out, simulated=simulate, among=among, sequences=sequences, items=items, fast=fast)


def _studies(
    sets: Sequence[DataSet], out: Path, processes: int | None, minutes: float | None, keep: str, *, truth: bool
) -> list[tuple[DataSet, Study]]:
    from localpolicy.errors import ConfigError, nearest
    from localpolicy.experiments.arms import KEEP, Study
    from localpolicy.runtime.folders import refuse_foreign

    if keep not in KEEP:
        raise ConfigError(f"--keep: no '{keep}'{nearest(keep, KEEP)}")
    if minutes is not None and not minutes > 0:  # NaN included
        raise ConfigError(f"--minutes must be above 0, got {minutes:g}.")
    for one in sets:
        refuse_foreign(out / one.folder)
    deadline = None if minutes is None else time.time() + 60 * minutes
    return [
        (
            one,
            Study(one.data, out / one.folder, processes=processes, deadline=deadline, keep=keep, truth=truth),
        )
        for one in sets
    ]


def _numbers(text: str, option: str) -> tuple[float, ...]:
    from localpolicy.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option}: expected numbers as 0.1,0.3,1; got '{text}'.") from None


def _give(name: str, tables: Sequence[Table], content: Any, out: Path, pictures: Sequence[Path] = ()) -> None:
    """Write the tables in every form, and print them: last, since `| head` ends the program there."""
    from localpolicy.report.html.skeleton import tables_page
    from localpolicy.runtime.files import whole_file

    places = {form: out / f"{name}.{form}" for form in ("json", "md", "tex", "html")}
    with whole_file(places["html"]) as file:
        file.write_text(tables_page(tables, title=tables[0].title), encoding="utf-8")
    give(tables, content, json=places["json"], markdown=places["md"], latex=places["tex"])
    LOG.info("written: %s", ", ".join(map(str, [*places.values(), *pictures])))


def _stop_unless_done(missing: Sequence[str]) -> None:
    from localpolicy.errors import Stopped

    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Stopped(f"still to be trained: {missing[0]}{more}. The same command goes on.")
