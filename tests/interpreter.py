"""Marks of the tests that run Triton's kernels on a CPU, in its interpreter.

The interpreter is chosen by an environment variable that Triton reads when it is imported, and from then on every
kernel of the process is interpreted. So these tests run in a process of their own: `make test` starts it.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

_on_gpu = torch.cuda.is_available()
_chosen = os.environ.get("TRITON_INTERPRET") == "1"

either = [  # on a GPU, or in the interpreter
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(not _on_gpu and not _chosen, reason="runs with TRITON_INTERPRET=1, as `make test` does"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # in older interpreters
]
interpreted = [
    *either,
    pytest.mark.skipif(_on_gpu, reason="tests/gpu covers the kernels where there is a device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy forms both branches of a `where`
]
