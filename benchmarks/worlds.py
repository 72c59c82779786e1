"""Forty simulated worlds, named beforehand: does LPI, with its β chosen without the truth, ever earn less than μ̂?

    python benchmarks/worlds.py --out FILE.jsonl [--only TEXT] [--seeds 1] [--processes 2] [--episodes 4096]
    python benchmarks/worlds.py --table FILE.jsonl

Each world's log is simulated, LPI is trained on it with the demo's settings (`lpi_cb` in a bandit,
`lpi_rl` in a store), and its policy is measured against the world's truth, as are μ̂ (the same run's own) and
the same run at other β, down to half the smallest that the rule considers. A world's share is what the chosen β gains
over μ̂, as a part of what the best β gains; a second share is of the best β within the rule's limits (effective sample,
JS). The best β is picked on one half of the visits and measured on the other, so that luck picks nothing. Shares are
taken where the best β gains significantly, and at least a thousandth of J(μ); elsewhere there is nothing to share.

"Significantly" means by 1.96 standard errors of the paired difference; a bandit's figures are exact: any loss counts.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from collect import command_line, show

from localpolicy.data.store import Prepared
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.truth import PolicyAgent
from localpolicy.model.policy import Policy
from localpolicy.objectives.lpi import LPI, LPIBandit
from localpolicy.runs.config import Config
from localpolicy.simulation import write_prepared
from localpolicy.simulation.events import World
from localpolicy.simulation.truth import STEPS, WORLDS
from localpolicy.training.train import train
from localpolicy.worlds.scenarios import SCENARIOS

OBJECTIVE = {"bandit": "lpi_cb", "store": "lpi_rl"}
BETAS = (8.0, 4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.12)  # of the spread, where the rule considered none
WORTH = 0.001  # of J(μ): a gain below this is nothing to share
SIGNIFICANT = 1.96
ENOUGH = 0.003  # of J(μ): error of a difference beyond which `--precise` takes more visits
MOST_VISITS = 44 * 4_096


@dataclass(frozen=True)
class Case:
    """A world, and how a log of it is made."""

    world: str
    sequences: int
    dials: tuple[str, ...] = ()
    interactions: bool = False
    scale: float = 1.0  # of all rewards


def _bandit(*dials: str, sequences: int = 40_000, scale: float = 1.0) -> Case:
    return Case("bandit", sequences, dials, scale=scale)


def _store(
    *dials: str, sequences: int = 6_000, items: int = 300, interactions: bool = False, scale: float = 1.0
) -> Case:
    return Case("store", sequences, (f"items={items}", *dials), interactions, scale)


# Written down before any of them was measured. The seed of a world is its place in this list.
CASES: dict[str, Case] = {
    "bandit": _bandit(),
    "bandit, 3,000 sequences": _bandit(sequences=3_000),
    "bandit, 10,000 sequences": _bandit(sequences=10_000),
    "bandit, 120,000 sequences": _bandit(sequences=120_000),
    "bandit, 30 items": _bandit("items=30"),
    "bandit, 500 items": _bandit("items=500"),
    "bandit, 50 contexts": _bandit("contexts=50"),
    "bandit, 1,000 contexts": _bandit("contexts=1000"),
    "bandit, logging policy knows nothing": _bandit("quality=0"),
    "bandit, good logging policy": _bandit("quality=1", "estimate_noise=0.3"),
    "bandit, logging policy by popularity": _bandit("quality=0.2", "popularity=1.5"),
    "bandit, flat logging policy": _bandit("temperature=4"),
    "bandit, rewards without noise": _bandit("noise=0"),
    "bandit, rewards with little noise": _bandit("noise=0.3"),
    "bandit, rare clicks": _bandit("base=-4"),
    "bandit, clicks are the rule": _bandit("base=1"),
    "bandit, nearly equal items": _bandit("taste=0.2", "appeal=0.1"),
    "bandit, nothing to learn": _bandit("taste=0", "appeal=0"),
    "bandit, taste alone": _bandit("taste=1.5", "appeal=0"),
    "bandit, rewards times 100": _bandit(scale=100.0),
    "store": _store(),
    "store, 1,500 sequences": _store(sequences=1_500),
    "store, 18,000 sequences": _store(sequences=18_000),
    "store, 100 items": _store(items=100),
    "store, 2,000 items": _store(items=2_000, sequences=12_000),
    "store, logging policy by popularity": _store("quality=0", "repeats=0"),
    "store, good logging policy": _store("quality=2"),
    "store, flat logging policy": _store("temperature=4", "quality=0"),
    "store, rare clicks": _store("click_base=-3"),
    "store, nearly equal tastes": _store("taste=0.2"),
    "store, nearly equal items": _store("appeal=0.1", "item_quality=0.1"),
    "store, nothing but bait": _store("bait=1", "lookahead=0.6"),
    "store, no look-ahead": _store("lookahead=0"),
    "store, short visits": _store("mean_length=6", sequences=18_000),
    "store, rewards times 100": _store(scale=100.0),
    "store, interactions": _store(interactions=True),
    "store, interactions, 18,000 sequences": _store(sequences=18_000, interactions=True),
    "store, interactions, 2,000 items": _store(items=2_000, sequences=12_000, interactions=True),
    "store, interactions, frequent purchases": _store("purchase_base=-1", interactions=True),
    "store, interactions, items of unlike quality": _store("item_quality=1.5", interactions=True),
}
assert len(CASES) == 40


def logged(case: Case, folder: Path, seed: int) -> tuple[Prepared, World, Config]:
    """A prepared log of the case, the world behind it, and LPI's settings for it."""
    settings_of, kind = WORLDS[case.world]
    world: World = kind(settings_of().with_changes(case.dials), seed=seed)
    chunks = (replace(chunk, reward=case.scale * chunk.reward) for chunk in world.log(case.sequences, seed))
    write_prepared(
        world, folder / "data", sequences=case.sequences, seed=seed, interactions=case.interactions, chunks=chunks
    )
    settings = SCENARIOS[case.world].settings
    training = {**settings["train"], "seed": seed, "device": "cpu"}
    config = Config.parse({**settings, "objective": {"name": OBJECTIVE[case.world]}, "train": training})
    return Prepared(folder / "data"), world, config


