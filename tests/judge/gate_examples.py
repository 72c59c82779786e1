"""What tests of the gate share: evaluations made by hand, a small shop, and its runs' settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
from measured import scores

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import ranking
from localpolicy.runs.config import Config


def made(name: str, rank: np.ndarray, **columns: object) -> Evaluation:
    """An evaluation of these ranks; one position per sequence by default."""
    found = scores(rank=np.asarray(rank, float), **columns)
    return Evaluation(
        name=name, figures={**ranking(found, ["nDCG@20"]), "coverage@20": 0.5}, divergence=None,
        scores=found, counts=np.ones(3), settings={"lists": 20},
    )  # fmt: skip


def valued(name: str, weight: np.ndarray, reward: np.ndarray) -> Evaluation:
    """Off-policy figures of these importance weights, with r̂ = 0."""
    from localpolicy.measure.decisions import decisions
    from localpolicy.measure.value import value_of

    count = len(weight)
    none = np.zeros(count)
    found = made(
        name, np.ones(count), logp=np.log(weight * 0.1), propensity=np.full(count, 0.1), reward=reward,
        value_taken=none, value_expected=none,
    )  # fmt: skip
    return replace(found, off_policy=value_of(decisions(found.scores), largest_reward=1.0))


def shop(folder, *, seed: int = 0, sequences: int = 900, items: int = 30, days: int = 1) -> Prepared:
    """Interactions in which clicks follow a rule of thumb (the next item) and purchases repeat the item before.

    Ids are kept, and later days hold more sequences and more items: what an older run does not know.
    """
    rng = np.random.default_rng(seed)
    rewards = {"click": 0.2, "purchase": 1.0}
    known = items + 3 * (days - 1)
    with writing(folder, kind="interactions", events=["click", "purchase"], rewards=rewards) as store:
        counts = np.zeros(known, np.int64)
        for split, share in (("train", 0.5), ("validation", 0.25), ("test", 0.25)):
            count = int(sequences * share)
            item = rng.integers(0, known, (count, 4))
            item[:, 1:3] = (item[:, :1] + [[1, 2]]) % known
            item[:, 3] = item[:, 2]
            event = np.tile([0, 0, 0, 1], count)
            arrays = {"item": item.ravel(), "event": event, "reward": np.where(event == 1, 1.0, 0.2)}
            store.splits[split].append(np.full(count, 4), arrays)
            store.splits[split].append_ids(pa.array([f"{split}-{number}" for number in range(count)]))
            counts += np.bincount(item.ravel(), minlength=known)
        store.write_items(np.arange(100, 100 + known), counts)
    return Prepared(folder)


def small_config(objective: str = "mle", seed: int = 0, **changes: object) -> Config:
    training = {"epochs": 4, "seed": seed, "batch_size": 64, "learning_rate": 0.01, **changes}
    return Config.parse({"objective": {"name": objective}, "model": {"width": 16}, "train": training})
