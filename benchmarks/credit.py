"""Should a critic learn from all rows of a log of views and purchases, or from first meetings, as the gate judges?

    python benchmarks/credit.py --out FILE.jsonl [--only TEXT] [--logs 5] [--first 0] [--processes 2]
    python benchmarks/credit.py --table FILE.jsonl
    python benchmarks/credit.py --log LOG.parquet [--logs 3] [--device cuda]

Each log is simulated and prepared; two estimates of its policy are trained, and on the first of them one critic of each
kind of credit. Each improved policy is measured against the truth as it stands (the β of the defaults), at β that move
it equally far from μ̂ among items that were not met before (JS of 0.02, 0.05 and 0.1), and by the gate. Of a real log
(`--log`, one training seed after another, with the default settings) there is no truth: the gate's verdict, and ranks
compared with those of the simple baselines.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from collect import command_line, show
from first_hour import SETTINGS, simulated, visits
from shelves import Shelves

from localpolicy.data.batches import Windows
from localpolicy.data.guess.guess import guess
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.judge.gate import gate
from localpolicy.measure.answers import RANKS
from localpolicy.measure.score import score, seen_pairs
from localpolicy.model.baselines import BASELINES
from localpolicy.model.policy import Policy
from localpolicy.runs.config import Config
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.training.setup import resolve
from localpolicy.training.train import train

CREDITS: dict[str, dict[str, Any]] = {
    "rows": {"credit": "rows"}, "rows, γ 0": {"credit": "rows", "gamma": 0.0}, "meetings": {},
}  # fmt: skip
BUDGETS = (0.02, 0.05, 0.1)  # JS among items not met before
VISITS = 8_192


class World(NamedTuple):
    """A log, and what a policy truly earns where it came from, visit by visit."""

    path: Path
    visit_rewards: Callable[[Policy], np.ndarray]
    unmet: Callable[[Policy], np.ndarray] | None = None  # where it is served without what was met before


def shelves(sessions: int, config: Shelves) -> Callable[[Path, int], World]:
    """A log of such a shop; J by visits in which a policy shows everything."""

    def make(folder: Path, seed: int) -> World:
        shop = config.at(seed)
        shop.write(folder / "log.parquet", sessions, seed)
        rewards = partial(shop.value, visits=VISITS, seed=seed + 1)
        return World(folder / "log.parquet", rewards, partial(rewards, unmet=True))

    return make


def from_first_hour(make: Callable[[Path, int], Any]) -> Callable[[Path, int], World]:
    """A log of that benchmark."""

    def made(folder: Path, seed: int) -> World:
        log = make(folder, seed)
        return World(log.path, log.visit_rewards)

    return made


CHOSE: dict[str, Callable[[Path, int], World]] = {
    "visits, equal products": from_first_hour(visits(2_500)),
    "visits, later, viewed again, equal products": from_first_hour(visits(2_500, later=1, people=1.0, again=0.25)),
    "visits, unlike": from_first_hour(visits(2_500, unlike=1.5)),
    "visits, later, unlike": from_first_hour(visits(2_500, unlike=1.5, later=2, people=1.0)),
    "visits, a cart before, viewed again, unlike": from_first_hour(visits(2_500, unlike=1.5, cart=True, again=0.25)),
    "shop without propensities": from_first_hour(
        simulated("store", 2_500, "items=60", "item_quality=2", interactions=True)
    ),
    "shelves, purchases later": shelves(2_500, Shelves(later=2, person=1.2)),
    "shelves, 120 products, bought later": shelves(4_000, Shelves(products=120, later=1, person=1.0, again=0.1)),
    "shelves": shelves(2_500, Shelves()),
    "shelves, equal products": shelves(2_500, Shelves(appeal=0.0, taste=0.0, quality=0.0)),
    "shelves, later, many shown again, equal products": shelves(
        2_500, Shelves(appeal=0.0, taste=0.0, quality=0.0, later=2, again=0.4, person=1.2)
    ),
    "shelves, many shown again, 200 products": shelves(6_000, Shelves(products=200, again=0.4)),
    "shelves, bait": shelves(2_500, Shelves(bait=0.7, taste=0.3)),
    "shelves, bought again": shelves(2_500, Shelves(again_view=1.0, again_buy=1.0, again=0.3)),
    "visits, 200 products, viewed again, unlike": from_first_hour(
        visits(6_000, products=200, unlike=0.7, again=0.4, near=0.2)
    ),
}  # fmt: skip
CONFIRM: dict[str, Callable[[Path, int], World]] = {
    "shelves, 90 products, bait, again worth a third": shelves(
        3_000, Shelves(products=90, bait=0.4, taste=0.5, again=0.1, again_view=0.7, again_buy=0.3, later=1)
    ),
    "shelves, 150 products, hardly looked at again": shelves(
        4_000, Shelves(products=150, again_view=0.2, again=0.3, quality=0.8)
    ),
    "shelves, 90 products, bait, again as good as new": shelves(
        3_000, Shelves(products=90, bait=0.5, again_view=1.0, again_buy=1.0)
    ),
    "shop without propensities, 100 products": from_first_hour(
        simulated("store", 3_000, "items=100", "item_quality=1", interactions=True)
    ),
    "visits, 100 products, a cart before, persons differ": from_first_hour(
        visits(3_000, products=100, unlike=1.0, cart=True, again=0.15, people=1.0)
    ),
    "shelves, 100 products, all equal": shelves(
        3_000, Shelves(products=100, appeal=0.0, taste=0.0, quality=0.0, again=0.3, person=1.0)
    ),
}  # fmt: skip
WORLDS = CHOSE | CONFIRM


def js(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """JS of two rows of log-probabilities, -inf where both have nothing: [N]."""
    middle = torch.logaddexp(first, second) - np.log(2)
    parts = [torch.where(each > -torch.inf, each.exp() * (each - middle), 0.0).sum(1) for each in (first, second)]
    return (parts[0] + parts[1]) / 2


class Contexts:
    """The test contexts of a log, and how far a policy is there from its own μ̂."""

    def __init__(self, data: Prepared, policy: Policy, config: Config) -> None:
        windows = Windows(data, "test", config.data)
        self.batch = next(iter(windows.in_order(300)))
        at = self.batch.scored
        self.position, self.item = seen_pairs(windows, self.batch.sequences[self.batch.row[at]], self.batch.history[at])
        self.base = self._rows(policy.logging())

    def _rows(self, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
        """log π among what was not met, [N, V]; and the share of what was, [N]."""
        rows = policy.logits(self.batch)
        logp = rows.chunk(0, rows.shape[1]).double().clone().log_softmax(1)
        met = torch.zeros_like(logp, dtype=torch.bool).index_put_((self.position, self.item), torch.tensor(True))
        share = (logp.exp() * met).sum(1)
        return logp.masked_fill(met, -torch.inf).log_softmax(1), share

    def of(self, policy: Policy) -> tuple[float, float, float]:
        """JS from μ̂ among what was not met; the share of what was, and μ̂'s."""
        rows, share = self._rows(policy)
        return float(js(rows, self.base[0]).mean()), float(share.mean()), float(self.base[1].mean())

    def at(self, policy: Policy, budget: float) -> Policy:
        """The same critic at the β that meets a budget of JS, or the closest it comes."""
        low, high = -9.0, 9.0  # log β
        for _ in range(25):
            middle = (low + high) / 2
            low, high = (low, middle) if self.of(policy.dialled(np.exp(middle)))[0] <= budget else (middle, high)
        return policy.dialled(np.exp(high))


