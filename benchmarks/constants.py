"""Do the constants of `lpi_rl` hold in worlds that did not choose them? Its cap and the JS of a β that it chooses.

    python benchmarks/constants.py --out FILE.jsonl [--first 7] [--seeds 3] [--processes 2] [--episodes 8192]
    python benchmarks/constants.py --out FILE.jsonl --others --ceilings 0.15,0.3 --caps 10
    python benchmarks/constants.py --table FILE.jsonl

Networks do not depend on either constant, so each log is trained on once (as in `worlds.py`; lists with no setting
given). Then β is chosen again
under every ceiling and cap, and each policy is measured against the world's truth. The default store of 300 items with
seeds 0, 1 and 2 chose a JS of 0.15 and the cap; these worlds chose a JS of 0.3, and kept the cap. `--others` asks the
stores of `worlds.py`, which chose neither. `lists`: three lists of five for each visitor, and what a
visitor sees does not change what comes later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from collect import command_line, show
from worlds import CASES as OTHERS
from worlds import Case, logged, values

import localpolicy as lp
from localpolicy.data.batches import Windows
from localpolicy.data.config import WindowConfig
from localpolicy.data.store import Prepared
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.objectives.lpi import LPI
from localpolicy.runtime.ranks import Ranks
from localpolicy.simulation.lists import list_value
from localpolicy.training.beta_selection import choose

CASES: dict[str, Case | None] = {
    "store, 150 items": Case("store", 6_000, ("items=150",)),
    "store, 600 items": Case("store", 10_000, ("items=600",)),
    "store, 40 items, short visits": Case("store", 6_000, ("items=40", "mean_length=5")),
    "store, logging policy by popularity": Case("store", 6_000, ("items=200", "quality=0", "repeats=0")),
    "store, bait": Case("store", 6_000, ("items=200", "bait=1", "lookahead=0.6")),
    "store, interactions, 150 items": Case("store", 6_000, ("items=150",), interactions=True),
    "store, interactions, 600 items": Case("store", 10_000, ("items=600",), interactions=True),
    "store, frequent purchases": Case("store", 6_000, ("items=200", "purchase_base=-1")),
    "lists": None,
}
CEILINGS = "0.05,0.15,0.3,0.6"  # JS; log 2 is the most there is
CAPS = "3,10,30,none"
STORES = {f"{name} (of worlds.py)": case for name, case in OTHERS.items() if case.world == "store"}
KINDS, ITEMS, LISTS, PLACES, VISITORS = 8, 60, 3, 5, 3_000
VISITOR = 1000


Asked = Sequence[tuple[float, float | None]]  # ceilings and caps


def variants(run: lp.Run, data: Prepared, asked: Asked) -> Iterator[tuple[str, Policy, float]]:
    """The run's policy under every ceiling and cap, and its JS from μ̂ on the rows that chose β."""
    config, policy = run.config, run.policy()
    network = policy.network
    assert isinstance(network, Towers)
    windows = Windows(data, "validation", config.data).part(1, 2)
    for ceiling, cap in asked:
        network.beta, network.slope, network.cap = 1.0, 1.0, cap
        objective = LPI(max_js=ceiling)
        choice = choose(policy, windows, objective, data, config, ranks=Ranks())
        network.beta, network.slope = choice.beta, choice.slope
        js = next((each.js for each in choice.candidates if choice.slope and each.beta == choice.beta), 0.0)
        yield f"JS {ceiling:g}, cap {'none' if cap is None else f'{cap:g}'}", policy, js


def in_store(case: Case, folder: Path, seed: int, episodes: int, asked: Asked) -> dict[str, Any]:
    """J(π) of whole visits."""
    data, world, config = logged(case, folder, seed)
    run = lp.train(data, out=folder / "run", config=config)
    base = values(run.policy().logging(), world, episodes)
    earned = {name: (values(policy, world, episodes), js) for name, policy, js in variants(run, data, asked)}
    return compared(base, earned)


def in_lists(folder: Path, seed: int, asked: Asked) -> dict[str, Any]:
    """Exact value of the lists of a policy."""
    rng = np.random.default_rng([seed, 5])
    mu = np.exp(1.2 * rng.standard_normal((KINDS, ITEMS)))
    mu /= mu.sum(1, keepdims=True)
    worth = 1 / (1 + np.exp(1.8 - 0.5 * np.log(mu * ITEMS) - rng.standard_normal((KINDS, ITEMS))))
    kind = np.repeat(rng.integers(KINDS, size=VISITORS), LISTS)
    order = np.argsort(-(np.log(mu)[kind] + rng.gumbel(size=(len(kind), ITEMS))), axis=1)[:, :PLACES]
    share = np.take_along_axis(mu[kind], order, 1)
    propensity = share / (1 - np.cumsum(share, 1) + share)
    clicked = rng.random(order.shape) < worth[kind[:, None], order]
    rows = []
    for number, (who, shown) in enumerate(zip(kind.tolist(), order.tolist(), strict=True)):
        person, time = f"v{number // LISTS}", 1_700_000_000_000 + number * 1000
        blank = {"propensity": None, "request": None, "place": None}
        if number % LISTS == 0:
            rows.append({"sequence_id": person, "item_id": VISITOR + who, "event": "context", "timestamp": time - 1,
                         **blank})  # fmt: skip
        rows += [
            {"sequence_id": person, "item_id": item, "event": "click" if clicked[number, place] else "none",
             "timestamp": time, "propensity": propensity[number, place], "request": f"r{number}", "place": place}
            for place, item in enumerate(shown)
        ]  # fmt: skip
    table = pa.Table.from_pylist(rows).append_column("policy", pa.array(["served"] * len(rows)))
    data = lp.prepare(table, out=folder / "data", rewards={"click": 1.0, "none": 0.0, "context": 0.0}, test=0.1,
                      validation=0.4)  # fmt: skip
    run = lp.train(data, "lpi_rl", out=folder / "run", seed=seed, device="cpu")

    def true(policy: Policy) -> np.ndarray:
        return list_value(first_laws(policy, data), worth, np.ones(PLACES))

    base = true(run.policy().logging())
    return compared(base, {name: (true(policy), js) for name, policy, js in variants(run, data, asked)})


