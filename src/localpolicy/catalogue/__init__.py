"""Statistics over the whole catalogue, reduced to one number per position: the only code that touches V.

`localpolicy.logits` defines logits over the catalogue without forming them. Each backend is a module with the same
functions:

    log_prob(rows, items)                  log softmax at the taken item, with gradients
    log_prob_and_mean(rows, items, values) also Σ_a softmax(rows)_a · values_a (constant), in one pass
    logsumexp(rows)                        log Σ_a exp(row_a)
    mean(rows, values)                     Σ_a softmax(rows)_a · values_a
    maximum(rows)                          max_a row_a and the item that has it
    rank(rows, items)                      1 + items strictly above + half of those tied
    divergence(p, q)                       JS(p, q) and KL(p‖q), in nats
    entropy(rows)                          -Σ p log p
    top(rows, k)                           the k largest, in falling order

The first two and `mean` take `open_items`, too: the items that could be chosen at each position (`open_items.py`). The
softmax is then over these alone, in value and gradient.

`dense` is the definition and the oracle of every other backend; `chunked` streams over chunks of the catalogue (cut and
summed by `chunks.py`), so that its memory does not grow with N x V; `sharded` does so for catalogues that ranks split
between them, on logits of their own kind (`shards.py`); `fused` computes in tiles on a GPU. Evaluation needs many
statistics of the same logits at once: `statistics.py` reads them off logits that are formed once, a block of positions
at a time.
"""

from __future__ import annotations

from types import ModuleType

from localpolicy.catalogue import chunked, dense, fused
from localpolicy.errors import ConfigError, nearest

BACKENDS: dict[str, ModuleType] = {"dense": dense, "chunked": chunked, "fused": fused}


def chosen(name: str, device: str) -> str:
    """Name of the backend for this device: the one that `auto` stands for, or the given one if it can run."""
    lacks = "they need a CUDA device" if not device.startswith("cuda") else fused.missing()
    if name == "auto":
        return "chunked" if lacks else "fused"
    if name == "fused" and lacks:
        raise ConfigError(f"train.catalogue: there are no fused kernels here: {lacks}; use chunked, or auto.")
    return name


def backend(name: str = "chunked") -> ModuleType:
    """Module of the backend called `name`."""
    if name not in BACKENDS:
        raise ConfigError(f"no catalogue backend '{name}'{nearest(name, BACKENDS)}")
    return BACKENDS[name]
