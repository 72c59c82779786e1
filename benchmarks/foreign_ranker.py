"""A layer on a foreign ranker against the truth, in shops whose seeds shaped nothing.

    python benchmarks/foreign_ranker.py gain --seeds 101 102 103 104 105   # what the layer earns, and its rivals
    python benchmarks/foreign_ranker.py null --worlds 200                  # false deploys where nothing can be gained
    python benchmarks/foreign_ranker.py again --worlds 200                 # the same of second layers
    python benchmarks/foreign_ranker.py noise --worlds 200                 # finite β of a critic that is noise
    python benchmarks/foreign_ranker.py plan --worlds 40                   # planned costs and lists against the needed
    python benchmarks/foreign_ranker.py speed                              # of a draw, and of a layer

Rivals of the layer: the ranker's own list without a draw; its draw at the layer's entropy; a critic alone that does not
see the foreign score. `gain` withholds the columns in a second row, and takes a second round on the layer's own log in
a third, after people's wishes have drifted. `plan` counts the lists that would detect a layer's true gain in
four of five logs, from the spread of the verdict's own estimate on 8,000 other lists. One JSON object per line; worlds
may be shared out over processes with --first.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

import localpolicy as lp
from localpolicy.ranker.critic import Crossed
from localpolicy.ranker.features import SCORE, Encoder, Seen
from localpolicy.ranker.improve import SHARES, Improvement, advantages, improve, judged, persons_apart
from localpolicy.ranker.law import law_of, standard_scores
from localpolicy.ranker.layer import Layer
from localpolicy.ranker.log import RequestLog
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import ListValues
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig, Requests, drawn

Z = 1.645 + 0.842  # of 80 % power at a one-sided level of 5 %
FRESH = 20_000  # requests on which the truth is taken
SMALL = {"items": 300, "people": 800, "candidates": 30, "places": 8}


def standardised(log: RequestLog) -> np.ndarray:
    """Scores in deviations of their request [M]."""
    score = np.empty(len(log.item))
    for block in log.padded():
        score[block.rows[block.real]] = standard_scores(log, block)[block.real]
    return score


def tilt(layer: Layer, world: ForeignRanker, requests: Requests) -> np.ndarray:
    """Â / β of a layer [N, C]."""
    if math.isinf(layer.beta):
        return np.zeros_like(requests.score)
    none = np.zeros((len(requests.item), 1), bool)
    log = read_requests(*world.tables(requests, np.zeros_like(none, np.int64), none), items=world.items())
    worth = {event: one["weight"] for event, one in layer.about["critics"].items()}
    found = advantages(log, layer.encoder, standardised(log), layer.critics, worth, np.arange(len(log)))
    return found.reshape(requests.score.shape) / layer.beta


def entropy(logits: np.ndarray) -> float:
    """Mean entropy of the first place."""
    weight = np.exp(logits - logits.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    return float(-(weight * np.log(np.maximum(weight, 1e-300))).sum(1).mean())


def as_random(world: ForeignRanker, requests: Requests, aim: float) -> float:
    """The temperature at which the ranker's own draw has this entropy."""
    found = optimize.brentq(lambda log_tau: entropy(world.law(requests, math.exp(log_tau))) - aim, -6, 3)
    return math.exp(found)


def without_score(log: RequestLog, requests: np.ndarray) -> np.ndarray:
    """log-odds [M] of a crossed critic that sees all but the foreign score."""
    score, rows = standardised(log), log.shown
    codings = [one for one in Encoder.learnt(log, rows, score).codings if one.name != SCORE]
    encoder = Encoder(codings)

    def seen(some: np.ndarray, place: np.ndarray) -> Seen:
        codes, numbers = encoder.of_log(log, some, score)
        return Seen(codes, numbers, place)

    inside = np.isin(log.request[rows], requests)
    train, held = rows[inside][: int(0.8 * inside.sum())], rows[inside][int(0.8 * inside.sum()) :]
    reward = np.minimum(log.reward(), 1.0)
    critic = Crossed(encoder.codings, int(log.place.max()))
    critic.fit(seen(train, log.place[train] - 1), reward[train], np.ones(len(train)),
               seen(held, log.place[held] - 1), reward[held], np.ones(len(held)))  # fmt: skip
    every = np.arange(len(log.item))
    return critic.log_odds(seen(every, np.zeros(len(every), np.int64)))


