"""How far a policy moves, context by context: one row of bars per policy, over one scale, with the floor across."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import altair as alt

from localpolicy.report.contents import PolicyRow, Section
from localpolicy.report.html.charts import COLOUR, DARK, Chart, Datum, drawn, layer, shortened, style_of, styled
from localpolicy.report.html.markup import table
from localpolicy.report.html.palette import SeriesStyle
from localpolicy.report.numbers import decimals, fixed, floor_text, known, percent
from localpolicy.report.table import Cell, Column, Table, share_cell, word_cell

ROW = 44  # pixels
TALLEST = 0.86  # of a row
AIR = 0.4  # of a row, for the words above
TICKS = [digit * 10**power for power in range(-9, 1) for digit in (1, 2, 5)]


def histogram(section: Section, styles: Sequence[SeriesStyle], identity: str) -> Chart | None:
    """Bars of the share of contexts by JS, of every row that has them."""
    rows = [(row, style) for row, style in zip(section.rows, styles, strict=True) if _total(row)]
    if not rows:
        return None
    digits = decimals([_narrowest(row for row, _ in rows)], 2)
    bins: list[Datum] = [
        {
            "key": key,
            "from": float(start),
            "to": float(end),
            "base": -float(key),
            "top": -float(key) + TALLEST * count / max(row.js_histogram, key=lambda part: part[2])[2],
            "range": f"{fixed(start, digits)} to {fixed(end, digits)}",
            "share": percent(count / _total(row)),
            "contexts": f"{count:,}",
        }
        for key, (row, _) in enumerate(rows)
        for start, end, count in row.js_histogram
        if count
    ]
    furthest = max(end for row, _ in rows for _, end, _ in row.js_histogram)
    x = alt.X(
        "from:Q",
        title="JS divergence of a context, in nats",
        scale=alt.Scale(type="sqrt", domain=[0.0, furthest], nice=False),
        axis=alt.Axis(
            values=[0, *(value for value in TICKS if furthest / 300 < value <= furthest)],
            tickCount=100,  # else the library thins the values
            format="~g",
            labelOverlap="greedy",
            labelSeparation=6,
        ),
    )
    names = [shortened(row.name, 24) for row, _ in rows]
    said = "{" + ", ".join(f"'{-key}': {json.dumps(name)}" for key, name in enumerate(names)) + "}"
    y = alt.Y(
        "base:Q",
        title=None,
        scale=alt.Scale(domain=[-(len(rows) - 1) - 0.04, 1.0 + AIR], nice=False, zero=False),
        axis=alt.Axis(
            values=[-key for key in range(len(rows))],
            tickCount=10 * len(rows),  # else the library thins the values
            labelExpr=f"{said}['' + datum.value]",
            labelBaseline="bottom",
            labelLimit=170,
            labelOverlap=False,
        ),
    )
    tips = [alt.Tooltip(f"{name}:N") for name in ("policy", "range", "share", "contexts")]
    bars = styled("bars", "bins").mark_rect(opacity=0.8, strokeWidth=0.5, aria=False)
    layers = [bars.encode(x=x, x2="to:Q", y=y, y2="top:Q", color=COLOUR, tooltip=tips)]
    data = {"bins": bins, "styles": [style_of(row, style, key) for key, (row, style) in enumerate(rows)]}
    floor = section.floor
    if floor and known(floor.mean) and floor.mean <= furthest:
        data["floor"] = [{"from": float(floor.mean), "said": floor_text(section)}]
        rule = layer("floor_rule", "floor").mark_rule(color=DARK, strokeDash=[5, 4], aria=False)
        words = layer("floor_words", "floor").mark_text(
            align="left", baseline="top", dx=6, dy=0, fontStyle="italic", color=DARK, aria=False
        )
        layers += [rule.encode(x=x), words.encode(x=x, y=alt.value(0), text="said:N")]
    height = round(ROW * (len(rows) + AIR))
    description = f"Histograms of the JS divergence over contexts, one row for each of {len(rows)} policies."
    caption = (
        "Share of held-out contexts by their divergence from the reference, on a square-root scale; each row is scaled "
        "to its own tallest bar."
    )
    if floor:
        caption += " The floor is the mean divergence between two estimates of the logging policy."
    return Chart(identity, drawn(layers, data, height=height, description=description), caption, height, wide=True)


def histogram_table(section: Section, identity: str) -> str:
    """The numbers behind it: bins down, policies across (policies with other bins have rows of their own)."""
    rows = [row for row in section.rows if _total(row)]
    bins = sorted({(float(start), float(end)) for row in rows for start, end, _ in row.js_histogram})
    digits = decimals([_narrowest(rows)], 2)
    shares = [{(float(a), float(b)): count / _total(row) for a, b, count in row.js_histogram} for row in rows]
    columns = [Column("JS from – to", numeric=False), *(Column(row.name) for row in rows)]
    body: list[list[Cell]] = [
        [
            word_cell(f"{fixed(start, digits)} – {fixed(end, digits)}"),
            *(share_cell(by_bin.get((start, end))) for by_bin in shares),
        ]
        for start, end in bins
    ]
    return table(Table("Share of contexts by divergence", columns, body), identity=identity)


def _narrowest(rows: Iterable[PolicyRow]) -> float:
    return min(end - start for row in rows for start, end, _ in row.js_histogram)


def _total(row: PolicyRow) -> int:
    return sum(count for _, _, count in row.js_histogram)
