"""Distillation of another policy into one network: -Σ_a π*(a|x) log π(a|x) over the whole catalogue.

Its minimum is π = π*, and it exceeds the teacher's entropy by KL(π*‖π). The closed form has 1 + K networks and serves
any β; distilled, it is one network of the usual size for one β. Full rows rather than one drawn action: a draw would
add noise that the teacher does not have.
"""

from __future__ import annotations

from pydantic import Field

from localpolicy.objectives.objective import Objective, ones_like
from localpolicy.types import Readout, Reads, Terms


class Distill(Objective):
    """Distillation of the run in the folder `teacher`."""

    name = "distill"
    capturable = True
    uses_reward = False
    default_selection = "-1*teacher_js"
    teacher: str = Field(description="the folder of the run to imitate")
    beta: float | None = Field(None, gt=0, description="the β to imitate it at (default: its own)")

    def reads(self) -> Reads:
        """Cross-entropy towards the teacher."""
        return Reads(frozenset({"cross_entropy"}), logging=self.teacher, teacher=True, beta=self.beta)

    def terms(self, readout: Readout) -> Terms:
        """-Σ_a π*(a|x) log π(a|x)."""
        return Terms({"policy": readout.need("cross_entropy")}, ones_like(readout.logp))
