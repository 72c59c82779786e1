"""The paper's Table 3 and the published one: figures, whether its ordering holds (section 4.2), what ours add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from localpolicy.judge.claims import Claim
from localpolicy.judge.findings import BEYOND, TESTED
from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.number_text import NOTHING, fixed, interval_text
from localpolicy.measure.significance import SIGNIFICANT, Paired
from localpolicy.report.table import Cell, Table, best_cell
from localpolicy.report.tables import FRONTIER, exchange_table
from localpolicy.reproduction.recipe import (
    BANDIT_LABELS,
    CURVES,
    EVENTS,
    LABELS,
    METRICS,
    OBSERVED,
    OURS,
    POLICIES,
    TUNED,
)
from localpolicy.reproduction.tables import DIALLED, PaperTable, label_of
from localpolicy.study.measured import REFERENCE_SEEDS, Pooled
from localpolicy.study.settings import NO_POINT

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
# Which policies outperform which, by the paper: all of the first each of the second.
ABOVE = ((tuple(TUNED), ("mle", "reward_weighted")), (("lpi_rl",), ("sqn", "sac")))
RIVALS = ("mle", "sqn", "sac")  # of observed weights: above them in purchases, and in clicks no lower
SIGNS = {True: "yes", False: "NO", None: "cannot say"}


def table3_tables(table: PaperTable) -> list[Table]:
    """Table 3 with its claims, the gains of our rows, and the chosen points."""
    beside = [*([our_gains(table)] if table.ours else []), *([frontier(table)] if len(table.frontier) > 1 else [])]
    return [main_table(table), claims(table), *beside, choices(table)]


def main_table(table: PaperTable) -> Table:
    """Table of policies by metrics, with the published numbers below ours."""
    columns, rows = (*METRICS, "JS"), list[list[str | Cell]]()
    for row in (*table.rows, *table.ours):
        rows.append([label_of(row), *(_cell(table, row, name) for name in columns), fixed(row.truth)])
        if there := table.published.get(row.key):
            texts = (fixed(there[name].value, 3) if name in there else NOTHING for name in columns)
            rows.append(["  published", *texts, NOTHING])
        if there and table.data.original:
            apart = (table.distance(row.key, name) for name in columns)
            texts = (NOTHING if each is None else f"{each:+.1f}" for each in apart)
            rows.append(["  difference / s.e.", *texts, NOTHING])
    heads = ["policy", *(f"{name[0]}.{name.partition('.')[2]}" for name in METRICS), "JS", "true J"]
    shown = len(heads) if _truth_known(table) else len(heads) - 1
    return Table(f"Table 3: {table.data.name}", heads[:shown], [row[:shown] for row in rows], _note(table))


def _truth_known(table: PaperTable) -> bool:
    return any(row.truth is not None for row in (*table.rows, *table.ours))


def _cell(table: PaperTable, row: Pooled, name: str) -> Cell:
    """Cell of a metric; only the paper's rows get bold and stars, and JS never: a larger distance is not better."""
    lead, mean = table.leads.get(name), row.estimate(name).mean
    if row.key in OURS or name == "JS":
        return Cell(fixed(mean, 3))
    stars = lead.test.stars if lead is not None and lead.best == row.name else ""
    return best_cell(mean, [other.estimate(name).mean for other in table.rows], stars, digits=3)


def _note(table: PaperTable) -> str:
    parts = state_of(table, "few epochs, a small grid, one seed; its figures say that the recipe runs.")
    if not table.rows:
        return " ".join(parts)
    for event in EVENTS:
        every = [row.estimate(name) for row in table.rows for name in METRICS if name.startswith(event)]
        parts.append(
            f"{event}: largest standard error {max(each.plain_se for each in every):.4f} over positions (the paper's), "
            f"{max(each.se for each in every):.4f} clustered by sequence."
        )
    counts = {len(row.seeds) for row in table.rows}
    over = f"{max(counts)} seeds" if max(counts) > 1 else "one seed"
    length = table.recipe.config("mle", NO_POINT, 0).data.length
    fewer = "" if len(counts) == 1 else f" (some rows: {min(counts)})"
    parts.append(
        f"Test split, every position of the latest {length}, first actions included; means over {over}{fewer}. "
        "Stars: largest against second largest, paired t-test by sequence, Holm-corrected over columns."
    )
    parts += references_of(table)
    if truths := [seed.truth for row in table.rows for seed in row.seeds if seed.truth is not None]:
        logged = f"the logging policy's is {truths[0]['logging']:.4f}"
        parts.append(f"True J: mean reward per impression in the simulated world; {logged}.")
    if table.ours:
        parts.append(
            "Rows marked 'ours' are not the paper's: our defaults on a network of the same size. Stars and "
            "the mark of the largest leave them out. Their JS is taken from the paper's untied μ̂ too: read it with "
            "that of μ̂ with tied heads."
        )
        parts += [_believed(row, slopes) for row in table.ours if (slopes := slopes_of(row))]
    if table.published and not table.data.original:
        parts.append(
            "Published figures stand here as context alone: they belong to other data, and a difference from them "
            "means nothing."
        )
    return " ".join(parts)


