"""How torch's threads wait for each other is decided before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="other builds of torch have other thread pools")
@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_asleep_unless_the_user_says_otherwise(given, expected):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= {"OMP_DISPLAY_ENV": "TRUE", **({} if given is None else {"OMP_WAIT_POLICY": given})}
    command = [sys.executable, "-c", "import localpolicy.catalogue"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"OMP_WAIT_POLICY = '{expected}'" in shown
