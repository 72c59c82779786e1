"""Checks before training: settings, features, rewards and propensities that the objective needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from localpolicy.data.batches import Windows
from localpolicy.data.config import WindowConfig
from localpolicy.data.item_features import learnt_columns
from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.measure.estimators import CHOOSING, by_name
from localpolicy.objectives.objective import Objective
from localpolicy.runs.config import Config
from localpolicy.training.numerics import check_numerics
from localpolicy.training.tensorboard import require_tensorboard

BLOCK = 1 << 22  # events in one block


def check_settings(config: Config, folder: Path) -> None:
    """Raise ConfigError if the resolved settings cannot be met here; before anything is replaced."""
    others = {"train.warm_start": config.train.warm_start, "objective.logging": config.objective.reads().logging}
    for key, other in others.items():
        if other is not None and Path(other).resolve() == folder.resolve():
            raise ConfigError(f"{key}: {other} is the folder of this run itself; write the new run to another one.")
    if config.train.tensorboard:
        require_tensorboard()
    check_numerics(config.train)


def check_features(data: Prepared, config: Config) -> None:
    """Raise ConfigError for features that the item table lacks, or that cannot be encoded."""
    columns = learnt_columns(data.catalogue)
    for name in config.model.features:
        if name not in columns:
            known = (
                nearest(name, columns) if columns else ": it was prepared without an item table (lpi prepare --items)"
            )
            raise ConfigError(f"model.features: {data.path} has no column '{name}'{known}")
    if len(set(config.model.features)) < len(config.model.features):
        raise ConfigError(f"model.features: {', '.join(config.model.features)} names a column twice.")
    if config.model.features and not config.model.tied:
        raise ConfigError("model.features needs tied heads: untied ones have rows of their own. Set model.tied=true.")


def check_history(data: Prepared, config: Config) -> None:
    """Raise an error if no position of the validation split has the history that evaluation needs."""
    wanted, lengths = config.train.min_history, np.diff(data["validation"].offsets)
    if len(lengths) and int(lengths.max()) <= wanted:
        raise DataError(
            f"no sequence of {data.path} is longer than {int(lengths.max())} event(s), and train.min_history={wanted} "
            "asks for more before a position that is evaluated. Such a log has no histories: train with --set "
            "train.min_history=0."
        )


def check_estimator(data: Prepared, config: Config) -> None:
    """Raise an error if the log or the catalogue's layout does not support the estimator that would choose."""
    by = by_name(config.train.estimator, CHOOSING, key="train.estimator")
    if by.reward_model and config.train.shard_catalogue:
        raise ConfigError(f"train.estimator: {by.name} reads whole rows, and --shard-catalogue splits them; use snips.")
    if not by.negative_rewards and len(data["validation"]):
        lowest = float(data["validation"].arrays["reward"].min())
        if lowest < 0:
            raise DataError(
                f"train.estimator: {by.name} needs rewards >= 0, found {lowest:g} in the validation split. Use snips "
                "or dr, or change the reward map."
            )


def check_data(data: Prepared, objective: Objective) -> None:
    """Raise an error unless rewards and propensities are as the objective needs them."""
    name, train = objective.name, data["train"]
    for split in ("train", "validation"):
        if not len(data[split]):
            raise DataError(f"the {split} split is empty: prepare the data with a larger share for it.")
    if objective.reads().meetings and data.kind != "interactions":
        raise ConfigError(
            "objective.credit: first meetings are of logs of actions, such as views and purchases; this log says what "
            "was shown, so every row is a choice of its own. Use rows."
        )
    if "logged_propensity" in objective.reads().fields:
        _check_propensities(data, name, all_of_them=objective.weighs_by_ratio)
    if not objective.uses_reward:
        return
    reward = train.arrays["reward"]
    lowest, highest = np.inf, -np.inf
    for start in range(0, len(reward), BLOCK):
        block = reward[start : start + BLOCK]
        if not np.isfinite(block).all():
            row = start + int((~np.isfinite(block)).argmax())
            raise DataError(f"rewards must be finite numbers; event {row} of the train split has {reward[row]}.")
        if objective.non_negative and (block < 0).any():
            row = start + int((block < 0).argmax())
            raise DataError(
                f"{name} needs rewards >= 0, found {reward[row]:g} at event {row} of the train split. Its bound does "
                "not hold below zero: use lpi_cb, lpi_rl or sqn, or change the reward map."
            )
        lowest, highest = min(lowest, float(block.min())), max(highest, float(block.max()))
    if lowest == highest:
        what = "all rewards are 0" if lowest == 0 else f"all rewards equal {lowest:g}"
        raise DataError(
            f"{what}: {name} has nothing to prefer. Give events different rewards (such as purchase=1.0,click=0.2), "
            "or train mle."
        )


def holds_meetings(data: Prepared, config: WindowConfig) -> bool:
    """Whether first meetings earned different rewards in both halves of the validation split.

    They do, unless only the last action is held out or read: no reward can follow it.
    """
    held_out = Windows(data, "validation", config).of_first_meetings()
    for half in range(2):
        earned = [batch.reward[batch.scored] for batch in held_out.part(half, 2).in_order(8192)]
        if not len(together := torch.cat([*earned, torch.empty(0)])) or together.min() == together.max():
            return False
    return True


def _check_propensities(data: Prepared, name: str, *, all_of_them: bool) -> None:
    """Raise DataError for a propensity outside (0, 1], or a missing one that the objective needs."""
    train = data["train"]
    if "propensity" not in train.arrays:
        raise DataError(
            f"{name} with propensities=logged needs a log with propensities; this one has none. Use an impression log, "
            f"or {'propensities=estimated' if all_of_them else 'leave propensities out'}."
        )
    propensity, event = train.arrays["propensity"], train.arrays["event"]
    context = data.events.index(CONTEXT) if CONTEXT in data.events else -1
    for start in range(0, len(propensity), BLOCK):
        block = propensity[start : start + BLOCK]
        bad = ~((block > 0) & (block <= 1)) & (event[start : start + BLOCK] != context)
        bad &= all_of_them | ~np.isnan(block)
        if bad.any():
            row = start + int(bad.argmax())
            raise DataError(f"propensities must be in (0, 1]; event {row} of the train split has {propensity[row]}.")
