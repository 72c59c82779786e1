"""What becomes of output that nobody can take: a closed stream, a full disk, a terminal that lacks a letter."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from localpolicy.cli.main import main
from localpolicy.cli.output import Piped
from localpolicy.errors import LONGEST_MESSAGE, ConfigError, bounded
from localpolicy.version import __version__

VERSION = [sys.executable, "-m", "localpolicy", "--version"]


def test_a_full_disk_under_the_output_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(VERSION, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "lpi: the output could not be written: No space left on device. Make room.\n"


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)], ids=["stdout", "stderr", "both"])
def test_a_stream_that_was_closed_is_no_fault(closed):
    done = subprocess.run(
        VERSION, capture_output=True, text=True, check=False, preexec_fn=lambda: [os.close(one) for one in closed]
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == ("" if 1 in closed else f"localpolicy {__version__}\n")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_what_the_terminal_lacks_is_escaped(encoding):
    bytes_ = io.BytesIO()
    plain = io.TextIOWrapper(bytes_, encoding)
    stream = Piped(plain)
    print("β of runs/caf\udce9", file=stream, flush=True)  # the second letter is a byte of a name that is no UTF-8
    expected = "β" if encoding == "utf-8" else "\\u03b2"
    assert bytes_.getvalue().decode() == f"{expected} of runs/caf\\udce9\n"
    stream.detach()
    plain.detach()


def test_a_message_is_never_longer_than_a_screen(monkeypatch, capsys):
    def fails():
        raise ConfigError("x" * 10**6)

    monkeypatch.setattr("localpolicy.cli.main.app", fails)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert " […] " in said and LONGEST_MESSAGE < len(said) < 2_000
    assert bounded("short") == "short"


def test_a_name_that_is_not_utf8_is_an_error(monkeypatch, capsys):
    def fails():
        "caf\udce9".encode()

    monkeypatch.setattr("localpolicy.cli.main.app", fails)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "the name 'caf\\udce9' is not valid UTF-8" in capsys.readouterr().err


def test_a_removed_working_directory_is_an_error(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr("sys.argv", ["lpi", "doctor"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "the current folder was removed. Change to one that exists." in capsys.readouterr().err