def error(values: np.ndarray) -> float:
    """Standard error of a mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


def measure(task: tuple[str, int], *, credits: tuple[str, ...], frontier: bool) -> dict[str, Any]:
    """Measure one log: true gain of each kind of credit, and the gate's verdict."""
    name, number = task
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[os.getpid() % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    seed, began = 20_000 + 1_000 * list(WORLDS).index(name) + number, time.perf_counter()
    line: dict[str, Any] = {"world": name, "number": number, "seed": seed, "credits": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        world = WORLDS[name](folder, seed)
        guessed = guess(world.path)
        data = prepare(world.path, source=guessed.source, out=folder / "data", seed=seed, **guessed.settings())
        training = {"seed": seed, "device": "cpu", "min_history": 1, "choose_on": "half"}
        config = resolve(Config.parse({"objective": {"name": "mle"}, "train": training}).with_changes(SETTINGS), data)
        estimates = [
            train(data, out=folder / f"mle-{each}", config=config.trained_with(seed=each)) for each in REFERENCE_SEEDS
        ]
        base = world.visit_rewards(estimates[0].policy())
        line["J"] = float(base.mean())
        if world.unmet is not None:
            line["unmet"] = float((base_unmet := world.unmet(estimates[0].policy())).mean())
        for credit in credits:
            objective = {"name": "lpi_rl", "logging": str(estimates[0].folder), **CREDITS[credit]}
            changed = Config.parse({**config.model_dump(), "objective": objective})
            run = train(data, out=folder / credit, config=changed)
            verdict = gate(run, against=estimates, data=data, device="cpu")
            policy, made = run.policy(), run.manifest["improvement"]
            gain, contexts = world.visit_rewards(policy) - base, Contexts(data, policy, run.config)
            found: dict[str, Any] = {
                "gain": float(gain.mean()), "se": error(gain), "answer": verdict.answer, "slope": made["slope"],
                "calibration": made["calibration"], "beta": made["beta"], "js": contexts.of(policy),
                "checks": {each.figure: [each.outcome, each.because] for each in verdict.checks},
            }  # fmt: skip
            if world.unmet is not None:
                gain = world.unmet(policy) - base_unmet
                found["unmet"] = [float(gain.mean()), error(gain)]
            if frontier:
                policy.network.slope = 1.0
                moved = {budget: contexts.at(policy, budget) for budget in BUDGETS}
                gains = {budget: world.visit_rewards(each) - base for budget, each in moved.items()}
                found["frontier"] = {str(key): [float(each.mean()), error(each)] for key, each in gains.items()}
            line["credits"][credit] = found
        line["seconds"] = round(time.perf_counter() - began, 1)
    return line


def real(path: Path, seed: int, *, device: str, settings: list[str]) -> dict[str, Any]:
    """Measure a real log: the gate's verdict on each kind of credit; nDCG@20 of all rows, and of first meetings."""
    line: dict[str, Any] = {"log": path.name, "seed": seed, "answers": {}, "ranks": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder, guessed = Path(scratch), guess(path)
        data = prepare(path, source=guessed.source, out=folder / "data", seed=0, **guessed.settings())
        training = {"seed": seed, "device": device, "min_history": 1, "choose_on": "half"}
        config = resolve(Config.parse({"objective": {"name": "mle"}, "train": training}).with_changes(settings), data)
        seeds = [each + 10 * seed for each in REFERENCE_SEEDS]
        estimates = [train(data, out=folder / f"mle-{each}", config=config.trained_with(seed=each)) for each in seeds]
        policies: dict[str, Any] = {"mle": estimates[0].policy()}
        for credit in ("rows", "meetings"):
            objective = {"name": "lpi_rl", "logging": str(estimates[0].folder), **CREDITS[credit]}
            run = train(data, out=folder / credit, config=Config.parse({**config.model_dump(), "objective": objective}))
            verdict = gate(run, against=estimates, data=data, device=device)
            asked = ("reward per answer", "worth and number of answers", "baselines")
            said = {each.figure: [each.outcome, each.because] for each in verdict.checks if each.figure in asked}
            found = {"answer": verdict.answer, "sentence": verdict.sentence, "checks": said}
            line["answers"][credit] = {**found, "improvement": run.manifest["improvement"]}
            policies[credit] = run.policy()
        policies |= {name: fit(data) for name, fit in BASELINES.items()}
        windows = Windows(data, "test", config.data, device=device)
        for name, policy in policies.items():
            if hasattr(policy, "network"):
                policy.network.to(device)
            every, unmet = (score(policy, windows, events=data.events, unseen=each) for each in (False, True))
            ranks = every.metric(RANKS), every.metric(RANKS)[every.repeat], unmet.metric(RANKS)[~unmet.repeat]
            line["ranks"][name] = [[float(each.mean()), len(each)] for each in ranks]
    return line


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """A row per world and kind of credit: gains as a part of what μ̂ earns, the mean of logs ± its error."""
    yield (
        "| world | credit | logs | gain | gain, unmet alone | JS, unmet | share met | "
        + " | ".join(f"at JS {budget:g}" for budget in BUDGETS)
        + " | deploy | do not | cannot tell |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|" + "--:|" * (len(BUDGETS) + 3)
    for world in WORLDS:
        mine = [line for line in lines if line["world"] == world]
        for credit in CREDITS if mine else ():
            found = [(line["credits"][credit], line["J"]) for line in mine if credit in line["credits"]]
            if not found:
                continue
            cells = [_mean([each["gain"] / old for each, old in found])]
            without = [line["credits"][credit]["unmet"][0] / line["unmet"] for line in mine if "unmet" in line]
            cells.append(_mean(without) if without else "")
            cells.append(f"{np.mean([each['js'][0] for each, _ in found]):.3f}")
            met = [np.mean([each["js"][place] for each, _ in found]) for place in (2, 1)]
            cells.append(f"{met[0]:.2f} → {met[1]:.2f}")
            for budget in map(str, BUDGETS):
                known = [each["frontier"][budget][0] / old for each, old in found if "frontier" in each]
                cells.append(_mean(known) if known else "")
            answers = [each["answer"] for each, _ in found]
            cells += [str(answers.count(each)) for each in ("deploy", "do not deploy", "cannot tell")]
            yield f"| {world} | {credit} | {len(found)} | {' | '.join(cells)} |"


def _mean(values: list[float]) -> str:
    spread = f" ± {100 * error(np.array(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):+.1f}{spread} %"


def main() -> None:
    """Measure, or show what was measured."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="worlds whose name holds one of these texts, separated by |")
    parser.add_argument("--confirm", action="store_true", help="those that chose nothing")
    parser.add_argument("--credits", default="|".join(CREDITS), help="kinds of credit, separated by |")
    parser.add_argument("--logs", type=int, default=5, help="logs of each world")
    parser.add_argument("--first", type=int, default=0, help="number of the first log")
    parser.add_argument("--no-frontier", action="store_true", help="the defaults' β alone")
    parser.add_argument("--log", type=Path, help="a real log, as `lpi go` reads it")
    parser.add_argument("--device", default="cpu", help="where runs of a real log are trained")
    parser.add_argument("--set", action="append", default=[], help="settings of runs of a real log")
    given = parser.parse_args()
    if given.log is not None:
        for seed in range(given.first, given.first + given.logs):
            line = json.dumps(real(given.log, seed, device=given.device, settings=given.set), ensure_ascii=False)
            print(line, flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(line + "\n")
        return
    among, texts = CONFIRM if given.confirm else WORLDS, given.only.split("|")
    chosen = [name for name in among if any(text in name for text in texts)]
    tasks = [(name, given.first + number) for number in range(given.logs) for name in chosen]
    work = partial(measure, credits=tuple(given.credits.split("|")), frontier=not given.no_frontier)
    show(given, table, work, tasks)


if __name__ == "__main__":
    main()
