"""`simulate`: from a world's name to files on disk, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError, nearest
from localpolicy.runtime.folders import whole_folder
from localpolicy.simulation.events import PURCHASE, Progress, World
from localpolicy.simulation.foreign_ranker import RankerConfig, write_ranker
from localpolicy.simulation.logs import write_log
from localpolicy.simulation.prepared import write_prepared
from localpolicy.simulation.raw import RETAILROCKET, YOOCHOOSE, write_retailrocket, write_yoochoose
from localpolicy.simulation.raw_netflix import NetflixConfig, write_netflix
from localpolicy.simulation.truth import WORLDS

RAW: dict[str, tuple[Any, Callable[..., dict[str, int]]]] = {
    "yoochoose": (YOOCHOOSE, write_yoochoose),
    "retailrocket": (RETAILROCKET, write_retailrocket),
    "netflix": (NetflixConfig(), write_netflix),
    "ranker": (RankerConfig(), write_ranker),
}
# Raw files are as large as the originals only where that is asked for.
SEQUENCES = {
    "bandit": 50_000,
    "store": 10_000,
    "yoochoose": 100_000,
    "retailrocket": 100_000,
    "netflix": 5_000,
    "ranker": 20_000,
}


@dataclass(frozen=True)
class Simulated:
    """Counts of a written world. Shares are of the impression log, even if only its interactions were kept."""

    path: Path
    rows: dict[str, int]  # of each event, as written
    sequences: int
    items: int  # that occur; of raw files: that exist
    answered: float | None = None  # share of impressions
    purchases: float | None = None  # share of answered impressions
    logging_value: float | None = None  # J(μ): exact for the bandit, the log's mean reward for the store


def default_sequences(world: str) -> int:
    """Number of sequences of `world` by default."""
    if world not in SEQUENCES:
        raise ConfigError(f"no world '{world}'{nearest(world, SEQUENCES)}")
    return SEQUENCES[world]


def simulate(
    world: str,
    out: Path | str,
    *,
    sequences: int | None = None,
    items: int | None = None,
    seed: int = 0,
    changes: Sequence[str] = (),
    interactions: bool = False,
    prepared: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Simulated:
    """Build `world` from its settings (`changes`: "key=value") and write its log into the folder `out`."""
    total = default_sequences(world) if sequences is None else sequences
    if total < 1:
        raise ConfigError(f"sequences must be at least 1, got {total}.")
    if seed < 0:
        raise ConfigError(f"seed must not be negative, got {seed}.")
    settings = [*changes] if items is None else [*changes, f"items={items}"]
    if world in RAW:
        if interactions or prepared:
            raise ConfigError(f"{world} is written as raw files alone: leave out --interactions and --prepared.")
        return _raw(world, Path(out), settings, sequences=total, seed=seed, force=force, progress=progress)
    config, kind = WORLDS[world]
    built: World = kind(config().with_changes(settings), seed=seed)
    write = write_prepared if prepared else write_log
    shown, written = write(
        built, out, sequences=total, seed=seed, interactions=interactions, force=force, progress=progress
    )
    known, purchases = built.logging_value(), shown.counts.get(PURCHASE)
    return Simulated(
        path=Path(out),
        rows={name: count for name, count in written.counts.items() if count},
        sequences=written.sequences,
        items=int((written.items > 0).sum()),
        answered=shown.answered / shown.impressions,
        purchases=None if purchases is None else purchases / max(shown.answered, 1),
        logging_value=shown.reward / shown.impressions if known is None else known,
    )


def _raw(
    world: str, out: Path, settings: list[str], *, sequences: int, seed: int, force: bool, progress: Progress | None
) -> Simulated:
    default, write = RAW[world]
    config = default.with_changes(settings)
    with whole_folder(out, force=force) as folder:
        rows = write(folder, config, sequences=sequences, seed=seed, progress=progress)
    return Simulated(path=out, rows=rows, sequences=sequences, items=config.items)
