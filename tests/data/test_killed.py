"""What a kill leaves behind, and what --force may take away."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from raw_logs import random_log, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, LocalPolicyError

KILLS = int(os.environ.get("KILLS", "3"))
STEPS = ("reading", "keeping", "filtering", "indexing", "sorting")
PREPARE = """
import logging, os, sys
from localpolicy.data.prepare import prepare

class Killer(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith(sys.argv[3]):
            os.kill(os.getpid(), 9)

logging.getLogger("localpolicy").addHandler(Killer())
logging.getLogger("localpolicy").setLevel(logging.INFO)
prepare(sys.argv[1], out=sys.argv[2], force=True)
"""


def run_prepare(log: Path, out: Path, die_at: str = "never") -> int:
    command = [sys.executable, "-c", PREPARE, str(log), str(out), die_at]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_prepare_leaves_the_old_data_set_and_a_rerun_leaves_nothing(tmp_path: Path, step: str) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    old = prepare(log, out=tmp_path / "data", seed=5)
    assert run_prepare(log, tmp_path / "data", step) == -signal.SIGKILL
    assert Prepared(tmp_path / "data").digest == old.digest
    new = prepare(log, out=tmp_path / "data", force=True)
    assert new.digest != old.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "log.parquet"]


def test_prepare_leaves_nothing_half_when_killed_at_random_moments(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    expected = prepare(log, out=tmp_path / "expected").digest
    chance = random.Random(0)
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(log), str(tmp_path / "data"), "never"], stdout=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0.3, 3))
        process.kill()
        process.wait()
        if (tmp_path / "data").exists():
            data = Prepared(tmp_path / "data")
            data.verify()
            assert data.digest == expected
    assert run_prepare(log, tmp_path / "data") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "expected", "log.parquet"]


def test_scratch_elsewhere_is_tidied_too(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".data.partial-abandoned").mkdir(parents=True)
    (elsewhere / ".other.partial-abandoned").mkdir()
    prepare(log, out=tmp_path / "data", scratch=elsewhere)
    assert [path.name for path in elsewhere.iterdir()] == [".other.partial-abandoned"]


def test_force_never_deletes_the_log_nor_what_we_did_not_make(tmp_path: Path) -> None:
    mine = tmp_path / "mydata"
    log = write_csv(mine / "log.csv", random_log())
    (mine / "notes.txt").write_text("years of work")
    command = [sys.executable, "-m", "localpolicy", "prepare", "events", str(log), "--out", str(mine), "--force"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert result.returncode == 2
    assert "log.csv, which localpolicy did not make" in result.stderr
    assert sorted(path.name for path in mine.iterdir()) == ["log.csv", "notes.txt"]


def test_force_never_deletes_an_input_of_our_own_making(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    data = prepare(log, out=tmp_path / "data")
    with pytest.raises(ConfigError, match="holds the log .*log.parquet, and would be replaced"):
        prepare(data.path / "log.parquet", out=data.path, force=True)
    Prepared(data.path).verify()
    (data.path / "notes.txt").write_text("a stranger's")
    with pytest.raises(LocalPolicyError, match="notes.txt, which localpolicy did not make"):
        prepare(log, out=data.path, force=True)


def test_a_data_set_may_be_continued_in_its_place(tmp_path: Path) -> None:
    rows = random_log()
    logs = [write_parquet(tmp_path / f"{n}.parquet", part) for n, part in enumerate((rows[:400], rows[400:]))]
    data = prepare(logs[0], out=tmp_path / "data")
    prepare(logs[1], out=tmp_path / "data", append=data, force=True)
    assert stored(Prepared(tmp_path / "data")) == stored(prepare(*logs, out=tmp_path / "once"))
