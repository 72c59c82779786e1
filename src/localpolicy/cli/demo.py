"""`lpi demo`: the whole walk on simulated logs whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localpolicy.cli.output import console, show_table
from localpolicy.limits import LARGEST_SEED

if TYPE_CHECKING:
    from localpolicy.report.contents import PolicyInfo, Section


def demo(
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed of the worlds, logs and training")] = 0,
    force: Annotated[bool, typer.Option("--force", help="replace the folder")] = False,
) -> None:
    """Simulate, prepare, train every objective, evaluate against the truth, report: minutes on two cores."""
    from localpolicy.report.demo import demo as run

    contents = run(out=out, seed=seed, force=force)
    for section in contents.sections:
        _show(section)
    console().print(f"\nreport: {out / 'report.html'}\nthe same for machines: {out / 'demo.json'}", highlight=False)


def _show(section: Section) -> None:
    from localpolicy.report.numbers import with_interval

    metrics = {name: said for name, said in section.columns.items() if "nDCG" in name}
    rows = [_cells(section, policy, tuple(metrics)) for policy in section.policies]
    assert section.floor is not None and section.logging_value is not None
    note = (
        f"J(μ) of the logging policy itself: {section.logging_value.mean:.4f}. JS is from {section.reference}; "
        f"two such estimates differ by {with_interval(section.floor, 3)} (the noise floor)."
    )
    columns = ("policy", "true reward J", "gain over μ", *metrics.values(), "JS from μ̂", "effective sample")
    show_table(section.title, columns, rows, note=note)
    for claim in section.claims:
        mark = {True: "yes", False: "NO ", None: "?  "}[claim.holds]
        console().print(f"  {mark}  {claim.claim} ({claim.because})", highlight=False)


def _cells(section: Section, policy: PolicyInfo, metrics: tuple[str, ...]) -> tuple[str, ...]:
    from localpolicy.report.numbers import NOTHING, excludes_zero, with_interval

    gain = section.figure(policy.name, "true gain")
    star = "*" if excludes_zero(gain) else " "
    return (
        policy.name,
        with_interval(section.figure(policy.name, "true J"), 4),
        with_interval(gain, 4, sign="+") + star,
        *(with_interval(section.figure(policy.name, metric), 3) for metric in metrics),
        with_interval(section.figure(policy.name, "JS"), 3),
        f"{policy.weights['effective_share']:.0%}" if "effective_share" in policy.weights else NOTHING,
    )