def measure(task: tuple[str, int], *, episodes: int, precise: bool, chosen_only: bool) -> dict[str, Any]:
    """One world, from its log to its figures. `precise` takes visits until the error is small enough."""
    name, number = task
    case, seed = CASES[name], list(CASES).index(name) + 100 * number
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        data, world, config = logged(case, Path(scratch), seed)
        run = train(data, out=Path(scratch) / "run", config=config)
        policy, chosen = run.policy(), run.manifest["improvement"]
        trained = time.perf_counter()
        logging = float(world.visit_rewards(None, episodes, STEPS, 0).mean())
        earned = partial(values, world=world, episodes=episodes)
        estimate = policy.logging()
        gain = earned(policy) - earned(estimate) if chosen["slope"] else np.zeros(2)
        if precise and error(gain) > ENOUGH * logging:
            needed = episodes * (error(gain) / (ENOUGH * logging)) ** 2
            episodes = min(MOST_VISITS, 4_096 * math.ceil(1.1 * needed / 4_096))
            gain = values(policy, world, episodes) - values(estimate, world, episodes)
        found: dict[str, Any] = {
            "world": name, "number": number, "seed": seed, "J(μ)": logging, "slope": chosen["slope"],
            "beta": chosen["beta"], "spread": chosen["calibration"]["spread"], "chosen_by": chosen["chosen_by"],
            "episodes": episodes, "gain": float(gain.mean()), "se": error(gain), "seconds": round(trained - began, 1),
        }  # fmt: skip
        base = earned(estimate)
        found["μ̂"] = float(base.mean())
        if not chosen_only and found["spread"] > 0:
            assert isinstance(config.objective, LPI | LPIBandit)
            others: dict[float, np.ndarray] = {}
            for beta in _betas(chosen):
                others[beta] = earned(_tilted(policy, beta)) - base
                if _falling([float(other.mean()) for other in others.values()]):
                    break
            allowed = _allowed(chosen, config.objective.ceiling(again=False))
            found |= best_of(others, allowed, gain if len(gain) == len(base) else np.zeros(len(base)))
        found["seconds_all"] = round(time.perf_counter() - began, 1)
        return found


def values(policy: Policy, world: World, episodes: int) -> np.ndarray:
    """J(π) of each visit, the same visitors and luck for every policy; of a bandit the exact value, twice."""
    found = world.visit_rewards(PolicyAgent(policy, world), episodes, STEPS, 0)
    return np.repeat(found, 2) if world.exact else found


def _tilted(policy: Policy, temperature: float) -> Policy:
    """μ̂ exp(Q / temperature), whatever the calibration says."""
    policy.network.slope = 1.0
    return policy.dialled(temperature)


def _temperature(chosen: dict[str, Any], beta: float) -> float:
    """β over the slope: what Q itself is divided by."""
    return float(beta / (chosen["calibration"]["factor"] or 1.0))


def _betas(chosen: dict[str, Any]) -> list[float]:
    """Temperatures to try, the mildest first: those that the rule considered and beyond, or multiples of the spread."""
    spread = chosen["calibration"]["spread"]
    considered = [candidate["beta"] for candidate in chosen["candidates"] if candidate["beta"] is not None]
    betas = [*considered, considered[-1] / 2] if considered else [multiple * spread for multiple in BETAS]
    return [_temperature(chosen, beta) for beta in betas]


