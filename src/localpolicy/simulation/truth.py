"""Truth of a log: enough to build its world again, and to notice if it differs.

truth/world.json     world, config, seed, what was logged, and a fingerprint of the hidden arrays
truth/*.npy          bandit: reward r, logging μ [X, V], context_probabilities d [X], contexts [X, H]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.errors import DataError, nearest
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.formats import Format
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.events import World
from localpolicy.simulation.store_config import StoreConfig
from localpolicy.simulation.store_world import StoreWorld

FORMAT = Format(1, "simulate it again", error=DataError)
EPISODES, STEPS = 2_000, 20  # rollouts behind a store's true reward, and impressions of each
WORLDS: dict[str, tuple[Any, Any]] = {
    "bandit": (BanditConfig, BanditWorld),
    "store": (StoreConfig, StoreWorld),
}


def fingerprint(world: World) -> dict[str, float]:
    """Σ_i w_i a_i / n of each hidden array, w from 1 to 2: it changes with any number, and with their order."""
    return {
        name: float(np.linspace(1, 2, array.size) @ array.ravel() / array.size)
        for name, array in world.hidden().items()
    }


def write_truth(world: World, folder: Path, *, log: Mapping[str, Any]) -> None:
    """Write `world` into the new folder `folder`."""
    folder.mkdir()
    for name, array in world.arrays().items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    content = {"format": FORMAT.current, "world": world.name, "config": world.config.model_dump(), "seed": world.seed}
    write_json(folder / "world.json", {**content, "log": dict(log), "fingerprint": fingerprint(world)})


def load_world(folder: Path | str) -> World:
    """World whose truth is stored in `folder` (or its `truth/`), built again and checked against the files."""
    folder = Path(folder)
    if not (folder / "world.json").exists():
        folder = folder / "truth"
    if not (folder / "world.json").exists():
        raise DataError(
            f"{folder.parent} holds no simulated world (no truth/world.json). Make one with 'lpi simulate'."
        )
    written = FORMAT.upgraded(read_json(folder / "world.json"), folder)
    if written["world"] not in WORLDS:
        raise DataError(f"{folder}: no world '{written['world']}'{nearest(written['world'], WORLDS)}")
    config, kind = WORLDS[written["world"]]
    world: World = kind(config.parse(written["config"]), seed=written["seed"])
    remedy = "the files were altered, or another version wrote them. Simulate the world again."
    rebuilt = fingerprint(world)
    for name, expected in written["fingerprint"].items():
        # Not equality: exp and log may differ in the last digit from one processor to another.
        if name not in rebuilt or not np.isclose(rebuilt[name], expected, rtol=1e-9, atol=1e-12):
            raise DataError(f"{folder}: '{name}' of the world built again differs from what was written; {remedy}")
    for name, array in world.arrays().items():
        try:
            stored = np.load(folder / f"{name}.npy", allow_pickle=False)
        except (OSError, ValueError):
            raise DataError(f"{folder / name}.npy is missing or truncated. Simulate the world again.") from None
        if stored.shape != array.shape or not np.allclose(stored, array, rtol=1e-9, atol=1e-12):
            raise DataError(f"{folder / name}.npy differs from the world built again; {remedy}")
    return world
