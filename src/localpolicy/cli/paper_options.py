"""What `lpi paper` is told: the options that its subcommands share, and what they mean."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from localpolicy.study.arms import Study
    from localpolicy.study.paper.data import DataSet
    from localpolicy.study.paper.recipe import Recipe

DataPaths = Annotated[
    list[Path] | None,
    typer.Option("--data", help="prepared data, or a folder of the original files (default: simulated)"),
]
Out = Annotated[Path, typer.Option(help="folder for results; a stopped command resumes there")]
Simulate = Annotated[str, typer.Option(help="what to simulate if no --data is given")]
Sequences = Annotated[int | None, typer.Option(min=1, help="sequences to simulate, before the recipe's filters")]
Items = Annotated[int | None, typer.Option(min=2, help="items to simulate")]
Fast = Annotated[bool, typer.Option("--fast", help="few epochs, small grids and little simulated data")]
Betas = Annotated[str | None, typer.Option(help="grid of β, such as 0.1,0.3,1")]
Lambdas = Annotated[str | None, typer.Option(help="grid of λ, such as 0.3,1,3")]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="seeds behind each figure shown (grids are searched with one seed)")
]
Processes = Annotated[int | None, typer.Option(min=1, help="processes that train in parallel (default: one per core)")]
Lanes = Annotated[
    int | None, typer.Option(min=1, help="runs that one process trains in turn (default: 1; try 8 on a GPU)")
]
Minutes = Annotated[
    float | None, typer.Option(help="stop after this many minutes (exit code 130); the same command goes on")
]
Keep = Annotated[str, typer.Option(help="runs: keep all weights; figures: keep only what resuming and tests need")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the paper's settings")]


def recipe_of(
    fast: bool,
    betas: str | None,
    lambdas: str | None,
    seeds: int | None,
    changes: Sequence[str] | None,
    device: str,
    *,
    policies: tuple[str, ...] | None = None,
    ours: bool = False,
) -> Recipe:
    """The paper's recipe, or the fast one, with what the command changes."""
    from dataclasses import replace

    from localpolicy.study.paper.recipe import FAST, OURS, Recipe

    base = FAST if fast else Recipe()
    return replace(
        base,
        betas=base.betas if betas is None else numbers(betas, "--betas"),
        lambdas=base.lambdas if lambdas is None else numbers(lambdas, "--lambdas"),
        seeds=base.seeds if seeds is None else seeds,
        changes=(*base.changes, *(changes or ())),
        device=device,
        policies=policies or base.policies,
        ours=tuple(OURS) if ours else (),
    )


def data_of(
    paths: Sequence[Path] | None,
    out: Path,
    simulate: str,
    sequences: int | None,
    items: int | None,
    fast: bool,
    *,
    ratings: bool | None = False,
) -> list[DataSet]:
    """The data sets that were named, or simulated ones: ratings, clicks and purchases, or (None) either."""
    from localpolicy.study.paper.data import RATINGS, SHOPS, data_sets

    among = {True: RATINGS, False: SHOPS, None: (*RATINGS, *SHOPS)}[ratings]
    return data_sets(paths or (), out, simulated=simulate, among=among, sequences=sequences, items=items, fast=fast)


def studies_of(
    sets: Sequence[DataSet],
    out: Path,
    processes: int | None,
    lanes: int | None,
    minutes: float | None,
    keep: str,
    *,
    truth: bool,
) -> list[tuple[DataSet, Study]]:
    """Each data set, and the study that trains its arms in a folder of its own."""
    from localpolicy.errors import ConfigError, nearest
    from localpolicy.runtime.folders import refuse_foreign
    from localpolicy.study.arms import KEEP, Study

    if keep not in KEEP:
        raise ConfigError(f"--keep: no '{keep}'{nearest(keep, KEEP)}")
    if minutes is not None and not minutes > 0:  # NaN included
        raise ConfigError(f"--minutes must be above 0, got {minutes:g}.")
    for data in sets:
        refuse_foreign(out / data.folder)
    deadline = None if minutes is None else time.time() + 60 * minutes
    shared: dict[str, Any] = {
        "processes": processes,
        "lanes": lanes,
        "deadline": deadline,
        "keep": keep,
        "truth": truth,
    }
    return [(data, Study(data.data, out / data.folder, **shared)) for data in sets]


def numbers(text: str, option: str) -> tuple[float, ...]:
    """The numbers of a grid, as 0.1,0.3,1."""
    from localpolicy.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option}: expected numbers as 0.1,0.3,1; got '{text}'.") from None
