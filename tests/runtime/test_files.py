"""Files are whole or absent."""

from __future__ import annotations

import json

import pytest

from localpolicy.errors import DataError, LocalPolicyError, nearest
from localpolicy.runtime.files import read_json, whole_file, whole_folder, write_json


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
    with pytest.raises(LocalPolicyError, match="--force"), whole_folder(tmp_path / "new"):
        pass
    with pytest.raises(Interrupted), whole_folder(tmp_path / "new", force=True) as partial:
        (partial / "a").write_text("second")
        raise Interrupted
    assert (tmp_path / "new" / "a").read_text() == "first"
    with whole_folder(tmp_path / "new", force=True) as partial:
        (partial / "b").write_text("third")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_two_writers_of_one_folder_do_not_mix(tmp_path):
    with pytest.raises(LocalPolicyError, match="not empty"), whole_folder(tmp_path / "new") as first:
        (first / "a").write_text("slow")
        with whole_folder(tmp_path / "new") as second:
            (second / "b").write_text("fast")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b"]


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
