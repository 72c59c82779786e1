"""The expectile loss, of which the baseline g(x) of implicit Q-learning is the minimum (Kostrikov et al. 2022).

The τ-expectile e of a random q solves τ E[(q - e)+] = (1 - τ) E[(e - q)+]. It is the mean at τ = 1/2, rises with τ, and
tends to the largest q as τ tends to 1: a maximum over what μ does, from logged actions alone. Departures: IQL also puts
it into the TD target; here it is a baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def expectile_loss(prediction: Tensor, target: Tensor, *, expectile: float) -> Tensor:
    """|τ - 1[q < e]| (q - e)², the target q a constant."""
    excess = target.detach() - prediction
    return (expectile - (excess < 0).to(excess.dtype)).abs() * excess**2
