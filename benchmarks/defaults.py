"""Quality of the default settings: arms of settings on one log, equal seeds, paired differences from the first arm.

    python benchmarks/defaults.py movielens --raw data --out OUT --objective mle --objective lpi_cb
    python benchmarks/defaults.py store-200 --out OUT --arm fixed --arm auto --arm 'wide: width=256'
    python benchmarks/defaults.py movielens --out OUT --table

An arm is `fixed` (`--preset fixed`), `auto` (no setting given), a baseline (popularity, item-knn), or a name and what
is given. RAW holds the folders of public data (amazon-5core, retailrocket, …); worlds are simulated. Every run leaves
its values per position under OUT; one that is there already is not made again.

Pairs are of the same seed and position: arms with windows of different length are compared where both have a value.
An interval covers both sources of chance. The error of a mean difference is √(rows² + seeds²): rows' from the sums by
sequence of what is averaged over seeds, seeds' from the spread of their means; t with Welch's degrees of freedom.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from scipy import stats
from sequence_models import interactions_of

from localpolicy.data.batches import Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.estimate import clustered_se
from localpolicy.measure.evaluate import evaluate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import values_of
from localpolicy.runs.baselines import baseline_called
from localpolicy.runs.config import PRESETS, Config
from localpolicy.runs.run import Run
from localpolicy.simulation.run import simulate
from localpolicy.training.train import train

RATINGS: dict[str, Any] = {
    "columns": {"sequence_id": "user_id", "item_id": "movie_id", "event": "rating"},
    "rewards": ">=4=1,>=3=0.5,*=0",
}
REVIEWS: dict[str, Any] = {"columns": {"sequence_id": "user_id"}, "event": "click", "split": "last"}
LAST = ("all.nDCG@10", "all.HR@10", "logp")  # of the last event
TOP = ("HR@20", "nDCG@20")
RANK = 8  # of the tastes in simulated ratings


@dataclass(frozen=True)
class Log:
    """Where a data set comes from, and what is measured on it."""

    make: Callable[[Path, Path], Any]  # from the folder of raw data to the one of the data set
    figures: tuple[str, ...]
    exclude_seen: bool = False


def _file(name: str, figures: tuple[str, ...], *, exclude_seen: bool = False, **settings: Any) -> Log:
    return Log(
        lambda raw, out: prepare(raw / name, out=out, keep_log=False, threads=2, **settings), figures, exclude_seen
    )


def _retailrocket(kind: str, *events: str) -> Log:
    def make(raw: Path, out: Path) -> Any:
        log = interactions_of(raw / "retailrocket", kind)
        return prepare(log, out=out, keep_log=False, threads=2, rewards="click=0.2,purchase=1")

    return Log(make, (*(f"{event}.{metric}" for event in events for metric in TOP), "logp"))


def _open_bandit(name: str) -> Log:
    return _file(f"open-bandit-small/{name}.parquet", ("logp",), source="openbandit")


def _world(name: str, sequences: int, *dials: str, interactions: bool = False) -> Log:
    def make(raw: Path, out: Path) -> Any:
        simulate(name, out, sequences=sequences, changes=dials, interactions=interactions, prepared=True)

    return Log(make, ("all.nDCG@10", "logp", "J"))


def _ratings(people: int, items: int, each: float) -> Log:
    """Log of ratings: people rate what they choose, and like their choices better than the rest; with the truth."""

    def make(raw: Path, out: Path) -> Any:
        rng = np.random.default_rng(0)
        taste, kind = rng.normal(size=(people, RANK)), rng.normal(size=(items, RANK))
        appeal = taste @ kind.T / np.sqrt(RANK) + rng.normal(size=items)
        liking = np.digitize(appeal + rng.normal(size=(people, items)), (-1.5, -0.5, 0.5, 1.5)) + 1  # 1 to 5
        known = 0.5 * appeal + rng.normal(size=items) + rng.gumbel(size=(people, items))  # what they come across
        lengths = np.clip(rng.geometric(1 / (each - 4), people) + 4, 5, items // 2)
        rated = np.argsort(-known, axis=1)
        person = np.repeat(np.arange(people), lengths)
        item = np.concatenate([rng.permutation(row[:count]) for row, count in zip(rated, lengths, strict=True)])
        log = {"user_id": person, "movie_id": item, "rating": liking[person, item], "timestamp": np.arange(len(item))}
        prepare(pa.table(log), out=out, keep_log=False, threads=2, **RATINGS)
        np.save(out.parent / "truth.npy", np.select([liking >= 4, liking >= 3], [1.0, 0.5]))

    return Log(make, ("logp", "AR@1", "liked@1", "J"))


def _true_value(run: Run, data: Prepared, truth: np.ndarray) -> float:
    """The mean over test people of Σ_a π(a|x) r(x, a), x being all that they rated but the last."""
    policy, item = run.policy(), data.catalogue["item_id"].to_numpy().astype(np.int64)
    people = np.asarray(data.sequence_ids("test").to_pylist(), np.int64)
    value = 0.0
    for batch in Windows(data, "test", run.config.data).in_order(256):
        last = torch.nonzero(torch.diff(batch.row, append=batch.row.new_tensor([-1]))).squeeze(1)
        share = policy.rows_at(batch, last).chunk(0, data.n_items).double().softmax(1).numpy()
        value += float((share * truth[people[batch.sequences.numpy()]][:, item]).sum())
    return value / len(people)


LOGS: dict[str, Log] = {
    "beauty": _file("amazon-5core/beauty_sequences.parquet", LAST, exclude_seen=True, **REVIEWS),
    "toys": _file("amazon-5core/toys_sequences.parquet", LAST, exclude_seen=True, **REVIEWS),
    "views": _retailrocket("views", "all"),
    "buyers": _retailrocket("buyers", "purchase", "all"),
    "movielens": _file("movielens-latest-small-2016/ratings.parquet", ("logp", "AR@1", "liked@1"), **RATINGS),
    **{
        f"open-bandit-{policy}-{campaign}": _open_bandit(f"{policy}_{campaign}")
        for policy in ("random", "bts")
        for campaign in ("all", "men", "women")
    },
    "store-200": _world("store", 200),
    "store-200-interactions": _world("store", 200, interactions=True),
    "store": _world("store", 6_000),
    "store-interactions": _world("store", 6_000, interactions=True),
    "bandit": _world("bandit", 40_000),
    "store-sparse": _world("store", 6_000, "items=5000"),
    "bandit-sparse": _world("bandit", 10_000, "items=1000"),
    "ratings-290": _ratings(290, 300, 24),
    "ratings-15400": _ratings(15_400, 1_000, 20),
    "ratings-6000": _ratings(6_000, 3_700, 165),
}


def data_of(name: str, raw: Path | None, out: Path) -> Prepared:
    """The data set of this name under OUT, made where it is not there."""
    folder = out / name / "data"
    if not (folder / "manifest.json").exists():
        LOGS[name].make(raw or Path(), folder)
    return Prepared(folder)


class Task(NamedTuple):
    """One run of an arm on a log."""

    log: str
    arm: str  # its name, and what is given: 'wide: width=256 dropout=0.5'
    objective: str
    seed: int

    def file(self, out: Path) -> Path:
        """Where its values per position are."""
        return out / self.log / "values" / f"{self.arm.partition(':')[0]} {self.objective} {self.seed}.npz"


def settings_of(arm: str) -> dict[str, Any]:
    """What an arm gives to `train`, by the settings' names."""
    name, _, given = arm.partition(":")
    if name == "fixed":
        return {"config": Config.parse(PRESETS["fixed"])}
    return {key: json.loads(value) for key, value in (word.split("=", 1) for word in given.split())}


