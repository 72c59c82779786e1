"""How far a fair estimate of the log falls below popularity, and a broken one: what the gate's `reference fit` allows.

    python benchmarks/reference_fit.py [DATA] --out FILE.jsonl [--seeds 3] [--minutes 0.5] [--only TEXT ...]

Logs whose items are drawn by popularity alone, where a network can only lose against counting, and logs with an order
in time; with DATA also parts of public logs (the folder of `public.py`). On each an `mle` run is trained as usual, for
one epoch, and on the same log with its items' ids mixed up. A line says how much the likelihood of held-out rows is
above popularity's and above uniform's, with 95 % intervals by sequence, and what the check says.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import localpolicy as lp
from localpolicy.judge.checks.distance import reference_fit_check
from localpolicy.judge.harness import Harness
from localpolicy.measure.significance import paired
from localpolicy.model.baselines import popularity

LENGTH, REWARDS = 5, {"click": 1.0}


def log(sequence: Any, item: Any) -> pa.Table:
    """Clicks in the order of their rows."""
    columns = {"sequence_id": sequence, "item_id": item, "timestamp": 10**9 + np.arange(len(item))}
    return pa.table({**columns, "event": np.full(len(item), "click")})


def popular(items: int, sequences: int, rng: np.random.Generator, power: float = 1.0) -> pa.Table:
    """Every row is drawn by popularity: item n in proportion to n^-power."""
    share = np.arange(1, items + 1) ** -power
    rows = sequences * LENGTH
    return log(np.arange(rows) // LENGTH, rng.choice(items, rows, p=share / share.sum()))


def ordered(items: int, sequences: int, rng: np.random.Generator) -> pa.Table:
    """Each item leads to one of four in seven of ten cases, and to any item in the others."""
    item = rng.integers(0, items, (sequences, LENGTH))
    for step in range(1, LENGTH):
        near = (2 * item[:, step - 1] + rng.integers(0, 4, sequences)) % items
        item[:, step] = np.where(rng.random(sequences) < 0.7, near, item[:, step])
    return log(np.repeat(np.arange(sequences), LENGTH), item.ravel())


def public(path: Path, sequence: str, item: str, some: int, rng: np.random.Generator) -> pa.Table:
    """Some sequences of a public log."""
    rows = pq.read_table(path)
    if "timestamp" in rows.column_names:
        rows = rows.sort_by("timestamp")
    who = rows[sequence].to_numpy()
    kept = np.isin(who, rng.choice(np.unique(who), some, replace=False))
    return log(who[kept], rows[item].to_numpy()[kept])


Make = Callable[[np.random.Generator], pa.Table]


def logs(data: Path | None) -> dict[str, Make]:
    """Functions that make the logs, by name."""
    sizes = ((12, 200), (12, 1000), (50, 1000), (50, 4000), (300, 200), (300, 1000), (1000, 500))
    made: dict[str, Make] = {
        f"popularity, {items} items, {many} sequences": lambda rng, items=items, many=many: popular(items, many, rng)  # type: ignore[misc]
        for items, many in sizes
    }
    made["nearly uniform, 50 items, 1000 sequences"] = lambda rng: popular(50, 1000, rng, power=0.3)
    made["ordered, 30 items, 300 sequences"] = lambda rng: ordered(30, 300, rng)
    if data is not None:
        films, beauty = (
            data / "movielens-latest-small-2016/ratings.parquet",
            data / "amazon-5core/beauty_sequences.parquet",
        )
        made["MovieLens, 300 people"] = lambda rng: public(films, "user_id", "movie_id", 300, rng)
        made["Amazon Beauty, 1000 people"] = lambda rng: public(beauty, "user_id", "item_id", 1000, rng)
    return made


def fit(run: lp.Run, data: lp.Prepared) -> dict[str, Any]:
    """What the check compares, and what it says."""
    bench = Harness.of([run], data, None, baselines=False, device="cpu")
    found = bench.measured(bench.opened[0])
    scores = replace(found.scores, logp_reference={"mle": found.scores.logp})
    shares = popularity(bench.data, shown=True).log().numpy()[scores.item]
    uniform = np.full(len(shares), -np.log(data.n_items))
    over = {
        name: paired(scores.logp, other, scores.sequence)
        for name, other in (("popularity", shares), ("uniform", uniform))
    }
    said = reference_fit_check(replace(found, scores=scores), shares, data.n_items, lp.GateRules())
    return {"items": data.n_items, "said": said.outcome, **{name: astuple(each)[:4] for name, each in over.items()}}


def measure(make: Make, seed: int, minutes: float, folder: Path) -> dict[str, dict[str, Any]]:
    """Three runs on one log."""
    rng = np.random.default_rng(seed)
    rows = make(rng)
    ids = np.unique(rows["item_id"].to_numpy())
    mixed = rng.permutation(ids)[np.searchsorted(ids, rows["item_id"].to_numpy())]
    data = lp.prepare(rows, out=folder / "data", rewards=REWARDS)
    other = lp.prepare(log(rows["sequence_id"].to_numpy(), mixed), out=folder / "other", rewards=REWARDS)
    usual = ["objective.name=mle", f"train.seed={seed}", "train.device=cpu", f"train.minutes={minutes}"]
    found = {}
    for name, on, more in (("trained", data, []), ("one epoch", data, ["train.epochs=1"]), ("other ids", other, [])):
        found[name] = fit(lp.train(on, out=folder / name, config=lp.configure(changes=[*usual, *more])), data)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--only", nargs="*", default=[""])
    asked = parser.parse_args()
    with asked.out.open("a") as out:
        for name, make in logs(asked.data).items():
            for seed in range(asked.seeds if any(part in name for part in asked.only) else 0):
                with tempfile.TemporaryDirectory() as folder:
                    for kind, line in measure(make, seed, asked.minutes, Path(folder)).items():
                        print(json.dumps({"log": name, "seed": seed, "run": kind, **line}), file=out, flush=True)


if __name__ == "__main__":
    main()
