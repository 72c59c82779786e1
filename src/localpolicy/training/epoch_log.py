"""Log of an epoch: mean losses, and diagnostics of the weights, without which β is easily misread.

Memory is bounded (quantiles come from a fixed histogram over log w), the sums stay on the device, and the state can be
saved and loaded, so that a resumed epoch logs the numbers of an unbroken one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localpolicy.catalogue import fused
from localpolicy.runtime.ranks import Ranks
from localpolicy.types import Terms

BINS, LOW, HIGH = 1600, -8.0, 8.0  # histogram of log10 w: a quantile is right within 1.2 %
QUANTILES = (0.05, 0.5, 0.95)
LARGEST = 2  # index of max w among the moments
MOST_LOSSES = 16


def effective_share(total: float, squares: float, count: float) -> float:
    """(Σ w)² / (n Σ w²): the share of positions that, weighted equally, would be as informative."""
    return total**2 / (count * squares) if squares > 0 else 0.0


class EpochLog:
    """Sums over the positions of an epoch."""

    def __init__(self, device: str | torch.device = "cpu", state: dict[str, Any] | None = None) -> None:
        self.sums = torch.zeros(MOST_LOSSES, dtype=torch.float64, device=device)
        self.losses: dict[str, Tensor] = {}  # each a view of one number in `sums`, in the order they came
        # Σ w, Σ w², max w, positions clipped, positions
        self.moments = torch.zeros(5, dtype=torch.float64, device=device)
        self.histogram = torch.zeros(BINS, dtype=torch.long, device=device)
        self.restart(state)

    def restart(self, state: dict[str, Any] | None = None) -> None:
        """Begin an epoch, or load the state of one, in the same memory: a captured step writes there."""
        state = state or {"losses": {}, "moments": [0.0] * 5, "histogram": {}}
        for name in {**state["losses"], **self.losses}:
            self._sum(name).fill_(state["losses"].get(name, 0.0))
        self.moments.copy_(torch.tensor(state["moments"], dtype=torch.float64))
        self.histogram.zero_()
        for slot, count in state["histogram"].items():
            self.histogram[int(slot)] = count

    def _sum(self, name: str) -> Tensor:
        if name not in self.losses:
            assert len(self.losses) < MOST_LOSSES, "more losses than the log has room for"
            self.losses[name] = self.sums[len(self.losses)]
        return self.losses[name]

    def add(self, terms: Terms, counted: Tensor | None = None) -> None:
        """Add the `counted` positions of a step."""
        sums = {name: self._sum(name) for name in terms.losses}
        if self.sums.is_cuda and fused.missing() is None and list(sums) == list(self.losses):
            from localpolicy.kernels.epoch_log import enter

            losses = [loss.detach() for loss in terms.losses.values()]
            enter(
                losses, terms.weight.detach(), terms.clipped, counted,
                sums=self.sums, moments=self.moments, histogram=self.histogram, low=LOW, high=HIGH,
            )  # fmt: skip
            return
        terms = terms if counted is None else terms.masked(counted)
        for name, loss in terms.losses.items():
            sums[name].add_(loss.detach().double().sum())
        weight = terms.weight.detach().double()
        clipped = weight.new_zeros(()) if terms.clipped is None else terms.clipped.sum()
        count = weight.new_full((), len(weight)) if counted is None else counted.sum()
        if len(weight):
            torch.maximum(self.moments[LARGEST], weight.max(), out=self.moments[LARGEST])
        self.moments.add_(torch.stack([weight.sum(), weight.square().sum(), weight.new_zeros(()), clipped, count]))
        slot = ((weight.clamp(min=10**LOW).log10() - LOW) * (BINS / (HIGH - LOW))).long().clamp(0, BINS - 1)
        ones = torch.ones_like(slot) if counted is None else counted.long()
        self.histogram.index_add_(0, slot, ones)

    def over(self, ranks: Ranks) -> EpochLog:
        """Log over all ranks together."""
        if ranks.alone:
            return self
        whole = EpochLog()
        whole.losses = {name: ranks.reduced(value) for name, value in sorted(self.losses.items())}
        whole.moments = ranks.reduced(self.moments)
        whole.moments[LARGEST] = ranks.reduced(self.moments, largest=True)[LARGEST]
        whole.histogram = ranks.reduced(self.histogram)
        return whole

    def state(self) -> dict[str, Any]:
        """JSON-serialisable state, saved in checkpoints."""
        filled = self.histogram.nonzero().squeeze(1).tolist()
        return {
            "losses": {name: float(value) for name, value in self.losses.items()},
            "moments": self.moments.tolist(),
            "histogram": {str(slot): int(self.histogram[slot]) for slot in filled},
        }

    def mean_losses(self) -> dict[str, float]:
        """Mean of each named loss."""
        count = max(float(self.moments[4]), 1.0)
        return {name: float(value) / count for name, value in self.losses.items()}

    def weights(self) -> dict[str, float]:
        """Effective sample (as a share of positions), share clipped, mean, quantiles and largest."""
        total, squares, largest, clipped, count = self.moments.tolist()
        count = max(count, 1.0)
        return {
            "effective_share": effective_share(total, squares, count),
            "clipped_share": clipped / count,
            "mean": total / count,
            # A bin's middle may lie above every weight in it.
            **{f"q{round(100 * share)}": min(self._quantile(share), largest) for share in QUANTILES},
            "max": largest,
        }

    def _quantile(self, share: float) -> float:
        below: Tensor = self.histogram.cumsum(0)
        slot = int(torch.searchsorted(below, share * float(below[-1]))) if below[-1] else 0
        return 0.0 if slot == 0 else float(10 ** (LOW + (slot + 0.5) * (HIGH - LOW) / BINS))
