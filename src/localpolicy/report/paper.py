"""The paper's tables shown beside what was published, and what the paper says of its Table 3, checked on ours."""

from __future__ import annotations

from collections.abc import Sequence

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.significance import paired_family
from localpolicy.report.comparison_words import BEYOND
from localpolicy.report.contents import Claim
from localpolicy.report.table import Cell, Table, interval_text, largest_shown, number
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.study.paper.data import DataSet, Table2
from localpolicy.study.paper.recipe import LABELS, POLICIES, SELECT, TUNED
from localpolicy.study.paper.table1 import FIGURES, Table1
from localpolicy.study.paper.table3 import COLUMNS, Row, Table3

SEEN = ("purchase.nDCG@20", "click.nDCG@20")


def findings(table: Table3) -> list[Claim]:
    """The claims of section 4.2, in its order."""
    return [
        _all_above(table, tuple(TUNED), ("mle", "reward_weighted")),
        _all_above(table, ("lpi_rl",), ("sqn", "sac")),
        _largest_in_most(table),
        _ips_worst(table),
        _above_noise(table),
    ]


def _all_above(table: Table3, upper: Sequence[str], lower: Sequence[str]) -> Claim:
    """Every policy of `upper` has the larger nDCG@20, of purchases and of clicks, than each of `lower`.

    It holds if every difference is above 0 beyond chance, fails if one is below, and is open otherwise.
    """
    claim = f"{_names(upper)} outperform{'s' if len(upper) == 1 else ''} {_names(lower)} in nDCG@20"
    figure, rule = "nDCG@20", "every difference above 0: paired t-test by sequence, Holm-corrected, p < .05"
    pairs = [(high, low) for high in _rows(table, upper) for low in _rows(table, lower)]
    if len(pairs) < len(upper) * len(lower):
        return Claim(figure, rule, None, claim, "not all of them are trained")
    tests = paired_family(
        {
            f"{_short(high)} - {_short(low)}, {name.partition('.')[0]}": (
                high.pooled.values(name)[0],
                *low.pooled.values(name),
            )
            for high, low in pairs
            for name in SEEN
        }
    )
    better = sum(test.sign > 0 for test in tests.values())
    worse = sum(test.sign < 0 for test in tests.values())
    least, test = min(tests.items(), key=lambda pair: pair[1].difference)
    holds = True if better == len(tests) else False if worse else None
    text = f"{better} of {len(tests)} above 0 beyond chance, {worse} below; least: {least}"
    return Claim(figure, rule, holds, claim, f"{text} {test.difference:+.4f}±{test.se:.4f}")


def _largest_in_most(table: Table3) -> Claim:
    claim, about = "LPI has the largest figure in most columns", ("every column", "the larger mean, in more than half")
    if len(table.rows) < len(POLICIES):
        return Claim(*about, None, claim, "not all policies are trained")
    won = [lead for lead in table.leads.values() if lead.best == POLICIES["lpi_rl"]]
    starred = sum(bool(lead.test.stars) for lead in won)
    because = f"{len(won)} of {len(COLUMNS)}, {starred} of them with stars"
    return Claim(*about, 2 * len(won) > len(COLUMNS), claim, because)


def _ips_worst(table: Table3) -> Claim:
    claim, about = (
        "IPS-PG has the lowest figures and the largest JS",
        ("every column and JS", "the smallest, the largest"),
    )
    if len(table.rows) < len(POLICIES):
        return Claim(*about, None, claim, "not all policies are trained")
    lowest = sum(
        min(table.rows, key=lambda row: row.pooled.estimate(name).mean).objective == "ips_pg" for name in COLUMNS
    )
    furthest = max(table.rows, key=lambda row: row.js.mean if row.js is not None else 0.0)
    js = 0.0 if furthest.js is None else furthest.js.mean
    return Claim(
        *about,
        lowest == len(COLUMNS) and furthest.objective == "ips_pg",
        claim,
        f"lowest in {lowest} of {len(COLUMNS)} columns; furthest: {_short(furthest)} at JS {js:.3f}",
    )