def learnt(
    world: ForeignRanker, requests: Requests, logits: np.ndarray | None, out: Path, rng: Any, *, alone: bool = True
) -> Improvement:
    """A layer from lists of the ranker, or of a law with logits, whose probabilities are logged, perhaps `alone`."""
    lists = world.lists(requests, rng) if logits is None else drawn(logits, world.config.places, rng)
    log, outcomes = world.tables(requests, lists, world.clicks(requests, lists, rng), logits=logits)
    if not alone:  # as a layer logs them: with what the ranker's own scores are divided by
        log = log.append_column("temperature", [np.full(len(log), world.config.temperature)])
        log = log.append_column("standardise", [np.full(len(log), True)])
    return improve(log, outcomes, items=world.items(), out=out, critics=("logistic",))


def gain(seed: int, count: int, **settings: Any) -> Iterator[dict[str, Any]]:
    """What the layer and its rivals earn, in truth."""
    for withheld in (False, True):
        world, rng = ForeignRanker(RankerConfig(withheld=withheld, **settings), seed=seed), np.random.default_rng(seed)
        requests, fresh = world.requests(count, rng), world.requests(FRESH, rng)
        places = world.config.places
        with tempfile.TemporaryDirectory() as folder:
            result = learnt(world, requests, None, Path(folder) / "one", rng)
            added = tilt(result.layer(), world, fresh)
            law = world.law(fresh)
            tau = as_random(world, fresh, entropy(law + added))
            lists = {
                "own": np.argsort(-fresh.score, axis=1, kind="stable")[:, :places],
                "drawn": drawn(law, places, rng), "layer": drawn(law + added, places, rng),
                "same entropy": drawn(world.law(fresh, tau), places, rng),
                "oracle": np.argsort(-fresh.log_odds, axis=1)[:, :places],
            }  # fmt: skip
            if not withheld:
                whole = Requests(*(np.concatenate(pair) for pair in zip(requests, fresh, strict=True)))
                shown = np.concatenate([world.lists(requests, rng), lists["own"]])
                clicks = world.clicks(whole, shown, rng)
                log = read_requests(*world.tables(whole, shown, clicks), items=world.items())
                alone = without_score(log, np.arange(count)).reshape(whole.score.shape)[count:]
                lists["model alone"] = np.argsort(-alone, axis=1)[:, :places]
            value = {name: world.value(fresh, one) for name, one in lists.items()}
            row = {"kind": "withheld" if withheld else "gain", "seed": seed, "requests": count,
                   "beta": result.to_dict()["beta"], "verdict": result.verdict, "why": result.why,
                   "estimated": None if result.gain is None else result.gain.mean / (result.earned or 1),
                   **{name: float(one.mean()) for name, one in value.items()}}  # fmt: skip
            for name in set(value) - {"layer"}:
                difference = value["layer"] - value[name]
                row[f"t over {name}"] = float(difference.mean() / (difference.std() / math.sqrt(FRESH) + 1e-12))
            yield row
            if not withheld:
                yield second(world, requests, fresh, result, Path(folder), rng, seed)


def second(
    world: ForeignRanker, before: Requests, fresh: Requests, first: Improvement, folder: Path, rng: Any, seed: int
) -> dict[str, Any]:
    """A second round on the layer's own log, after half of what people wish has turned."""
    world.weekend_effect = world.weekend_effect * np.where(np.arange(len(world.weekend_effect)) % 2, -1, 1)
    requests, after = world.requests(len(before.item), rng), world.requests(FRESH, rng)
    served = world.law(requests) + tilt(first.layer(), world, requests)
    result = learnt(world, requests, served, folder / "two", rng)
    places = world.config.places
    law = world.law(after) + tilt(first.layer(), world, after)
    again = law + tilt(result.layer(), world, after)
    value = {"own": world.value(after, np.argsort(-after.score, axis=1)[:, :places]),
             "first layer": world.value(after, drawn(law, places, rng)),
             "second layer": world.value(after, drawn(again, places, rng))}  # fmt: skip
    difference = value["second layer"] - value["first layer"]
    return {"kind": "second round", "seed": seed, "verdict": result.verdict, "why": result.why,
            "beta": result.to_dict()["beta"], **{name: float(one.mean()) for name, one in value.items()},
            "t over first layer": float(difference.mean() / (difference.std() / math.sqrt(FRESH) + 1e-12))}  # fmt: skip


