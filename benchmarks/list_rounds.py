"""Rounds of lists in a world whose truth is known: serve, log, rotate, prepare, train, judge, deploy, again.

    python benchmarks/list_rounds.py [--seed S] [--rounds N] [--requests N] [--attention] [--follow always] [--torch]

Fifty items, eight kinds of visitor, lists of ten. A policy that likes good items somewhat serves the first round; then
what the gate deploys does, or with `--follow always` every candidate, unless the gate says no. Lists go the whole way:
an export draws them, the service's log takes them with their answers, `rotate` moves them, `prepare` reads them.
`--attention`: places are looked at less and less. Printed for each round: the true value of a list of the policy that
served, of μ̂ estimated from its log, and of the candidate, with the gate's verdict. Values are exact. Training has its
default settings.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import localpolicy as lp
from localpolicy.model.policy import Policy
from localpolicy.serving.export import export
from localpolicy.serving.filters import Filter
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.log import Log
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import Feedback, Request, new_id
from localpolicy.serving.rotate import rotate
from localpolicy.simulation.lists import list_value

ITEMS, KINDS, PLACES = 50, 8, 10
VISITOR = 1000  # item ids from here on give the kind of a visitor; no list may show them
ONLY_ITEMS = Filter(exclude=tuple(range(VISITOR, VISITOR + KINDS)))
START, STEP = 1_700_000_000_000, 1_000  # milliseconds
Drawing = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]  # kinds, seed -> items and propensities


class World(NamedTuple):
    """Settings of the world: μ, the items' rewards, and the examination of places."""

    mu: np.ndarray  # [KINDS, ITEMS]
    worth: np.ndarray  # [KINDS, ITEMS]
    examined: np.ndarray  # [PLACES]

    @classmethod
    def made(cls, seed: int, *, attention: bool) -> World:
        """μ agrees with rewards at a correlation of about .7, on the scale of logits."""
        rng = np.random.default_rng(100 + seed)
        mu = np.exp(1.5 * rng.standard_normal((KINDS, ITEMS)))
        mu /= mu.sum(1, keepdims=True)
        z = np.log(mu)
        z = (z - z.mean(1, keepdims=True)) / z.std(1, keepdims=True)
        worth = 1 / (1 + np.exp(1.8 - 0.7 * z - np.sqrt(1 - 0.7**2) * rng.standard_normal((KINDS, ITEMS))))
        examined = 1 / np.log2(np.arange(PLACES) + 2) if attention else np.ones(PLACES)
        return cls(mu, worth, examined)

    def value(self, policy: np.ndarray) -> float:
        """What a list earns that is drawn from this policy [KINDS, ITEMS], without replacement."""
        return float(list_value(policy, self.worth, self.examined).mean())


