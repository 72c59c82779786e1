"""The kernel of the epoch's log gives the sums of plain operations. On a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreter import either

from localpolicy.training.epoch_log import HIGH, LOW, EpochLog
from localpolicy.types import Terms

pytestmark = either


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("fills", [True, False])
def test_the_kernel_keeps_what_plain_operations_keep(fills, clips):
    from localpolicy.kernels.epoch_log import enter

    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain, ours = EpochLog(), EpochLog(device)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        n = 1500
        draw = torch.rand(3, n, generator=generator)
        counted = torch.arange(n) < 1300 if fills else None
        weight = 10 ** (6 * draw[2] - 4.0003)  # off the edges of the histogram
        terms = Terms({"policy": draw[0], "td": draw[1]}, weight, weight > 3 if clips else None)
        plain.add(terms, counted)
        for name in terms.losses:
            ours._sum(name)
        moved = [None if one is None else one.to(device) for one in (terms.weight, terms.clipped, counted)]
        enter(
            [loss.to(device) for loss in terms.losses.values()], *moved,
            sums=ours.sums, moments=ours.moments, histogram=ours.histogram, low=LOW, high=HIGH,
        )  # fmt: skip
    assert ours.mean_losses() == pytest.approx(plain.mean_losses(), rel=1e-6)
    assert ours.moments.tolist() == pytest.approx(plain.moments.tolist(), rel=1e-6)
    assert (ours.histogram.cpu() - plain.histogram).abs().sum() <= 4, "rounding may move a weight to the next bin"
    assert ours.weights() == pytest.approx(plain.weights(), rel=1e-6)
