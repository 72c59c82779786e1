"""Which estimator chooses β best, in worlds whose truth is known?

    python benchmarks/choices.py --out FILE.jsonl [--only TEXT] [--seeds 2] [--processes 2]
    python benchmarks/choices.py --table FILE.jsonl

On logs of some of the forty worlds (`worlds.py`) LPI is trained once. μ̂ and the tilts that the rule considers are then
estimated on the half of the validation sequences that chose no epoch, and measured against the truth. For each
estimator: the rank correlation of its lower bounds with the true values, and the regret of taking the largest, which is
what is missing to the best candidate, as a part of what the best gains over μ̂. Candidates with an effective sample of
less than a tenth do not compete, and logs whose critic is silent are left out, as in training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from collect import command_line, show
from scipy import stats
from worlds import CASES, OBJECTIVE, logged, values

from localpolicy.data.batches import Windows
from localpolicy.measure.decisions import decisions
from localpolicy.measure.score import ItemMeans, score
from localpolicy.measure.value import value_bounds
from localpolicy.training.beta_selection import MULTIPLES
from localpolicy.training.train import train
from localpolicy.training.validation import reward_scale

CHOSEN = (
    "bandit", "bandit, 3,000 sequences", "bandit, 10,000 sequences", "bandit, rare clicks", "bandit, 500 items",
    "bandit, good logging policy", "store", "store, 1,500 sequences", "store, rare clicks",
)  # fmt: skip
ESTIMATORS = ("snips", "dr", "log_smoothing")


def measure(task: tuple[str, int], *, episodes: int) -> dict[str, Any]:
    """One log: the true values of all candidates, and their bounds by every estimator."""
    name, number = task
    case, seed = CASES[name], list(CASES).index(name) + 100 * number
    with tempfile.TemporaryDirectory() as scratch:
        data, world, config = logged(case, Path(scratch), seed)
        run = train(data, out=Path(scratch) / "run", config=config)
        chosen, policy = run.manifest["improvement"], run.policy()
        line: dict[str, Any] = {"world": name, "number": number, "slope": chosen["slope"]}
        if not chosen["calibration"]["factor"]:
            return line
        policy.network.slope = chosen["calibration"]["factor"]
        betas = [multiple * chosen["calibration"]["spread"] for multiple in MULTIPLES]
        candidates = [policy.logging(), *map(policy.dialled, betas)]
        windows, model = Windows(data, "validation", config.data).part(1, 2), ItemMeans.fit(data)
        history = 0 if case.world == "bandit" else 1
        logs = [
            decisions(score(each, windows, events=data.events, reward_model=model, min_history=history))
            for each in candidates
        ]
        line["true"] = [float(values(each, world, episodes).mean()) for each in candidates]
        for estimator in ESTIMATORS:
            bounds = value_bounds(logs, estimator, scale=reward_scale(data))  # type: ignore[arg-type]
            line[estimator] = [bound.low for bound in bounds]
        line["effective"] = [bound.effective for bound in bounds]
        return line


def judged(line: dict[str, Any], estimator: str) -> tuple[float, float]:
    """Rank correlation with the truth, and regret of the largest bound."""
    compete = [place for place, share in enumerate(line["effective"]) if place == 0 or share >= 0.1]
    true, low = np.array(line["true"])[compete], np.array(line[estimator])[compete]
    gain = true.max() - true[0]
    regret = (true.max() - true[low.argmax()]) / gain if gain > 0 else 0.0
    return float(stats.spearmanr(low, true).statistic), float(regret)


def table(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A row per world: rank correlation and regret of each estimator, means over logs."""
    heard = [line for line in lines if "true" in line]
    yield "| world | logs | " + " | ".join(f"{name}: rank, regret" for name in ESTIMATORS) + " |"
    yield "|---|--:|" + "--:|" * len(ESTIMATORS)
    groups = {name: [line for line in heard if line["world"] == name] for name in CHOSEN}
    groups |= {f"all {kind}s": [line for line in heard if line["world"].startswith(kind)] for kind in OBJECTIVE}
    for name, group in groups.items():
        if group:
            figures = [np.mean([judged(line, estimator) for line in group], 0) for estimator in ESTIMATORS]
            cells = " | ".join(f"{rank:.2f}, {regret:.0%}" for rank, regret in figures)
            yield f"| {name} | {len(group)} | {cells} |"


def main() -> None:
    """Measure, or show what was measured."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="worlds whose name holds this text")
    parser.add_argument("--seeds", type=int, default=2, help="logs of each world")
    parser.add_argument("--episodes", type=int, default=4_096, help="visits behind a store's figures")
    given = parser.parse_args()
    tasks = [(name, number) for name in CHOSEN if given.only in name for number in range(given.seeds)]
    show(given, table, partial(measure, episodes=given.episodes), tasks)


if __name__ == "__main__":
    main()
