"""What several test folders share."""

from __future__ import annotations

import pytest
import torch
from small_logs import write_small

from localpolicy.data.store import Prepared

# Tensors are tiny here: a second thread would only wait for the first.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Prepared:
    """A small impression log."""
    return write_small(tmp_path_factory.mktemp("data") / "small")
