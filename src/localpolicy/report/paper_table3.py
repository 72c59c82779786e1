"""The paper's Table 3 beside the published one: figures, whether its ordering holds (section 4.2), what ours add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.significance import Paired, paired_family
from localpolicy.report.comparison_words import BEYOND, TESTED
from localpolicy.report.contents import Claim
from localpolicy.report.table import NOTHING, Cell, Table, best_cell, interval_text, number
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.study.paper_recipe import LABELS, OURS, POLICIES, SELECT, TUNED
from localpolicy.study.paper_tables import COLUMNS, DIALLED, EVENTS, PaperTable, Row

SEEN = DIALLED[:2]  # nDCG@20 of purchases and of clicks
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
    rows: list[list[str | Cell]] = []

    def line(label: str, shown: Iterable[str | Cell], last: str = NOTHING) -> None:
        rows.append([label, *shown, *([last] if truth else [])])

    for row in every:
        js = number(row.js.mean, 3)  # never bold: a larger distance is not better
        line(row.label, [*(_cell(table, row, name) for name in COLUMNS), js], number(row.truth))
        if there := table.published.get(row.name):
            texts = (number(there[name].value, 3) if name in there else NOTHING for name in (*COLUMNS, "JS"))
            line("  published", texts)
        if there and table.data.original:
            apart = [table.distance(row.name, name) for name in (*COLUMNS, "JS")]
            line("  difference / s.e.", (NOTHING if each is None else f"{each:+.1f}" for each in apart))
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
    parts = state_of(table, "few epochs, a small grid, one seed; its figures say that the recipe runs.")
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
    parts += references_of(table)
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
        rows.append([f"{high.label} − {low.label}", *texts, gain])
    note = (
        "Test split, means over seeds; ± one standard error by sequence. Stars: paired t-test, Holm-corrected over the "
        "table."
    )
    heads = ["difference", "purchase nDCG@20", "click nDCG@20", "true J"]
    return Table(f"What our rows add: {table.data.name}", heads, rows, note)


def claims(table: PaperTable) -> Table:
    """What the paper says of its table, and whether it holds in this one."""
    rows = [[finding.claim, SIGNS[finding.holds], finding.because] for finding in findings(table)]
    note = "Beyond chance: paired t-test by sequence, p < .05, Holm-corrected over the differences of a claim."
    return Table(f"Does the paper's ordering hold? {table.data.name}", ["claim", "here", "figures"], rows, note)


def choices(table: PaperTable) -> Table:
    """The validation figure at each point of the grids. The true J is shown, but did not choose."""
    truth = any(row.truths for row in table.rows)
    rows: list[list[str | Cell]] = []
    for row in table.rows:
        for point, arm in row.grid.items():
            head = [POLICIES[row.name], point or NOTHING]
            if arm.failed:
                rows.append([*head, "failed", *[NOTHING] * (3 + truth)])
                continue
            js, chosen = arm.js("validation"), point == row.chosen
            figure = Cell(number(arm.selection_score), best=chosen and len(row.grid) > 1)
            true = [number(arm.truth["value"] if arm.truth else None)] if truth else []
            epoch = f"{arm.epoch} of {arm.record['run']['epochs']}"
            distance = number(None if js is None else js.mean, 3)
            rows.append([*head, figure, distance, epoch, *true, "chosen" if chosen else ""])
    note = f"Seed 0, validation split. Chosen: the largest {SELECT}, which also picked each epoch."
    columns = ["policy", "point", "validation", "JS", "epoch", *(["true J"] if truth else []), ""]
    return Table(f"How the points were chosen: {table.data.name}", columns, rows, note)


def state_of(table: PaperTable, fast: str = "") -> list[str]:
    """What it is made from, and what of it is missing."""
    return [
        *([f"FAST VERSION{f': {fast}' if fast else '.'}"] if table.recipe.fast else []),
        table.data.about,
        *([f"NOT COMPLETE: {len(table.missing)} arms are still to be trained."] if table.missing else []),
        *(f"{LABELS.get(name, name)} could not be trained: {reason}" for name, reason in table.failed.items()),
    ]


def references_of(table: PaperTable) -> list[str]:
    if table.floor is None:
        return []
    seeds = " and ".join(map(str, REFERENCE_SEEDS))
    return [f"JS from μ̂ of seeds {seeds}; between these two: {table.floor['test'].mean:.3f} (the floor)."]


# ---------------------------------------------------------------------- what the paper says of it


def findings(table: PaperTable) -> list[Claim]:
    """The claims of section 4.2, in its order."""
    return [
        _all_above(table, tuple(TUNED), ("mle", "reward_weighted")),
        _all_above(table, ("lpi_rl",), ("sqn", "sac")),
        _largest_in_most(table),
        _ips_worst(table),
        _above_noise(table),
    ]


def _all_above(table: PaperTable, upper: Sequence[str], lower: Sequence[str]) -> Claim:
    """Every policy of `upper` has the larger nDCG@20, of purchases and of clicks, than each of `lower`.

    It holds if every difference is above 0 beyond chance, fails if one is below, and is open otherwise.
    """
    claim = f"{_names(upper)} outperform{'s' if len(upper) == 1 else ''} {_names(lower)} in nDCG@20"
    figure, rule = "nDCG@20", f"every difference above 0: {TESTED}"
    pairs = [(high, low) for high in _rows(table, upper) for low in _rows(table, lower)]
    if len(pairs) < len(upper) * len(lower):
        return Claim(figure, rule, None, claim, "not all of them are trained")
    tests = differences(pairs)
    better = sum(test.sign > 0 for test in tests.values())
    worse = sum(test.sign < 0 for test in tests.values())
    (high, low, name), test = min(tests.items(), key=lambda pair: pair[1].difference)
    holds = True if better == len(tests) else False if worse else None
    least = f"{POLICIES[high]} - {POLICIES[low]}, {name.partition('.')[0]} {test.difference:+.4f}±{test.se:.4f}"
    because = f"{better} of {len(tests)} above 0 beyond chance, {worse} below; least: {least}"
    return Claim(figure, rule, holds, claim, because)


def differences(pairs: Sequence[tuple[Row, Row]]) -> dict[tuple[str, str, str], Paired]:
    """Paired tests of these rows in nDCG@20, by their names and the figure: all are read together."""
    return paired_family(
        {
            (high.name, low.name, name): (high.pooled.values(name)[0], *low.pooled.values(name))
            for high, low in pairs
            for name in SEEN
        }
    )


def _largest_in_most(table: PaperTable) -> Claim:
    about = "every column", "the larger mean, in more than half"
    claim = "LPI has the largest figure in most columns"
    if len(table.rows) < len(POLICIES):
        return Claim(*about, None, claim, "not all policies are trained")
    won = [lead for lead in table.leads.values() if lead.best == POLICIES["lpi_rl"]]
    starred = sum(bool(lead.test.stars) for lead in won)
    because = f"{len(won)} of {len(COLUMNS)}, {starred} of them with stars"
    return Claim(*about, 2 * len(won) > len(COLUMNS), claim, because)


def _ips_worst(table: PaperTable) -> Claim:
    about = "every column and JS", "the smallest, the largest"
    claim = "IPS-PG has the lowest figures and the largest JS"
    if len(table.rows) < len(POLICIES):
        return Claim(*about, None, claim, "not all policies are trained")
    lowest = sum(min(table.rows, key=lambda row: row.pooled.estimate(name).mean).name == "ips_pg" for name in COLUMNS)
    furthest = max(table.rows, key=lambda row: row.js.mean)
    far = f"furthest: {POLICIES[furthest.name]} at JS {furthest.js.mean:.3f}"
    holds = lowest == len(COLUMNS) and furthest.name == "ips_pg"
    return Claim(*about, holds, claim, f"lowest in {lowest} of {len(COLUMNS)} columns; {far}")


def _above_noise(table: PaperTable) -> Claim:
    """Not a claim of the paper, but reading its JS column assumes it."""
    claim = "all policies differ from μ̂ by more than another seed does"
    others = [row for row in table.rows if row.name != "mle"]
    if table.floor is None or not others:
        return Claim("JS", BEYOND, None, claim, "the noise floor is not known")
    floor = Interval.from_estimate(table.floor["test"])
    beyond = [row.name for row in others if beyond_floor(Interval.from_estimate(row.js), floor)]
    names = _names(beyond) or "none"
    because = f"above the floor of {interval_text(floor)}: {names}"
    return Claim("JS", BEYOND, len(beyond) == len(others), claim, because)


def _rows(table: PaperTable, objectives: Sequence[str]) -> list[Row]:
    return [row for name in objectives if (row := table.row(name)) is not None]


def _names(objectives: Sequence[str]) -> str:
    return ", ".join(POLICIES[name] for name in objectives)
