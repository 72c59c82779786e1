"""The paper's tables shown beside what was published."""

from __future__ import annotations

from collections.abc import Sequence

from localpolicy.report.comparison_tables import bucket_table
from localpolicy.report.numbers import NOTHING, number, with_error
from localpolicy.report.paper_claims import SEEN, differences, findings
from localpolicy.report.table import Cell, Table, best_cell, cells
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.study.paper_data import DataSet
from localpolicy.study.paper_recipe import LABELS, OURS, POLICIES, SELECT, SYMBOLS
from localpolicy.study.paper_tables import COLUMNS, DIALLED, EVENTS, FIGURES, PaperTable, Row


def table1_tables(table: PaperTable) -> list[Table]:
    """Ours beside the paper's."""
    every = [row.pooled.estimate("iAR@1").mean for row in table.rows]
    rows = []
    for row in table.rows:
        there = table.published.get(row.name, {})
        mean = {name: row.pooled.estimate(name).mean for name in (*table.figures, *table.beside)}
        cells = [
            Cell(row.label),
            Cell(number(mean["AR@1"])),
            best_cell(mean["iAR@1"], every, digits=3),
            Cell(number(mean["JS"], 3)),
            Cell(number(mean["entropy"], 2)),
            Cell(f"{mean['coverage@1']:.1%}"),
        ]
        for name in FIGURES if table.published else ():
            distance = table.distance(row.name, name)
            beside = "" if distance is None else f" ({distance:+.1f} s.e.)"
            cells.append(Cell(f"{there[name].value:.3f}{beside}" if name in there else NOTHING))
        rows.append(cells)
    published = [f"published {name}" for name in FIGURES] if table.published else []
    heads = ["policy", *FIGURES, "entropy", "shown first", *published]
    return [Table(f"Table 1: {table.data.name}", heads, rows, _table1_note(table))]


def _table1_note(table: PaperTable) -> str:
    parts = _state(table, "a small network, short contexts, few epochs; it says that the recipe runs.")
    if table.rows:
        errors = ", ".join(f"{name} {max(row.pooled.estimate(name).se for row in table.rows):.4f}" for name in FIGURES)
        counts = sorted({len(row.pooled.seeds) for row in table.rows})
        parts.append(
            f"Largest standard errors, clustered by user: {errors}; seeds at each row: {' or '.join(map(str, counts))}."
        )
    if table.quality:
        parts.append(
            f"The imputation orders {table.quality['order']:.0%} of held-out pairs rightly (an item's mean rating: "
            f"{table.quality['item mean order']:.0%}); iAR@1 is no better than that. 'Shown first': share of items "
            "that are some user's first."
        )
    parts += _references(table)
    if table.published and not table.data.original:
        parts.append("Published figures are of the Netflix Prize: context alone, a difference means nothing.")
    return " ".join(parts)


def _state(table: PaperTable, fast: str = "") -> list[str]:
    """What it is made from, and what of it is missing."""
    return [
        *([f"FAST VERSION{f': {fast}' if fast else '.'}"] if table.recipe.fast else []),
        table.data.about,
        *([f"NOT COMPLETE: {len(table.missing)} arms are still to be trained."] if table.missing else []),
        *(f"{LABELS.get(name, name)} could not be trained: {reason}" for name, reason in table.failed.items()),
    ]


def _references(table: PaperTable) -> list[str]:
    if table.floor is None:
        return []
    seeds = " and ".join(map(str, REFERENCE_SEEDS))
    return [f"JS from μ̂ of seeds {seeds}; between these two: {table.floor['test'].mean:.3f} (the floor)."]


# ---------------------------------------------------------------------- Table 2


MOST_EVENTS = 10  # kinds of events that have a row each; ratings may have more
SHOWN = {"sequences": "# of sequences", "items": "# of items", "click": "# of clicks", "purchase": "# of purchases"}


def table2_table(data: DataSet) -> Table:
    """What a data set holds: counted, and published."""
    content = data.counts()
    counted, expected = content["found"], content["published"]
    there = {row["what"]: row for row in expected.get("counts", [])}
    others = [
        name for name in counted if name not in SHOWN and name not in there
    ]  # events of a log that is not the paper's
    if len(others) > MOST_EVENTS:
        counted, others = {**counted, "other events": sum(counted[name] for name in others)}, ["other events"]
    names = [name for name in SHOWN if name in counted or name in there] + [name for name in there if name not in SHOWN]
    names += others
    rows = []
    for name in names:
        title, row = SHOWN.get(name, f"# of {name}"), there.get(name)
        if row is None:
            rows.append(cells(title, f"{counted[name]:,}", NOTHING, NOTHING, ""))
        else:
            agrees = "yes" if row["agrees"] else "no"
            rows.append(cells(title, f"{row['found']:,}", f"{row['expected']:,}", agrees, row["note"]))
    reason = expected.get("reason") or ""
    note = f"{data.about}{f' Where counts differ: {reason}.' if reason else ''}"
    return Table(f"Table 2: {data.name}", ["", "found", "published", "agree", "note"], rows, note)


# ---------------------------------------------------------------------- Table 3


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


def table3_tables(table: PaperTable) -> list[Table]:
    """The paper's table, whether its ordering holds, what our rows add, and how the points were chosen."""
    return [main_table(table), claims(table), *([our_gains(table)] if table.ours else []), choices(table)]


