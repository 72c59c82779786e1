"""What an epoch says of itself: mean losses, and diagnostics of the weights, without which β is read wrongly.

Memory is bounded (quantiles come from a fixed histogram over log w), the sums stay on the device, and the state can
be saved and taken up again, so that a resumed epoch logs what an unbroken one does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localpolicy.runtime.ranks import Ranks
from localpolicy.types import Terms

BINS, LOW, HIGH = 1600, -8.0, 8.0  # of log10 w: a quantile is right within 1.2 %
QUANTILES = (0.05, 0.5, 0.95)
LARGEST = 2  # its place among the moments


def effective_share(total: float, squares: float, count: float) -> float:
    """(Σ w)² / (n Σ w²): the share of positions that, weighted equally, would say as much."""
    return total**2 / (count * squares) if squares > 0 else 0.0


class EpochLog:
    """Sums over the positions of an epoch."""

    def __init__(self, device: str | torch.device = "cpu", state: dict[str, Any] | None = None) -> None:
        state = state or {"losses": {}, "moments": [0.0] * 5, "histogram": {}}
        self.losses = {
            name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in state["losses"].items()
        }
        # Σ w, Σ w², max w, positions clipped, positions
        self.moments = torch.tensor(state["moments"], dtype=torch.float64, device=device)
        self.histogram = torch.zeros(BINS, dtype=torch.long, device=device)
        for place, count in state["histogram"].items():
            self.histogram[int(place)] = count

    def add(self, terms: Terms) -> None:
        """Take a step in."""
        for name, loss in terms.losses.items():
            value = loss.detach().double().sum()
            self.losses[name] = self.losses[name] + value if name in self.losses else value
        weight = terms.weight.detach().double()
        self.moments[0] += weight.sum()
        self.moments[1] += (weight**2).sum()
        if len(weight):
            self.moments[LARGEST] = torch.maximum(self.moments[LARGEST], weight.max())
        self.moments[3] += 0.0 if terms.clipped is None else terms.clipped.sum()
        self.moments[4] += len(weight)
        place = (weight.clamp(min=10**LOW).log10() - LOW) * (BINS / (HIGH - LOW))
        self.histogram += torch.bincount(place.long().clamp(0, BINS - 1), minlength=BINS)

    def over(self, ranks: Ranks) -> EpochLog:
        """The log of all ranks together."""
        if ranks.alone:
            return self
        whole = EpochLog()
        whole.losses = {name: ranks.reduced(value) for name, value in sorted(self.losses.items())}
        whole.moments = ranks.reduced(self.moments)
        whole.moments[LARGEST] = ranks.reduced(self.moments, largest=True)[LARGEST]
        whole.histogram = ranks.reduced(self.histogram)
        return whole

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        filled = self.histogram.nonzero().squeeze(1).tolist()
        return {
            "losses": {name: float(value) for name, value in self.losses.items()},
            "moments": self.moments.tolist(),
            "histogram": {str(place): int(self.histogram[place]) for place in filled},
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
        place = int(torch.searchsorted(below, share * float(below[-1]))) if below[-1] else 0
        return 0.0 if place == 0 else float(10 ** (LOW + (place + 0.5) * (HIGH - LOW) / BINS))
