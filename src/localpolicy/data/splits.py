"""Train, validation and test: two cut points on a key that each sequence has.

At random the key is an md5 of seed and sequence id, so that a sequence keeps its split whatever else the log
holds and whichever engine runs. By time it is the sequence's last time: everything trained on then lies before
everything validated on, save for the early events of sequences that cross a cut (the quality report counts them).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.data.sql import SPLIT_SIZES
from localpolicy.data.store import SPLITS
from localpolicy.errors import ConfigError, DataError

LOG = logging.getLogger(__name__)
FEWEST = 3  # sequences of a split; no number about fewer means anything

Cut = str | int  # a prefix of an md5, or milliseconds


def fitting(engine: Engine, config: PrepareConfig, *, given: Collection[str]) -> PrepareConfig:
    """The config; but a tenth each for validation and test if a recipe's counts (not `given`) exceed that."""
    if config.test < 1 or {"validation", "test"} & {*given}:
        return config
    total = int(engine.rows("SELECT COUNT(*) FROM sequence_keys")[0][0])
    if total >= 10 * max(config.validation, config.test):
        return config
    LOG.warning(
        "%s sequences are too few for %s in test: validation and test get a tenth each",
        f"{total:,}", f"{config.test:,.0f}",
    )  # fmt: skip
    return config.model_copy(update={"validation": 0.1, "test": 0.1})


def cut_points(engine: Engine, config: PrepareConfig, *, known: list[Cut] | None = None) -> list[Cut]:
    """Keys (of `sequence_keys`) at which validation and test begin."""
    if config.split == "random" and known is not None:
        return known
    if config.split_times:
        return [milliseconds_of(text, "split_times") for text in config.split_times]
    if config.split == "random" and config.test < 1:
        return [share_key(1 - config.validation - config.test), share_key(1 - config.test)]
    total = int(engine.rows("SELECT COUNT(*) FROM sequence_keys")[0][0])
    shares = (config.validation, config.test)
    validation, test = (round(share) if share >= 1 else round(share * total) for share in shares)
    if validation + test >= total:
        raise ConfigError(
            f"validation={validation:,} and test={test:,} leave nothing of {total:,} sequences to train on."
        )
    return [_key_at(engine, total - validation - test), _key_at(engine, total - test)]


def split_sizes(engine: Engine, config: PrepareConfig) -> list[int]:
    """Number of sequences in each split; DataError if one has too few."""
    counts = {int(split): int(count) for split, count in engine.rows(SPLIT_SIZES)}
    sizes = [counts.get(number, 0) for number in range(len(SPLITS))]
    for name, size in zip(SPLITS, sizes, strict=True):
        if size < FEWEST:
            listed = ", ".join(f"{name} {size:,}" for name, size in zip(SPLITS, sizes, strict=True))
            remedy = "Give a larger log, loosen the filters, or change --validation and --test."
            if config.split == "time":
                remedy = (
                    "Sequences are held out by when they end, and too many end at one time, as where times are days: "
                    "hold them out at random (--split random), or fewer of them (--validation, --test)."
                )
            raise DataError(f"the {name} split has {size} sequences, fewer than {FEWEST} ({listed}). {remedy}")
    return sizes


def literals(cuts: list[Cut]) -> list[str]:
    """Cut points as SQL literals."""
    return [f"'{cut}'" if isinstance(cut, str) else f"CAST({cut} AS BIGINT)" for cut in cuts]


def share_key(share: float) -> str:
    """md5 below which this share of all sequences lies."""
    return f"{min(int(share * 2**32), 2**32 - 1):08x}"


def _key_at(engine: Engine, rank: int) -> Any:
    return engine.rows(f"SELECT split_key FROM sequence_keys ORDER BY split_key LIMIT 1 OFFSET {rank}")[0][0]


def milliseconds_of(text: str, setting: str) -> int:
    """ISO time of a setting, in milliseconds since 1970; without an offset it is UTC."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{setting}: '{text}' is not an ISO time (as 2014-09-01 or 2014-09-01T12:00:00).") from None
    return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)
