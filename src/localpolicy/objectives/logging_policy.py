"""The likelihood of the logging head, for every objective that needs μ̂ and has it trained beside the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localpolicy.types import Readout

if TYPE_CHECKING:
    from torch import Tensor


def logging_loss(readout: Readout) -> dict[str, Tensor]:
    """-log μ̂(a|x) where μ̂ is a head; nothing where it is a frozen run, or where there is none."""
    logp = readout.logp_logging
    return {} if logp is None or not logp.requires_grad else {"logging": -logp}
