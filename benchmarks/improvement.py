"""What LPI earns at the distance of its rivals, in a simulated world whose truth is known.

    python benchmarks/improvement.py WORLD --seed S [--items V] [--sequences N] [--device D] [--form '{"gamma": 0.8}']
        [--rival '{"name": "lpi_observed", "fine_tuned": true}']

Trains `mle` twice, the rivals of the world (or those given: settings of their objective; `fine_tuned` starts from the
first `mle`), and LPI in each form given; then, for each rival, dials LPI to the rival's
JS from the second `mle`, and prints true gains over the logging policy side by side, as a line of JSON. Also printed:
the gain at JS 0.2, at the β that was chosen without the truth, and in the bandit that of the tilt by the true reward.
`reward_weighted` is given a dial too, the geometric path from μ̂ through it and beyond, and a second network.
A line is printed whenever more is known; the last one holds everything.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from localpolicy.catalogue import backend
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.truth import PolicyAgent, true_value
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.simulation import simulate
from localpolicy.simulation.bandit import BanditWorld
from localpolicy.simulation.truth import load_world
from localpolicy.training.train import train
from localpolicy.worlds.scenarios import SCENARIOS

RIVALS = {"bandit": ("reward_weighted", "ips"), "store": ("reward_weighted", "pg")}
LPI = {"bandit": "lpi_cb", "store": "lpi_rl"}
LARGE = {  # of a store beyond the demo's
    "data": {"length": 20},
    "model": {"width": 64},
    "train": {"epochs": 10, "batch_size": 256, "learning_rate": 0.002},
}
POSITIONS = 3_000  # held-out contexts behind a JS
FAIR = "reward_weighted"  # the rival that is given a dial and a second network


def path(logging: Policy, policies: list[Policy]) -> Policy:
    """μ̂ (π̄/μ̂)^t, π̄ the geometric mean of these policies: their end is t = 1, and the dial β is 1/t."""
    networks = [policy.network for policy in (logging, *policies)]
    assert all(isinstance(network, Network) for network in networks)
    towers = Towers(networks[0], networks[1:], beta=1.0, slope=1.0)  # type: ignore[arg-type]
    return Policy(towers, policies[0].origin._replace(estimates_logging="logging"), logging.items)


def main() -> None:
    """One world and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=sorted(LPI))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--items", type=int)
    parser.add_argument("--sequences", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--episodes", type=int, default=4_000)
    parser.add_argument("--no-capture", action="store_true", help="on CUDA, run steps one by one")
    parser.add_argument("--form", action="append", default=[], help="settings of the objective, as JSON")
    parser.add_argument("--rival", action="append", default=[], help="a rival's objective, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for found in measure(given, Path(folder)):
            print(json.dumps(found), flush=True)


def measure(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Everything about one world and seed, more and more of it."""
    scene = SCENARIOS[given.world]
    items, sequences = given.items or scene.items, given.sequences or scene.sequences
    simulate(given.world, folder / "data", sequences=sequences, items=items, seed=given.seed, prepared=True)
    data, world = Prepared(folder / "data"), load_world(folder / "data" / "truth")
    settings: Any = scene.settings if items <= 1_000 else LARGE

    def fit(name: str, *, seed: int = 0, start: Run | None = None, **objective: Any) -> Run:
        training = {**settings["train"], "seed": 10 * given.seed + seed, "device": given.device}
        training["warm_start"] = None if start is None else str(start.folder)
        training["capture"] = not given.no_capture
        config = Config.parse({**settings, "objective": {"name": name, **objective}, "train": training})
        return train(data, out=folder / f"run-{len(list(folder.iterdir()))}", config=config)

    def opened(run: Run) -> Policy:
        policy = run.policy()
        policy.network.to(given.device)
        return policy

    def earned(policy: Policy) -> dict[str, float]:
        found = true_value(policy, world, episodes=given.episodes)
        return {"gain": found.gain, "se": found.gain_se}

    logging = fit("mle")
    estimate, reference = opened(logging), opened(fit("mle", seed=1))
    js = distance(reference, Windows(data, "test", Config.parse(settings).data, device=given.device))
    found: dict[str, Any] = {
        "world": given.world, "items": items, "sequences": sequences, "seed": given.seed,
        "floor": js(estimate), "mle": earned(estimate), "rivals": {}, "lpi": [],
    }  # fmt: skip
    yield found
    weighted: Policy | None = None
    for rival in map(json.loads, given.rival) if given.rival else [{"name": name} for name in RIVALS[given.world]]:
        label = " ".join(str(value) if key == "name" else f"{key}={value}" for key, value in rival.items())
        start = logging if rival.pop("fine_tuned", False) else None
        policy = opened(fit(**rival, start=start))
        found["rivals"][label] = {"js": js(policy), **earned(policy)}
        weighted = policy if label == FAIR else weighted
        yield found
    targets = {name: one["js"] for name, one in found["rivals"].items()} | {"JS 0.2": 0.2}
    if isinstance(world, BanditWorld):
        found["true tilt"] = {name: tilt(world, estimate, reference, target) for name, target in targets.items()}
    yield found
    for networks in (1, 2) if weighted is not None else ():
        assert weighted is not None
        dial = path(estimate, [weighted, *(opened(fit(FAIR, seed=k)) for k in range(1, networks))])
        found.setdefault("fair", {})[f"{networks}, undialled"] = {"js": js(dial), **earned(dial)}
        for name, target in targets.items():
            beta = dialled(dial, js, target)
            found["fair"][f"{networks}, {name}"] = {"power": 1 / beta, **earned(dial.dialled(beta))}
    yield found
    for form in map(json.loads, given.form or ["{}"]):
        began = time.perf_counter()
        run = fit(LPI[given.world], logging=str(logging.folder), **form)
        policy, seconds = opened(run), time.perf_counter() - began
        chosen = run.manifest["improvement"]
        line = {
            "form": form, "seconds": round(seconds, 1), "slope": chosen["slope"], "r2": chosen["calibration"]["r2"],
            "chosen": {"js": js(policy), "beta": chosen["beta"], **earned(policy)},
            "critic": run.manifest["stages"]["critic-1"]["selected"],
        }  # fmt: skip
        for name, target in targets.items():
            beta = dialled(policy, js, target)
            line[name] = {"beta": beta, **earned(policy.dialled(beta))}
        found["lpi"].append(line)
        yield found


def distance(reference: Policy, windows: Windows) -> Callable[[Policy], float]:
    """JS from the reference, a mean over held-out contexts."""
    batches, count = [], 0
    for batch in windows.in_order(256):
        batches.append(batch)
        count += len(batch.scored)
        if count >= POSITIONS:
            break

    def js(policy: Policy) -> float:
        found = [backend().divergence(policy.logits(batch), reference.logits(batch))[0] for batch in batches]
        return float(torch.cat(found).double().mean())

    return js


def bisect(js: Callable[[float], float], target: float) -> float:
    """The largest β whose JS is the target: JS falls as β rises, at least from where a cap binds little."""
    high = math.log(1e3)
    while js(math.exp(high - 1)) <= target and high > math.log(1e-4):
        high -= 1
    low = high - 1
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if js(math.exp(middle)) > target else (low, middle)
    return math.exp(high)


def dialled(policy: Policy, js: Callable[[Policy], float], target: float) -> float:
    """The β at which the policy is as far from the reference as the target."""
    return bisect(lambda beta: js(policy.dialled(beta)), target)


def tilt(world: BanditWorld, estimate: Policy, reference: Policy, target: float) -> float:
    """The gain of μ̂ exp(r/β) with the true r, at that JS from the reference."""
    mu, other = (world.table(PolicyAgent(each, world)) for each in (estimate, reference))

    def at(beta: float) -> np.ndarray:
        logits = np.log(np.maximum(mu, 1e-300)) + world.reward / beta
        weights = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(weights / weights.sum(1, keepdims=True))

    def js(beta: float) -> float:
        pi = at(beta)
        middle = (pi + other) / 2
        terms = [p * np.log(np.maximum(p, 1e-300) / np.maximum(middle, 1e-300)) for p in (pi, other)]
        return float(world.context_probabilities @ sum(terms).sum(1)) / 2

    return world.value(at(bisect(js, target))) - world.logging_value()


if __name__ == "__main__":
    main()
