"""Buffers of a step are used again: page faults on fresh ones cost as much as the arithmetic."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from localpolicy.runtime.devices import keep_freed_memory
keep_freed_memory()
for _ in range(2):
    [torch.zeros(1 << 21) for _ in range(3)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    [torch.zeros(1 << 21) for _ in range(3)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_freed_buffers_are_used_again():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20 * 3 * 2048 / 4, "8 MiB are 2,048 pages, touched before"
