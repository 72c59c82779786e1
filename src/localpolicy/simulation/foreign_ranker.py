"""Shop with somebody else's ranker: it knows people's taste, which no log shows, and errs in known ways.

    log-odds of a click, if looked at = base + quality + taste · item - thrift · price + weekend · category + keen · new
                                        + a mood of the request, which nobody knows
    the ranker's score                = taste · item + trust · quality; it knows no quality of new items

It ranks better than anybody could from the log alone, for taste is in its score only; and it misses price, weekend and
novelty, which the log's columns show. With `flawless` its score is the log-odds: nothing can be gained. `withheld`
leaves the columns out. If people stop after a click (`stops`), the examination of a place depends on the places above.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from localpolicy.errors import ConfigError
from localpolicy.plackett_luce import clocks
from localpolicy.runtime.files import write_json
from localpolicy.settings import Settings
from localpolicy.simulation.events import Progress

TASTES, CATEGORIES = 4, 8
BLOCK = 5000  # requests at once


class RankerConfig(Settings):
    """Settings of the shop, of its ranker, and of the draw of its lists."""

    items: int = Field(1000, ge=20, description="size of the catalogue")
    people: int = Field(2000, ge=10, description="persons")
    candidates: int = Field(50, ge=2, description="candidates of a request")
    places: int = Field(10, ge=1, description="length of a list")
    temperature: float = Field(0.1, ge=0, description="τ of the draw, of scores standardised per request; 0: no draw")
    trust: float = Field(1.6, description="how much the ranker makes of quality; 1 would be right")
    miss: float = Field(1.0, ge=0, description="size of what the ranker does not know")
    flawless: bool = Field(False, description="the ranker's score is the truth: nothing can be gained")
    withheld: bool = Field(False, description="the log leaves out the columns that would teach a critic")
    stops: float = Field(0.0, ge=0, le=1, description="chance that somebody who clicked looks no further")
    base: float = Field(-2.2, description="log-odds of a click on an average item at the first place")


class Requests(NamedTuple):
    """N requests with C candidates each."""

    person: np.ndarray  # [N]
    thrift: np.ndarray  # [N]
    keen: np.ndarray  # [N]
    weekend: np.ndarray  # [N] bool
    item: np.ndarray  # [N, C]
    score: np.ndarray  # [N, C] of the ranker
    log_odds: np.ndarray  # [N, C] of a click where it is looked at, mood included


class ForeignRanker:
    """Shop whose lists a given ranker makes."""

    def __init__(self, config: RankerConfig | None = None, *, seed: int = 0) -> None:
        self.config = config = config or RankerConfig()
        if config.places > config.candidates or config.candidates > config.items:
            raise ConfigError("a list is made of candidates, and candidates of items: expected places <= candidates <= "
                              f"items, got {config.places}, {config.candidates} and {config.items}.")  # fmt: skip
        rng = np.random.default_rng([seed, 42])
        self.quality = rng.normal(0, 0.7, config.items)
        self.taste = rng.normal(0, 1, (config.items, TASTES))
        self.price = rng.normal(0, 1, config.items)
        self.category = rng.integers(CATEGORIES, size=config.items)
        self.new = rng.random(config.items) < 0.15
        self.weekend_effect = rng.normal(0, 0.8, CATEGORIES)
        self.person_taste = rng.normal(0, 0.45, (config.people, TASTES))
        self.thrift = rng.normal(0, 1, config.people)
        self.keen = rng.normal(0, 1, config.people)

    @property
    def examined(self) -> np.ndarray:
        """Probability that each place is looked at, if nobody stops: [K]."""
        return np.asarray(1 / (1 + 0.35 * np.arange(self.config.places)))

    def requests(self, count: int, rng: np.random.Generator) -> Requests:
        """Draw `count` requests."""
        config = self.config
        person = rng.integers(config.people, size=count)
        weekend = rng.random(count) < 2 / 7
        item = np.argpartition(rng.random((count, config.items)), config.candidates, axis=1)[:, : config.candidates] \
            if config.candidates < config.items else np.tile(np.arange(config.items), (count, 1))  # fmt: skip
        taste = np.einsum("nt,nct->nc", self.person_taste[person], self.taste[item])
        missed = config.miss * (
            -0.6 * self.thrift[person, None] * self.price[item]
            + weekend[:, None] * self.weekend_effect[self.category[item]]
            + 0.7 * self.keen[person, None] * self.new[item]
        )
        worth = config.base + self.quality[item] + taste + missed
        score = worth - config.base if config.flawless else taste + config.trust * np.where(
            self.new[item], 0.0, self.quality[item])  # fmt: skip
        mood = rng.normal(0, 0.7, (count, 1))
        return Requests(person, self.thrift[person], self.keen[person], weekend, item, score, worth + mood)

    def law(self, requests: Requests, temperature: float | None = None) -> np.ndarray:
        """Logits of the ranker's draw: [N, C]."""
        tau = self.config.temperature if temperature is None else temperature
        centred = requests.score - requests.score.mean(1, keepdims=True)
        return np.asarray(centred / requests.score.std(1, keepdims=True) / tau)

    def lists(self, requests: Requests, rng: np.random.Generator) -> np.ndarray:
        """Lists that the ranker shows, as positions [N, K]: drawn, or its best."""
        if self.config.temperature == 0:
            return np.argsort(-requests.score, axis=1, kind="stable")[:, : self.config.places]
        return drawn(self.law(requests), self.config.places, rng)

    def chances(self, requests: Requests, lists: np.ndarray) -> np.ndarray:
        """Probability of a click at each place that is looked at, given no stop above: [N, K]."""
        chance = 1 / (1 + np.exp(-np.take_along_axis(requests.log_odds, lists, 1)))
        return np.asarray(chance * self.examined[: lists.shape[1]])

    def value(self, requests: Requests, lists: np.ndarray) -> np.ndarray:
        """Expected number of clicks of each list: [N]."""
        chance = self.chances(requests, lists)
        going = np.cumprod(1 - self.config.stops * chance, axis=1)
        return np.asarray((chance * np.concatenate([np.ones((len(chance), 1)), going[:, :-1]], 1)).sum(1))

    def clicks(self, requests: Requests, lists: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw people's clicks on the lists: [N, K]."""
        wanted = rng.random(lists.shape) < self.chances(requests, lists)
        left = np.cumsum(wanted & (rng.random(lists.shape) < self.config.stops), axis=1)
        gone = np.concatenate([np.zeros((len(lists), 1), bool), left[:, :-1] > 0], 1)
        return np.asarray(wanted & ~gone)

    def tables(
        self,
        requests: Requests,
        lists: np.ndarray,
        clicks: np.ndarray,
        *,
        logits: np.ndarray | None = None,
        first: int = 0,
    ) -> tuple[pa.Table, pa.Table]:
        """Log as tables of requests and outcomes; with `logits`, probabilities of the candidates are logged."""
        count = len(requests.item)
        number = first + np.arange(count)
        ids = np.char.add("r", number.astype(str))
        names = np.char.add("i", np.arange(self.config.items).astype(str))

        def listed(values: np.ndarray) -> pa.Array:
            ends = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
            return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.ravel()))

        shown = np.take_along_axis(requests.item, lists, 1)
        columns = {
            "request": pa.array(ids), "time": pa.array(number.astype(float)),
            "person": pa.array(np.char.add("p", requests.person.astype(str))),
            "candidates": listed(names[requests.item]), "scores": listed(requests.score), "shown": listed(names[shown]),
        }  # fmt: skip
        if logits is not None:
            weight = np.exp(logits - logits.max(1, keepdims=True))
            columns["probabilities"] = listed(weight / weight.sum(1, keepdims=True))
        if not self.config.withheld:
            columns |= {"weekend": pa.array(np.where(requests.weekend, "yes", "no")),
                        "thrift": pa.array(requests.thrift), "keen": pa.array(requests.keen)}  # fmt: skip
        request, place = np.nonzero(clicks)
        outcomes = {"request": pa.array(ids[request]), "item": pa.array(names[shown[request, place]]),
                    "event": pa.array(["click"] * len(request)), "reward": pa.array(np.ones(len(request)))}  # fmt: skip
        return pa.table(columns), pa.table(outcomes)

    def items(self) -> pa.Table:
        """Item table of the shop."""
        names = pa.array([f"i{number}" for number in range(self.config.items)])
        if self.config.withheld:
            return pa.table({"item": names})
        return pa.table({"item": names, "price": pa.array(self.price), "new": pa.array(self.new),
                         "category": pa.array([f"c{one}" for one in self.category])})  # fmt: skip