def slopes_of(row: Pooled) -> list[float]:
    """Slope s of each seed in closed form: the factor of its advantages, chosen on validation."""
    every = (seed.record["run"].get("improvement") for seed in row.seeds)
    return [improvement["slope"] for improvement in every if improvement is not None]


def _believed(row: Pooled, slopes: Sequence[float]) -> str:
    """Sentence on the closed form's critics: the factor of their advantages by seed, or seeds that trust none."""
    if silent := sum(slope == 0 for slope in slopes):
        return (
            f"{label_of(row)}: in {silent} of {len(slopes)} seeds its critic does not predict held-out actions, and "
            "the policy stays at its μ̂."
        )
    return f"{label_of(row)}: its advantages are multiplied by {', '.join(f'{slope:.2f}' for slope in slopes)}."


def our_gains(table: PaperTable) -> Table:
    """Table of what each change of ours adds: paired differences on the same test positions."""
    pairs, rows = table.both(OUR_PAIRS), []
    tests = table.differences(OUR_PAIRS, SEEN)
    for high, low in pairs:
        shown = [tests[high.key, low.key, name] for name in SEEN]
        gain = NOTHING if high.truth is None or low.truth is None else f"{high.truth - low.truth:+.4f}"
        texts = [f"{difference_text(test)}{test.stars}" for test in shown]
        rows.append([f"{label_of(high)} − {label_of(low)}", *texts, gain])
    note = (
        "Test split, means over seeds; 95 % intervals, clustered by sequence. Stars: paired t-test. Both are "
        "Holm-corrected over the table."
    )
    heads = ["difference", "purchase nDCG@20", "click nDCG@20", "true J"]
    return Table(f"What our rows add: {table.data.name}", heads, rows, note)


def claims(table: PaperTable) -> Table:
    """Table of the paper's claims about its table, and whether they hold in this one."""
    rows = [[finding.claim, SIGNS[finding.holds], finding.because] for finding in findings(table)]
    note = f"Significantly: paired t-test by sequence, {SIGNIFICANT}, Holm-corrected over all these differences."
    return Table(f"Does the paper's ordering hold? {table.data.name}", ["claim", "here", "figures"], rows, note)


def frontier(table: PaperTable) -> Table:
    """Table of each policy's gain in purchases and loss in clicks over μ̂."""
    note = (
        "Test split, differences from μ̂ of the same seeds; 95 % intervals, clustered by sequence. Stars: paired "
        f"t-test. Both are Holm-corrected over the table. {FRONTIER}"
    )
    return exchange_table(f"Purchases against clicks: {table.data.name}", table.frontier, note)


def choices(table: PaperTable) -> Table:
    """Table of the validation metric at each grid point; the true J is shown but did not choose."""
    truth, rows = _truth_known(table), list[list[str | Cell]]()
    points = [(row, tried) for row in table.rows for tried in row.grid]
    for row, tried in points:
        name = (LABELS | BANDIT_LABELS)[row.key.partition(" ")[0]]
        head, (arm,), chosen = [name, tried.name or NOTHING], tried.seeds, tried.point == row.point
        if arm.failed:
            rows.append([*head, "failed", *[NOTHING] * (3 + truth)])
            continue
        shown = [
            fixed(arm.selection_score),
            fixed(arm.estimate("JS", "validation").mean, 3),
            f"{arm.epoch} of {arm.record['run']['epochs']}",
        ]
        rows.append([*head, *shown, *([fixed(tried.truth)] if truth else []), "chosen" if chosen else ""])
    note = f"Seed 0, validation split. Chosen: the largest {table.recipe.select}, which also picked each epoch."
    columns = ["policy", "point", "validation", "JS", "epoch", *(["true J"] if truth else []), ""]
    return Table(f"How the points were chosen: {table.data.name}", columns, rows, note, keys=2)


def state_of(table: PaperTable, fast: str = "") -> list[str]:
    """Notes on a table: fast version, data, arms still to be trained, policies that failed."""
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


# ---------------------------------------------------------------------- the claims of the paper


def findings(table: PaperTable) -> list[Claim]:
    """Claims of the paper's section 4.2, in its order."""
    observed = [key for key in (*OBSERVED, *CURVES.values()) if table.row(key) is not None]
    sides = [*ABOVE, *(((key,), RIVALS) for key in observed)]
    tests = table.differences([pair for each in sides for pair in product(*each)], SEEN)
    theirs = [_all_above(tests, *each) for each in ABOVE]
    ours = [claim for key in observed for claim in _without_a_price(tests, key)]
    return [*theirs, *_of_all_policies(table), _above_noise(table), *ours]


