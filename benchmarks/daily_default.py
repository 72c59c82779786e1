"""What the daily round trains by: new shops whose truth is known, and which objective and start leave the log at all.

    python benchmarks/daily_default.py fresh --seeds 20 [--days 3] [--persons 700] [--processes 2]
    python benchmarks/daily_default.py crossings --seeds 5
    python benchmarks/daily_default.py seconds --seeds 1 --persons 12500          25,000 lists, cold and warm

Thirty items, six kinds of visitor, two visits of a list of five each; the item that a visitor came by tells the kind.
The first policy imitates what people found before there was a service. Every night a run is trained on all days so far,
with no setting of ours, from the deployed run's weights; the gate judges it against the log on the first night, then
against what is deployed, and what it deploys serves the next day. Printed: a line of JSON for each shop.

`crossings` trains on the first day's log by lpi_cb, lpi_rl and auto, cold and from the deployed weights; `seconds`
by auto alone, to see how long that takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ITEMS, KINDS, PLACES, VISITS = 30, 6, 5, 2
EVENTS = ["buy", "context", "none", "view"]
BUY, CONTEXT, NONE, VIEW = range(4)
REWARDS = {"buy": 1.0, "context": 0.0, "none": 0.0, "view": 0.2}
PAY = np.array([1.0, 0.0, 0.0, 0.2])
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}  # of the persons
Logits = Callable[[list[list[int]], list[list[str]]], np.ndarray]


class Day(NamedTuple):
    """What was shown in a day, [persons, 1 + VISITS · PLACES] each; the first column is what a visitor came by."""

    item: np.ndarray
    event: np.ndarray
    propensity: np.ndarray


class Shop:
    """A simulated shop: the items that each kind of visitor likes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        self.seed, self.z = seed, rng.standard_normal((KINDS, ITEMS))
        self.worth = 1 / (1 + np.exp(2.0 - 1.2 * self.z))  # the chance of an answer
        self.found = 0.8 * self.z + 0.8 * rng.standard_normal((KINDS, ITEMS))  # how people find items by themselves
        self.noise = rng.gumbel(size=(400, 1, ITEMS))

    def value(self, logits: Logits) -> float:
        """The mean reward of a first list, drawn by a policy."""
        given = logits([[kind] for kind in range(KINDS)], [["context"]] * KINDS)
        best = np.argsort(-(given[None] + self.noise), axis=2)[:, :, :PLACES]
        return float(0.6 * self.worth[np.arange(KINDS)[None, :, None], best].sum(2).mean())

    @property
    def best(self) -> float:
        """The mean reward of the best list for each kind."""
        return float(0.6 * np.sort(self.worth, axis=1)[:, -PLACES:].sum(1).mean())

    def day(self, logits: Logits, number: int, persons: int) -> Day:
        """Visitors come, get lists drawn without replacement, and answer."""
        rng = np.random.default_rng([self.seed, 2, number])
        kind = rng.integers(KINDS, size=persons)
        item, event, propensity = [kind[:, None]], [np.full((persons, 1), CONTEXT)], [np.full((persons, 1), np.nan)]
        for _ in range(VISITS):
            past, came = np.concatenate(item, axis=1), np.concatenate(event, axis=1)
            given = logits(past.tolist(), [[EVENTS[code] for code in row] for row in came])
            drawn = np.argsort(-(given + rng.gumbel(size=given.shape)), axis=1)[:, :PLACES]
            share = np.exp(given - given.max(1, keepdims=True))
            share = np.take_along_axis(share / share.sum(1, keepdims=True), drawn, axis=1)
            answered = rng.random(drawn.shape) < self.worth[kind[:, None], drawn]
            item.append(drawn)
            event.append(np.where(answered, np.where(rng.random(drawn.shape) < 0.5, BUY, VIEW), NONE))
            propensity.append(share / (1 - np.cumsum(share, axis=1) + share))
        return Day(*(np.concatenate(part, axis=1) for part in (item, event, propensity)))


def logits_of(policy: Any) -> Logits:
    """log π over all items, after histories of items and events."""
    order = np.argsort(policy.items["item_id"].to_numpy())
    known = set(policy.origin.events)

    def logits(items: list[list[int]], events: list[list[str]]) -> np.ndarray:
        if "context" not in known:  # it learnt from what people did: to it nothing else is history
            pairs = [
                [(a, "view" if e == "context" else e) for a, e in zip(*each, strict=True) if e != "none"]
                for each in zip(items, events, strict=True)
            ]
            items, events = [[a for a, _ in each] for each in pairs], [[e for _, e in each] for each in pairs]
        return np.asarray(policy.log_probabilities(items, events).double().numpy()[:, order])

    return logits


