"""`lpi` commands in this process: a start of Python with torch costs more than most of them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from click.testing import Result
from typer.testing import CliRunner

from localpolicy.cli.main import app, main

WIDE = {"COLUMNS": "500"}  # sentences stand in one line, as they were written


class Outcome(NamedTuple):
    """How a command ended, named as `subprocess` names it."""

    returncode: int
    stdout: str
    stderr: str


def lpi(*words: str | Path | int) -> Outcome:
    """Run a command as a shell would."""
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv = ["lpi", *map(str, words)]
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    code = 0
    try:
        with patch.dict(os.environ, WIDE):
            main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        out, err = sys.stdout.getvalue(), sys.stderr.getvalue()
        sys.argv, sys.stdout, sys.stderr = before
    return Outcome(code, out, err)


def invoked(*words: object) -> Result:
    """Run a command up to its own errors: these are raised, for `pytest.raises`."""
    done = CliRunner().invoke(app, [str(word) for word in words], env=WIDE)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done
