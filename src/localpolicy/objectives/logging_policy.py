"""Likelihood of the logging head, for every objective that needs μ̂ and trains it with the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localpolicy.types import Readout

if TYPE_CHECKING:
    from torch import Tensor


def logging_loss(readout: Readout) -> dict[str, Tensor]:
    """-log μ̂(a|x) if μ̂ is a head; nothing if it is a frozen run, or if there is none."""
    logp = readout.logp_logging
    return {} if logp is None or not logp.requires_grad else {"logging": -logp}
