"""Table 3 shown: the paper's layout, what was published, our own rows, and how the points were chosen."""

from __future__ import annotations

from localpolicy.measure.significance import paired_family
from localpolicy.report.numbers import number
from localpolicy.report.paper.findings import SEEN, findings
from localpolicy.report.table import Cell, Table, largest_shown
from localpolicy.study.paper.recipe import LABELS, POLICIES, SELECT
from localpolicy.study.paper.table3 import COLUMNS, Row, Table3
from localpolicy.study.seeds import REFERENCE_SEEDS

# What our rows add: tied heads to each policy that has both; the closed form to μ̂, and to the paper's.
OUR_PAIRS = (
    ("mle_tied", "mle"),
    ("reward_weighted_tied", "reward_weighted"),
    ("sqn_tied", "sqn"),
    ("lpi_rl_closed", "mle_tied"),
    ("lpi_rl_closed", "reward_weighted_tied"),
    ("lpi_rl_closed", "sqn_tied"),
    ("lpi_rl_closed", "lpi_rl"),
)
SIGNS = {True: "yes", False: "NO", None: "cannot say"}


def table3_tables(table: Table3) -> list[Table]:
    """The paper's table, whether its ordering holds, what our rows add, and how the points were chosen."""
    return [main_table(table), claims(table), *([our_gains(table)] if table.ours else []), choices(table)]


def main_table(table: Table3) -> Table:
    """Policies by figures, the paper's under each."""
    heads = [f"{'p' if name.startswith('purchase') else 'c'}.{name.partition('.')[2]}" for name in COLUMNS]
    truth = any(row.truth is not None for row in (*table.rows, *table.ours))
    rows: list[list[Cell]] = []
    for row in table.rows:
        js = Cell(number(None if row.js is None else row.js.mean, 3))  # never bold: a larger distance is not better
        mine = [Cell(row.label), *(_cell(table, row, name) for name in COLUMNS), js]
        rows.append([*mine, Cell(number(row.truth))] if truth else mine)
        there, rest = table.published.get(row.objective), [Cell("—")] if truth else []
        if there:
            texts = [number(there[name].value, 3) if name in there else "—" for name in (*COLUMNS, "JS")]
            rows.append([Cell("  published"), *map(Cell, texts), *rest])
        if there and table.data.original:
            apart = [table.distance(row.objective, name) for name in (*COLUMNS, "JS")]
            texts = ["—" if distance is None else f"{distance:+.1f}" for distance in apart]
            rows.append([Cell("  difference / s.e."), *map(Cell, texts), *rest])
    for row in table.ours:  # plain: bold and stars are for the paper's rows
        figures = [number(row.pooled.estimate(name).mean, 3) for name in COLUMNS]
        texts = [row.label, *figures, number(None if row.js is None else row.js.mean, 3)]
        rows.append([*map(Cell, texts), *([Cell(number(row.truth))] if truth else [])])
    columns = ["policy", *heads, "JS", *(["true J"] if truth else [])]
    return Table(f"Table 3: {table.data.name}", columns, rows, _note(table))


def _cell(table: Table3, row: Row, name: str) -> Cell:
    lead, mean = table.leads.get(name), row.pooled.estimate(name).mean
    stars = lead.test.stars if lead is not None and lead.best == row.pooled.name else ""
    return Cell(
        number(mean, 3), largest_shown(mean, [other.pooled.estimate(name).mean for other in table.rows], 3), stars
    )


