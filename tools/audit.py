"""Asks the Python package index whether a known vulnerability touches any package of a lock file.

    python tools/audit.py LOCK

Exit code 0: none is known, or nobody could be asked, and the reason is printed. 1: the output names them.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

ASKED = "https://pypi.org/pypi/pip/json"  # where pip-audit asks


def main() -> None:
    try:
        with urllib.request.urlopen(ASKED, timeout=10):
            pass
    except OSError as error:
        print(f"audit skipped: the index of vulnerabilities cannot be reached from here ({error}).")
        return
    command = [str(Path(sys.executable).with_name("pip-audit")), "--disable-pip", "--require-hashes", "-r", sys.argv[1]]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
