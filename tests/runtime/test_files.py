"""Files are whole or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from localpolicy.errors import DataError, LocalPolicyError, WriteError, nearest, shown
from localpolicy.runtime.files import LARGEST_TEXT, read_json, read_yaml, whole_file, write_json
from localpolicy.runtime.folders import MADE, remove_abandoned, whole_folder


class Interrupted(Exception):
    pass


def test_an_interrupted_file_leaves_the_old_one(tmp_path):
    path = tmp_path / "figures.json"
    write_json(path, {"kept": 1})
    with pytest.raises(Interrupted), whole_file(path) as partial:
        partial.write_text("half")
        raise Interrupted
    assert read_json(path) == {"kept": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_folder_leaves_nothing(tmp_path):
    with pytest.raises(Interrupted), whole_folder(tmp_path / "new") as partial:
        (partial / "a").write_text("half")
        assert not (tmp_path / "new").exists()
        raise Interrupted
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_only_by_force_and_only_once_whole(tmp_path):
    with whole_folder(tmp_path / "new") as partial:
        (partial / "a").write_text("first")
    with pytest.raises(LocalPolicyError, match="force=True"), whole_folder(tmp_path / "new"):
        pass
    with pytest.raises(Interrupted), whole_folder(tmp_path / "new", force=True) as partial:
        (partial / "a").write_text("second")
        raise Interrupted
    assert (tmp_path / "new" / "a").read_text() == "first"
    with whole_folder(tmp_path / "new", force=True) as partial:
        (partial / "b").write_text("third")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [MADE, "b"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_two_writers_of_one_folder_do_not_mix(tmp_path):
    with pytest.raises(LocalPolicyError, match="not empty"), whole_folder(tmp_path / "new") as first:
        (first / "a").write_text("slow")
        with whole_folder(tmp_path / "new") as second:
            (second / "b").write_text("fast")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [MADE, "b"]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "new").write_text("a file")
    with pytest.raises(LocalPolicyError, match="is a file"), whole_folder(tmp_path / "new", force=True):
        pass


def test_a_folder_in_the_way_of_a_file_is_named_before_anything_is_written(tmp_path):
    with pytest.raises(LocalPolicyError, match="is a folder; expected the name of a file"), whole_file(tmp_path):
        raise AssertionError("nothing is to be written")
    (tmp_path / "file").write_text("here")
    with pytest.raises(LocalPolicyError, match="file is a file, not a folder"):
        write_json(tmp_path / "file" / "x.json", {})
    with pytest.raises(LocalPolicyError, match="is a file, not a folder"):
        write_json(tmp_path / "file" / "deeper" / "x.json", {})
    assert (tmp_path / "file").read_text() == "here"


def test_numbers_that_are_not_finite_never_reach_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"mean": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_json_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": [1, 2, 3]})[:-3])
    with pytest.raises(DataError, match="x.json is not readable"):
        read_json(path)


def test_nearest_names_the_known_one():
    assert nearest("wdith", ["width", "blocks"]) == " (did you mean 'width'?)"
    assert nearest("zzz", ["width", "blocks"]) == " (known: blocks, width)"


def test_only_our_own_folders_are_replaced(tmp_path):
    new = tmp_path / "new"
    with whole_folder(new, later=("page.html",)) as partial:
        (partial / "deep").mkdir()
        (partial / "deep" / "a").write_text("ours")
    (new / "page.html").write_text("ours, added later")
    (new / "deep" / "notes.txt").write_text("a stranger's")
    with pytest.raises(LocalPolicyError, match="notes.txt, which localpolicy did not"), whole_folder(new, force=True):
        raise AssertionError("nothing is to be written")
    (new / "deep" / "notes.txt").unlink()
    with whole_folder(new, force=True) as partial:
        (partial / "b").write_text("ours")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "log.csv").write_text("not ours at all")
    with (
        pytest.raises(LocalPolicyError, match=r"log.csv, which localpolicy did not make"),
        whole_folder(mine, force=True),
    ):
        pass
    assert (mine / "log.csv").exists()
    with pytest.raises(LocalPolicyError, match="brought"), whole_folder(new, force=True):
        (new / "brought").write_text("while we worked")
    assert (new / "brought").exists() and (new / "b").exists()


WRITER = """
import os, sys
from pathlib import Path
from localpolicy.runtime import folders

exchange, moment, seen = sys.argv[2] == "exchange", int(sys.argv[3]), 0

def counted(function):
    def call(*args, **options):
        global seen
        if (seen := seen + 1) == moment:
            os.kill(os.getpid(), 9)
        return function(*args, **options)
    return call

os.replace, folders.shutil.rmtree = counted(os.replace), counted(folders.shutil.rmtree)
folders._exchanged = counted(folders._exchanged) if exchange else lambda first, second: False
with folders.whole_folder(Path(sys.argv[1]), force=True) as partial:
    (partial / "a").write_text("new")
