"""What the paper says of its Table 3, and whether it holds in ours."""

from __future__ import annotations

from collections.abc import Sequence

from localpolicy.evaluate.significance import paired
from localpolicy.experiments.paper.recipe import POLICIES
from localpolicy.experiments.paper.table3 import COLUMNS, Row, Table3
from localpolicy.report.contents import Finding

SEEN = ("purchase.nDCG@20", "click.nDCG@20")


def findings(table: Table3) -> list[Finding]:
    """The claims of section 4.2, in its order."""
    return [
        _all_above(table, ("sqn", "sac", "lpi_rl"), ("mle", "reward_weighted")),
        _all_above(table, ("lpi_rl",), ("sqn", "sac")),
        _largest_in_most(table),
        _ips_worst(table),
    ]


def _all_above(table: Table3, upper: Sequence[str], lower: Sequence[str]) -> Finding:
    """Every policy of `upper` has the larger nDCG@20, of purchases and of clicks, than each of `lower`."""
    claim = f"{_names(upper)} outperform{'s' if len(upper) == 1 else ''} {_names(lower)} in nDCG@20"
    found = [(high, low) for high in _rows(table, upper) for low in _rows(table, lower)]
    if len(found) < len(upper) * len(lower):
        return Finding(claim, None, "not all of them are trained")
    gains = []
    for high, low in found:
        for name in SEEN:
            test = paired(high.pooled.values(name)[0], *low.pooled.values(name))
            gains.append(
                (test.difference, f"{_short(high)} - {_short(low)} {name} {test.difference:+.4f}±{test.se:.4f}")
            )
    least = min(gains)
    losing = sum(gain <= 0 for gain, _ in gains)
    return Finding(claim, losing == 0, f"{len(gains) - losing} of {len(gains)} differences above 0; least: {least[1]}")


def _largest_in_most(table: Table3) -> Finding:
    claim = "LPI has the largest figure in most columns"
    if len(table.rows) < len(POLICIES):
        return Finding(claim, None, "not all policies are trained")
    won = [lead for lead in table.leads.values() if lead.best == POLICIES["lpi_rl"]]
    sure = sum(bool(lead.stars) for lead in won)
    return Finding(claim, 2 * len(won) > len(COLUMNS), f"{len(won)} of {len(COLUMNS)}, {sure} of them with stars")


def _ips_worst(table: Table3) -> Finding:
    claim = "IPS-PG has the lowest figures and the largest JS"
    if len(table.rows) < len(POLICIES):
        return Finding(claim, None, "not all policies are trained")
    lowest = sum(
        min(table.rows, key=lambda row: row.pooled.figure(name).mean).objective == "ips_pg" for name in COLUMNS
    )
    furthest = max(table.rows, key=lambda row: row.js.mean if row.js is not None else 0.0)
    js = 0.0 if furthest.js is None else furthest.js.mean
    return Finding(
        claim,
        lowest == len(COLUMNS) and furthest.objective == "ips_pg",
        f"lowest in {lowest} of {len(COLUMNS)} columns; furthest: {_short(furthest)} at JS {js:.3f}",
    )


def _rows(table: Table3, objectives: Sequence[str]) -> list[Row]:
    return [row for name in objectives if (row := table.row(name)) is not None]


def _short(row: Row) -> str:
    return POLICIES[row.objective]


def _names(objectives: Sequence[str]) -> str:
    return ", ".join(POLICIES[name] for name in objectives)
