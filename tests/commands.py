"""`lpi` commands in this process: a start of Python with torch costs more than most of them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import Result
from typer.testing import CliRunner

from localpolicy.cli.main import app, main


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
        main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        out, err = sys.stdout.getvalue(), sys.stderr.getvalue()
        sys.argv, sys.stdout, sys.stderr = before
    return Outcome(code, out, err)


def invoked(*words: object) -> Result:
    """Run a command up to its own errors: these are raised, for `pytest.raises`."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done
