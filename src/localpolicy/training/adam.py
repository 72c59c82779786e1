"""AdamW (Loshchilov and Hutter 2019) whose large tables are updated by a kernel of our own where there is a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localpolicy.runtime.graph_branch import GraphBranch

LARGE = 1 << 15  # numbers in a table that gets a launch of its own


class TableAdamW(torch.optim.AdamW):
    """Torch's AdamW for captured steps: equal state and, up to rounding, equal numbers.

    Small parameters are updated together by torch's fused kernel, large ones one by one by ours.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step, without waiting for the host."""
        assert closure is None, "a captured step has no closure"
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in moving:
                if not self.state[parameter]:
                    self.state[parameter] |= {
                        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            torch._foreach_add_([self.state[parameter]["step"] for parameter in moving], 1)
            small = [parameter for parameter in moving if not _large(parameter)]
            branch = GraphBranch(group["params"][0].device)
            with branch.on_side_stream():
                if small:
                    self._together(small, group)
            for parameter in moving:
                if _large(parameter):
                    self._alone(parameter, group)
            branch.join([])

    def _together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        torch._fused_adamw_(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _alone(self, parameter: Tensor, group: dict[str, Any]) -> None:
        from localpolicy.kernels.adam import update_

        state = self.state[parameter]
        assert parameter.grad is not None
        update_(
            parameter,
            parameter.grad,
            state["exp_avg"],
            state["exp_avg_sq"],
            step=state["step"],
            rate=group["lr"],
            betas=group["betas"],
            epsilon=group["eps"],
            decay=group["weight_decay"],
        )


def _large(parameter: Tensor) -> bool:
    return parameter.numel() >= LARGE and parameter.dtype == torch.float32 and parameter.is_contiguous()
