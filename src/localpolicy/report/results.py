"""How each kind of result is shown: its tables, and its page; here those of a run, of lists and of prepared data.

`localpolicy.results` asks this module when a result is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from localpolicy.data.item_table import described
from localpolicy.data.published_counts import compare
from localpolicy.data.quality import LONG, Histogram, Quality
from localpolicy.data.readers import READERS
from localpolicy.data.store import QUALITY_PAGE, SPLITS, Prepared
from localpolicy.errors import ConfigError
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.verdict import Gate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.value import OffPolicy
from localpolicy.model.lists import Lists
from localpolicy.ranker.explore import ExplorePlan
from localpolicy.ranker.improve import Improvement
from localpolicy.report.comparison import write_comparison
from localpolicy.report.gate import gate_contents, gate_tables
from localpolicy.report.go import go_tables, guess_table, write_go
from localpolicy.report.page import tables_page, write_report
from localpolicy.report.ranker import explore_tables, improvement_tables
from localpolicy.report.sweep import sweep_contents, sweep_tables
from localpolicy.report.table import Cell, Column, Table
from localpolicy.report.tables import comparison_tables, evaluation_tables, off_policy_table
from localpolicy.results import Result
from localpolicy.runs.baselines import BaselineRun
from localpolicy.runs.run import Run
from localpolicy.runtime.files import write_text
from localpolicy.study.go import GoResult
from localpolicy.study.go_commands import Asked
from localpolicy.study.sweep import Sweep

WEIGHED = {"effective_share": "effective sample of the weights", "clipped_share": "weights capped or clamped"}


def run_table(run: Run) -> Table:
    manifest, last = run.manifest, run.selected_metrics()
    rows = [
        *run.selection().items(),
        ("patience, in validations", str(manifest["patience"] or "none: all epochs")),
        *((f"loss: {name}", f"{value:.5f}") for name, value in last["losses"].items()),
        *((title, f"{last['weights'][name]:.1%}") for name, title in WEIGHED.items() if name in last["weights"]),
        *_improvement(manifest.get("improvement")),
        *_beginnings(manifest),
    ]
    digest = f"sha256 of policy.safetensors: {manifest['policy_sha256']}"  # below: in a cell it would be broken
    return Table(f"{run.described} in {run.folder}", ["what", "value"], rows, digest)


def _improvement(improvement: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Rows on a closed form: the chosen β and slope, and the quality of its critic."""
    if improvement is None:
        return []
    by = improvement["chosen_by"]
    rows = [("β, as given" if by == "given" else f"β, chosen by {by}", f"{improvement['beta']:.4g}")]
    if calibration := improvement.get("calibration"):
        rows += [
            ("the critic's calibration: slope (lower bound)", f"{calibration['slope']:.3f} ({calibration['low']:.3f})"),
            ("what it explains within contexts, held out (R²)", f"{calibration['r2']:.4f}"),
            ("advantage scale", f"{improvement['slope']:.3f}"),
        ]
    if errors := improvement.get("critic_error"):
        what = "its squared error, held out (item and user means)"
        rows.append((what, f"{errors['critic']:.4g} ({errors['plain']:.4g})"))
    return [*rows, ("note", improvement["said"])] if improvement["said"] else rows