def drawn(logits: np.ndarray, places: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a list from each row of logits [N, C], as positions [N, K]."""
    keys = clocks(logits.size, rng).reshape(logits.shape) - logits
    return np.argsort(keys, axis=1)[:, :places]


def write_ranker(
    folder: Path, config: RankerConfig, *, sequences: int, seed: int, progress: Progress | None = None
) -> dict[str, int]:
    """Write requests.parquet, outcomes.parquet and items.parquet, with the settings of the truth."""
    world, rng = ForeignRanker(config, seed=seed), np.random.default_rng([seed, 1])
    counts = {"requests": 0, "clicks": 0}
    with ExitStack() as open_:
        writers: dict[str, pq.ParquetWriter] = {}
        for first in range(0, sequences, BLOCK):
            requests = world.requests(min(BLOCK, sequences - first), rng)
            lists = world.lists(requests, rng)
            log, outcomes = world.tables(requests, lists, world.clicks(requests, lists, rng), first=first)
            for name, table in (("requests", log), ("outcomes", outcomes)):
                if name not in writers:
                    writers[name] = open_.enter_context(pq.ParquetWriter(folder / f"{name}.parquet", table.schema))
                writers[name].write_table(table)
            counts["requests"] += len(log)
            counts["clicks"] += len(outcomes)
            if progress:
                progress(len(log))
    pq.write_table(world.items(), folder / "items.parquet")
    write_json(folder / "world.json", {"world": "ranker", "seed": seed, "settings": config.model_dump()})
    return counts