def first_laws(policy: Policy, data: Prepared) -> np.ndarray:
    """π(a|kind) before a visitor's first list [KINDS, ITEMS]."""
    windows, ids = Windows(data, "test", WindowConfig(length=50)), data.catalogue["item_id"].to_numpy()
    law = np.full((KINDS, ITEMS), np.nan)
    for batch in windows.in_order(256):
        logits = policy.logits(batch)
        rows = logits.chunk(0, logits.shape[1]).double().numpy()
        before = batch.previous_item[batch.scored if batch.context is None else batch.context[batch.scored]]
        for row, item in zip(rows, ids[before.numpy()], strict=True):
            if item >= VISITOR and np.isnan(law[item - VISITOR, 0]):
                known = np.zeros(ITEMS)
                known[ids[ids < VISITOR]] = np.exp(row[ids < VISITOR] - row.max())
                law[item - VISITOR] = known / known.sum()
    assert not np.isnan(law).any()
    return law


def compared(base: np.ndarray, earned: dict[str, tuple[np.ndarray, float]]) -> dict[str, Any]:
    """Gains over μ̂ as shares of J(μ̂), with their errors, and how far each policy went."""
    found: dict[str, Any] = {"J": float(base.mean())}
    for name, (each, js) in earned.items():
        gain = each - base
        found[name] = [float(gain.mean() / base.mean()), float(gain.std() / len(gain) ** 0.5 / base.mean()), js]
    return found


def measure(task: tuple[str, int], *, episodes: int, asked: Asked) -> dict[str, Any]:
    """Measure the policies of one log under every ceiling and cap."""
    name, seed = task
    case = (CASES | STORES)[name]
    with tempfile.TemporaryDirectory() as folder:
        if case is None:
            found = in_lists(Path(folder), seed, asked)
        else:
            found = in_store(case, Path(folder), seed, episodes, asked)
    return {"world": name, "seed": seed, **found}


def table(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A row per world: mean gain over μ̂ (and JS from it) under each ceiling and cap; below, how often each loses."""
    found = list(lines)
    names = [name for name in found[0] if name not in ("world", "seed", "J")]
    yield "| world | logs | " + " | ".join(names) + " |"
    yield "|---|--:|" + "--:|" * len(names)
    for world in CASES | STORES:
        group = [line for line in found if line["world"] == world]
        if group:
            means = {name: np.mean([line[name] for line in group], axis=0) for name in names}
            cells = (f"{gain:+.1%} ({js:.2f})" for gain, _, js in means.values())
            yield f"| {world} | {len(group)} | {' | '.join(cells)} |"
    mean = {name: np.mean([line[name][0] for line in found]) for name in names}
    falls = {name: sum(line[name][0] < -1.96 * line[name][1] for line in found) for name in names}
    yield f"| all | {len(found)} | " + " | ".join(f"{mean[name]:+.1%}" for name in names) + " |"
    yield f"| significantly below μ̂ | | {' | '.join(str(falls[name]) for name in names)} |"


def main() -> None:
    """Measure, or show what was measured."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="worlds whose name holds this text")
    parser.add_argument("--first", type=int, default=7, help="first seed")
    parser.add_argument("--seeds", type=int, default=3, help="logs of each world")
    parser.add_argument("--episodes", type=int, default=8_192, help="visits behind a store's figures")
    parser.add_argument("--others", action="store_true", help="the stores of worlds.py")
    parser.add_argument("--ceilings", default=CEILINGS, help="largest JS from μ̂")
    parser.add_argument("--caps", default=CAPS, help="largest factors exp(A/β)")
    given = parser.parse_args()
    caps = [None if cap == "none" else float(cap) for cap in given.caps.split(",")]
    asked = list(product(map(float, given.ceilings.split(",")), caps))
    cases = STORES if given.others else CASES
    tasks = [(name, given.first + k) for name in cases if given.only in name for k in range(given.seeds)]
    show(given, table, partial(measure, episodes=given.episodes, asked=asked), tasks)


if __name__ == "__main__":
    main()