def _beginnings(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows on older runs that this one starts from: initial weights, logging policy."""
    rows = []
    if start := manifest.get("warm_start"):
        rows.append((f"started from {start['run']}: items known, new", f"{start['known_items']}, {start['new_items']}"))
        rows.append(("heads that started fresh", ", ".join(start["fresh_heads"]) or "none"))
    if (logging := manifest.get("logging")) and "unseen_items" in logging:
        what = f"actions on items that {logging['run']} never saw (weight {logging['unseen_actions_weigh']})"
        rows.append((what, f"{logging['unseen_actions']:,} of {logging['actions']:,}"))
    return rows


# ---------------------------------------------------------------------- recommended lists


MOST = 10  # lists and ranks shown; `to_frame()` has all


def lists_table(lists: Lists) -> Table:
    shown = min(MOST, lists.indices.shape[1])
    called = lists.items if lists.names is None else lists.names
    rows = [[str(number), *map(str, items[:shown])] for number, items in enumerate(called[:MOST])]
    left = len(lists.items) - MOST
    note = f"{left:,} more histories: see to_frame()." if left > 0 else ""
    return Table(f"{len(lists.items):,} lists", ["history", *map(str, range(1, shown + 1))], rows, note)


# ---------------------------------------------------------------------- a prepared data set


def quality_tables(data: Prepared, quality: Quality) -> Iterator[Table]:
    """Yield the tables on a prepared data set."""
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
        yield Table("filters", heads, steps, keys=2)
    if columns := described(data.catalogue):
        shown = {"name": "shown, not learnt from"}
        rows = [
            (each["column"], kind := each["kind"], f"{each['items'] / data.n_items:.0%}",
             f"{each['values']:,}" if each["values"] else "", shown.get(kind, ""))
            for each in columns
        ]  # fmt: skip
        note = "a kind that is wrong: --item-columns COLUMN=KIND"
        yield Table("item table", ("column", "kind", "items with it", "values", ""), rows, note, keys=2)
    if data.manifest.get("bad_rows"):
        passed = [(problem, f"{count:,}") for problem, count in data.manifest["bad_rows"].items()]
        yield Table("rows passed over", ("why", "rows"), passed)
    yield _findings(data, quality)


def counts_table(data: Prepared) -> Table:
    """Table of the numbers of sequences and events in each split."""
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
        bias = ", ".join(f"{place:.2g}" for place in quality.examined or ())
        meaning = f"position bias by place: {bias}" if bias else "position bias cannot be separated from item reward"
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


def write_quality(data: Prepared, quality: Quality) -> Path:
    """Write the HTML page into the data set's folder; return its path."""
    histograms = (("sequences by length", quality.lengths), ("items by number of events", quality.popularity))
    tables = [*quality_tables(data, quality), *(_bars(title, counts) for title, counts in histograms)]
    write_text(data.path / QUALITY_PAGE, tables_page(tables, title=f"{data.path.name}: quality of the data"))
    return data.path / QUALITY_PAGE


def _bars(title: str, counts: Histogram) -> Table:
    """Table of a histogram with text bars, readable on terminals and by screen readers."""
    most = max(counts.values(), default=1)
    rows: list[list[str | Cell]] = [
        [label, f"{count:,}", Cell("", bar=count / most)] for label, count in counts.items()
    ]
    kind, _, what = title.partition(" by ")
    return Table(title, [Column(what, numeric=False), Column(kind), Column("", numeric=False)], rows)


# ---------------------------------------------------------------------- what every kind of result has


TABLES: dict[type, Callable[[Any], list[Table]]] = {
    Evaluation: evaluation_tables,
    Comparison: comparison_tables,
    Gate: gate_tables,
    Asked: lambda asked: [guess_table(asked.guessed, asked.log, asked.titles)],
    GoResult: go_tables,
    Sweep: sweep_tables,
    OffPolicy: lambda value: [off_policy_table(value)],
    Lists: lambda lists: [lists_table(lists)],
    Improvement: improvement_tables,
    ExplorePlan: explore_tables,
    Run: lambda run: [run_table(run)] if run.finished and not isinstance(run, BaselineRun) else [],
    Prepared: lambda data: [counts_table(data)],
}
PAGES: dict[type, Callable[[Any, Path], object]] = {
    Result: lambda result, path: _write_tables(result, path),  # any other
    Comparison: write_comparison,
    Gate: lambda gate, path: write_report(gate_contents(gate), path),
    GoResult: write_go,
    Sweep: lambda sweep, path: write_report(sweep_contents(sweep), path),
}


def tables_of(result: object) -> list[Table]:
    """Tables that display a result; none if its type has no table."""
    return next((TABLES[kind](result) for kind in type(result).__mro__ if kind in TABLES), [])


def write_page(result: object, path: Path) -> None:
    for kind in type(result).__mro__:
        if kind in PAGES:
            PAGES[kind](result, path)
            return
    raise ConfigError(f"a {type(result).__name__} cannot be written as a page.")


def _write_tables(result: Result, path: Path) -> None:
    tables = tables_of(result)
    write_text(path, tables_page(tables, title=tables[0].title if tables else repr(result)))
