"""An export whose files were altered: found by a seal and digests; if these were recomputed, by contradictions."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from http_client import ask
from serve_runs import small_run

from localpolicy.runs.baselines import fit_baseline
from localpolicy.runtime.files import SEAL, sha256
from localpolicy.serving.deployment import Slot
from localpolicy.serving.export import export
from localpolicy.serving.exports import ABOUT, Description, ExportError, write_description
from localpolicy.serving.filters import Filter
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.verify import verify

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def baseline(small, tmp_path_factory) -> Recommender:
    """An export without graphs."""
    folder = tmp_path_factory.mktemp("baseline")
    fit_baseline("item-knn", small, out=folder / "run")
    return export(folder / "run", out=folder / "export")


def about(folder: Path) -> dict:
    return json.loads((folder / ABOUT).read_text())


def resealed(folder: Path, **changes) -> None:
    """Recompute the digests and the seal, as whoever can write the folder can."""
    content = about(folder) | changes
    content["files"] = {name: sha256(folder / name) for name in content["files"] if (folder / name).exists()}
    write_description(folder, content)


def copied(made: Recommender, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "copy"))


def used(folder: Path) -> list:
    """Use every function of an export."""
    made = Recommender(folder)
    made.check()
    lists = made.recommend([[100, 101, 102], []], 3, seed=1)
    if made.has_dial:
        made.logits([[100]], beta=0.5)
    fallback = made.draw(made.fallback(2), 3, [[], []], [Filter()] * 2, rng=np.random.default_rng(0))
    assert np.isfinite(fallback.propensity).all() and np.isfinite(lists.propensity).all()
    made.called(lists.items[0])
    return lists.items


EDITS = {
    "default_event": "purchase", "version": "deadbeefdeadbeef", "samples": [], "length": 3, "objective": "lpi_rl",
    "events": ["a", "b"], "int8": True, "graphs": ["policy"], "files": {}, "format": 1, "items": 3, "extra": 1,
}  # fmt: skip


@pytest.mark.parametrize("field", EDITS)
def test_an_edit_by_hand_is_found_by_the_seal(exported, tmp_path, field):
    folder = copied(exported, tmp_path)
    (folder / ABOUT).write_text(json.dumps(about(folder) | {field: EDITS[field]}))
    for opened in (Recommender, verify):
        with pytest.raises(ExportError, match="was altered"):
            opened(folder)


def test_an_export_of_format_1_has_no_seal_and_is_read_and_a_later_one_is_refused(exported, tmp_path):
    folder = copied(exported, tmp_path)
    unsealed = {key: value for key, value in about(folder).items() if key != SEAL}
    (folder / ABOUT).write_text(json.dumps({**unsealed, "format": 1}))
    assert used(folder) == used(exported.folder)
    (folder / ABOUT).write_text(json.dumps({**unsealed, "default_event": "purchase"}))
    for opened in (Recommender, verify):
        with pytest.raises(ExportError, match="no seal"):
            opened(folder)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"", "cut": lambda content: content[: len(content) // 2],
    "a byte": lambda content: content[:20] + bytes([content[20] ^ 0xFF]) + content[21:],
    "brackets": lambda content: b"[" * 200_000, "null": lambda content: b"null", "a number": lambda content: b"7",
    "an object": lambda content: b"{}", "an empty list": lambda content: b"[]",
    "not UTF-8": lambda content: b"\xff\xfe" + content, "longer": lambda content: content + b"\x00" * 100,
    "a pickle": lambda content: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
}  # fmt: skip
READ_ALIKE = ("a byte", "longer")  # weights are numbers, and an archive may have more at its end


@pytest.mark.parametrize("kind", ["exported", "baseline"])
@pytest.mark.parametrize("change", BYTES)
def test_every_altered_file_is_one_kind_of_error_whether_its_digest_is_new_or_not(request, tmp_path, kind, change):
    made = request.getfixturevalue(kind)
    files = sorted([*about(made.folder)["files"], ABOUT])
    assert len(files) >= 4
    for name in files:
        folder = copied(made, tmp_path)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(BYTES[change](content))
        with pytest.raises(ExportError):
            Recommender(folder)
        if name != ABOUT:
            resealed(folder)
            with suppress(ExportError) if change in READ_ALIKE else pytest.raises(ExportError, match=str(tmp_path)):
                used(folder)
        shutil.rmtree(folder)


def items(change: Callable[[list], list], name: str = "items.json") -> Change:
    def apply(folder: Path) -> None:
        (folder / name).write_text(json.dumps(change(json.loads((folder / name).read_text()))))
        resealed(folder)

    return apply


def fields(**changes) -> Change:
    return lambda folder: resealed(folder, **changes)


def without(name: str) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        resealed(folder)

    return apply


CRAFTED: dict[str, Change] = {
    "one item fewer": items(lambda ids: ids[:-1]), "one item more": items(lambda ids: [*ids, 999]),
    "an id twice": items(lambda ids: [*ids[:-1], ids[0]]), "mixed ids": items(lambda ids: [*ids[:-1], "x"]),
    "true as an id": items(lambda ids: [*ids[:-1], True]), "a list as an id": items(lambda ids: [*ids[:-1], [1]]),
    "other ids": items(lambda ids: [item + 1000 for item in ids]),
    "counts below 0": items(lambda counts: [-5] * len(counts), "counts.json"),
    "counts without a number": items(lambda counts: [float("nan")] * len(counts), "counts.json"),
    "a count too few": items(lambda counts: counts[1:], "counts.json"),
    "texts as counts": items(lambda counts: ["1"] * len(counts), "counts.json"),
    "a length of 0": fields(length=0), "a length as text": fields(length="6"), "no graphs": fields(graphs=[]),
    "the dial alone": fields(graphs=["dial"]), "an unknown graph": fields(graphs=["policy", "other"]),
    "no events": fields(events=[]), "an event twice": fields(events=["click", "click"]),
    "an unknown default": fields(default_event="wish"), "a baseline too": fields(baseline={}),
    "a list of another item": fields(samples=[{"history": [], "events": [], "top": [5]}]),
    "a sample without an event": fields(samples=[{"history": [100], "events": [], "top": [100]}]),
    "a sample of nothing": fields(samples=[{}]), "a file elsewhere": fields(files={"../x": "0"}),
    "items that are not said": fields(items=5), "no graph": without("policy.onnx"), "no counts": without("counts.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_what_contradicts_itself_is_one_kind_of_error(exported, tmp_path, name):
    folder = copied(exported, tmp_path)
    CRAFTED[name](folder)
    with pytest.raises(ExportError) as told:
        Recommender(folder)
    assert str(folder) in str(told.value) and len(str(told.value)) < 1000


ARRAYS = {
    "a share too few": lambda arrays: arrays | {"share": arrays["share"][1:]},
    "no share": lambda arrays: {name: value for name, value in arrays.items() if name != "share"},
    "neighbours that are not there": lambda arrays: arrays | {"indices": arrays["indices"] + 1000},
    "rows that are not there": lambda arrays: arrays | {"indptr": arrays["indptr"] + 10**6},
    "texts": lambda arrays: arrays | {"share": np.array(["x"] * len(arrays["share"]))},
}


@pytest.mark.parametrize("name", ARRAYS)
def test_crafted_arrays_are_one_kind_of_error(baseline, tmp_path, name):
    folder = copied(baseline, tmp_path)
    with np.load(folder / "baseline.npz") as arrays:
        changed = ARRAYS[name](dict(arrays))
    np.savez(folder / "baseline.npz", **changed)
    resealed(folder)
    with pytest.raises(ExportError):
        used(folder)


def test_a_graph_of_another_catalogue_is_found_before_it_answers(exported, small, tmp_path):
    """Right digests, a right graph, and another number of items."""
    folder = copied(exported, tmp_path)
    for name, more in (("items.json", [999]), ("counts.json", [1])):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) + more))
    resealed(folder, items=13)
    with pytest.raises(ExportError, match=r"\(1, 12\) scores for 13 items"):
        Recommender(folder)


def test_a_description_says_what_it_is(exported):
    found = exported.description
    assert isinstance(found, Description) and found.graphs == ["policy", "dial"] and found.items == 12
    assert set(about(exported.folder)["files"]) == set(found.files)


def test_damage_while_it_serves_is_reported_and_answers_continue(exported, tmp_path, caplog):
    folder = copied(exported, tmp_path)
    slot = Slot(folder, 1)
    assert slot.refresh()
    slot.recheck()
    assert slot.refused is None and not slot.damaged
    content = (folder / "counts.json").read_bytes()
    (folder / "counts.json").write_bytes(content.replace(b"1", b"2"))
    with caplog.at_level(logging.ERROR):
        slot.recheck()
    assert slot.damaged and "counts.json was altered" in slot.refused and "counts.json was altered" in caplog.text
    assert slot.loaded.recommend([[100]], 3, seed=0).items and not slot.refresh()
    (folder / "counts.json").write_bytes(content)
    slot.recheck()
    assert slot.refused is None and not slot.damaged, "somebody brought it back"


def test_a_description_that_is_gone_while_it_serves_is_reported(exported, tmp_path):
    folder = copied(exported, tmp_path)
    slot = Slot(folder, 1)
    assert slot.refresh()
    (folder / ABOUT).rename(tmp_path / ABOUT)
    assert not slot.refresh() and slot.refused is None, "a folder that is being replaced is absent for a moment"
    slot.recheck()
    assert slot.damaged and ABOUT in slot.refused
    (tmp_path / ABOUT).rename(folder / ABOUT)
    slot.recheck()
    assert slot.refused is None and not slot.damaged


def test_a_service_looks_at_its_files_again(start, exported, tmp_path):
    folder = copied(exported, tmp_path)
    client = start(export=folder, poll_seconds=0.01, verify_seconds=0.01)
    (folder / "items.json").write_text("[]")
    refused = None
    for _ in range(1000):
        refused = client.get("/v1/policies").json()["refused"]
        if refused:
            break
    assert "items.json was altered" in refused and ask(client)["policy"] == exported.version
    assert "localpolicy_export_refused 1.0" in client.get("/metrics").text


def test_another_objective_of_the_same_data_is_another_export(small, exported, tmp_path):
    other = export(small_run(small, tmp_path / "run", objective="mle").folder, out=tmp_path / "export")
    assert other.version != exported.version and not other.has_dial and used(other.folder)
