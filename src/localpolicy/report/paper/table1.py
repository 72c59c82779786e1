"""Table 1 shown: ours beside the paper's."""

from __future__ import annotations

from localpolicy.report.numbers import number
from localpolicy.report.table import Cell, Table, largest_shown
from localpolicy.study.paper.table1 import FIGURES, Table1
from localpolicy.study.seeds import REFERENCE_SEEDS


def table1_table(table: Table1) -> Table:
    """Ours beside the paper's."""
    every = [row.estimate("iAR@1").mean for row in table.rows]
    rows = []
    for row in table.rows:
        ar, imputed, js = (row.estimate(name) for name in FIGURES)
        there = table.published.get(row.name, {})
        cells = [
            Cell(row.label),
            Cell(number(ar.mean)),
            Cell(number(imputed.mean, 3), best=largest_shown(imputed.mean, every, 3)),
            Cell(number(js.mean, 3)),
            Cell(number(row.policy("entropy"), 2)),
            Cell(f"{row.policy('coverage@1'):.1%}"),
        ]
        for name in FIGURES if table.published else ():
            distance = table.distance(row, name)
            beside = "" if distance is None else f" ({distance:+.1f} s.e.)"
            cells.append(Cell(f"{there[name].value:.3f}{beside}" if name in there else "—"))
        rows.append(cells)
    heads = [
        *FIGURES,
        "entropy",
        "shown first",
        *((f"published {name}" for name in FIGURES) if table.published else ()),
    ]
    return Table(f"Table 1: {table.data.name}", ["policy", *heads], rows, _note(table))


def _note(table: Table1) -> str:
    parts = [table.data.about]
    if table.recipe.fast:
        parts.insert(0, "FAST VERSION: a small network, short contexts, few epochs; it says that the recipe runs.")
    if table.missing:
        parts.append(f"NOT COMPLETE: {len(table.missing)} arms are still to be trained.")
    parts += [f"{name} could not be trained: {reason}" for name, reason in table.failed.items()]
    if table.rows:
        errors = ", ".join(f"{name} {max(row.estimate(name).se for row in table.rows):.4f}" for name in FIGURES)
        counts = sorted({len(row.seeds) for row in table.rows})
        parts.append(
            f"Largest standard errors, clustered by user: {errors}; seeds at each row: {' or '.join(map(str, counts))}."
        )
    if table.quality:
        parts.append(
            f"The imputation orders {table.quality['order']:.0%} of held-out pairs rightly (an item's mean rating: "
            f"{table.quality['item mean order']:.0%}); iAR@1 is no better than that. 'Shown first': share of items "
            "that are some user's first."
        )
    if table.floor is not None:
        seeds = " and ".join(map(str, REFERENCE_SEEDS))
        parts.append(f"JS from μ̂ of seeds {seeds}; between these two: {table.floor['test'].mean:.3f} (the floor).")
    if table.published and not (table.data.original and table.data.source == "netflix"):
        parts.append("Published figures are of the Netflix Prize: context alone, a difference means nothing.")
    return " ".join(parts)
