"""Which form of LPI earns more where the log has no propensities: the closed form, or observed weights as a dial?

    python benchmarks/forms.py --out FILE.jsonl [--only TEXT] [--logs 3] [--first 0] [--processes 1]
    python benchmarks/forms.py --table FILE.jsonl

Each log of views and purchases is simulated in one of the worlds of credit.py, in a small one, or is a store's of
worlds.py. One μ̂ is
trained, on it the closed form as it stands by default, and the end of observed weights (π_0 ∝ μ r̄), which with μ̂ makes
the dial `lpi_observed form=power`: π ∝ μ̂ (π_0/μ̂)^(1/β). All are measured against the truth, on the same visits as μ̂.
Rules that would choose between the two are read off the same lines: nothing is trained for them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from collect import command_line, show
from credit import WORLDS as CREDIT
from credit import World, error, from_first_hour, shelves
from first_hour import SETTINGS, simulated, visits
from improvement import path
from shelves import Shelves
from worlds import CASES, logged, values

from localpolicy.data.guess.guess import guess
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.model.policy import Policy
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.setup import resolve
from localpolicy.training.train import train

BETAS = (6.0, 3.0, 1.5, 1.0)  # of the dial; 1 is `reward_weighted`
MILD = "3"  # the β that docs/objectives.md names
EPISODES = 4_096
SMALL: dict[str, Callable[[Path, int], World]] = {  # so few visits that critics are often silent
    "shelves, 400 visits": shelves(400, Shelves(products=90)),
    "shelves, 400 visits, bait": shelves(400, Shelves(products=90, bait=0.5, taste=0.4)),
    "visits, 400, unlike": from_first_hour(visits(400, products=90, unlike=1.0)),
    "shop without propensities, 400 visits": from_first_hour(
        simulated("store", 400, "items=90", "item_quality=1.5", interactions=True)
    ),
}
WORLDS = CREDIT | SMALL
STORES = tuple(name for name, case in CASES.items() if case.interactions and "2,000" not in name)
# What a rule knows of a log: the calibration of the critic and what the default made of it.
RULES: dict[str, Callable[[dict[str, Any]], bool]] = {  # whether the observed form stands
    "closed (default)": lambda line: False,
    "observed, β = 3": lambda line: True,
    "observed where s = 0": lambda line: line["slope"] == 0,
    "observed where s < .3": lambda line: line["slope"] < 0.3,
}


def measure(task: tuple[str, int]) -> dict[str, Any]:
    """True gains over μ̂ of one log."""
    name, number = task
    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data, config, earned, seed = _shop(name, number, folder) if name in WORLDS else _store(name, number, folder)

        def fit(label: str, **objective: Any) -> Policy:
            settings = {**config.model_dump(), "objective": objective}
            return train(data, out=folder / label, config=Config.parse(settings)).policy()

        estimate = fit("mle", name="mle")
        closed = fit("closed", name="lpi_rl", logging=str(folder / "mle"))
        made = Run(folder / "closed").manifest["improvement"]
        dial = path(estimate, [fit("end", name="lpi_observed", form="affine", beta=0.0, smallest=0.0)])
        base = earned(estimate)
        gains = {"closed": earned(closed) - base} | {f"{beta:g}": earned(dial.dialled(beta)) - base for beta in BETAS}
        return {
            "world": name, "number": number, "seed": seed, "J": float(base.mean()), "slope": made["slope"],
            "gains": {key: [float(gain.mean()), error(gain)] for key, gain in gains.items()},
            "seconds": round(time.perf_counter() - began, 1),
        }  # fmt: skip


def _shop(name: str, number: int, folder: Path) -> tuple[Prepared, Config, Callable[[Policy], np.ndarray], int]:
    seed = 60_000 + 1_000 * list(WORLDS).index(name) + number  # none of credit.py's
    world = WORLDS[name](folder, seed)
    guessed = guess(world.path)
    data = prepare(world.path, source=guessed.source, out=folder / "data", seed=seed, **guessed.settings())
    training = {"seed": seed, "device": "cpu", "min_history": 1, "choose_on": "half"}
    config = Config.parse({"objective": {"name": "mle"}, "train": training}).with_changes(SETTINGS)
    return data, resolve(config, data), world.visit_rewards, seed


def _store(name: str, number: int, folder: Path) -> tuple[Prepared, Config, Callable[[Policy], np.ndarray], int]:
    seed = 700 + list(CASES).index(name) + 100 * number
    data, world, config = logged(CASES[name], folder, seed)
    return data, config, partial(values, world=world, episodes=EPISODES), seed


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """A row per world: slopes, gains as a part of what μ̂ earns; then each rule, paired by log with the default."""
    forms = ["closed", *(f"{beta:g}" for beta in BETAS)]
    yield "| world | logs | silent | closed | " + " | ".join(f"observed, β = {beta:g}" for beta in BETAS) + " |"
    yield "|---|--:|--:|" + "--:|" * len(forms)
    for world in dict.fromkeys(line["world"] for line in lines):
        mine = [line for line in lines if line["world"] == world]
        silent = sum(line["slope"] == 0 for line in mine)
        cells = [_mean([line["gains"][form][0] / line["J"] for line in mine]) for form in forms]
        yield f"| {world} | {len(mine)} | {silent} | {' | '.join(cells)} |"
    yield ""
    yield "| rule | gain over μ̂ | less the default | logs below the default by 2 errors and more |"
    yield "|---|--:|--:|--:|"
    for name, observed in RULES.items():
        ahead = [line["gains"][MILD if observed(line) else "closed"][0] - line["gains"]["closed"][0] for line in lines]
        errors = [float(np.hypot(line["gains"][MILD][1], line["gains"]["closed"][1])) for line in lines]
        below = sum(gain < -2 * se for gain, se in zip(ahead, errors, strict=True))
        gains = [(gain + line["gains"]["closed"][0]) / line["J"] for gain, line in zip(ahead, lines, strict=True)]
        parts = [gain / line["J"] for gain, line in zip(ahead, lines, strict=True)]
        yield f"| {name} | {_mean(gains)} | {_mean(parts)} | {below} of {len(lines)} |"


def _mean(gains: list[float]) -> str:
    spread = f" ± {100 * error(np.array(gains)):.1f}" if len(gains) > 1 else ""
    return f"{100 * np.mean(gains):+.1f}{spread} %"


def main() -> None:
    """Measure, or show what was measured."""
    parser = command_line(__doc__, processes=1)
    parser.add_argument("--only", default="", help="worlds whose name holds one of these texts, separated by |")
    parser.add_argument("--logs", type=int, default=3, help="logs of each world")
    parser.add_argument("--first", type=int, default=0, help="number of the first log")
    given = parser.parse_args()
    texts = given.only.split("|")
    chosen = [name for name in (*WORLDS, *STORES) if any(text in name for text in texts)]
    show(given, table, measure, [(name, given.first + number) for number in range(given.logs) for name in chosen])


if __name__ == "__main__":
    main()
