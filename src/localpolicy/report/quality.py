"""The quality of a prepared data set: tables, and one self-contained HTML page with bars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localpolicy.data.expected import compare
from localpolicy.data.item_table import described
from localpolicy.data.quality import LONG, Histogram, Quality
from localpolicy.data.readers import READERS
from localpolicy.data.store import QUALITY_PAGE, SPLITS, Prepared
from localpolicy.report.page import tables_page
from localpolicy.report.table import Cell, Column, Table
from localpolicy.runtime.files import write_text


def quality_tables(data: Prepared, quality: Quality) -> Iterator[Table]:
    """All tables about a prepared data set."""
    yield counts_table(data)
    reader = READERS.get(data.manifest.get("source", ""))
    if reader and (expected := compare(data.manifest, reader.editions, reader.preset)):
        said = {True: "as published", False: "DIFFERS"}
        rows = [
            (row["what"], f"{row['found']:,}", f"{row['expected']:,}", said[bool(row["agrees"])], row["note"])
            for row in expected["counts"]
        ]
        note = f"likely reason: {expected['reason']}" if expected["reason"] else ""
        yield Table(f"against {expected['edition']}", ("count", "found", "expected", "", ""), rows, note)
    if data.manifest.get("filters"):
        counted = ("before", "after", "events_before", "events_after")
        steps = [
            (step["filter"], step["of"], *(f"{step[key]:,}" for key in counted)) for step in data.manifest["filters"]
        ]
        heads = ("filter", "of", *(key.replace("_", " ") for key in counted))
        yield Table("filters", heads, steps)
    if columns := described(data.catalogue):
        shown = {"name": "shown, not learnt from"}
        rows = [
            (each["column"], kind := each["kind"], f"{each['items'] / data.n_items:.0%}",
             f"{each['values']:,}" if each["values"] else "", shown.get(kind, ""))
            for each in columns
        ]  # fmt: skip
        note = "a kind that is wrong: --item-columns COLUMN=KIND"
        yield Table("item table", ("column", "kind", "items with it", "values", ""), rows, note)
    if data.manifest.get("bad_rows"):
        passed = [(problem, f"{count:,}") for problem, count in data.manifest["bad_rows"].items()]
        yield Table("rows passed over", ("why", "rows"), passed)
    yield _findings(data, quality)


def counts_table(data: Prepared) -> Table:
    """Sequences and events of each split."""
    every = {**data.manifest["splits"], "all": data.manifest["counts"]}
    rows = [
        (name, f"{each['sequences']:,}", *(f"{each['events'][event]:,}" for event in data.events))
        for name, each in every.items()
    ]
    return Table(f"{data.kind}: {every['all']['items']:,} items", ("split", "sequences", *data.events), rows)


def _findings(data: Prepared, quality: Quality) -> Table:
    rows: list[tuple[str, ...]] = []

    def add(what: str, count: int | None, of: int, meaning: str) -> None:
        if count is None:
            rows.append((what, "-", "", "the log has no times"))
        else:
            rows.append((what, f"{count:,}", f"{count / max(of, 1):.1%}", meaning))

    add("ties in time", quality.ties, quality.events, "their order is fixed, but means nothing")
    add("duplicate events", quality.duplicates, quality.events, "same sequence, time, item and event: see --duplicates")
    add("repeats", quality.repeats, quality.events, "item seen earlier in the sequence: easy to predict")
    for name in SPLITS[1:]:
        sequences, events = len(data[name]), data[name].events
        meaning = "sequences that begin before training ends"
        add(f"{name} overlaps training", quality.overlapping[name], sequences, meaning)
        add(f"{name} items unseen", quality.unseen_items[name], data.n_items, "of the catalogue, absent from training")
        add(f"{name} events unseen", quality.unseen_events[name], events, "on items that training lacks")
    if quality.lists:
        looked = ", ".join(f"{place:.2g}" for place in quality.examined or ())
        meaning = f"attention by place: {looked}" if looked else "place and worth cannot be told apart"
        rows.append(("lists", f"{quality.lists:,}", "", meaning))
    if quality.filtered is None:
        rows.append(("filters", "-", "", "the log of lists names none: weights assume that all items could be shown"))
    elif quality.filtered:
        add("filtered", quality.filtered, quality.events, "shown under a filter: weights are over what it allowed")
    if quality.filter_unknown:
        meaning = "the log does not state its items (filter_content): no importance weight"
        add("filter unknown", quality.filter_unknown, quality.events, meaning)
    if quality.odd_times:
        add("odd times", quality.odd_times, quality.events, "before 1971 or after 2099: sentinels, or see --time-unit")
    if quality.long:
        meaning = f"of more than {LONG:,} events: a machine, or several people? See --session-gap and --most-recent"
        add("long sequences", quality.long, len(data), meaning)
    if quality.longest == 1:
        rows.append(("single events", f"{len(data):,}", "100.0%", "no history: train with --set train.min_history=0"))
    longest = f"mean, median; longest {quality.longest:,}"
    rows.append(("length", f"{quality.mean_length:.1f}", f"{quality.median_length:.0f}", longest))
    tops = ", ".join(f"top {top} of items {share:.0%}" for top, share in quality.top_share.items())
    rows.append(("popularity", "", "", f"share of events: {tops}"))
    return Table("leaks and quality", ("what", "found", "share", "meaning"), rows)


def write_page(data: Prepared, quality: Quality) -> Path:
    """Write the HTML page into the data set's folder; return its path."""
    histograms = (("sequences by length", quality.lengths), ("items by number of events", quality.popularity))
    tables = [*quality_tables(data, quality), *(_bars(title, counts) for title, counts in histograms)]
    write_text(data.path / QUALITY_PAGE, tables_page(tables, title=f"{data.path.name}: quality of the data"))
    return data.path / QUALITY_PAGE


def _bars(title: str, counts: Histogram) -> Table:
    """A histogram as a table with bars: it needs no library, prints well, and screen readers can read it."""
    most = max(counts.values(), default=1)
    rows: list[list[str | Cell]] = [
        [label, f"{count:,}", Cell("", bar=count / most)] for label, count in counts.items()
    ]
    kind, _, what = title.partition(" by ")
    return Table(title, [Column(what, numeric=False), Column(kind), Column("", numeric=False)], rows)