def null(seed: int, count: int) -> dict[str, Any]:
    """A shop whose ranker cannot be improved: every other one where people stop, every fourth pair without columns."""
    stops, withheld = (0.6 if seed % 2 else 0.0), seed // 2 % 2 == 1
    config = RankerConfig(flawless=True, stops=stops, withheld=withheld, **SMALL)
    world, rng = ForeignRanker(config, seed=seed), np.random.default_rng(seed)
    requests, fresh = world.requests(count, rng), world.requests(FRESH // 4, rng)
    with tempfile.TemporaryDirectory() as folder:
        result = learnt(world, requests, None, Path(folder) / "run", rng)
        law = world.law(fresh) + tilt(result.layer(), world, fresh)
    own = world.value(fresh, np.argsort(-fresh.score, axis=1)[:, : config.places]).mean()
    layer = world.value(fresh, drawn(law, config.places, rng)).mean()
    return {"kind": "null", "seed": seed, "stops": stops, "withheld": withheld, "verdict": result.verdict,
            "why": result.why, "beta": result.to_dict()["beta"], "truth": float(layer / own - 1)}  # fmt: skip


def again(seed: int, count: int) -> dict[str, Any]:
    """A second layer that can gain nothing: half over a flawless ranker, whose first layer is a tilt of no use; half
    over a first layer that is the best there is, drawn by the true log-odds. In half people stop after a click; half of
    the logs are as a layer writes them, with the ranker's own temperature, and half have probabilities alone.
    """
    stops, flawless, alone = (0.6 if seed % 2 else 0.0), seed // 2 % 2 == 1, seed // 4 % 2 == 1
    config = RankerConfig(flawless=flawless, stops=stops, **SMALL)
    world, rng = ForeignRanker(config, seed=seed), np.random.default_rng(seed)
    requests, fresh = world.requests(count, rng), world.requests(FRESH // 4, rng)
    with tempfile.TemporaryDirectory() as folder:
        if flawless:
            first = learnt(world, world.requests(count, rng), None, Path(folder) / "first", rng)
            useless = tilt(first.layer(beta=1.0), world, requests), tilt(first.layer(beta=1.0), world, fresh)
            sizes = [1 / one.std(1, keepdims=True).mean() for one in useless]  # κ = 1
            served, serves = (world.law(at) + size * one
                              for at, size, one in zip((requests, fresh), sizes, useless, strict=True))  # fmt: skip
        else:
            served, serves = (world.law(at._replace(score=at.log_odds)) for at in (requests, fresh))
        result = learnt(world, requests, served, Path(folder) / "second", rng, alone=alone)
        law = (serves if alone else world.law(fresh)) + tilt(result.layer(), world, fresh)
    own = np.argsort(-fresh.score, axis=1)[:, : config.places]
    rival = world.value(fresh, own if flawless else drawn(serves, config.places, rng)).mean()
    layer = world.value(fresh, drawn(law, config.places, rng)).mean()
    return {"kind": "again", "seed": seed, "stops": stops, "flawless": flawless, "alone": alone,
            "verdict": result.verdict, "why": result.why, "beta": result.to_dict()["beta"],
            "over own": None if result.gain is None else result.gain.low > 0,
            "truth": float(layer / rival - 1)}  # fmt: skip


def noise(seed: int, count: int) -> dict[str, Any]:
    """A shop whose critic is noise: of each item, or in every other shop of each candidate. β should be ∞."""
    world, rng = ForeignRanker(RankerConfig(**SMALL), seed=seed), np.random.default_rng(seed)
    requests = world.requests(count, rng)
    lists = world.lists(requests, rng)
    log = read_requests(*world.tables(requests, lists, world.clicks(requests, lists, rng)), items=world.items())
    law, (_, _, choice, verdict) = law_of(log), persons_apart(log, seed)
    advantage = rng.normal(size=len(log.item)) if seed % 2 else rng.normal(size=len(log.items))[log.item]
    found = judged(log, law, advantage, log.reward(), world.examined, choice, verdict)
    return {"kind": "noise", "seed": seed, "of": "candidates" if seed % 2 else "items", "verdict": found["verdict"],
            "why": found["why"],
            "beta": None if math.isinf(found["beta"]) else found["beta"]}  # fmt: skip


def plan(seed: int, count: int, candidates: list[int], places: list[int]) -> dict[str, Any]:
    """What `explore plan` says from an undrawn log, and the result of the draw."""
    rng = np.random.default_rng([seed, 99])
    tau = float(rng.choice([0.1, 0.2]))
    config = RankerConfig(
        items=400, people=1000, candidates=int(rng.choice(candidates)), places=int(rng.choice(places)),
        temperature=tau, miss=float(rng.choice([0.5, 1.0, 1.5])), trust=float(rng.choice([0.6, 1.0, 1.6])),
        base=float(rng.choice([-2.2, -3.0])),
    )  # fmt: skip
    world = ForeignRanker(config, seed=seed)
    before, drawn_from, after, fresh = (world.requests(size, rng) for size in (3000, count, 8000, FRESH))
    shown = np.argsort(-before.score, axis=1, kind="stable")[:, : config.places]
    undrawn = world.tables(before, shown, world.clicks(before, shown, rng))
    own = world.value(fresh, np.argsort(-fresh.score, axis=1)[:, : config.places]).mean()
    cost = 1 - np.mean([world.value(fresh, world.lists(fresh, rng)).mean() for _ in range(4)]) / own
    with tempfile.TemporaryDirectory() as folder:
        result = learnt(world, drawn_from, None, Path(folder) / "run", rng)
        layer = result.layer()
        earned = world.value(fresh, drawn(world.law(fresh) + tilt(layer, world, fresh), config.places, rng)).mean()
        lists = world.lists(after, rng)
        log = read_requests(*world.tables(after, lists, world.clicks(after, lists, rng)), items=world.items())
        added = tilt(layer, world, after).ravel()
    gained = earned / own - 1
    row = {"kind": "plan", "seed": seed, "temperature": tau, "candidates": config.candidates, "places": config.places,
           "miss": config.miss, "trust": config.trust, "base": config.base, "cost": cost, "gain": gained,
           "verdict": result.verdict, "why": result.why}  # fmt: skip
    asked = {"temperatures": (tau,), "pins": (0,), "shares": (1.0,), "gain": max(gained, 0.005)}
    told = lp.explore.plan(*undrawn, **asked)
    stated = lp.explore.plan(undrawn[0], reward=told.reward, **asked)
    row |= {"planned cost": told.draws[0].cost, "planned cost, no answers": stated.draws[0].cost}
    if not math.isinf(layer.beta) and gained > 0:
        values = ListValues(log, result.law, np.arange(len(log)), world.examined, log.reward())
        found = values.gain(values.weights(lambda block: block.of(added, 0.0)), over=values.undrawn)
        needed = (Z / (gained * own)) ** 2 * found.se**2 * len(log) / SHARES[-1]
        row |= {"needed": needed, "planned": told.draws[0].lists, "planned, no answers": stated.draws[0].lists}
    return row


def speed() -> Iterator[dict[str, Any]]:
    """Milliseconds of a list of ten from 500 candidates."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=500)
    yield {"kind": "rerank, 500 candidates", **timed(lambda: lp.rerank(scores, 10, temperature=0.1, standardise=True))}
    world = ForeignRanker(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        layer = learnt(world, world.requests(3000, rng), None, Path(folder) / "run", rng).layer()
        item = rng.choice(world.config.items, 500, replace=False)
        candidates = {"item": [f"i{one}" for one in item], "score": scores, "price": world.price[item],
                      "new": world.new[item], "category": [f"c{one}" for one in world.category[item]]}  # fmt: skip
        context = {"weekend": "yes", "thrift": 0.3, "keen": -1.0}
        yield {"kind": "Layer.rerank, 500 candidates", **timed(lambda: layer.rerank(candidates, 10, context=context))}


def timed(run: Any) -> dict[str, float]:
    """Quantiles of 500 calls, after 50 that warm up."""
    took = []
    for number in range(550):
        begin = time.perf_counter()
        run()
        if number >= 50:
            took.append(1e3 * (time.perf_counter() - begin))
    return {"p50 ms": float(np.median(took)), "p99 ms": float(np.quantile(took, 0.99)), "least ms": min(took)}


def main() -> None:
    """Print one row per measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gain", "null", "again", "noise", "plan", "speed"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[101, 102, 103, 104, 105])
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first world")
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--candidates", type=int, nargs="*", default=[20, 40, 80], help="of `plan`, to choose from")
    parser.add_argument("--places", type=int, nargs="*", default=[5, 10], help="of `plan`, to choose from")
    asked = parser.parse_args()
    rows: Iterator[dict[str, Any]]
    if asked.what == "gain":
        rows = (row for seed in asked.seeds for row in gain(seed, asked.requests or 8000))
    elif asked.what == "speed":
        rows = speed()
    else:
        shops = {"candidates": asked.candidates, "places": asked.places}
        kinds: dict[str, Any] = {"null": null, "again": again, "noise": noise, "plan": partial(plan, **shops)}
        count = asked.requests or (6000 if asked.what == "plan" else 2000)
        rows = (kinds[asked.what](asked.first + number, count) for number in range(asked.worlds))
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