def measure(task: Task, raw: Path | None, out: Path, *, device: str = "auto", **settings: Any) -> None:
    """Train, score the test split, and keep the values per position."""
    data, log, file = data_of(task.log, raw, out), LOGS[task.log], task.file(out)
    began = time.perf_counter()
    folder = out / task.log / "runs" / file.stem
    if baseline_called(task.arm):
        run = train(data, task.arm, out=folder, force=True)
    else:
        given = settings_of(task.arm) | settings
        run = train(data, task.objective, out=folder, force=True, seed=task.seed, device=device, **given)
    seconds = time.perf_counter() - began
    protocol = {"exclude_seen": log.exclude_seen, "batch_size": 256, "split": "test"}
    scored = evaluate(run, data=data, config=protocol, device=device)
    manifest = run.manifest
    facts = {
        "seconds": round(seconds, 1),
        **{name: manifest.get(name) for name in ("epochs", "steps", "selected", "auto", "improvement")},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    truth = out / task.log / "truth.npy"
    known = _true_value(run, data, np.load(truth)) if truth.exists() else scored.truth and scored.truth.value
    values = {name: _values(scored, name) for name in log.figures if name in scored.figures}
    values |= {} if known is None else {"J": np.array([known])}
    values |= {"sequence": scored.scores.sequence, "history": scored.scores.history}
    np.savez_compressed(file, allow_pickle=False, facts=np.array(json.dumps(facts)), **values)


def _values(scored: Evaluation, name: str) -> np.ndarray:
    """The figure's value at each position [N], NaN where it has none."""
    every = np.full(len(scored.scores), np.nan, np.float32)
    values, here = values_of(scored.scores, name)
    every[here] = values
    return every


class Difference(NamedTuple):
    """Mean values of two arms where both have one, and the difference of the second from the first."""

    before: float
    after: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        mark = "**" if self.low > 0 or self.high < 0 else ""
        text = f"{self.before:.4f} | {self.after:.4f} | {mark}{self.after - self.before:+.4f}{mark}"
        return f"{text} ({self.low:+.4f} to {self.high:+.4f})"


def paired(before: Sequence[Path], after: Sequence[Path], figure: str) -> Difference | None:
    """The difference, and its 95 % interval over seeds and sequences."""
    differences, means, sequence = [], [], np.empty(0)
    for one, other in zip(before, after, strict=True):
        old, new = np.load(one), np.load(other)
        if figure not in old.files or figure not in new.files:
            return None
        if figure == "J":
            values, sequence = np.stack([old[figure], new[figure]]), np.zeros(1)
        else:
            key, mine = (f["sequence"].astype(np.int64) << 32 | f["history"].astype(np.int64) for f in (old, new))
            _, left, right = np.intersect1d(key, mine, return_indices=True)
            values, sequence = np.stack([old[figure][left], new[figure][right]]), old["sequence"][left]
        known = ~np.isnan(values).any(0)
        values, sequence = values[:, known].astype(np.float64), sequence[known]
        means.append(values.mean(1))
        differences.append(values[1] - values[0])
    seeds, every = len(differences), np.stack(differences)  # [S, n]: positions are the same for all seeds
    parts = [(np.var(every.mean(1), ddof=1) / seeds, seeds - 1)] if seeds > 1 else []
    if (count := len(np.unique(sequence))) > 1:
        parts.append((clustered_se(every.mean(0), sequence) ** 2, count - 1))
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    reach = float(stats.t.ppf(0.975, variance**2 / spread) * np.sqrt(variance)) if spread else np.nan
    old_mean, new_mean = np.mean(means, 0)
    return Difference(old_mean, new_mean, every.mean() - reach, every.mean() + reach, every.shape[1])


def table(out: Path, logs: Sequence[str]) -> Iterator[str]:
    """Markdown table of every arm against `fixed` (or the first one), by metric."""
    yield "| log | objective | figure | arm | before | arm's | difference (95 %) | seeds | seconds a run |"
    yield "|---|---|---|---|--:|--:|--:|--:|--:|"
    for log in logs:
        found: dict[str, dict[str, dict[int, Path]]] = {}
        for path in sorted((out / log / "values").glob("*.npz")):
            arm, objective, seed = path.stem.rsplit(" ", 2)
            found.setdefault(objective, {}).setdefault(arm, {})[int(seed)] = path
        for objective, arms in found.items():
            first = "fixed" if "fixed" in arms else next(iter(arms))
            for figure in LOGS[log].figures:
                for arm, runs in arms.items():
                    seeds = sorted(set(runs) & set(arms[first]))
                    if arm == first or not seeds:
                        continue
                    said = paired([arms[first][seed] for seed in seeds], [runs[seed] for seed in seeds], figure)
                    if said is None:
                        continue
                    taken = [json.loads(str(np.load(runs[seed])["facts"]))["seconds"] for seed in seeds]
                    yield (f"| {log} | {objective} | {figure} | {arm} | {said} | {len(seeds)} | {np.mean(taken):.0f} |")


def main() -> None:
    """Train what is missing, and show the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", choices=LOGS, nargs="+")
    parser.add_argument("--raw", type=Path, help="folder of the folders of public data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--objective", action="append", help="mle, unless others are named")
    parser.add_argument("--arm", action="append", help="fixed and auto, unless others are named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="show what was measured")
    given = parser.parse_args()
    tasks = [
        Task(log, arm, objective, seed)
        for log in given.log
        for seed in range(given.seeds)
        for objective in given.objective or ["mle"]
        for arm in given.arm or ["fixed", "auto"]
    ]
    for task in () if given.table else tasks:
        if not task.file(given.out).exists():
            measure(task, given.raw, given.out, device=given.device)
    print(*table(given.out, given.log), sep="\n")


if __name__ == "__main__":
    main()
