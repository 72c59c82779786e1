"""What the paper says of its Table 3, and whether it holds in ours."""

from __future__ import annotations

from collections.abc import Sequence

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.significance import paired_family
from localpolicy.report.contents import CheckedClaim
from localpolicy.report.numbers import interval_text
from localpolicy.study.paper.recipe import POLICIES, TUNED
from localpolicy.study.paper.table3 import COLUMNS, Row, Table3

SEEN = ("purchase.nDCG@20", "click.nDCG@20")


def findings(table: Table3) -> list[CheckedClaim]:
    """The claims of section 4.2, in its order."""
    return [
        _all_above(table, tuple(TUNED), ("mle", "reward_weighted")),
        _all_above(table, ("lpi_rl",), ("sqn", "sac")),
        _largest_in_most(table),
        _ips_worst(table),
        _above_noise(table),
    ]


def _all_above(table: Table3, upper: Sequence[str], lower: Sequence[str]) -> CheckedClaim:
    """Every policy of `upper` has the larger nDCG@20, of purchases and of clicks, than each of `lower`.

    It holds if every difference is above 0 beyond chance, fails if one is below, and is open otherwise.
    """
    claim = f"{_names(upper)} outperform{'s' if len(upper) == 1 else ''} {_names(lower)} in nDCG@20"
    pairs = [(high, low) for high in _rows(table, upper) for low in _rows(table, lower)]
    if len(pairs) < len(upper) * len(lower):
        return CheckedClaim(claim, None, "not all of them are trained")
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
    return CheckedClaim(claim, holds, f"{text} {test.difference:+.4f}±{test.se:.4f}")


def _largest_in_most(table: Table3) -> CheckedClaim:
    claim = "LPI has the largest figure in most columns"
    if len(table.rows) < len(POLICIES):
        return CheckedClaim(claim, None, "not all policies are trained")
    won = [lead for lead in table.leads.values() if lead.best == POLICIES["lpi_rl"]]
    sure = sum(bool(lead.test.stars) for lead in won)
    return CheckedClaim(claim, 2 * len(won) > len(COLUMNS), f"{len(won)} of {len(COLUMNS)}, {sure} of them with stars")


def _ips_worst(table: Table3) -> CheckedClaim:
    claim = "IPS-PG has the lowest figures and the largest JS"
    if len(table.rows) < len(POLICIES):
        return CheckedClaim(claim, None, "not all policies are trained")
    lowest = sum(
        min(table.rows, key=lambda row: row.pooled.estimate(name).mean).objective == "ips_pg" for name in COLUMNS
    )
    furthest = max(table.rows, key=lambda row: row.js.mean if row.js is not None else 0.0)
    js = 0.0 if furthest.js is None else furthest.js.mean
    return CheckedClaim(
        claim,
        lowest == len(COLUMNS) and furthest.objective == "ips_pg",
        f"lowest in {lowest} of {len(COLUMNS)} columns; furthest: {_short(furthest)} at JS {js:.3f}",
    )


def _above_noise(table: Table3) -> CheckedClaim:
    """Not a claim of the paper, but reading its JS column assumes it."""
    claim = "all policies differ from μ̂ by more than another seed does"
    others = [row for row in table.rows if row.objective != "mle" and row.js is not None]
    if table.floor is None or not others:
        return CheckedClaim(claim, None, "the noise floor is not known")
    floor = Interval.from_estimate(table.floor["test"])
    beyond = [row for row in others if row.js is not None and beyond_floor(Interval.from_estimate(row.js), floor)]
    names = ", ".join(_short(row) for row in beyond) or "none"
    return CheckedClaim(claim, len(beyond) == len(others), f"above the floor of {interval_text(floor)}: {names}")


def _rows(table: Table3, objectives: Sequence[str]) -> list[Row]:
    return [row for name in objectives if (row := table.row(name)) is not None]


def _short(row: Row) -> str:
    return POLICIES[row.objective]


def _names(objectives: Sequence[str]) -> str:
    return ", ".join(POLICIES[name] for name in objectives)