def _note(table: Table3) -> str:
    parts = [table.data.about]
    if table.recipe.fast:
        parts.insert(0, "FAST VERSION: few epochs, a small grid, one seed; its figures say that the recipe runs.")
    if table.missing:
        parts.append(f"NOT COMPLETE: {len(table.missing)} arms are still to be trained.")
    parts += [f"{LABELS[name]} could not be trained: {reason}" for name, reason in table.failed.items()]
    if not table.rows:
        return " ".join(parts)
    for event in ("purchase", "click"):
        names = [name for name in COLUMNS if name.startswith(event)]
        estimates = [row.pooled.estimate(name) for row in table.rows for name in names]
        parts.append(
            f"{event}: largest standard error {max(estimate.plain_se for estimate in estimates):.4f} over positions "
            f"(the paper's), {max(estimate.se for estimate in estimates):.4f} clustered by sequence."
        )
    counts = {len(row.pooled.seeds) for row in table.rows}
    over = f"{max(counts)} seeds" if max(counts) > 1 else "one seed"
    fewer = "" if len(counts) == 1 else f" (some rows: {min(counts)})"
    parts.append(
        f"Test split, every position of the latest {table.length}, first actions included; means over {over}{fewer}. "
        "Stars: largest against second largest, paired t-test by sequence, Holm-corrected over columns."
    )
    if table.floor is not None:
        seeds = " and ".join(map(str, REFERENCE_SEEDS))
        parts.append(f"JS from μ̂ of seeds {seeds}; between these two: {table.floor['test'].mean:.3f} (the floor).")
    if logged := [truth["logging"] for row in table.rows for truth in row.truths]:
        parts.append(
            f"True J: mean reward per impression in the simulated world; the logging policy's is {logged[0]:.4f}."
        )
    if table.ours:
        parts.append(
            "Rows marked 'ours' are not the paper's: our defaults on a network of the same size. Stars and bold "
            "figures leave them out. Their JS is taken from the paper's untied μ̂ too: read it beside that of μ̂ with "
            "tied heads."
        )
        parts += [_silent(row) for row in table.ours if row.improvements]
    if table.published and not table.data.original:
        parts.append(
            "Published figures stand here as context alone: they belong to other data, and a difference from them "
            "means nothing."
        )
    return " ".join(parts)


def _silent(row: Row) -> str:
    """How far the critics of the closed form were believed."""
    slopes = [improvement["slope"] for improvement in row.improvements]
    silent = sum(slope == 0 for slope in slopes)
    if silent:
        return (
            f"{row.label}: in {silent} of {len(slopes)} seeds its critic tells nothing of held-out actions, and the "
            "policy stays at its μ̂."
        )
    return f"{row.label}: its advantages are multiplied by {', '.join(f'{slope:.2f}' for slope in slopes)}."


def our_gains(table: Table3) -> Table:
    """What our rows add, one change at a time: paired differences on the same test positions."""
    pairs = [(table.row(upper), table.row(lower)) for upper, lower in OUR_PAIRS]
    known = [(high, low) for high, low in pairs if high is not None and low is not None]
    tests = paired_family(
        {
            (high.objective, low.objective, name): (high.pooled.values(name)[0], *low.pooled.values(name))
            for high, low in known
            for name in SEEN
        }
    )
    rows = []
    for high, low in known:
        cells = [
            f"{test.difference:+.4f} ± {test.se:.4f}{test.stars}"
            for name in SEEN
            for test in [tests[high.objective, low.objective, name]]
        ]
        gain = None if high.truth is None or low.truth is None else high.truth - low.truth
        rows.append(
            [Cell(f"{high.label} − {low.label}"), *map(Cell, cells), Cell("—" if gain is None else f"{gain:+.4f}")]
        )
    note = (
        "Test split, means over seeds; ± one standard error by sequence. Stars: paired t-test, Holm-corrected over the "
        "table."
    )
    heads = ["difference", "purchase nDCG@20", "click nDCG@20", "true J"]
    return Table(f"What our rows add: {table.data.name}", heads, rows, note)


def claims(table: Table3) -> Table:
    """What the paper says of its table, and whether it holds in this one."""
    rows = [[Cell(finding.claim), Cell(SIGNS[finding.holds]), Cell(finding.because)] for finding in findings(table)]
    note = "Beyond chance: paired t-test by sequence, p < .05, Holm-corrected over the differences of a claim."
    return Table(f"Does the paper's ordering hold? {table.data.name}", ["claim", "here", "figures"], rows, note)


def choices(table: Table3) -> Table:
    """The validation figure at each point of the grids. The true J is shown, but did not choose."""
    truth, rows = any(row.truths for row in table.rows), []
    for row in table.rows:
        for point, arm in row.grid.items():
            head = [Cell(POLICIES[row.objective]), Cell(point or "—")]
            if arm.failed:
                rows.append([*head, Cell("failed"), *[Cell("—")] * (3 + truth)])
                continue
            js, chosen = arm.js("validation"), point == row.chosen
            rows.append(
                [
                    *head,
                    Cell(number(arm.selection_score), best=chosen and len(row.grid) > 1),
                    Cell(number(None if js is None else js.mean, 3)),
                    Cell(f"{arm.epoch} of {arm.record['run']['epochs']}"),
                    *([Cell(number(arm.truth["value"] if arm.truth else None))] if truth else []),
                    Cell("chosen" if chosen else ""),
                ]
            )
    note = f"Seed 0, validation split. Chosen: the largest {SELECT}, which also picked each epoch."
    columns = ["policy", "point", "validation", "JS", "epoch", *(["true J"] if truth else []), ""]
    return Table(f"How the points were chosen: {table.data.name}", columns, rows, note)
