"""Whatever becomes of a file or a setting: the right numbers, or exit code 2 and few words."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from fuzzing import DAMAGES, bounded_memory, examples, fair, lpi
from hypothesis import example, given
from hypothesis import strategies as st
from small_logs import write_small

from localpolicy.runs.config import setting_fields

HISTORIES = [{"history": [100, 103]}, {"history": []}, {"history": [101, 999], "events": ["click", "none"]}]
SMALL = ("--epochs", "1", "--device", "cpu", "--set", "model.width=4")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set, a run, histories and what the run recommends for them."""
    folder = tmp_path_factory.mktemp("fuzz")
    write_small(folder / "data", sequences=40)
    (folder / "histories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in HISTORIES))
    assert fair(lpi("train", folder / "data", "--objective", "sqn", *SMALL, "--out", folder / "run"))
    assert fair(recommended(folder, folder / "run"))
    (folder / "whole.jsonl").write_bytes((folder / "lists.jsonl").read_bytes())
    return folder


def recommended(folder, run, histories=None):
    (folder / "lists.jsonl").unlink(missing_ok=True)
    histories = histories or folder / "histories.jsonl"
    return lpi("recommend", run, "--histories", histories, "--out", folder / "lists.jsonl", "-k", "3")


def damaged(folder, source, name, damage):
    """A copy of a folder with one file damaged; whether anything changed."""
    copy = folder / f"damaged-{source}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / source, copy)
    content = damage.of((copy / name).read_bytes())
    (copy / name).write_bytes(content)
    return copy


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@examples()
@given(data=st.data(), damage=DAMAGES)
def test_a_run_with_a_damaged_file_recommends_the_same_or_says_why_not(place, data, damage):
    name = data.draw(st.sampled_from(files(place / "run")))
    with bounded_memory():
        if fair(recommended(place, damaged(place, "run", name, damage))):
            assert (place / "lists.jsonl").read_bytes() == (place / "whole.jsonl").read_bytes()
        else:
            assert not (place / "lists.jsonl").exists()


@examples(0.5)
@given(data=st.data(), damage=DAMAGES)
def test_damaged_data_is_found_out_before_it_is_used(place, data, damage):
    name = data.draw(st.sampled_from(files(place / "data")))
    copy = damaged(place, "data", name, damage)
    same = (copy / name).read_bytes() == (place / "data" / name).read_bytes()
    with bounded_memory():
        told = fair(lpi("verify", copy))
        if same:
            assert told
        elif name.endswith((".npy", ".parquet")):
            assert not told, "every array has a digest"


@examples(0.1)
@given(data=st.data(), damage=DAMAGES)
def test_training_on_damaged_data_gives_the_same_weights_or_says_why_not(place, data, damage):
    name = data.draw(st.sampled_from(files(place / "data")))
    copy = damaged(place, "data", name, damage)
    shutil.rmtree(place / "again", ignore_errors=True)
    with bounded_memory():
        words = ("train", copy, "--objective", "sqn", *SMALL, "--out", place / "again")
        if fair(lpi(*words)):
            whole = (place / "run" / "policy.safetensors").read_bytes()
            assert (place / "again" / "policy.safetensors").read_bytes() == whole


@examples(0.5)
@given(damage=DAMAGES)
def test_damaged_histories(place, damage):
    path = place / "odd.jsonl"
    path.write_bytes(damage.of((place / "histories.jsonl").read_bytes()))
    with bounded_memory():
        if fair(recommended(place, place / "run", path)):
            lines = path.read_bytes().splitlines()
            assert len((place / "lists.jsonl").read_text().splitlines()) == len(lines)


VALUES = st.one_of(
    st.sampled_from([
        "", "null", "nan", ".inf", "-.inf", "-1", "0", "1", "1e400", "1e-400", str(2**70), "true", "[]", "{}", "[[[[",
        "x" * 5000, "0x1F", "2020-99-99", "\udce9", "β", "a: b", "&a [*a]", "!!python/object:os.system", "auto",
        "cpu", "1_000",
    ]),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip


@examples()
@given(key=st.one_of(st.sampled_from(sorted(setting_fields())), st.text(max_size=12)), value=VALUES)
@example(key="train.seed", value=str(2**70))
@example(key="model.width", value=str(10**12))
def test_odd_settings(place, key, value):
    with bounded_memory():
        fair(lpi("train", place / "data", "--set", f"{key}={value}", "--print-config"))


@examples(0.5)
@given(damage=DAMAGES)
def test_damaged_files_of_settings(place, damage):
    path = place / "settings.yaml"
    path.write_bytes(damage.of((place / "run" / "config.yaml").read_bytes()))
    with bounded_memory():
        fair(lpi("train", place / "data", "--config", path, "--print-config"))


WORDS = st.text(alphabet="abc é\"',;\n\t\0β", max_size=4)
NUMBERS_ = st.one_of(st.integers(-5, 2**70), st.floats(), WORDS)
ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from(["click", "purchase"]), st.integers(0, 10**6)),
    min_size=16,
    max_size=120,
)


def as_csv(rows, header=("sequence_id", "item_id", "event", "timestamp")):
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode()


def prepared(folder, content):
    (folder / "log.csv").write_bytes(content)
    shutil.rmtree(folder / "new", ignore_errors=True)
    held_out = ("--validation", "3", "--test", "3")  # the fewest that a split may have
    return lpi("prepare", "events", folder / "log.csv", "--out", folder / "new", "--threads", "1", *held_out)


@examples(0.1)
@given(rows=ROWS)
def test_a_log_that_is_whole_is_counted_as_by_hand(place, rows):
    """By default nothing is dropped; a log of fewer than nine sequences leaves a split with fewer than three."""
    events = Counter(event for _, _, event, _ in rows)
    sequences = {sequence for sequence, *_ in rows}
    with bounded_memory():
        told = fair(prepared(place, as_csv(rows)))
        assert told == (len(sequences) >= 9)
        if told:
            counts = json.loads((place / "new" / "manifest.json").read_text())["counts"]
            assert counts["sequences"] == len(sequences)
            assert counts["items"] == len({item for _, item, _, _ in rows})
            assert counts["events"] == events


@examples(0.2)
@given(
    rows=st.one_of(ROWS, st.lists(st.tuples(NUMBERS_, NUMBERS_, WORDS, NUMBERS_), max_size=20)),
    damage=st.one_of(st.none(), DAMAGES),
)
def test_an_odd_or_damaged_log(place, rows, damage):
    content = as_csv(rows)
    with bounded_memory():
        fair(prepared(place, content if damage is None else damage.of(content)))
