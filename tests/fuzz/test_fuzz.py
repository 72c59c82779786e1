"""Whatever becomes of a file or a setting: the right numbers, or exit code 2 and few words."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from math import isfinite
from pathlib import Path

import pytest
import yaml
from by_hand import in_order, stored
from fuzzing import DAMAGES, bounded_memory, examples, fair, lpi
from hypothesis import example, given
from hypothesis import strategies as st
from small_logs import write_small

from localpolicy.data.store import Prepared
from localpolicy.objectives import OBJECTIVES
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
    (folder / "plain.yaml").write_text(lpi("train", folder / "data", "--print-config").stdout)
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


def loaded(path: Path) -> object:
    """Parsed content of a file: JSON may be written in other ways."""
    try:
        return json.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()
    except ValueError:
        return None


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
        elif name in json.loads((place / "data" / "manifest.json").read_text())["files"] or name == "manifest.json":
            assert not told or loaded(copy / name) == loaded(place / "data" / name), (
                "a digest for every file that counts"
            )


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
def test_damaged_histories_are_read_or_refused(place, damage):
    """Each line gets the list of what Python's json reads in it, asked for alone."""
    path = place / "odd.jsonl"
    path.write_bytes(damage.of((place / "histories.jsonl").read_bytes()))
    with bounded_memory():
        if fair(recommended(place, place / "run", path)):
            lists = (place / "lists.jsonl").read_text().splitlines()
            lines = path.read_bytes().decode("utf-8-sig").split("\n")
            read = [json.dumps(json.loads(line)) for line in lines if line.strip()]
            assert len(lists) == len(read)
            path.write_text("".join(f"{line}\n" for line in reversed(read)))
            assert fair(recommended(place, place / "run", path))
            assert (place / "lists.jsonl").read_text().splitlines() == lists[::-1]


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
def test_odd_settings_are_accepted_or_refused(place, key, value):
    with bounded_memory():
        outcome = lpi("train", place / "data", "--set", f"{key}={value}", "--print-config")
        if fair(outcome):
            group, _, name = key.strip().rpartition(".")
            printed, plain = (
                yaml.safe_load(text) for text in (outcome.stdout, place.joinpath("plain.yaml").read_text())
            )
            if group == "objective" and name not in printed[group]:  # of LPI's other form, at its default
                fields = [one.model_fields[name] for one in OBJECTIVES.values() if name in one.model_fields]
                assert taken(value) in (None, "expected", *(field.default for field in fields)) and printed == plain
                return
            assert same(printed[group].pop(name), taken(value)), (key, value, outcome.stdout)
            plain[group].pop(name)
            assert printed == plain or name in ("name", "backbone", "preset"), "and nothing else"


def taken(text: str) -> object:
    """A value as YAML has it; what is no YAML is a text."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def same(printed: object, asked: object) -> bool:
    """Whether a setting is what was asked for: numbers may be written otherwise, lists stand for tuples."""
    if isinstance(printed, bool) and isinstance(asked, str):
        return asked.lower() == str(printed).lower()  # YAML's own are bools; False and falsE mean the same
    if isinstance(asked, bool) or isinstance(printed, bool):
        return printed is asked
    if isinstance(asked, str) and not isinstance(printed, str) and printed is not None:
        return float(asked) == float(printed)  # type: ignore[arg-type]
    return printed == asked


@examples(0.5)
@given(damage=DAMAGES)
def test_damaged_files_of_settings_are_read_or_refused(place, damage):
    path = place / "settings.yaml"
    path.write_bytes(damage.of((place / "run" / "config.yaml").read_bytes()))
    with bounded_memory():
        outcome = lpi("train", place / "data", "--config", path, "--print-config")
        if fair(outcome):
            printed, asked = yaml.safe_load(outcome.stdout), yaml.safe_load(path.read_text()) or {}
            for group, fields in asked.items():
                for name, value in (fields or {}).items():
                    assert same(printed[group][name], value), (group, name, value, printed[group][name])


WORDS = st.text(alphabet="abc é\"',;\n\t\0β", max_size=4)
NUMBERS_ = st.one_of(st.integers(-5, 2**70), st.floats(), WORDS)
ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from(["click", "purchase"]), st.integers(0, 10**6)),
    min_size=16,
    max_size=120,
)


HEADER = ("sequence_id", "item_id", "event", "timestamp")


def as_csv(rows, header=HEADER):
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode()


def prepared(folder, content):
    (folder / "log.csv").write_bytes(content)
    shutil.rmtree(folder / "new", ignore_errors=True)
    held_out = ("--validation", "3", "--test", "3")  # the fewest that a split may have
    options = ("--threads", "1", "--time-unit", "s", "--rewards", "*=1")
    return lpi("prepare", "events", folder / "log.csv", "--out", folder / "new", *options, *held_out)


@examples(0.1)
@given(rows=ROWS)
def test_a_log_that_is_whole_is_counted_as_by_hand(place, rows):
    """Nothing is dropped by default; a log of fewer than nine sequences leaves a split with fewer than three."""
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
            read = ((str(who), str(what), event, 1000 * at) for who, what, event, at in rows)
            kinds = ("click", "purchase")
            assert stored(Prepared(place / "new")) == in_order(read, numbers=True, persons=True, events=kinds)


@examples(0.2)
@given(
    rows=st.one_of(ROWS, st.lists(st.tuples(NUMBERS_, NUMBERS_, WORDS, NUMBERS_), max_size=20)),
    damage=st.one_of(st.none(), DAMAGES),
)
def test_an_odd_or_damaged_log_is_read_or_refused(place, rows, damage):
    """Refused, or stored as Python's csv reads it, each event once."""
    content = as_csv(rows)
    content = content if damage is None else damage.of(content)
    with bounded_memory():
        if fair(prepared(place, content)):
            header, *lines = (row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")) if row)
            read = Counter(
                (line[header.index("sequence_id")], line[header.index("item_id")],
                 event_as_read(line[header.index("event")]), *when(header, line))
                for line in lines
            )  # fmt: skip
            found = stored(Prepared(place / "new"), timed="timestamp" in header)
            kept = Counter((who, what, event, *time) for who, each in found.items() for *time, event, what in each)
            assert kept == read, content


def when(header: list[str], line: list[str]) -> tuple[int, ...]:
    """Milliseconds of a time in seconds, where there is one."""
    return (round(1000 * float(line[header.index("timestamp")])),) if "timestamp" in header else ()


def event_as_read(text: str) -> str:
    """A rating loses its idle zeros."""
    try:
        return f"{float(text):g}" if "_" not in text and isfinite(float(text)) else text
    except ValueError:
        return text
