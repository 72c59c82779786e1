"""The leak and quality report, counted by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from raw_logs import grouped, random_log, split_of, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.quality import histogram, measure
from localpolicy.data.store import Prepared, Split
from localpolicy.data.store_writer import writing
from localpolicy.report.results import quality_tables, write_quality


@pytest.fixture
def log() -> list[dict]:
    return random_log(items=60, step=120_000)


@pytest.mark.parametrize("split", ["random", "time"])
def test_the_counts_are_those_of_plain_python(tmp_path: Path, log: list[dict], split: str) -> None:
    data = prepare("events", [write_parquet(tmp_path / "log.parquet", log)], out=tmp_path / "data", split=split)
    quality = measure(data)
    groups, where = grouped(log), split_of(data)
    pairs = [pair for group in groups.values() for pair in pairwise(group)]
    assert quality.ties == sum(a["timestamp"] == b["timestamp"] for a, b in pairs) > 0
    assert quality.duplicates == sum(a == b for a, b in pairs) > 0
    assert quality.repeats == sum(len(g) - len({row["item_id"] for row in g}) for g in groups.values())
    training = [row for row in log if where[row["sequence_id"]] == "train"]
    ends, seen = max(row["timestamp"] for row in training), {row["item_id"] for row in training}
    for name in ("validation", "test"):
        held = {s: g for s, g in groups.items() if where[s] == name}
        assert quality.overlapping[name] == sum(g[0]["timestamp"] <= ends for g in held.values())
        unseen = [row["item_id"] for g in held.values() for row in g if row["item_id"] not in seen]
        assert (quality.unseen_events[name], quality.unseen_items[name]) == (len(unseen), len(set(unseen)))
    lengths = [len(group) for group in groups.values()]
    assert (quality.longest, quality.median_length) == (max(lengths), np.median(lengths))
    assert sum(quality.lengths.values()) == len(groups)
    assert sum(quality.popularity.values()) == data.n_items


def test_a_sequence_that_begins_as_training_ends_overlaps_it(tmp_path: Path) -> None:
    """At the same time it may have come first; a moment later it cannot have."""
    end = 1_600_000_000_000
    spans = [(end - 9, end)] * 3 + [(end, end + 5), (end + 1, end + 5), (end + 2, end + 5)] + [(end + 9, end + 9)] * 3
    log = [
        {"sequence_id": number, "item_id": 1, "event": "click", "timestamp": time}
        for number, span in enumerate(spans)
        for time in span
    ]
    cuts = tuple(datetime.fromtimestamp((end + later) / 1000, UTC).isoformat() for later in (1, 6))
    path = write_parquet(tmp_path / "log.parquet", log)
    data = prepare("events", [path], out=tmp_path / "data", split="time", split_times=cuts)
    assert [len(data[name]) for name in ("train", "validation", "test")] == [3, 3, 3]
    assert measure(data).overlapping == {"validation": 1, "test": 0}


def test_chunks_do_not_change_the_counts(tmp_path: Path, log: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare("events", [write_parquet(tmp_path / "log.parquet", log)], out=tmp_path / "data")
    whole = measure(data)
    chunks = Split.chunks
    monkeypatch.setattr(Split, "chunks", lambda self: chunks(self, 7))
    assert measure(data) == whole


def test_histograms_have_powers_of_two() -> None:
    assert histogram(np.array([1, 1, 2, 3, 4, 5, 8, 9])) == {"1": 2, "2": 1, "3-4": 2, "5-8": 2, "9-16": 1}


def test_the_page_is_one_file_with_everything(tmp_path: Path, log: list[dict]) -> None:
    log[0]["item_id"] = None
    data = prepare(
        "events",
        [write_parquet(tmp_path / "log.parquet", log)],
        out=tmp_path / "<data>",
        skip_bad_rows=True,
        min_events=2,
    )
    page = write_quality(data, measure(data)).read_text().replace("<wbr>", "")
    for text in ("&lt;data&gt;", "ties in time", "sequences by length", "min_events=2", "item_id is empty", "5-8"):
        assert text in page
    assert "http:" not in page and "https:" not in page
    Prepared(data.path).verify()
    titles = [section.title for section in quality_tables(data, measure(data))]
    assert titles == [f"interactions: {data.n_items} items", "filters", "rows passed over", "leaks and quality"]
    assert all(len(row) == len(s.columns) for s in quality_tables(data, measure(data)) for row in s.rows)


def test_a_session_of_thousands_of_events_is_flagged(tmp_path):
    with writing(tmp_path / "data", kind="interactions", events=["click"], rewards={"click": 1.0}) as store:
        for name, part in store.splits.items():
            length = 3_000 if name == "train" else 3
            part.append(
                np.array([length]),
                {"item": np.zeros(length), "event": np.zeros(length, int), "reward": np.ones(length)},
            )
        store.write_items(np.arange(1), np.ones(1, np.int64))
    data = Prepared(tmp_path / "data")
    cells = [text for table in quality_tables(data, measure(data)) for row in table.plain() for text in row]
    assert any("a machine, or several people? See --session-gap" in text for text in cells)
