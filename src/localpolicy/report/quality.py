"""The quality report for eyes: rows for the terminal, and one self-contained HTML page with plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from localpolicy.data.expected import compare
from localpolicy.data.quality import Histogram, Quality
from localpolicy.data.readers import READERS
from localpolicy.data.store import SPLITS, Prepared
from localpolicy.runtime.files import whole_file

PAGE = "quality.html"


@dataclass(frozen=True)
class Section:
    """A small table with a title and a remark."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def sections(data: Prepared, quality: Quality) -> Iterator[Section]:
    """Everything there is to say about a prepared data set."""
    yield _counts(data)
    reader = READERS.get(data.manifest.get("source", ""))
    if reader and (expected := compare(data.manifest, reader.editions, reader.preset)):
        rows = [
            (
                row["what"],
                f"{row['found']:,}",
                f"{row['expected']:,}",
                "as published" if row["agrees"] else "DIFFERS",
                row["note"],
            )
            for row in expected["counts"]
        ]
        note = f"likely reason: {expected['reason']}" if expected["reason"] else ""
        yield Section(f"against {expected['edition']}", ("count", "found", "expected", "", ""), rows, note)
    if data.manifest.get("filters"):
        steps = [
            (
                step["filter"],
                step["of"],
                *(f"{step[key]:,}" for key in ("before", "after", "events_before", "events_after")),
            )
            for step in data.manifest["filters"]
        ]
        yield Section("filters", ("filter", "of", "before", "after", "events before", "events after"), steps)
    if data.manifest.get("bad_rows"):
        passed = [(problem, f"{count:,}") for problem, count in data.manifest["bad_rows"].items()]
        yield Section("rows passed over", ("why", "rows"), passed)
    yield _findings(data, quality)


def _counts(data: Prepared) -> Section:
    counts = data.manifest["counts"]
    rows = [
        (name, f"{split['sequences']:,}", *(f"{split['events'][event]:,}" for event in data.events))
        for name, split in data.manifest["splits"].items()
    ]
    total = ("all", f"{counts['sequences']:,}", *(f"{counts['events'][event]:,}" for event in data.events))
    return Section(f"{data.kind}: {counts['items']:,} items", ("split", "sequences", *data.events), [*rows, total])


def _findings(data: Prepared, quality: Quality) -> Section:
    rows: list[tuple[str, ...]] = []

    def found(what: str, count: int | None, of: int, meaning: str) -> None:
        if count is None:
            rows.append((what, "-", "", "the log has no times"))
        else:
            rows.append((what, f"{count:,}", f"{count / max(of, 1):.1%}", meaning))

    found("ties in time", quality.ties, quality.events, "their order is fixed, but means nothing")
    found(
        "duplicate events", quality.duplicates, quality.events, "same sequence, time, item and event: see --duplicates"
    )
    found("repeats", quality.repeats, quality.events, "item seen earlier in the sequence: easy to predict")
    for name in SPLITS[1:]:
        sequences, events = len(data[name]), data[name].events
        found(
            f"{name} overlaps training",
            quality.overlapping[name],
            sequences,
            "sequences that begin before training ends",
        )
        found(f"{name} items unseen", quality.unseen_items[name], data.items, "of the catalogue, absent from training")
        found(f"{name} events unseen", quality.unseen_events[name], events, "on items that training lacks")
    rows.append(
        (
            "length",
            f"{quality.mean_length:.1f}",
            f"{quality.median_length:.0f}",
            f"mean, median; longest {quality.longest:,}",
        )
    )
    tops = ", ".join(f"top {top} of items {share:.0%}" for top, share in quality.top_share.items())
    rows.append(("popularity", "", "", f"share of events: {tops}"))
    return Section("leaks and quality", ("what", "found", "share", "meaning"), rows)


def write_page(data: Prepared, quality: Quality) -> Path:
    """Write the HTML page into the data set's folder; return its path."""
    plots = _plot("sequences by length", quality.lengths) + _plot("items by number of events", quality.popularity)
    tables = "".join(_html(section) for section in sections(data, quality))
    with whole_file(data.path / PAGE) as partial:
        partial.write_text(_TEMPLATE.format(title=escape(data.path.name), body=tables + plots))
    return data.path / PAGE


def _html(section: Section) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in section.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    note = f"<p>{escape(section.note)}</p>" if section.note else ""
    return f"<h2>{escape(section.title)}</h2><table><tr>{head}</tr>{body}</table>{note}"


def _plot(title: str, bars: Histogram) -> str:
    """Horizontal bars need no library, print well, and are readable by screen readers."""
    most = max(bars.values(), default=1)
    rows = "".join(
        f'<tr><td>{escape(label)}</td><td class="bar"><div style="width:{100 * count / most:.2f}%"></div></td>'
        f"<td>{count:,}</td></tr>"
        for label, count in bars.items()
    )
    return f"<h2>{escape(title)}</h2><table>{rows}</table>"


_TEMPLATE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: quality</title><style>
body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}}
table{{border-collapse:collapse}} td,th{{padding:.15rem .8rem;text-align:right;border-bottom:1px solid #ddd}}
td:first-child,th:first-child{{text-align:left}} .bar{{width:26rem}} .bar div{{background:#4a78b5;height:1rem}}
</style><h1>{title}</h1>{body}</html>
"""
