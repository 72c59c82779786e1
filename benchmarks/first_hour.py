"""How often is `lpi go` wrong? It reads, trains and judges simulated logs whose truth is known.

    python benchmarks/first_hour.py --out FILE.jsonl [--only TEXT] [--logs 40] [--processes 2]
    python benchmarks/first_hour.py --table FILE.jsonl

Each log is a file, given to `go` as a user would, with small networks and few epochs to save time. Kinds of log without
a gain: no item is better than another for anybody, so no policy earns more, and every "deploy" is false. Kinds with a
gain: the policy that wrote the log, or what people chose themselves, hardly follows what they like. What a policy
truly earns is an exact sum in the bandit and in ratings, and measured by visits in the shop; a log counts as one with a
gain where the policy that `go` judged truly earns at least a fifth more than what it was judged against.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from collect import command_line, show

from localpolicy import go
from localpolicy.measure.truth import PolicyAgent, batch_of_arrays, true_value
from localpolicy.model.catalogue_mapping import context_length
from localpolicy.model.policy import Policy
from localpolicy.runs.run import Run
from localpolicy.simulation.events import World
from localpolicy.simulation.logs import write_log
from localpolicy.simulation.truth import STEPS, WORLDS
from localpolicy.study.go import GoResult
from localpolicy.study.measured import REFERENCE_SEEDS

SETTINGS = ("model.width=32", "model.blocks=1", "train.epochs=6", "train.batch_size=64", "train.learning_rate=0.003")
WORTH = 0.2  # of what is deployed: a gain that should be detected
EPISODES = 8_192
RATED = ("train.epochs=20",)  # of ratings: fewer teach less than popularity does
Truth = Callable[[Policy], tuple[float, float]]  # what a policy earns, and the error of that


class Log(NamedTuple):
    """A file, and what policies truly earn where it came from."""

    path: Path
    columns: dict[str, str]
    earned: Callable[
        [GoResult], tuple[float, float, float]
    ]  # by what was judged, by what is deployed, error of the gap
    visit_rewards: Callable[[Policy], np.ndarray] | None = None  # what a policy earns, visit by visit


def simulated(world: str, sequences: int, *dials: str, interactions: bool = False) -> Callable[[Path, int], Log]:
    """A log of a bandit or a shop."""

    def make(folder: Path, seed: int) -> Log:
        config, kind = WORLDS[world]
        built: World = kind(config().with_changes(dials), seed=seed)
        write_log(built, folder / "log", sequences=sequences, seed=seed, interactions=interactions)

        def earned(result: GoResult) -> tuple[float, float, float]:
            assert result.verdict is not None
            new = true_value(result.chosen.policy(), built, episodes=EPISODES)
            if result.verdict.deployed is None:
                return new.value, new.logging, new.gain_se
            old = true_value(_first_estimate(result), built, episodes=EPISODES)
            return new.value, old.value, float(np.hypot(new.gain_se, old.gain_se))

        def visit_rewards(policy: Policy) -> np.ndarray:
            return built.visit_rewards(PolicyAgent(policy, built), EPISODES, STEPS, 0)

        return Log(folder / "log" / "events.parquet", {}, earned, visit_rewards)

    return make


def _first_estimate(result: GoResult) -> Policy:
    """The first estimate of the log, which `go` judges against if it is given no deployed policy."""
    return Run(result.asked.out / "runs" / f"mle-seed-{REFERENCE_SEEDS[0]}").policy()


def rated(
    people: int, *, films: int = 60, each: int = 12, liked: float = 1.0, fame: float = 1.0
) -> Callable[[Path, int], Log]:
    """Ratings of films that people chose by fame; how they like them depends on `liked` times taste and quality."""

    def make(folder: Path, seed: int) -> Log:
        rng = np.random.default_rng([seed, 17])
        taste, trait = rng.standard_normal((people, 4)), rng.standard_normal((films, 4))
        affinity = liked * (0.6 * taste @ trait.T / 2 + 1.2 * rng.standard_normal(films)) - 0.3
        mean = 1 / (1 + np.exp(-affinity))
        taking = fame * rng.standard_normal(films) + 0.0 * affinity + rng.gumbel(size=affinity.shape)
        chosen = np.argsort(-taking, axis=1)[:, :each]
        stars = 1 + np.round(
            4 * np.clip(np.take_along_axis(mean, chosen, 1) + 0.2 * rng.standard_normal(chosen.shape), 0, 1)
        )
        table = pa.table(
            {
                "user_id": np.repeat(np.arange(people), each),
                "movie_id": chosen.ravel(),
                "rating": stars.ravel().astype(np.int64),
                "timestamp": 1_600_000_000 + np.arange(people * each) * 60,
            }
        )
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "ratings.parquet")

        def shown(policy: Policy) -> np.ndarray:
            """The mean rating of the film that a policy ranks first among those that each person has not rated."""
            ids = policy.items["item_id"].to_numpy().astype(np.int64)
            index = np.full(films, -1)
            index[ids] = np.arange(len(ids))
            items = index[chosen]
            codes = {name: code for code, name in enumerate(policy.origin.events)}
            events = np.vectorize(lambda star: codes.get(str(int(star)), 0))(stars)
            batch = batch_of_arrays(items, events, items >= 0, length=context_length(policy))
            with torch.no_grad():
                rows = policy.logits(batch)
                scores = rows.chunk(0, rows.shape[1]).numpy().copy()
            scores[np.repeat(np.arange(people), each), items.ravel()] = -np.inf
            return np.asarray(mean[np.arange(people), ids[scores.argmax(1)]])

        def earned(result: GoResult) -> tuple[float, float, float]:
            new, old = shown(result.chosen.policy()), shown(_first_estimate(result))
            return float(new.mean()), float(old.mean()), float((new - old).std() / people**0.5)

        return Log(folder / "ratings.parquet", {}, earned)

    return make


def visits(
    sessions: int,
    *,
    products: int = 60,
    unlike: float = 0.0,
    later: int = 0,
    people: float = 0.0,
    again: float = 0.0,
    cart: bool = False,
    near: float = 0.5,
) -> Callable[[Path, int], Log]:
    """Views, some of which lead to a purchase of the same product, at once or `later` views on, perhaps by a cart.

    Nothing is recommended: people view what is popular, what is near to the last product (with probability `near`), or
    what they viewed before (`again`). What a view leads to varies by product (`unlike`, in log-odds) and by person
    (`people`). A policy earns what a product that it would show, and the person has not met, would lead to.
    """  # fmt: skip

    def make(folder: Path, seed: int) -> Log:
        rng = np.random.default_rng([seed, 29])
        popular, neighbour = rng.dirichlet(np.ones(products)), rng.permutation(products)
        odds = unlike * rng.standard_normal(products) - 1.5
        rows: list[tuple[int, int, str]] = []
        histories: list[list[int]] = []
        for session in range(sessions):
            person, viewed, due = people * rng.standard_normal(), list[int](), list[tuple[int, int]]()
            for step in range(1 + rng.poisson(6)):
                if viewed and rng.random() < again:
                    item = int(rng.choice(viewed))
                elif viewed and rng.random() < near:
                    item = int(neighbour[viewed[-1]])
                else:
                    item = int(rng.choice(products, p=popular))
                viewed.append(item)
                rows.append((session, item, "view"))
                if rng.random() < 1 / (1 + np.exp(-odds[item] - person)):
                    due.append((step + later, item))
                for _, bought in [each for each in due if each[0] <= step]:
                    rows += [(session, bought, "cart")] * cart + [(session, bought, "purchase")]
                due = [each for each in due if each[0] > step]
            rows += [(session, bought, "purchase") for _, bought in due]
            histories.append(viewed[-10:])
        session_id, item_id, event = zip(*rows, strict=True)
        table = {"session_id": session_id, "item_id": item_id, "event": event}
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table({**table, "timestamp": 1_600_000_000 + np.arange(len(rows)) * 60}), folder / "visits.parquet"
        )

        def leads_to(policy: Policy) -> np.ndarray:
            """What the next view of an unseen product leads to, if the policy draws it: [sessions]."""
            ids = policy.items["item_id"].to_numpy().astype(np.int64)
            index = np.full(products, -1)
            index[ids] = np.arange(len(ids))
            width = max(map(len, histories))
            items = np.full((sessions, width), -1)
            for at, history in enumerate(histories):
                items[at, : len(history)] = index[history]
            events = np.full_like(items, policy.origin.events.index("view"))
            batch = batch_of_arrays(items, events, items >= 0, length=context_length(policy))
            with torch.no_grad():
                rows = policy.logits(batch)
                scores = rows.chunk(0, rows.shape[1]).double().numpy().copy()
            row, column = (items >= 0).nonzero()
            scores[row, items[row, column]] = -np.inf
            chance = np.exp(scores - scores.max(1, keepdims=True))
            return np.asarray((chance / chance.sum(1, keepdims=True)) @ (1 / (1 + np.exp(-odds[ids]))))

        def earned(result: GoResult) -> tuple[float, float, float]:
            new, old = leads_to(result.chosen.policy()), leads_to(_first_estimate(result))
            return float(new.mean()), float(old.mean()), float((new - old).std() / sessions**0.5)

        return Log(folder / "visits.parquet", {}, earned, leads_to)

    return make


ALIKE = ("taste=0", "appeal=0")
KINDS: dict[str, Callable[[Path, int], Log]] = {
    "bandit, equal items": simulated("bandit", 5_000, "contexts=50", "items=40", *ALIKE),
    "bandit, rare clicks, equal items": simulated("bandit", 5_000, "contexts=50", "items=40", "base=-3.5", *ALIKE),
    "shop, equal items": simulated("store", 1_500, "items=60", "item_quality=0", "lookahead=0", *ALIKE),
    "shop without propensities, equal items": simulated(
        "store", 2_500, "items=60", "item_quality=0", "lookahead=0", *ALIKE, interactions=True
    ),
    "ratings, equal films": rated(500, liked=0.0),
    "shop without propensities, unlike products": simulated(
        "store", 2_500, "items=60", "item_quality=2", interactions=True
    ),
    "bandit, a gain": simulated("bandit", 8_000, "contexts=50", "items=40", "quality=0", "taste=1.5"),
    "shop, a gain": simulated("store", 2_500, "items=60", "quality=0", "repeats=0", "appeal=1.2", "bait=0"),
    "ratings, a gain": rated(600),
    "visits, equal products": visits(2_500),
    "visits, a cart before, persons differ, equal products": visits(2_500, cart=True, people=1.0, near=0.0),
    "visits, purchases later, products viewed again, equal products": visits(2_500, later=1, people=1.0, again=0.25),
    "visits, unlike products": visits(2_500, unlike=1.5),
    "visits, purchases later, unlike products": visits(2_500, unlike=1.5, later=2, people=1.0),
    "visits, a cart before, products viewed again, unlike products": visits(2_500, unlike=1.5, cart=True, again=0.25),
}  # fmt: skip


def measure(task: tuple[str, int], *, minutes: float) -> dict[str, Any]:
    """One log, from the file to the verdict, and the truth."""
    kind, number = task
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[os.getpid() % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    seed, began = 5_000 + 1_000 * list(KINDS).index(kind) + number, time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        log = KINDS[kind](Path(scratch), seed)
        result = go(
            log.path, out=Path(scratch) / "go", columns=log.columns, minutes=minutes, seed=seed,
            settings=(*SETTINGS, *(RATED if kind.startswith("ratings") else ())),
            device="cpu", shown=lambda table: None,
        )  # fmt: skip
        took = time.perf_counter() - began
        new, old, error = (np.nan,) * 3 if result.verdict is None else log.earned(result)
        line = {
            "kind": kind, "number": number, "seed": seed, "answer": result.answer, "sentence": result.sentence,
            "question": None if result.verdict is None else result.verdict.question.kind, "new": new, "old": old,
            "error": error, "seconds": round(took, 1),
            "checks": {each.figure: each.outcome for each in (result.verdict.checks if result.verdict else ())},
            "slope": result.chosen.manifest.get("improvement", {}).get("slope"),
        }  # fmt: skip
    return line


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """A row per kind of log."""
    answers = ("deploy", "do not deploy", "cannot tell")
    head = "true gain, mean | gain ≥ 20 % | detected | no gain | false deploys"
    yield f"| kind of log | logs | {' | '.join(answers)} | {head} |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for kind in [*KINDS, None]:
        mine = [line for line in lines if kind in (line["kind"], None)]
        if not mine:
            continue
        said = [sum(line["answer"] == answer for line in mine) for answer in answers]
        gains = np.array([line["new"] / line["old"] - 1 for line in mine])
        deployed = np.array([line["answer"] == "deploy" for line in mine])
        nothing = np.array(
            [line["new"] - line["old"] <= max(1.96 * line["error"], 1e-3 * line["old"]) for line in mine]
        )
        worth = gains >= WORTH
        yield (
            f"| {kind or 'all'} | {len(mine)} | {' | '.join(map(str, said))} | {np.nanmean(gains):+.1%} | "
            f"{worth.sum()} | {(worth & deployed).sum()} | {nothing.sum()} | {(nothing & deployed).sum()} |"
        )


def main() -> None:
    """Measure, or show what was measured."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    parser.add_argument("--logs", type=int, default=40, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first log of each kind")
    parser.add_argument("--minutes", type=float, default=5.0, help="as given to `go`")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.logs)
    tasks = [(kind, number) for number in numbers for kind in KINDS if given.only in kind]
    show(given, table, partial(measure, minutes=given.minutes), tasks)


if __name__ == "__main__":
    main()
