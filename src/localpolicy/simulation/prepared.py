"""Fast path: a world's log straight into a prepared data set, by numpy alone and in bounded memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from localpolicy.data.item_table import read_item_table
from localpolicy.data.store import NO_ANSWER, SPLITS, Prepared
from localpolicy.data.store_writer import StoreWriter, writing
from localpolicy.errors import ConfigError, DataError
from localpolicy.simulation.events import LOGGING, Events, Progress, Tally, World
from localpolicy.simulation.truth import write_truth

FRACTIONS = (0.8, 0.1, 0.1)


def write_prepared(
    world: World,
    path: Path | str,
    *,
    sequences: int,
    seed: int = 0,
    interactions: bool = False,
    fractions: tuple[float, float, float] = FRACTIONS,
    all_items: bool = False,
    like: Prepared | None = None,
    append: Prepared | None = None,
    chunks: Iterable[Events] | None = None,
    policy: str = LOGGING,
    round_number: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[Tally, Tally]:
    """Write a prepared data set with `truth/` inside; return counts of the shown and of the written rows.

    `chunks` replaces the logging policy's log by another one of this world, and `policy` names the policy that chose.
    Items are numbered by falling count in the log; those it never shows are left out unless `all_items`, or if the
    world has an item table: then all are in the catalogue that are on sale in `round_number` (None: ever). `like` names
    an earlier log of this world whose items keep their numbers; `append` one whose sequences come before the new ones,
    each in the split it was in.
    """
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9:
        raise ConfigError(f"split fractions must be three numbers of sum 1, got {fractions}.")
    shown, written = Tally(world.events, world.n_items), Tally(world.events, world.n_items)
    before = append or like
    policies = [] if interactions else [*(append.manifest["policies"] if append is not None else ()), policy]
    codes = [code for code, name in enumerate(world.events) if not (interactions and name == NO_ANSWER)]
    log = {"sequences": sequences, "seed": seed, "interactions": interactions, "policy": policy}
    settings = {
        "world": world.name,
        "config": world.config.model_dump(),
        "seed": world.seed,
        "log": log,
        "split": {"by": "sequence", "fractions": list(fractions), "seed": seed},
    }
    with writing(
        path,
        kind="interactions" if interactions else "impressions",
        events=[world.events[code] for code in codes],
        rewards={name: reward for name, reward in world.rewards.items() if world.events.index(name) in codes},
        settings={"simulate": settings},
        optional=("time",) if interactions else ("propensity", "policy", "time"),
        extra={"policies": policies},
        force=force,
    ) as store:
        spool = store.folder / "spool"  # an item's index is known only when the whole log is
        spool.mkdir()
        parts = 0
        for chunk in world.log(sequences, seed) if chunks is None else chunks:
            shown.add(chunk)
            kept = written.add(chunk.interactions(world.events) if interactions else chunk)
            np.savez(spool / f"{parts}.npz", **vars(kept))
            parts += 1
            if progress is not None:
                progress(len(chunk.sequence))
        table = world.item_table(round_number)
        listed = np.arange(world.n_items if all_items else 0 if table is None else len(table))
        order = _order(written.items, before, listed)
        index = np.full(world.n_items, -1, np.int32)
        index[order] = np.arange(len(order))
        if before is not None and (written.items[index < 0] > 0).any():
            raise DataError(f"the log shows items that {before.path} lacks. Write it without that data set.")
        counts = written.items[order]
        if append is not None:
            counts[: append.n_items] += append.catalogue["count"].to_numpy()
            _copy(append, store)
        known = None
        if table is not None:
            known = read_item_table(table, kinds={}, id_column=None, integer_ids=True)
        store.write_items(order.astype(np.int64), counts, known)
        recode = np.searchsorted(codes, np.arange(len(world.events))).astype(np.uint8)
        bounds = np.cumsum(fractions)[:-1]
        for number, chunk in enumerate(_spooled(spool, parts)):
            draw = np.random.default_rng([seed, 5, number]).random(len(chunk.sequence))
            _append(store, chunk, np.searchsorted(bounds, draw, "right"), index, recode, len(policies) - 1)
        shutil.rmtree(spool)
        write_truth(world, store.folder / "truth", log=log)
    return shown, written


def _order(counts: np.ndarray, before: Prepared | None, listed: np.ndarray) -> np.ndarray:
    """Number in the world of each item, in the data set's order: earlier items first, then others that are listed."""
    if before is None:
        order = np.argsort(-counts, kind="stable")
        return order[(counts[order] > 0) | np.isin(order, listed)]
    numbers = np.asarray(before.catalogue["item_id"].to_numpy())
    return np.concatenate([numbers, np.setdiff1d(listed, numbers)])


def _copy(earlier: Prepared, store: StoreWriter) -> None:
    for name in SPLITS:
        split = earlier[name]
        for first, last in split.chunks():
            part = slice(split.offsets[first], split.offsets[last])
            arrays = {column: array[part] for column, array in split.arrays.items()}
            store.splits[name].append(np.diff(split.offsets[first : last + 1]), arrays)


def _append(
    store: StoreWriter, chunk: Events, split: np.ndarray, index: np.ndarray, recode: np.ndarray, policy: int
) -> None:
    for number, name in enumerate(SPLITS):
        part = chunk.sequences(split == number)
        writer = store.splits[name]
        arrays = {
            "item": index[part.item],
            "event": recode[part.event],
            "reward": part.reward,
            "time": part.time,
        }
        if "propensity" in writer.columns:
            arrays["propensity"] = part.propensity
            arrays["policy"] = np.where(np.isnan(part.propensity), -1, policy)
        writer.append(part.lengths, arrays)


def _spooled(spool: Path, parts: int) -> Iterator[Events]:
    for number in range(parts):
        path = spool / f"{number}.npz"
        with np.load(path, allow_pickle=False) as arrays:
            yield Events(**arrays)
        path.unlink()
