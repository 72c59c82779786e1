"""Invariants over any log: nothing invented, order kept, splits disjoint, counts add up."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from raw_logs import lot, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.store import SPLITS
from localpolicy.errors import LocalPolicyError

NAMES = st.text(st.characters(categories=("L", "N"), max_codepoint=0x2000), min_size=1, max_size=3)


@st.composite
def logs(draw: st.DrawFn) -> list[dict]:
    ids = st.integers(-50, 50) if draw(st.booleans()) else NAMES.filter(lambda text: not text.isdecimal())
    row = {
        "sequence_id": st.integers(0, 25),
        "item_id": ids,
        "event": st.sampled_from(["click", "purchase"]),
        "timestamp": st.integers(1_500_000_000_000, 1_500_000_000_040),
    }
    return draw(st.lists(st.fixed_dictionaries(row), min_size=30, max_size=120))


# Without shrinking: an example takes half a second, and a failing one is small enough to read.
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(
    rows=logs(),
    form=st.sampled_from(["csv", "parquet"]),
    options=st.fixed_dictionaries(
        {
            "min_events": st.integers(0, 3),
            "min_item_events": st.integers(0, 2),
            "iterate": st.booleans(),
            "duplicates": st.sampled_from(["keep", "exact", "consecutive"]),
            "split": st.sampled_from(["random", "time"]),
            "validation": st.just(0.3),
            "test": st.just(0.3),
        }
    ),
)
def test_prepared_data_keep_their_invariants(rows: list[dict], form: str, options: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = (write_csv if form == "csv" else write_parquet)(Path(folder) / f"log.{form}", rows)
        try:
            data = prepare("events", [log], out=Path(folder) / "data", threads=1, ids="auto", **options)
        except LocalPolicyError as error:
            few = any(reason in str(error) for reason in ("fewer than 3", "leave nothing"))
            assume(not few)
            raise
        found = stored(data)  # asserts that no sequence is in two splits
        events = Counter((s, *event[:3]) for s, sequence in found.items() for event in sequence)
        given_events = Counter((r["sequence_id"], r["item_id"], r["event"], r["timestamp"]) for r in rows)
        assert events <= given_events, "something was invented"
        if not (options["min_events"] or options["min_item_events"]) and options["duplicates"] == "keep":
            assert events == given_events, "something was lost"
        for who, sequence in found.items():
            keys = [(time, event, lot(who, item, time), item) for item, event, time, *_ in sequence]
            assert keys == sorted(keys), "order was not kept"
        counts = data.manifest["counts"]
        per_split = data.manifest["splits"]
        assert counts["sequences"] == len(found) == sum(per_split[name]["sequences"] for name in SPLITS) == len(data)
        assert counts["items"] == len({event[1] for event in events}) == data.catalogue.num_rows
        assert counts["events"] == {name: sum(per_split[s]["events"][name] for s in SPLITS) for name in data.events}
        assert sum(data.catalogue.column("count").to_pylist()) == sum(events.values())
        assert data.catalogue.column("count").to_pylist() == sorted(
            data.catalogue.column("count").to_pylist(), reverse=True
        )
        if options["min_events"] and (options["iterate"] or not options["min_item_events"]):
            assert min(map(len, found.values())) >= options["min_events"]
        data.verify()