def _all_above(all_tests: Mapping[tuple[str, str, str], Paired], upper: Sequence[str], lower: Sequence[str]) -> Claim:
    """Claim that every policy of `upper` has the larger purchase and click nDCG@20 than each of `lower`.

    It holds if every difference is significantly above 0, fails if one is below, and is open otherwise.
    """
    claim = f"{_names(upper)} outperform{'s' if len(upper) == 1 else ''} {_names(lower)} in nDCG@20"
    about, wanted = ("nDCG@20", f"every difference above 0: {TESTED}"), [*product(upper, lower, SEEN)]
    tests = {key: all_tests[key] for key in wanted if key in all_tests}
    if len(tests) < len(wanted):
        return Claim(*about, None, claim, "not all of them are trained")
    signs = [test.sign for test in tests.values()]
    better, worse = signs.count(1), signs.count(-1)
    (high, low, name), test = min(tests.items(), key=lambda pair: pair[1].difference)
    holds = True if better == len(tests) else False if worse else None
    least = f"{POLICIES[high]} - {POLICIES[low]}, {name.partition('.')[0]} {difference_text(test)}"
    because = f"{better} of {len(tests)} significantly above 0, {worse} below; least: {least}"
    return Claim(*about, holds, claim, because)


def _without_a_price(tests: Mapping[tuple[str, str, str], Paired], key: str) -> list[Claim]:
    """Claims that the policy `key` ranks purchases higher than every rival, and clicks no lower than any."""
    purchase, click = SEEN
    claims = []
    for name, wanted, rule in ((purchase, 1, f"every difference above 0: {TESTED}"), (click, 0, "no mean below 0")):
        known = {low: tests[key, low, name] for low in RIVALS if (key, low, name) in tests}
        word = "is above" if wanted else "is not below"
        claim = f"{LABELS[key]} {word} {_names(RIVALS)} in {name.replace('.', ' ')}"
        if len(known) < len(RIVALS):
            claims.append(Claim(name, rule, None, claim, "not all of them are trained"))
            continue
        least, test = min(known.items(), key=lambda pair: pair[1].difference)
        signs = [each.sign for each in known.values()]
        holds = min(signs) == 1 if wanted else test.difference >= 0
        verdict = True if holds else False if min(signs) < 0 else None
        claims.append(
            Claim(name, rule, verdict, claim, f"least: - {LABELS[least]} {difference_text(test)}{test.stars}")
        )
    return claims


def difference_text(test: Paired) -> str:
    """Text of a difference with its corrected interval."""
    return interval_text(Interval(test.difference, test.low, test.high), 4, signed=True)


def _of_all_policies(table: PaperTable) -> list[Claim]:
    most = "every column", "the larger mean, in more than half"
    worst = "every column and JS", "the smallest, the largest"
    said = "LPI has the largest figure in most columns", "IPS-PG has the lowest figures and the largest JS"
    if not POLICIES.keys() <= {row.key for row in table.rows}:
        unknown = "not all policies are trained"
        return [Claim(*about, None, claim, unknown) for about, claim in zip((most, worst), said, strict=True)]
    won, many = [lead for lead in table.leads.values() if lead.best == POLICIES["lpi_rl"]], len(METRICS)
    starred = sum(bool(lead.test.stars) for lead in won)
    lowest = sum(min(table.rows, key=lambda row: row.estimate(name).mean).key == "ips_pg" for name in METRICS)
    furthest = max(table.rows, key=lambda row: row.estimate("JS").mean)
    far = f"furthest: {furthest.name} at JS {furthest.estimate('JS').mean:.3f}"
    worst_holds = lowest == many and furthest.key == "ips_pg"
    return [
        Claim(*most, 2 * len(won) > many, said[0], f"{len(won)} of {many}, {starred} of them with stars"),
        Claim(*worst, worst_holds, said[1], f"lowest in {lowest} of {many} columns; {far}"),
    ]


def _above_noise(table: PaperTable) -> Claim:
    """Claim that every policy's JS from μ̂ exceeds the noise floor, which the paper's JS column assumes."""
    claim = "all policies differ from μ̂ by more than another seed does"
    others = [row for row in table.rows if row.key != "mle"]
    if table.floor is None or not others:
        return Claim("JS", BEYOND, None, claim, "the noise floor is not known")
    floor = Interval.from_estimate(table.floor["test"])
    beyond = [row.key for row in others if beyond_floor(Interval.from_estimate(row.estimate("JS")), floor)]
    because = f"above the floor of {interval_text(floor)}: {_names(beyond) or 'none'}"
    return Claim("JS", BEYOND, len(beyond) == len(others), claim, because)


def _names(objectives: Sequence[str]) -> str:
    return ", ".join(LABELS[name] for name in objectives)