def _above_noise(table: Table3) -> Claim:
    """Not a claim of the paper, but reading its JS column assumes it."""
    claim = "all policies differ from μ̂ by more than another seed does"
    others = [row for row in table.rows if row.objective != "mle" and row.js is not None]
    if table.floor is None or not others:
        return Claim("JS", BEYOND, None, claim, "the noise floor is not known")
    floor = Interval.from_estimate(table.floor["test"])
    beyond = [row for row in others if row.js is not None and beyond_floor(Interval.from_estimate(row.js), floor)]
    names = ", ".join(_short(row) for row in beyond) or "none"
    because = f"above the floor of {interval_text(floor)}: {names}"
    return Claim("JS", BEYOND, len(beyond) == len(others), claim, because)


def _rows(table: Table3, objectives: Sequence[str]) -> list[Row]:
    return [row for name in objectives if (row := table.row(name)) is not None]


def _short(row: Row) -> str:
    return POLICIES[row.objective]


def _names(objectives: Sequence[str]) -> str:
    return ", ".join(POLICIES[name] for name in objectives)


# ---------------------------------------------------------------------- Table 1


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
            Cell(number(row.estimate("entropy").mean, 2)),
            Cell(f"{row.estimate('coverage@1').mean:.1%}"),
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
    return Table(f"Table 1: {table.data.name}", ["policy", *heads], rows, _table1_note(table))


def _table1_note(table: Table1) -> str:
    parts = _state(table, "a small network, short contexts, few epochs; it says that the recipe runs.")
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
    parts += _references(table)
    if table.published and not (table.data.original and table.data.source == "netflix"):
        parts.append("Published figures are of the Netflix Prize: context alone, a difference means nothing.")
    return " ".join(parts)


def _state(table: Table1 | Table3, fast: str) -> list[str]:
    """What it is made from, and what of it is missing."""
    return [
        *([f"FAST VERSION: {fast}"] if table.recipe.fast else []),
        table.data.about,
        *([f"NOT COMPLETE: {len(table.missing)} arms are still to be trained."] if table.missing else []),
        *(
            f"{LABELS[name] if isinstance(table, Table3) else name} could not be trained: {reason}"
            for name, reason in table.failed.items()
        ),
    ]


def _references(table: Table1 | Table3) -> list[str]:
    if table.floor is None:
        return []
    seeds = " and ".join(map(str, REFERENCE_SEEDS))
    return [f"JS from μ̂ of seeds {seeds}; between these two: {table.floor['test'].mean:.3f} (the floor)."]


# ---------------------------------------------------------------------- Table 2


SHOWN = {"sequences": "# of sequences", "items": "# of items", "click": "# of clicks", "purchase": "# of purchases"}


def table2_tables(counts: Table2) -> list[Table]:
    """One table per data set."""
    return [_counts(counts, data) for data in counts.sets]


def _counts(counts: Table2, data: DataSet) -> Table:
    counted, expected = counts.found(data), counts.expected(data)
    there = {row["what"]: row for row in expected.get("counts", [])}
    names = [name for name in SHOWN if name in counted or name in there] + [name for name in there if name not in SHOWN]
    rows = []
    for name in names:
        row = there.get(name)
        count = row["found"] if row is not None else counted.get(name, 0)
        agrees = "—" if row is None else "yes" if row["agrees"] else "no"
        published = "—" if row is None else f"{row['expected']:,}"
        note = "" if row is None else row["note"]
        rows.append(
            [Cell(SHOWN.get(name, f"# of {name}")), Cell(f"{count:,}"), Cell(published), Cell(agrees), Cell(note)]
        )
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
    parts = _state(table, "few epochs, a small grid, one seed; its figures say that the recipe runs.")
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
