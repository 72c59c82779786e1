"""An objective: a frozen group of settings with its equation."""

from __future__ import annotations

from pydantic import Field

import localpolicy as lp


class PoweredReward(lp.Objective):
    """Cross-entropy weighted by a power of the reward: prefers rare large rewards."""

    name = "powered_reward"
    non_negative = True  # its bound needs r >= 0
    power: float = Field(2.0, gt=0, description="1 is reward_weighted")

    def terms(self, readout: lp.Readout) -> lp.Terms:
        """-r^p log π(a|x)."""
        return lp.weighted(readout.logp, readout.reward**self.power)