def main_table(table: PaperTable) -> Table:
    """Policies by figures, the paper's under each."""
    heads = [f"{'p' if name.startswith('purchase') else 'c'}.{name.partition('.')[2]}" for name in COLUMNS]
    every = (*table.rows, *table.ours)
    truth = any(row.truth is not None for row in every)
    rows: list[list[Cell]] = []

    def line(label: str, shown: Sequence[Cell], last: str = NOTHING) -> None:
        rows.append([Cell(label), *shown, *([Cell(last)] if truth else [])])

    for row in every:
        js = Cell(number(row.js.mean, 3))  # never bold: a larger distance is not better
        line(row.label, [*(_cell(table, row, name) for name in COLUMNS), js], number(row.truth))
        if there := table.published.get(row.name):
            texts = (number(there[name].value, 3) if name in there else NOTHING for name in (*COLUMNS, "JS"))
            line("  published", cells(*texts))
        if there and table.data.original:
            apart = [table.distance(row.name, name) for name in (*COLUMNS, "JS")]
            line("  difference / s.e.", cells(*(NOTHING if each is None else f"{each:+.1f}" for each in apart)))
    columns = ["policy", *heads, "JS", *(["true J"] if truth else [])]
    return Table(f"Table 3: {table.data.name}", columns, rows, _note(table))


def _cell(table: PaperTable, row: Row, name: str) -> Cell:
    """Bold and stars are for the paper's rows."""
    lead, mean = table.leads.get(name), row.pooled.estimate(name).mean
    if row.name in OURS:
        return Cell(number(mean, 3))
    stars = lead.test.stars if lead is not None and lead.best == row.pooled.name else ""
    return best_cell(mean, [other.pooled.estimate(name).mean for other in table.rows], stars, digits=3)


def _note(table: PaperTable) -> str:
    parts = _state(table, "few epochs, a small grid, one seed; its figures say that the recipe runs.")
    if not table.rows:
        return " ".join(parts)
    for event in EVENTS:
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
    parts += _references(table)
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


def our_gains(table: PaperTable) -> Table:
    """What our rows add, one change at a time: paired differences on the same test positions."""
    pairs = [(table.row(upper), table.row(lower)) for upper, lower in OUR_PAIRS]
    known = [(high, low) for high, low in pairs if high is not None and low is not None]
    tests = differences(known)
    rows = []
    for high, low in known:
        shown = [tests[high.name, low.name, name] for name in SEEN]
        gain = NOTHING if high.truth is None or low.truth is None else f"{high.truth - low.truth:+.4f}"
        texts = [f"{test.difference:+.4f} ± {test.se:.4f}{test.stars}" for test in shown]
        rows.append(cells(f"{high.label} − {low.label}", *texts, gain))
    note = (
        "Test split, means over seeds; ± one standard error by sequence. Stars: paired t-test, Holm-corrected over the "
        "table."
    )
    heads = ["difference", "purchase nDCG@20", "click nDCG@20", "true J"]
    return Table(f"What our rows add: {table.data.name}", heads, rows, note)


def claims(table: PaperTable) -> Table:
    """What the paper says of its table, and whether it holds in this one."""
    rows = [cells(finding.claim, SIGNS[finding.holds], finding.because) for finding in findings(table)]
    note = "Beyond chance: paired t-test by sequence, p < .05, Holm-corrected over the differences of a claim."
    return Table(f"Does the paper's ordering hold? {table.data.name}", ["claim", "here", "figures"], rows, note)


def choices(table: PaperTable) -> Table:
    """The validation figure at each point of the grids. The true J is shown, but did not choose."""
    truth, rows = any(row.truths for row in table.rows), []
    for row in table.rows:
        for point, arm in row.grid.items():
            head = cells(POLICIES[row.name], point or NOTHING)
            if arm.failed:
                rows.append([*head, *cells("failed", *[NOTHING] * (3 + truth))])
                continue
            js, chosen = arm.js("validation"), point == row.chosen
            figure = Cell(number(arm.selection_score), best=chosen and len(row.grid) > 1)
            true = [number(arm.truth["value"] if arm.truth else None)] if truth else []
            epoch = f"{arm.epoch} of {arm.record['run']['epochs']}"
            distance = number(None if js is None else js.mean, 3)
            rows.append([*head, figure, *cells(distance, epoch, *true, "chosen" if chosen else "")])
    note = f"Seed 0, validation split. Chosen: the largest {SELECT}, which also picked each epoch."
    columns = ["policy", "point", "validation", "JS", "epoch", *(["true J"] if truth else []), ""]
    return Table(f"How the points were chosen: {table.data.name}", columns, rows, note)


# ---------------------------------------------------------------------- the numbers behind the figures


def dial_tables(table: PaperTable) -> list[Table]:
    """LPI over β or λ."""
    symbol, other = SYMBOLS[table.over], next(mark for key, mark in SYMBOLS.items() if key != table.over)
    estimates = {row.label: [row.pooled.estimate(name, table.split) for name in DIALLED] for row in table.rows}
    rows = [cells(label, *(with_error(each.mean, each.se) for each in every)) for label, every in estimates.items()]
    parts = [*_state(table), f"LPI at {other}=1, validation split; errors by sequence."]
    if table.floor is not None:
        parts.append(f"Noise floor of JS: {table.floor['validation'].mean:.4f}.")
    heads = [symbol, "purchase nDCG@20", "click nDCG@20", "JS"]
    return [Table(f"LPI over {symbol}: {table.data.name}", heads, rows, " ".join(parts))]


def breakdown_tables(table: PaperTable) -> list[Table]:
    """nDCG@20 per sequence by number of events."""
    about = (
        "Test split, means over sequences. Stars: the largest against the second, paired t-test (* .05, ** .01, *** "
        ".001), Holm-corrected over the columns."
    )
    note = " ".join([*_state(table), about])
    return [
        bucket_table(f"nDCG@20 by number of {event}s: {table.data.name}", table.breakdown(event), note)
        for event in EVENTS
    ]
