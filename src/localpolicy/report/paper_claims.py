"""What the paper says of its Table 3 (section 4.2), checked on ours."""

from __future__ import annotations

from collections.abc import Sequence

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.significance import Paired, paired_family
from localpolicy.report.comparison_words import BEYOND, TESTED
from localpolicy.report.contents import Claim
from localpolicy.report.numbers import interval_text
from localpolicy.study.paper_recipe import POLICIES, TUNED
from localpolicy.study.paper_tables import COLUMNS, DIALLED, PaperTable, Row

SEEN = DIALLED[:2]  # nDCG@20 of purchases and of clicks


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