def _allowed(chosen: dict[str, Any], ceiling: float | None) -> set[float]:
    """The temperatures that the rule may choose."""
    return {
        _temperature(chosen, candidate["beta"])
        for candidate in chosen["candidates"]
        if candidate["beta"] is not None
        and candidate["effective"] >= LEAST_EFFECTIVE
        and (ceiling is None or candidate["js"] <= ceiling)
    }


def _falling(gains: list[float]) -> bool:
    """Whether larger steps cannot help: the last two β are below zero, each below the one before."""
    return len(gains) > 2 and gains[-3] > gains[-2] > gains[-1] and gains[-1] < 0


def error(gain: np.ndarray) -> float:
    """Standard error of a mean of paired differences."""
    return float(gain.std(ddof=1) / math.sqrt(len(gain)))


def best_of(others: dict[float, np.ndarray], allowed: set[float], chosen: np.ndarray) -> dict[str, Any]:
    """The β of the largest gain on the even visits, with its gain on the odd ones, and that of the chosen β."""

    def best(candidates: dict[str, np.ndarray]) -> tuple[str, float, float]:
        name = max(candidates, key=lambda name: candidates[name][::2].mean())
        odd = candidates[name][1::2]
        return name, float(odd.mean()), error(odd) if len(odd) > 1 else 0.0

    own = {"chosen": chosen}
    return {
        "best": best(own | {f"{beta:.4g}": gain for beta, gain in others.items()}),
        "best_allowed": best(own | {f"{beta:.4g}": gain for beta, gain in others.items() if beta in allowed}),
        "chosen_gain": float(chosen[1::2].mean()),
        "gains": {f"{beta:.4g}": [float(gain.mean()), error(gain)] for beta, gain in others.items()},
    }


def table(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """One row per world, and what they say together."""
    found = sorted(lines, key=lambda line: (list(CASES).index(line["world"]), line["number"]))
    yield "| world | J(μ) | J(μ̂) | slope | β / spread | gain over μ̂ | best β's gain | share | share of the allowed |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    shares: dict[str, list[float]] = {"best": [], "best_allowed": []}
    below = []
    for line in found:
        name = line["world"] + (f" (log {line['number']})" if line["number"] else "")
        se = f" ± {line['se']:.4f}" if line["se"] else ""
        beta = f"{line['beta'] / line['spread']:.2g}" if line["slope"] and line["spread"] else "–"
        if line["gain"] + SIGNIFICANT * line["se"] < 0:
            below.append(name)
        cells = [f"{line['best'][1]:+.4f}" if "best" in line else ""]
        for kind, known in shares.items():
            _, gain, error_of_it = line.get(kind, ("", 0.0, 0.0))
            there = gain > max(SIGNIFICANT * error_of_it, WORTH * line["J(μ)"])
            if there:
                known.append(line["chosen_gain"] / gain)
            cells.append(f"{known[-1]:.0%}" if there else "")
        yield (
            f"| {name} | {line['J(μ)']:.4f} | {line['μ̂']:.4f} | {line['slope']:.2f} | {beta} | "
            f"{line['gain']:+.4f}{se} | {' | '.join(cells)} |"
        )
    yield ""
    yield f"{len(found)} logs; significantly below μ̂ in {len(below)}: {', '.join(below) or 'none'}"
    for kind, known in shares.items():
        if known:
            what = "of any β" if kind == "best" else "of the β within the rule's limits"
            yield f"share of the best gain {what}: {np.mean(known):.0%}, the mean of {len(known)} worlds"
    for said, pick in (("smallest", min), ("largest error of a", max)):
        line = pick(found, key=lambda line: (line["gain"] if pick is min else line["se"]) / line["J(μ)"])
        yield f"{said} gain, as a part of J(μ): {line['gain'] / line['J(μ)']:+.2%} ± {line['se'] / line['J(μ)']:.2%}"


def main() -> None:
    """Measure, or show what was measured."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="worlds whose name holds this text")
    parser.add_argument("--seeds", type=int, default=1, help="logs of each world")
    parser.add_argument("--first", type=int, default=0, help="number of the first log")
    parser.add_argument("--episodes", type=int, default=4_096, help="visits behind a store's figures")
    parser.add_argument("--precise", action="store_true", help=f"more visits until the error is {ENOUGH:g} of J(μ)")
    parser.add_argument("--chosen-only", action="store_true", help="measure no other β")
    given = parser.parse_args()
    tasks = [(name, given.first + k) for name in CASES if given.only in name for k in range(given.seeds)]
    if not tasks:
        parser.error(f"no world is called '{given.only}'; the names: {'; '.join(CASES)}")
    tasks.sort(key=lambda task: (CASES[task[0]].world == "bandit", -CASES[task[0]].sequences))  # the longest first
    work = partial(measure, episodes=given.episodes, precise=given.precise, chosen_only=given.chosen_only)
    show(given, table, work, tasks)


if __name__ == "__main__":
    main()
