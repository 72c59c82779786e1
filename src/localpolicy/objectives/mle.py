"""Maximum likelihood: the estimate μ̂ of the logging policy (the paper's "Logging" row; section 4.1).

Trained to convergence on a log drawn from μ it returns μ. Departures: none.
"""

from __future__ import annotations

from localpolicy.objectives.objective import Objective, unweighted
from localpolicy.types import Readout, Terms


class MLE(Objective):
    """Maximum likelihood: an estimate of the logging policy."""

    name = "mle"
    uses_reward = False
    estimates_logging = True
    calibrated = True
    default_selection = "logp"

    def terms(self, readout: Readout) -> Terms:
        """-log π(a|x)."""
        return unweighted(readout.logp)
