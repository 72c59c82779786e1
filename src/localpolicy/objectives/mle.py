"""Maximum likelihood: the estimate μ̂ of the logging policy (the paper's "Logging" row; section 4.1).

Trained to convergence on a log drawn from μ it returns μ. Departures: none.
"""

from __future__ import annotations

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.objective import unweighted
from localpolicy.types import Readout, Terms


def mle(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-log π(a|x)."""
    return unweighted(readout.logp)
