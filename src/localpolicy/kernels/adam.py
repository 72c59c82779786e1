"""AdamW over one large table in one kernel, at the speed of memory.

Torch's fused Adam gives each of its programs 65,536 numbers: a table of three million keeps fewer than half of a large
GPU's processors busy, and a bias of fifty thousand keeps one. Here a program takes 4,096.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _one_less_exp(x):
    """1 - e^x for x <= 0, by its series near 0, where the difference would cancel."""
    series = -x * (1.0 + x / 2 * (1.0 + x / 3 * (1.0 + x / 4)))
    return tl.where(x > -0.1, series, 1.0 - tl.exp(x))


@triton.jit
def _update(
    parameter, gradient, first, second, step, rate, size, beta1, beta2, log_beta1, log_beta2, epsilon, decay,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    count = tl.load(step)
    lr = tl.load(rate)
    correction1 = _one_less_exp(count * log_beta1)  # 1 - beta^count
    correction2 = _one_less_exp(count * log_beta2)
    p = tl.load(parameter + at, mask=inside, other=0.0)
    g = tl.load(gradient + at, mask=inside, other=0.0)
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    p = p * (1.0 - lr * decay) - lr / correction1 * m / (tl.sqrt(v / correction2) + epsilon)
    tl.store(parameter + at, p, mask=inside)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)


@torch.no_grad()
def update_(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    step: Tensor,
    rate: Tensor,
    betas: tuple[float, float],
    epsilon: float,
    decay: float,
) -> None:
    """Take one step of AdamW in place. `step` counts this one already; it and `rate` are read on the device."""
    size = parameter.numel()
    _update[(triton.cdiv(size, BLOCK),)](
        parameter, gradient.contiguous(), first, second, step, rate, size, *betas,
        *map(math.log, betas), epsilon, decay, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
