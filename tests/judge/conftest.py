"""Runs of a small shop, for tests of the gate."""

from __future__ import annotations

import pytest
from gate_examples import shop, small_config

from localpolicy.training.train import train


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A shop's log, two estimates of its logging policy, and one kept by another figure."""
    folder = tmp_path_factory.mktemp("gate")
    data = shop(folder / "data")
    for name, config in {
        "mle0": small_config(),
        "mle1": small_config(seed=1),
        "chosen": small_config(seed=2, select="purchase.nDCG@20"),
    }.items():
        train(data, out=folder / name, config=config)
    return folder
