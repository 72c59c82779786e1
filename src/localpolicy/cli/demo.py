"""`lpi demo`: the whole walk on simulated logs whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import console, show
from localpolicy.limits import LARGEST_SEED


def demo(
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed of the worlds, logs and training")] = 0,
    force: Annotated[bool, typer.Option("--force", help="replace the folder")] = False,
) -> None:
    """Simulate, prepare, train every objective, evaluate against the truth, report: minutes on two cores."""
    from localpolicy.report.demo import demo as run
    from localpolicy.report.demo import demo_table

    for section in run(out=out, seed=seed, force=force).sections:
        show(demo_table(section))
        for claim in section.claims:
            mark = {True: "yes", False: "NO ", None: "?  "}[claim.holds]
            console().print(f"  {mark}  {claim.claim} ({claim.because})", highlight=False)
    console().print(f"\nreport: {out / 'report.html'}\nthe same for machines: {out / 'demo.json'}", highlight=False)
