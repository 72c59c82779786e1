"""β as a dial: log π between μ̂ and the end of observed weights, next to separate fits of each β.

    python benchmarks/observed_dial.py TABLE [--data DATA] [--device cuda] [--json FILE]

TABLE is the folder of an `lpi paper table3` on one data set, --data, whose runs were kept. Of each seed the dial
mixes the logits of two runs, (1 - t) log μ̂ + t log π, π being the fit at the smallest β or `reward_weighted`; t is
chosen nowhere. Where E[w|x,a] = 1 + p(x,a)(k - 1), the mixture is π ∝ μ (1 + p(k - 1))^t: increasing in p, so that
J(π) >= J(μ) at every t, as of separate fits. Two networks also know more than one, so ends of the next seed stand
next to those of the same, and the same mixture of two μ̂. Prints nDCG@20 of purchases and clicks, and
differences from μ̂ by sequence.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.estimate import mean_estimate
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json

DIAL = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.3)
FITS = ("sqn", "sac", "lpi_rl", "reward_weighted", "lpi_observed_td")  # of the table, at the points it chose


def chosen(table: Path) -> dict[str, str]:
    """Folder of each policy's runs at the point that the table chose, less the seed."""
    (content,) = read_json(table / "table3.json").values()
    return {
        name: "-".join([name, *policy["chosen"].split()])
        for name, policy in content["policies"].items()
        if policy["chosen"]
    }


class Logits:
    """Log probabilities of a run at the positions of a batch."""

    def __init__(self, folder: Path, device: str) -> None:
        self.config = Run(folder).config
        self.network = Run(folder).policy().network.to(device)
        self.head = self.network.head("policy")

    def __call__(self, batch: Any) -> Tensor:
        """[N, V]."""
        hidden = self.network.hidden_without_dropout(batch)[batch.scored]
        return F.linear(hidden, self.head.weight, self.head.bias).log_softmax(1)


def _next(folder: Path) -> Path:
    """The same run with the next seed, or with the first after the last."""
    name, _, seed = str(folder).rpartition("=")
    following = Path(f"{name}={int(seed) + 1}")
    return following if following.exists() else Path(f"{name}=0")


def gains_of(scores: Tensor, items: Tensor) -> Tensor:
    """1/log2(rank + 1) up to rank 20, ties by their expectation of rank."""
    own = scores.gather(1, items[:, None])
    rank = 1 + (scores > own).sum(1) + 0.5 * ((scores == own).sum(1) - 1)
    return torch.where(rank <= 20, 1 / torch.log2(rank + 1), 0.0)


@torch.no_grad()
def measure(table: Path, data: Prepared, *, seed: int, device: str, split: str) -> dict[str, np.ndarray]:
    """By policy, nDCG@20 at every position of a split; with the positions' sequence and event."""
    points, runs = chosen(table), next(table.glob("*/runs"))
    betas = sorted({float(path.name.split("beta=")[1].split("-")[0]) for path in runs.glob("lpi_observed-beta=*")})
    names = {f"β={beta:g}": f"lpi_observed-beta={beta:g}" for beta in betas}
    names |= {name: points[name] for name in FITS if name in points}
    fits = {name: runs / f"{folder}-seed={seed}" for name, folder in names.items()}
    models = {name: Logits(folder, device) for name, folder in fits.items() if Run(folder).finished}
    base = Logits(runs / f"{points['mle']}-seed={seed}", device)
    ends = {name: models[name] for name in (f"β={betas[0]:g}", "reward_weighted") if name in models}
    beside = {f"{name}, next seed": _next(fits[name]) for name in ends}
    ends |= {name: Logits(folder, device) for name, folder in beside.items() if Run(folder).finished}
    ends["another μ̂"] = Logits(_next(runs / f"{points['mle']}-seed={seed}"), device)
    found = defaultdict[str, list[Tensor]](list)
    for batch in Windows(data, split, base.config.data, device=device).in_order(32):
        items, mu = batch.item[batch.scored], base(batch)
        found["sequence"].append(batch.owners[batch.row[batch.scored]])
        found["reward"].append(batch.reward[batch.scored].float())
        for name, model in models.items():
            found[f"fit {name}"].append(gains_of(model(batch), items))
        for name, model in ends.items():
            logp = model(batch)
            for t in DIAL:
                found[f"dial {name} t={t:g}"].append(gains_of((1 - t) * mu + t * logp, items))
    return {name: torch.cat(parts).cpu().numpy() for name, parts in found.items()}


def main() -> None:
    """All seeds, then means over them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data, rows = Prepared(given.data), {}
    for split in ("validation", "test"):
        seeds = list[dict[str, np.ndarray]]()
        for seed in range(given.seeds):
            try:
                seeds.append(measure(given.table, data, seed=seed, device=given.device, split=split))
            except (OSError, KeyError, StopIteration) as error:
                print(f"seed {seed} is left out: {error!r}")
        if not seeds:
            continue
        sequence, reward = seeds[0]["sequence"], seeds[0]["reward"]
        names = [name for name in seeds[0] if name not in ("sequence", "reward") and all(name in one for one in seeds)]
        values = {name: np.mean([one[name] for one in seeds], axis=0) for name in names}
        base = values["dial another μ̂ t=0"]
        for name, value in values.items():
            row: dict[str, Any] = {"seeds": len(seeds)}
            for event, here in (("purchase", reward == reward.max()), ("click", reward != reward.max())):
                difference = mean_estimate((value - base)[here], sequence[here])
                row[event] = [float(value[here].mean()), difference.mean, difference.se]
            rows[f"{split} {name}"] = row
            print(f"{split} {name}", json.dumps(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