def drawing(mu: np.ndarray) -> Drawing:
    """The first round's lists, from probabilities."""

    def draw(kinds: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        noise = np.random.default_rng(seed).gumbel(size=(len(kinds), ITEMS))
        items = np.argsort(-(np.log(mu[kinds]) + noise), axis=1)[:, :PLACES]
        share = np.take_along_axis(mu[kinds], items, axis=1)
        return items, share / (1 - np.cumsum(share, axis=1) + share)

    return draw


def exported(recommender: Recommender) -> Drawing:
    """Lists as the service draws them."""

    def draw(kinds: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        histories, filters = [[VISITOR + int(kind)] for kind in kinds], [ONLY_ITEMS] * len(kinds)
        lists = recommender.recommend(histories, PLACES, filters=filters, seed=seed)
        return np.array(lists.items), lists.propensity

    return draw


def in_torch(run: lp.Run) -> Drawing:
    """Lists as `lpi recommend` draws them."""

    def draw(kinds: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        histories = [[VISITOR + int(kind)] for kind in kinds]
        lists = run.policy().recommend(histories, PLACES, sample=True, exclude=ONLY_ITEMS.exclude, seed=seed)
        assert lists.propensity is not None
        return np.array(lists.items), lists.propensity.double().numpy()

    return draw


def laws(policy: Policy) -> np.ndarray:
    """π(a|kind) [KINDS, ITEMS]; 0 of an item that it does not know."""
    lists = policy.recommend([[VISITOR + kind] for kind in range(KINDS)], policy.n_items)
    found = np.zeros((KINDS, ITEMS))
    for row, (items, logp) in enumerate(zip(lists.items, lists.log_probability.double().numpy(), strict=True)):
        for item, value in zip(items, logp, strict=True):
            if item < VISITOR:
                found[row, item] = math.exp(value)
    return np.asarray(found / found.sum(1, keepdims=True))


def log_of(world: World, draw: Drawing, folder: Path, *, requests: int, version: str, seed: int) -> Path:
    """Serve and rotate: the folder of event files."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(KINDS, size=requests)
    items, propensity = draw(kinds, seed)
    clicked = rng.random(items.shape) < world.worth[kinds[:, None], items] * world.examined
    log = Log(folder / "log.db")
    waiting = []
    for number, kind in enumerate(kinds):
        moment = START + number * STEP
        request = Request(
            id=new_id(moment), time=moment, person=f"{version}-{number}", history=[(VISITOR + int(kind), "click")],
            items=items[number].tolist(), propensities=propensity[number].tolist(), policy=version, beta=None,
            mode="drawn", floor=0.0, item_filter=ONLY_ITEMS, deferred=False, share=1.0,
        )  # fmt: skip
        waiting.append(log.append(request))
        for item in items[number][clicked[number]].tolist():
            answer = Feedback(id=new_id(moment), request=request.id, item=item, event="click", reward=1.0,
                              time=moment + 1, late=False)  # fmt: skip
            waiting.append(log.append(answer))
    for one in waiting:
        one.result(60)
    log.close()
    rotate(log.address, out=folder / "events", config=JoinConfig(rewards="click=1.0"), upto=START + requests * STEP + 1)
    return folder / "events"


def rounds(world: World, *, seed: int, count: int, requests: int, always: bool, torch: bool, folder: Path) -> None:
    """Play them, a line of JSON each."""
    draw, serving, version = drawing(world.mu), world.mu, "first"
    for number in range(count):
        began, here = time.perf_counter(), folder / f"round-{number}"
        here.mkdir()
        events = log_of(world, draw, here, requests=requests, version=version, seed=1000 * seed + number)
        data = lp.prepare("events", [events], out=here / "data", test=0.3, validation=0.3)
        run = lp.train(data, "lpi_cb", out=here / "run", seed=seed, device="cpu")
        candidate, estimate = laws(run.policy()), laws(run.policy().logging())
        verdict = lp.gate(run.folder, against=["log"])
        before, after, estimated = (world.value(policy) for policy in (serving, candidate, estimate))
        improvement = run.manifest["improvement"]
        value = next((check for check in verdict.checks if check.figure == "value"), None)
        deploys = verdict.answer == "deploy" or (always and verdict.answer != "do not deploy")
        print(
            json.dumps(
                {"seed": seed, "round": number + 1, "serving": round(before, 4), "candidate": round(after, 4),
                 "change": round(after / before - 1, 4), "estimate_loses": round(1 - estimated / before, 4),
                 "gate": verdict.answer, "estimated": None if value is None else value.because, "deployed": deploys,
                 "beta": improvement["beta"], "slope": improvement["slope"], "said": improvement["said"],
                 "examined": improvement.get("places", {}).get("examined"),
                 "seconds": round(time.perf_counter() - began, 1)},
                ensure_ascii=False,
            ),
            flush=True,
        )  # fmt: skip
        if deploys:
            draw = in_torch(run) if torch else exported(export(run.folder, out=here / "export"))
            serving, version = candidate, f"round-{number + 1}"
    best = float(np.sort(world.worth, 1)[:, ::-1][:, :PLACES].dot(world.examined).mean())
    first, last = world.value(world.mu), world.value(serving)
    print(json.dumps({"seed": seed, "first": first, "last": last, "gain": last / first - 1, "best list": best}))


def main() -> None:
    """Run the rounds and print their values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--follow", choices=["gate", "always"], default="gate")
    parser.add_argument("--torch", action="store_true", help="draw without an export (onnxruntime is not needed)")
    given = parser.parse_args()
    world = World.made(given.seed, attention=given.attention)
    with tempfile.TemporaryDirectory() as folder:
        rounds(world, seed=given.seed, count=given.rounds, requests=given.requests,
               always=given.follow == "always", torch=given.torch, folder=Path(folder))  # fmt: skip


if __name__ == "__main__":
    main()
