"""The ledger of benchmarks/service_week.py, by hand: its join, and what it finds wrong in a night's files."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

LEDGER = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "service_ledger.py")))
ITEMS, PROPENSITIES, SHOWN = [7, 8, 9], [0.5, 0.4, 0.3], 1_000_000


def exchange(verb, at=SHOWN, status=200, reply=None, **body):
    return LEDGER.Exchange(verb, body, at, status, {"stored": True} if reply is None else reply)


@pytest.fixture
def ledger():
    """One list of which two places were seen, and five answers."""
    ledger, given = LEDGER.Ledger(), {"items": ITEMS, "propensities": PROPENSITIES, "mode": "drawn", "floor": 0.1}
    past = [{"item": 3, "event": "click"}]
    ledger.enter(0, exchange("recommend", person="p", history=past, reply={"request": "r", **given}))
    ledger.enter(0, exchange("shown", request="r", places=2))
    for id, item, event, at in (
        ("a", 7, "click", 1), ("b", 7, "purchase", 2), ("c", 9, "click", 3), ("d", 8, "click", LEDGER.WINDOW + 1),
        ("e", 8, "looked", 4),
    ):  # fmt: skip
        for stored in (True, False):  # doubled
            sent = exchange(
                "feedback", SHOWN + at, id=id, request="r", item=item, event=event, reply={"stored": stored}
            )
            ledger.enter(0, sent)
    return ledger


def files_of(ledger, how="max"):
    """The files that agree with the ledger."""
    rows, fates = ledger.join(0, how)
    return LEDGER.Rotated(
        {place: [row] for place, row in rows.items()}, {id: [fate] for id, fate in fates.items()}, {"r": ["p"]}
    )


def found(ledger, files):
    return [(kind, key) for kind, key, *_ in LEDGER.differences(ledger, 0, "max", files)]


@pytest.mark.parametrize(
    ("how", "first"),
    [
        ("max", ("purchase", 1.0)),
        ("sum", ("purchase", 0.2 + 1.0)),
        ("first", ("click", 0.2)),
        ("last", ("purchase", 1.0)),
    ],
)
def test_ledger_joins_answers_by_hand(ledger, how, first):
    rows, fates = ledger.join(0, how)
    assert fates == {"a": "used", "b": "used", "c": "unseen", "d": "late", "e": "set aside"}
    assert [(row.item, row.event, row.reward) for row in rows.values()] == [(7, *first), (8, "none", 0.0)]
    assert rows["r", 1] == ("p", 8, "none", 0.0, 0.4, "drawn", 0.1, [(3, "click")], SHOWN)


def test_differences_are_found(ledger):
    files = files_of(ledger)
    assert found(ledger, files) == []
    row = files.rows["r", 0][0]
    for wrong in (
        [],
        [row, row],
        [row._replace(reward=0.2)],
        [row._replace(history=[])],
        [row._replace(seen=SHOWN - 1)],
    ):
        assert found(ledger, files._replace(rows={**files.rows, ("r", 0): wrong})) == [("row", ("r", 0))]
    for wrong in ([], ["used", "used"], ["late"]):
        assert found(ledger, files._replace(fates={**files.fates, "a": wrong})) == [("answer", "a")]
    assert found(ledger, files._replace(persons={})) == [("list", "r")]
    assert found(ledger, files._replace(persons={"r": ["p"], "s": ["q"]})) == [("list", "s")]


def test_what_had_no_reply_may_be_stored_or_not(ledger):
    files = files_of(ledger)
    ledger.enter(0, exchange("recommend", status=0, person="q", history=[], reply={}))
    ledger.enter(0, exchange("feedback", status=503, id="f", request="r", item=8, event="click", reply={}))
    stored = files._replace(persons={"r": ["p"], "s": ["q"]}, fates={**files.fates, "f": ["set aside"]})
    assert found(ledger, files) == found(ledger, stored) == []
    ledger.enter(0, exchange("feedback", id="f", request="r", item=8, event="click", reply={"stored": False}))
    assert ledger.join(0, "max")[0]["r", 1].reward == 0.2, "acknowledged, so it counts"
