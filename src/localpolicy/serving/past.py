"""Rewards of the current policy in the log before a rollout starts: their mean, variance and range.

Persons are counted as the rollout will count them: the mean of their lists within the horizon after the first. A log
is the service's database, or a folder of rotated days, whose rewards are those that they were rotated with. Lists that
a candidate made are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from localpolicy.errors import ConfigError, DataError
from localpolicy.limits import CONTEXT
from localpolicy.serving.database import Database
from localpolicy.serving.experiment_units import RolloutList, past_lists, visits
from localpolicy.serving.reward_tests import LEAST_REWARDED, Known
from localpolicy.serving.rollout_rules import RolloutRules
from localpolicy.serving.sample_size import DAY_MS
from localpolicy.settings import Settings

MOST_LISTS = 500_000  # the latest of each log
CUT = 0.999  # the quantile at which the current policy's rewards are cut
CUT_REWARDED = 0.95  # among persons with a reward, if fewer than one in fifty have one
LEAST_CUT = 1000  # persons needed to estimate such a quantile
ERRORS = 2  # standard errors, above the mean excess
COLUMNS = ("sequence_id", "request", "event", "timestamp", "reward", "arm", "stage", "policy", "mode")


class Past(Settings):
    """Statistics of the current policy's rewards per person in the log."""

    persons: int = Field(description="persons")
    rewarded: int = Field(description="those of them with a reward")
    total: float = Field(description="sum of their rewards of a list")
    squares: float = Field(description="sum of its squares")
    size: float = Field(description="mean of its absolute value")
    largest: float = Field(description="its largest value")
    cut: float | None = Field(description="its 99.9 % quantile, or the most that a list can bring; null: few persons")
    excess: float = Field(description="what exceeds that on average, and two standard errors more")
    persons_a_day: float = Field(description="persons that came in a day")

    @classmethod
    def of(cls, rewards: np.ndarray, *, days: float, most: float | None = None) -> Past:
        """Build from the rewards of the persons who came within `days`; `most` is the largest reward of a list."""
        rewarded, cut = int((rewards != 0).sum()), None
        if len(rewards) >= LEAST_CUT:
            quantile = max(CUT, 1 - (1 - CUT_REWARDED) * rewarded / len(rewards))
            cut = min(float(np.quantile(rewards, quantile)), math.inf if most is None else most)
        above = np.zeros(1) if cut is None else np.maximum(rewards - cut, 0)
        return cls(
            persons=len(rewards), rewarded=rewarded, total=float(rewards.sum()), squares=float((rewards**2).sum()),
            size=float(np.abs(rewards).mean()), largest=float(rewards.max()), persons_a_day=len(rewards) / days,
            cut=cut, excess=float(above.mean() + ERRORS * above.std() / math.sqrt(len(above))),
        )  # fmt: skip


def known(rules: RolloutRules, past: Past | None) -> Known:
    """Return what the tests may assume about rewards; raise ConfigError if neither rules nor log determine it."""
    low, high = rules.range
    scale = rules.scale or (past.size if past and low < 0 else None)
    if low < 0 and not scale:
        raise ConfigError(
            "where a list can bring less than nothing, a loss is no share of the mean: name the log (--log), or state "
            "the reward of a list that losses are shares of (--set scale=…)."
        )
    cut = high if past is None or past.cut is None else past.cut
    if cut is None:
        raise ConfigError(
            "where several answers to one item are summed, no reward map says what a list can bring: name a log of "
            f"{LEAST_CUT:,} persons (--log), or state largest_reward."
        )
    if past is None:
        return Known(cut, low=low, scale=scale)
    return Known(
        cut,
        past.excess,
        past.cut is not None,
        low,
        scale,
        past.persons,
        past.total,
        past.squares,
        past.rewarded,
        past.largest,
    )


def read_past(logs: Sequence[Path | str], rules: RolloutRules, *, at: int) -> Past:
    """Read the past from logs of the service and folders of rotated days, as of `at` in milliseconds."""
    lists = sorted((one for log in logs for one in _lists(log, rules)), key=lambda made: made.time)
    seen = [mine for _, mine in visits(lists, horizon_ms=rules.horizon_ms)]
    closed = [one for one in seen if one.first + rules.ripe_ms <= at]
    rewarded = sum(one.reward != 0 for one in closed)
    if rewarded < LEAST_REWARDED:
        raise DataError(
            f"{', '.join(map(str, logs))}: {rewarded:,} of {len(closed):,} persons whose window is over brought a "
            f"reward; {LEAST_REWARDED} are needed to say how rewards spread. Name more days, or --rewards of your "
            "events."
        )
    days = max(closed[-1].first - closed[0].first, DAY_MS / 24) / DAY_MS
    return Past.of(np.array([one.reward for one in closed]), days=days, most=rules.range[1])


def _lists(log: Path | str, rules: RolloutRules) -> Iterable[RolloutList]:
    if Path(log).is_dir():
        return _rotated(Path(log))
    database = Database(log)
    try:
        with database.explain_errors():
            return [one._replace(stage="") for one in past_lists(database, rules.answers, most=MOST_LISTS)]
    finally:
        database.close()


def _rotated(folder: Path) -> list[RolloutList]:
    """Read the latest lists of a folder of rotated days."""
    files = [file for file in folder.rglob("*.parquet")
             if not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)]  # fmt: skip
    if not files:
        raise DataError(f"{folder} holds no rotated days (*.parquet); expected what 'lpi rotate' writes.")
    found: list[RolloutList] = []
    for file in sorted(files, key=lambda path: path.name, reverse=True):  # named by the time of their first list
        found += _of_file(file)
        if len(found) >= MOST_LISTS:
            break
    return found[:MOST_LISTS]


def _of_file(file: Path) -> list[RolloutList]:
    try:
        rows = pq.read_table(file, columns=list(COLUMNS))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise DataError(f"{file} is not readable as a day of 'lpi rotate' ({error}).") from None
    missing = set(COLUMNS) - set(rows.column_names)
    if missing:
        raise DataError(f"{file} is no day of 'lpi rotate': it has no column {', '.join(sorted(missing))}.")
    kept = pc.and_(pc.not_equal(rows["event"], CONTEXT), pc.not_equal(rows["arm"], "candidate"))
    lists = rows.filter(kept).group_by("request").aggregate(
        [("sequence_id", "min"), ("timestamp", "min"), ("policy", "min"), ("mode", "min"), ("reward", "sum")]
    )  # fmt: skip
    times = pc.cast(lists["timestamp_min"], pa.int64()).to_pylist()
    columns = (lists[f"{name}_min"].to_pylist() for name in ("sequence_id", "policy", "mode"))
    return [RolloutList(person, time, "", "", policy, mode, reward) for time, reward, person, policy, mode in
            zip(times, lists["reward_sum"].to_pylist(), *columns, strict=True)]  # fmt: skip