def write(folder: Path, days: Sequence[Day], *, organic: bool = False) -> Any:
    """A prepared data set: an impression log of lists, or what people did by themselves."""
    from localpolicy.data.store import Prepared
    from localpolicy.data.store_writer import writing

    day = Day(*(np.concatenate([getattr(each, name) for each in days]) for name in Day._fields))
    number = np.random.default_rng(0).permutation(len(day.item)) / len(day.item)
    kind, optional = ("interactions", ()) if organic else ("impressions", ("propensity", "above", "place"))
    events = ["buy", "view"] if organic else EVENTS
    above = np.tile(np.r_[0, np.tile(np.arange(PLACES), VISITS)], (len(day.item), 1))
    low = 0.0
    with writing(folder, kind=kind, events=events, rewards={e: REWARDS[e] for e in events}, optional=optional) as store:
        for split, share in SHARES.items():
            rows = (number >= low) & (number < low + share)
            low += share
            item, event = day.item[rows], day.event[rows]
            keep = event != NONE if organic else np.ones_like(event, bool)
            code = np.where(event == BUY, 0, 1) if organic else event
            came = 0.2 * (event == CONTEXT) if organic else 0.0
            arrays = {"item": item, "event": code, "reward": PAY[event] + came,
                      "propensity": day.propensity[rows], "above": above[rows], "place": above[rows]}  # fmt: skip
            names = ("item", "event", "reward", *optional)
            store.splits[split].append(keep.sum(1), {name: arrays[name][keep] for name in names})
        store.write_items(np.arange(ITEMS), np.bincount(day.item.ravel(), minlength=ITEMS))
    return Prepared(folder)


def opened(seed: int, persons: int, folder: Path) -> tuple[Shop, Any]:
    """A shop, and the first policy, which imitates what people found."""
    import localpolicy as lp

    shop = Shop(seed)
    organic = shop.day(lambda items, events: shop.found[[each[0] for each in items]], 0, persons)
    return shop, lp.train(
        write(folder / "organic", [organic], organic=True), "mle", out=folder / "0", seed=seed, device="cpu"
    )


def fresh(seed: int, *, days: int, persons: int) -> dict[str, Any]:
    """A new shop's first days: the gate's answer each night, and the truth."""
    import localpolicy as lp

    with tempfile.TemporaryDirectory() as scratch:
        folder, began = Path(scratch), time.perf_counter()
        shop, deployed = opened(seed, persons, folder)
        first, logs, nights = shop.value(logits_of(deployed.policy())), [], []
        for day in range(1, days + 1):
            serving = logits_of(deployed.policy())
            before = shop.value(serving)
            logs.append(shop.day(serving, day, persons))
            data = write(folder / f"data-{day}", logs)
            run = lp.train(
                data,
                "auto",
                out=folder / str(day),
                seed=1000 * seed + day,
                warm_start=str(deployed.folder),
                device="cpu",
            )
            against = ["log"] if deployed.folder.name == "0" else [deployed]
            verdict = lp.gate(run, against=against, data=data)
            after, gain = shop.value(logits_of(run.policy())), verdict.better
            nights.append({
                "objective": run.manifest["objective"], "answer": verdict.answer, "estimate": gain and gain.value,
                "low": gain and gain.low, "high": gain and gain.high, "true": round(after - before, 4),
                "seconds": round(run.manifest["seconds"], 1),
            })  # fmt: skip
            deployed = run if verdict.deploy else deployed
        last = shop.value(logits_of(deployed.policy()))
        deploys = [day for day, night in enumerate(nights, 1) if night["answer"] == "deploy"]
        return {
            "seed": seed, "first": round(first, 4), "last": round(last, 4), "best": round(shop.best, 4),
            "gains on night": deploys[0] if deploys else None,
            "false deploys": sum(nights[day - 1]["true"] <= 0 for day in deploys), "nights": nights,
            "seconds": round(time.perf_counter() - began, 1),
        }  # fmt: skip


def crossings(
    seed: int, *, persons: int, objectives: Sequence[str] = ("lpi_cb", "lpi_rl", "auto"), **_: Any
) -> dict[str, Any]:
    """One day's log, trained on by each objective, cold and warm."""
    import localpolicy as lp

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shop, deployed = opened(seed, persons, folder)
        serving = logits_of(deployed.policy())
        data = write(folder / "data", [shop.day(serving, 1, persons)])
        found: dict[str, Any] = {"seed": seed, "first": round(shop.value(serving), 4)}
        for objective in objectives:
            for start, weights in (("cold", None), ("warm", str(deployed.folder))):
                run = lp.train(
                    data,
                    objective,
                    out=folder / f"{objective}-{start}",
                    seed=1000 * seed,
                    device="cpu",
                    warm_start=weights,
                )
                verdict, made = lp.gate(run, against=["log"], data=data), run.manifest["improvement"]
                found[f"{objective}, {start}"] = {
                    "objective": run.manifest["objective"], "true": round(shop.value(logits_of(run.policy())), 4),
                    "answer": verdict.answer, "estimate": verdict.better and verdict.better.value,
                    "chosen by": made["chosen_by"], "stays": made["slope"] == 0,
                    "seconds": round(run.manifest["seconds"], 1),
                }  # fmt: skip
        return found


def main(words: Sequence[str] | None = None) -> None:
    """Parse the command line and run the trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fresh", "crossings", "seconds"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--persons", type=int, default=700, help="a day")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(words)
    kinds: dict[str, Callable[..., dict[str, Any]]] = {
        "fresh": fresh, "crossings": crossings, "seconds": partial(crossings, objectives=("auto",))
    }  # fmt: skip
    one = kinds[given.what]
    with ProcessPoolExecutor(given.processes) as pool:
        waiting = [
            pool.submit(one, seed, days=given.days, persons=given.persons)
            for seed in range(given.first, given.first + given.seeds)
        ]
        for each in waiting:
            print(json.dumps(each.result()), flush=True)


if __name__ == "__main__":
    main()
