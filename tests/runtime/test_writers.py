"""One writer that knows what it writes to: files are replaced, streams are written to, links and devices stay."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import lpi
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.errors import LocalPolicyError, RunError, WriteError
from localpolicy.runs.baselines import fit_baseline
from localpolicy.runs.config import Config
from localpolicy.runtime.files import read_json, whole_file, write_json, write_text
from localpolicy.runtime.folders import refuse_occupied, remove_partial_files, training_lock, whole_folder
from localpolicy.training.train import train

NULL, DISK = os.makedev(1, 3), os.makedev(7, 99)


def node(path: Path, kind: int, device: int) -> Path:
    """A device of our own, in a scratch folder: never one of the machine's."""
    try:
        os.mknod(path, kind | 0o666, device)
    except PermissionError:
        pytest.skip("only root makes devices")
    return path


def test_writing_keeps_a_device(tmp_path):
    device = node(tmp_path / "null", stat.S_IFCHR, NULL)
    write_json(device, {"a": 1})
    assert stat.S_ISCHR(device.lstat().st_mode) and list(tmp_path.iterdir()) == [device]


def test_writing_keeps_a_pipe(tmp_path):
    pipe, came = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: came.append(pipe.read_text()))
    reader.start()
    write_json(pipe, {"a": 1})
    reader.join(60)
    assert json.loads(came[0]) == {"a": 1} and stat.S_ISFIFO(pipe.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_stream_gets_nothing_before_the_content_is_complete(tmp_path):
    read, write = os.pipe()
    with pytest.raises(KeyError), whole_file(Path(f"/dev/fd/{write}")) as partial:
        partial.write_text("half")
        raise KeyError
    write_json(Path(f"/dev/fd/{write}"), "whole")
    os.close(write)
    with os.fdopen(read) as stream:
        assert stream.read() == '"whole"\n'


@pytest.mark.parametrize("redirected", [True, False])
def test_the_standard_output_gets_what_is_printed_and_written_in_order(tmp_path, redirected):
    code = """if True:
        from pathlib import Path
        from localpolicy.runtime.files import write_json
        print("before")
        write_json(Path("/dev/stdout"), [1])
        print("after")
    """
    if redirected:
        with (tmp_path / "out").open("w") as out:
            subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
        said = (tmp_path / "out").read_text()
    else:
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "before\n[\n  1\n]\nafter\n"


@pytest.mark.parametrize("kind", ["relative", "absolute", "a chain", "to nothing yet"])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, kind):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "result.json", tmp_path / "link.json"
    if kind != "to nothing yet":
        target.write_text("old")
    if kind == "a chain":
        (tmp_path / "second").symlink_to("disk/result.json")
    link.symlink_to({"relative": "disk/result.json", "a chain": "second"}.get(kind, target))
    write_json(link, "new")
    assert link.is_symlink() and read_json(target) == "new" and not target.is_symlink()
    assert list((tmp_path / "disk").iterdir()) == [target]


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(LocalPolicyError, match="loop of links"):
        write_json(tmp_path / "a", 1)
    with pytest.raises(LocalPolicyError, match="loop of links"), whole_folder(tmp_path / "a"):
        pass


def test_disks_and_sockets_are_refused(tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(LocalPolicyError, match="a disk or a socket"):
            write_json(tmp_path / "socket", 1)
    with pytest.raises(LocalPolicyError, match="a disk or a socket"):
        write_json(node(tmp_path / "disk", stat.S_IFBLK, DISK), 1)


def test_a_folder_through_a_link_is_made_at_its_target(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/data")
    for force in (False, True):
        with whole_folder(tmp_path / "link", force=force) as partial:
            assert partial.parent == tmp_path / "disk", "on the disk that it will lie on"
            (partial / "a").write_text("b")
        assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "data" / "a").read_text() == "b"
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "link"}


@pytest.mark.parametrize("what", ["device", "pipe", "link to a device"])
def test_no_folder_takes_the_place_of_a_device_or_a_pipe(tmp_path, what):
    path = tmp_path / "out"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        node(path, stat.S_IFCHR, NULL)
    else:
        path.symlink_to(node(tmp_path / "null", stat.S_IFCHR, NULL))
    before = path.lstat().st_mode
    with pytest.raises(LocalPolicyError, match="a device, a pipe or a socket"), whole_folder(path, force=True):
        pass
    with pytest.raises(LocalPolicyError, match="a device, a pipe or a socket"):
        refuse_occupied(path, force=True)
    result = CliRunner().invoke(app, ["simulate", "bandit", "--out", str(path), "--force", "--sequences", "10"])
    assert isinstance(result.exception, LocalPolicyError) and path.lstat().st_mode == before


# ---------------------------------------------------------------------- folders of others


def test_force_takes_no_data_set_and_no_project_for_a_run(small, tmp_path):
    """A run and a data set both have a manifest.json and an items.parquet: --force deleted the data set's."""
    values = Config.parse(
        {"model": {"width": 4}, "objective": {"name": "mle"}, "train": {"epochs": 1, "device": "cpu"}}
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.yaml").write_text("mine: 1\n")
    shutil.copytree(small.path, tmp_path / "data")
    before = contents(tmp_path)
    for name in ("data", "project"):
        for make in (lambda out: train(small, out=out, config=values, force=True),
                     lambda out: fit_baseline("popularity", small, out=out, force=True)):  # fmt: skip
            with pytest.raises(RunError, match=f"{name} is not replaced: its .* is not a run's"):
                make(tmp_path / name)
    assert contents(tmp_path) == before


def contents(folder):
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_only_the_folders_of_a_run_are_searched_for_what_a_kill_left(tmp_path):
    names = ("a.partial-1", "checkpoint/b.partial-1", "others/c.partial-1", "others/.d.partial-x/e")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    remove_partial_files(tmp_path, within=("checkpoint", "stages"))
    assert [name for name in names if (tmp_path / name).exists()] == list(names[2:])


def test_go_refuses_a_folder_of_something_else(tmp_path):
    (tmp_path / "log.csv").write_text("sequence_id,item_id,event,timestamp\n1,2,click,3\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    done = lpi("go", tmp_path / "log.csv", "--out", tmp_path / "mine", "--yes")
    assert done.returncode == 2 and "mine exists and is not empty" in done.stderr
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


@pytest.mark.parametrize("force", [True, False])
def test_the_root_of_all_folders_is_refused(force):
    with pytest.raises(LocalPolicyError, match="/ is the root of all folders"), whole_folder(Path("/"), force=force):
        pass


def test_the_current_folder_may_be_replaced_where_it_is_empty(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with whole_folder(Path(".")) as folder:
        (folder / "x").write_text("1")
    assert sorted(os.listdir(tmp_path / "empty")) == [".localpolicy.json", "x"] and os.listdir(tmp_path) == ["empty"]


def test_a_run_may_be_made_through_a_dangling_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with training_lock(tmp_path / "link"):
        assert (tmp_path / "there").is_dir() and (tmp_path / "link").is_symlink()


def test_a_stream_that_accepts_nothing_is_reported(tmp_path):
    with pytest.raises(WriteError, match="/dev/full could not be written: No space left"):
        write_text(Path("/dev/full"), "x")
    reads, writes = os.pipe()
    os.close(reads)
    try:
        with pytest.raises(WriteError, match="its reader has closed it"):
            write_text(Path(f"/dev/fd/{writes}"), "x")
    finally:
        os.close(writes)
