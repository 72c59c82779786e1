"""A real log with known propensities: Open Bandit's random policy, and what LPI and its rivals would have earned on it.

    python benchmarks/open_bandit.py FOLDER [--campaign all] [--seeds 3]

FOLDER holds `random_{all,men,women}.parquet`. Rows are split 40/20/40 at random; policies are trained on the first
part, choose epochs and β on the second, and are judged on the third by SNIPS and DR (r̂: the items' mean rewards in
training), with 95 % intervals. The log names no users, so contexts are empty and a policy is one distribution over the
items. LPI is shown at the β it chose, and dialled to the JS of `reward_weighted` from a μ̂ of another seed, there even
where its critic is silent.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from improvement import dialled, distance

from localpolicy.data.batches import Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.divergence import Reference
from localpolicy.measure.evaluate import measure
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.score import reward_model
from localpolicy.model.policy import Policy
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.train import train

SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"length": 1},
    "model": {"width": 16},
    "train": {"epochs": 20, "batch_size": 128, "learning_rate": 0.003, "min_history": 0, "device": "cpu"},
}
CAMPAIGNS = ("all", "men", "women")
ESTIMATORS = ("SNIPS", "DR")


def main() -> None:
    """Every campaign and seed, and their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--campaign", choices=CAMPAIGNS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| campaign | split | policy | JS | effective sample | SNIPS (95 %) | DR (95 %) |")
    print("|---|--:|---|--:|--:|--:|--:|")
    ratios: dict[str, list[tuple[float, ...]]] = {}
    for campaign in given.campaign or CAMPAIGNS:
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as scratch:
                log = given.folder / f"random_{campaign}.parquet"
                out = Path(scratch) / "data"
                data = prepare("openbandit", log, out=out, seed=seed, validation=0.2, test=0.4, threads=1)
                for name, values in judged(data, Path(scratch), seed, f"| {campaign} | {seed} |").items():
                    ratios.setdefault(name, []).append(values)
    print("\nmean over campaigns and splits, as a part of the log's own mean reward:")
    for name, every in ratios.items():
        means, errors = np.mean(every, 0), np.std(every, 0) / np.sqrt(max(len(every) - 1, 1))
        figures = zip(ESTIMATORS, means, errors, strict=True)
        print(f"{name} ({len(every)}): " + ", ".join(f"{said} {mean:.2f} ± {se:.2f}" for said, mean, se in figures))


def judged(data: Prepared, folder: Path, seed: int, line: str) -> dict[str, tuple[float, ...]]:
    """Print a line for every policy; its values over the log's own."""

    def fit(name: str, number: int = 0) -> Policy:
        training = {**SETTINGS["train"], "seed": 10 * seed + number}
        config = Config.parse({**SETTINGS, "objective": {"name": name}, "train": training})
        return train(data, out=folder / f"{name}-{number}", config=config).policy()

    window = Config.parse(SETTINGS).data
    mle, weighted, lpi = fit("mle"), fit("reward_weighted"), fit("lpi_cb")
    js = distance(fit("mle", 1), Windows(data, "test", window))
    policies = {"mle": mle, "reward_weighted": weighted, "lpi_cb, β chosen": lpi}
    believed = Run(folder / "lpi_cb-0").policy()
    believed.network.slope = 1.0  # also where the critic is silent
    policies["lpi_cb at reward_weighted's JS"] = believed.dialled(dialled(believed, js, js(weighted)))
    values, found = reward_model(mle, data), {}
    for name, policy in policies.items():
        mine, config = Candidate(name, policy, Reference(name, name)), EvaluateConfig(min_history=0)
        result = measure(mine, data, window=window, config=config, values=values, floor=False).off_policy
        assert result is not None
        share = f"{result.overlap.effective / result.overlap.n:.0%}"
        if result.refusal is not None:
            print(f"{line} {name} | {js(policy):.3f} | {share} | no estimate: {result.refusal} | |", flush=True)
            continue
        estimates = [result.estimates[estimator] for estimator in ESTIMATORS]
        cells = [f"{e.value:.4f} [{e.intervals['normal'][0]:.4f}, {e.intervals['normal'][1]:.4f}]" for e in estimates]
        print(f"{line} {name} | {js(policy):.3f} | {share} | {' | '.join(cells)} |", flush=True)
        found[name] = tuple(estimate.value / result.logged.value for estimate in estimates)
    return found


if __name__ == "__main__":
    main()
