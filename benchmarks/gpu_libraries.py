"""Linear cross-entropy over the catalogue, forward and backward: ours against the fused libraries and plain PyTorch.

    python benchmarks/gpu_libraries.py [--shapes 1472x48255,4096x1000000] [--width 64]

Each line takes hidden states, a table and targets, and gives the mean loss and both gradients. Libraries that are not
installed are left out. Times are medians of repeated runs in one process, in captured graphs where a library can be
captured; the error is that of the table's gradient against float64 (‖error‖ / ‖gradient‖, at a small shape).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import triton
from torch import Tensor
from torch.nn import functional

from localpolicy.catalogue import fused
from localpolicy.logits import Head, LinearLogits

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(hidden: Tensor, weight: Tensor, items: Tensor) -> Tensor:
    """The fused kernels."""
    return -fused.log_prob(LinearLogits(hidden, Head(weight)), items).mean()


def eager(hidden: Tensor, weight: Tensor, items: Tensor) -> Tensor:
    """Compute the loss from whole logits."""
    return functional.cross_entropy((hidden @ weight.T).float(), items)


def libraries() -> dict[str, Loss]:
    """Loss functions of the installed libraries, by name."""
    ways: dict[str, Loss] = {"ours": ours}
    try:
        from cut_cross_entropy import linear_cross_entropy

        ways["cut-cross-entropy"] = partial(linear_cross_entropy, filter_eps=None)
        ways["cut-cross-entropy, filtered"] = linear_cross_entropy
    except ImportError as error:
        print(f"cut-cross-entropy left out: {error}")
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        def liger(hidden: Tensor, weight: Tensor, items: Tensor) -> Tensor:
            loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, items)[0]
            return loss

        ways["Liger-Kernel"] = liger
    except ImportError as error:
        print(f"Liger-Kernel left out: {error}")
    ways["PyTorch, compiled"] = torch.compile(eager)
    ways["PyTorch"] = eager
    return ways


def inputs(n: int, v: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a table and items, all at random."""
    # Drawn on the CPU: a capture that failed would leave the device's generator unusable.
    torch.manual_seed(0)
    hidden = torch.randn(n, d).to("cuda", dtype).requires_grad_()
    weight = (torch.randn(v, d) / 8).to("cuda", dtype).requires_grad_()
    return hidden, weight, torch.randint(v, (n,)).to("cuda")


def gradients(loss: Loss, hidden: Tensor, weight: Tensor, items: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward."""
    return torch.autograd.grad(loss(hidden, weight, items), (hidden, weight))


def timed(run: Callable[[], object]) -> tuple[float, str]:
    """Milliseconds, and how they were taken."""
    try:
        return triton.testing.do_bench_cudagraph(run, rep=50, return_mode="median"), "captured"
    except Exception:
        torch.cuda.synchronize()
        return triton.testing.do_bench(run, warmup=20, rep=100, return_mode="median"), "launched"


def main() -> None:
    """Print a table of the libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1472x48255,4096x1000000")
    parser.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, width {given.width}")
    print(f"{'type':5} {'N x V':>16} {'way':28} {'ms':>8} {'times ours':>10} {'GiB':>6} {'error':>8}")
    for dtype in (torch.bfloat16, torch.float32):
        small = inputs(300, 5000, given.width, dtype)
        hidden, weight = (one.detach().double().requires_grad_() for one in small[:2])
        _, exact = gradients(eager, hidden, weight, small[2])
        for n, v in (tuple(map(int, shape.split("x"))) for shape in given.shapes.split(",")):
            case = inputs(n, v, given.width, dtype)
            first = None
            for name, loss in libraries().items():
                label = f"{str(dtype)[6:]:8.8} {f'{n} x {v}':>13} {name:28}"
                try:
                    error = float((gradients(loss, *small)[1].double() - exact).norm() / exact.norm())
                    torch.cuda.empty_cache()
                    before = torch.cuda.memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                    gradients(loss, *case)
                    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
                    taken, how = timed(partial(gradients, loss, *case))
                except Exception as problem:
                    print(f"{label} failed: {str(problem).splitlines()[0][:60]}", flush=True)
                    continue
                first = first or taken
                print(f"{label} {taken:8.3f} {taken / first:10.1f} {peak:6.2f} {error:8.1e} {how}", flush=True)


if __name__ == "__main__":
    main()
