"""The paper's figures shown: the numbers as tables, and the pictures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localpolicy.measure.estimate import Estimate, Interval, t_quantile
from localpolicy.report.html.page import MISSING, can_draw, write_picture
from localpolicy.report.table import Cell, Table, ends, with_error
from localpolicy.report.tables import bucket_cell
from localpolicy.study.paper.data import DataSet
from localpolicy.study.paper.recipe import POLICIES, TUNED
from localpolicy.study.paper.table3 import EVENTS, SYMBOLS, DialFigure, Table3

LOG = logging.getLogger(__name__)


def dial_table(dial: DialFigure) -> Table:
    """The numbers behind the picture."""
    symbol = SYMBOLS[dial.key]
    rows = [
        [Cell(f"{symbol}={value:g}"), *(Cell(with_error(*dial.figure(seeds, name))) for name in (*EVENTS, "JS"))]
        for value, seeds in dial.points.items()
    ]
    other = next(mark for key, mark in SYMBOLS.items() if key != dial.key)
    floor = "" if dial.floor is None else f" Noise floor of JS: {dial.floor['validation'].mean:.4f}."
    fast = "FAST VERSION. " if dial.fast else ""
    incomplete = f" NOT COMPLETE: {len(dial.missing)} arms are still to be trained." if dial.missing else ""
    failed = "".join(f" {name} could not be trained: {reason}" for name, reason in dial.failed.items())
    about = f"LPI at {other}=1, validation split; errors by sequence."
    note = f"{fast}{dial.data.about} {about}{floor}{incomplete}{failed}"
    heads = [symbol, "purchase nDCG@20", "click nDCG@20", "JS"]
    return Table(f"LPI over {symbol}: {dial.data.name}", heads, rows, note)


def dial_spec(dial: DialFigure) -> dict[str, Any]:
    """The picture."""
    from localpolicy.report.html.paper_figures import dial as dial_chart

    points = []
    for value, seeds in dial.points.items():
        for name in (*EVENTS, "JS"):
            mean, se = dial.figure(seeds, name)
            low, high = ends(Interval.of(mean, se), "JS" if name == "JS" else "nDCG@20")
            points.append({"x": value, "series": name, "y": mean, "low": low, "high": high})
    floor = None if dial.floor is None else dial.floor["validation"].mean
    return dial_chart(points, symbol=SYMBOLS[dial.key], floor=floor, title=_title(dial.data, dial.fast))


def breakdown_tables(table: Table3) -> list[Table]:
    """nDCG@20 per sequence by number of events: the numbers behind the picture."""
    tables = []
    for event in EVENTS:
        buckets = table.breakdown(event)
        names = list(buckets[0].means) if buckets else []
        rows = [[Cell(name), *(bucket_cell(bucket, name) for bucket in buckets)] for name in names]
        heads = [f"{bucket.label} (n={next(iter(bucket.means.values())).n:,})" for bucket in buckets]
        fast = "FAST VERSION. " if table.recipe.fast else ""
        note = (
            f"{fast}{table.data.about} Test split, means over sequences. Stars: the largest against the second, "
            "paired t-test (* .05, ** .01, *** .001), Holm-corrected over the columns."
        )
        tables.append(Table(f"nDCG@20 by number of {event}s: {table.data.name}", ["policy", *heads], rows, note))
    return tables


def breakdown_spec(table: Table3) -> dict[str, Any]:
    """The picture."""
    from localpolicy.report.html.paper_figures import bars

    rows = [
        {
            "event": event,
            "bucket": bucket.label.removeprefix(f"{event} "),
            "n": estimate.n,
            "place": index,
            "policy": name,
            "y": estimate.mean,
            **dict(zip(("low", "high"), ends(_interval(estimate), "nDCG@20"), strict=True)),
            "stars": bucket.stars if bucket.best == name else "",
        }
        for event in EVENTS
        for index, bucket in enumerate(table.breakdown(event))
        for name, estimate in bucket.means.items()
    ]
    policies = [POLICIES[name] for name in TUNED if table.row(name) is not None]
    return bars(rows, policies=policies, title=_title(table.data, table.recipe.fast))


def _interval(estimate: Estimate) -> Interval:
    """Student's over the sequences of a bucket, which may be few; none of a single one."""
    reach = t_quantile(0.975, estimate.n - 1) * estimate.se if estimate.n > 1 else 0.0
    return Interval(estimate.mean, estimate.mean - reach, estimate.mean + reach)


def _title(data: DataSet, fast: bool) -> str:
    return f"{data.name}: FAST VERSION" if fast else data.name


def draw(spec: Callable[[], dict[str, Any]], out: Path, name: str) -> list[Path]:
    """SVG and PNG; a line where nothing can be drawn. `spec` is called only where it can."""
    if not can_draw():
        LOG.warning(MISSING)
        return []
    content = spec()
    return [write_picture(content, out / f"{name}.{form}") for form in ("svg", "png")]
