"""Diagnostics of an epoch's weights."""

from __future__ import annotations

import pytest
import torch

from localpolicy.training.epoch_log import EpochLog
from localpolicy.types import Terms


def weights(values):
    log = EpochLog()
    log.add(Terms({}, torch.tensor(values)))
    return EpochLog(state=log.state()).weights()


def test_no_quantile_is_above_the_largest_weight():
    found = weights([1.0] * 5)
    assert [found[name] for name in ("q5", "q50", "q95", "max")] == [1.0] * 4


def test_quantiles_are_right_within_a_bin():
    found = weights([0.01 * place for place in range(1, 101)])
    assert [found[name] for name in ("q5", "q50", "q95")] == pytest.approx([0.05, 0.5, 0.95], rel=0.024)
    assert found["max"] == pytest.approx(1.0)