"""


def test_later_evaluations_in_a_run_count_as_ours(tmp_path):
    """`make demo` again, after somebody evaluated one of its runs; a stranger's file in the folder still counts."""
    with whole_folder(tmp_path / "demo") as folder:
        (folder / "run").mkdir()
        (folder / "run" / "manifest.json").write_text("{}")
    later = tmp_path / "demo" / "run" / "evaluation"
    later.mkdir()
    for name in ("test.json", "test.positions.parquet", "test.sequences.parquet"):
        (later / name).write_text("")
    with whole_folder(tmp_path / "demo", force=True) as folder:
        (folder / "run" / "evaluation").mkdir(parents=True)
        (folder / "run" / "manifest.json").write_text("{}")
    for stranger in ("run/evaluation/notes.txt", "run/test.json"):
        (tmp_path / "demo" / "run" / "evaluation").mkdir(exist_ok=True)
        (tmp_path / "demo" / stranger).write_text("")
        with pytest.raises(LocalPolicyError, match="did not make there"), whole_folder(tmp_path / "demo", force=True):
            pass
        (tmp_path / "demo" / stranger).unlink()


@pytest.mark.parametrize("way", ["exchange", "two renames"])
def test_a_kill_at_any_step_of_a_replacement_leaves_a_whole_folder(tmp_path, way):
    """There is always a whole folder, or the next process puts it back; and that one leaves nothing behind."""
    path = tmp_path / "new"
    with whole_folder(path) as partial:
        (partial / "a").write_text("old")
    for moment in range(1, 20):
        result = subprocess.run([sys.executable, "-c", WRITER, str(path), way, str(moment)], check=False)
        if way == "exchange":
            assert (path / "a").read_text() in ("old", "new"), moment
        with pytest.raises(LocalPolicyError, match="not empty"), whole_folder(path):
            pass
        assert (path / "a").read_text() in ("old", "new"), moment
        assert [one.name for one in tmp_path.iterdir()] == ["new"], moment
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL
        with whole_folder(path, force=True) as partial:
            (partial / "a").write_text("old")
    assert moment > 3
    assert (path / "a").read_text() == "new"


def test_files_of_a_living_process_are_left_alone(tmp_path):
    with whole_folder(tmp_path / "new") as partial:
        (partial / "a").write_text("slow")
        remove_abandoned(tmp_path / "new")
        assert (partial / "a").exists()


def test_json_too_deep_to_read_is_refused(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not readable as JSON"):
        read_json(tmp_path / "deep.json")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", '{"a": "\xff'], ids=["nested", "digits", "cut"]
)
def test_json_that_python_cannot_take_is_named(text, tmp_path):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="x.json is not (readable|UTF-8)"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    "text", ["[" * 5_000, "a: [", "a: 2020-99-99", "a: \xff"], ids=["nested", "cut", "date", "byte"]
)
def test_yaml_that_python_cannot_take_is_named(text, tmp_path):
    (tmp_path / "x.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="x.yaml is not (readable|UTF-8)"):
        read_yaml(tmp_path / "x.yaml")


def test_a_text_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(LARGEST_TEXT + 1)  # no byte of it is on the disk
    with pytest.raises(DataError, match="it is another file"):
        read_json(tmp_path / "x.json")


def test_a_name_that_is_no_utf8_survives_json(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    write_json(tmp_path / "x.json", {"path": name, "β": "é"})
    assert read_json(tmp_path / "x.json") == {"path": name, "β": "é"}
    assert "β" in (tmp_path / "x.json").read_text(encoding="utf-8")


def test_a_value_is_shown_by_its_beginning():
    nested = shown([[[[[list(range(10**6))]]]]])
    assert len(nested) < 100
    assert len(shown("x" * 10**6)) <= 200


DIES = """
import os, sys
from pathlib import Path
from localpolicy.runtime.files import whole_file
with whole_file(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_the_next_writer_removes_what_a_kill_left_and_nothing_else(tmp_path):
    path = tmp_path / "figures.json"
    subprocess.run([sys.executable, "-c", DIES, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("figures.json.partial-") and left.read_text() == "half"
    with whole_file(tmp_path / "other.json") as other:
        other.write_text("whole")
        write_json(path, {})  # another file is in the making meanwhile
        assert other.exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["figures.json", "other.json"]
    with whole_file(path) as partial:
        partial.write_text("slow")
        subprocess.run([sys.executable, "-c", DIES, str(path)], check=False)  # another process
        assert partial.read_text() == "slow", "what a living process writes is left alone"


def test_numpys_message_without_an_errno_means_a_full_disk(tmp_path):
    """`tofile` raises OSError("4000 requested and 1008 written"), which has no errno."""
    with pytest.raises(WriteError, match="No space left"), whole_file(tmp_path / "x.npy"):
        raise OSError("4000 requested and 1008 written")
    with pytest.raises(OSError, match="something else"), whole_file(tmp_path / "x.npy"):
        raise OSError("something else")
    assert not list(tmp_path.iterdir())
