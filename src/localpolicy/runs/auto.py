"""Values of `auto`: settings that follow the log's own size and density (docs/results/defaults.md: why these).

Steps   a batch is the largest power of two that leaves STEPS of them in an epoch, and no smaller than 4: a log of 200
        sequences trains in hundreds of steps, not in four.
Epochs  as many as help: up to MOST_EPOCHS, until PATIENCE steps (3 to 12 epochs) went by without a better one.
Windows hold all actions of 99 of 100 sequences, up to 200 actions.
Shape   width 128; a second block if histories are long.
Rules   in a sparse log (few events an item) dropout and weight decay are strong, in a dense one weak. Decay is a prior:
        with more events it weighs less (as one over the root of their number), and since it acts at every step, it is
        spread over the steps if an epoch has many.

They are resolved once. A run that starts from another (a warm start, a given logging policy) inherits the shape of its
network: a threshold that a growing log crosses overnight changes no network that is in use. The windows of a warm start
alone may grow: those of a first run on short visits would cut off the contexts that a log of lists has. How it is
trained follows the log of today: batches of 4, right for a first day of 200 sequences, are 6,250 steps of 25,000 lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from localpolicy.data.batches import window_length
from localpolicy.data.column_relevance import ColumnRelevance, column_relevance
from localpolicy.data.item_features import learnt_columns
from localpolicy.data.store import Prepared
from localpolicy.runs.config import Config
from localpolicy.settings import AUTO

STEPS, FEWEST, LARGEST = 200, 4, 256  # steps of an epoch that a batch leaves; sequences of a batch
MOST_EPOCHS, PATIENCE = 200, 1500  # steps without a better validation
EPOCHS_OF_PATIENCE = (3, 12)  # no fewer, no more
WIDTH, LONG = 128, 50  # actions of a mean sequence that are worth a second block
SPARSE, DENSE = 30, 300  # events per item between which regularisation falls from its most to its least
DROPOUT, DECAY = (0.25, 0.1), (1.0, 0.0)  # at its most, at its least
DECAY_STEPS, DECAY_EVENTS = 400, 150_000  # of an epoch, beyond which decay is weaker
SHAPE = (("data", "length"), ("model", "width"), ("model", "blocks"))  # weights depend on these
INHERITED = "as the run it starts from"


def fill(config: Config, data: Prepared, older: Mapping[str, Any] | None = None, *, resumed: bool = False) -> Config:
    """Fill in every `auto` setting; `older` are the settings of the run that this one starts from, by group.

    `resumed`: these are the run's own settings, so it keeps their reasons.
    """
    asked = [
        (group, name)
        for group in ("data", "model", "train")
        for name, value in getattr(config, group).model_dump().items()
        if value == AUTO and (group, name) in RULES
    ]
    if not asked:
        return config
    known = older or {}
    grows = config.train.warm_start is not None and config.objective.reads().logging == "head" and not resumed
    groups = {group: getattr(config, group) for group in ("data", "model", "train")}
    reasons: dict[str, str] = {}
    for group, name in RULES:  # in this order: some depend on those before
        if (group, name) not in asked:
            continue
        if known.get(group, {}).get(name, AUTO) != AUTO and (resumed or (group, name) in SHAPE):
            value, why = known[group][name], INHERITED if known[group][name] != [] else ""
            if name == "length" and grows and (needed := _length(data, groups))[0] > value:
                value, why = needed
        else:
            value, why = RULES[group, name](data, groups)
        groups[group] = groups[group].model_copy(update={name: value})
        if why:
            reasons[f"{group}.{name}"] = f"{value}: {why}"
    if resumed:
        reasons |= {key: reason for key, reason in known.get("auto", {}).items() if key in reasons}
    return config.model_copy(update={**groups, "auto": {**config.auto, **reasons}})


def sentence(config: Config, data: Prepared) -> str | None:
    """One line on the settings that the log or another run decided; None if all of them were given."""
    if not config.auto:
        return None
    sequences, events = len(data["train"]), data["train"].events
    log = (
        f"{sequences:,} sequences of {events / max(sequences, 1):.1f} events, {events / max(data.n_items, 1):.1f} "
        "events an item"
    )
    train, model = config.train, config.model
    said = {
        "train.batch_size": f"batches of {train.batch_size}",
        "train.epochs": f"up to {train.epochs} epochs",
        "train.patience": f"patience {train.patience}",
        "data.length": f"windows of {config.data.length}",
        "model.width": f"width {model.width}",
        "model.blocks": f"{model.blocks} block{'s' if model.blocks > 1 else ''}",
        "model.dropout": f"dropout {model.dropout:g}",
        "train.weight_decay": f"weight decay {train.weight_decay:g}",
        "model.features": f"item features {', '.join(model.features) or 'none'}",
    }
    inherited = {key for key, reason in config.auto.items() if reason.endswith(INHERITED)}
    parts = {
        f"settings chosen from the log ({log})": [said[key] for key in said if key in config.auto.keys() - inherited],
        "settings of the run it starts from": [said[key] for key in said if key in inherited],
    }
    return "; ".join(f"{what}: {', '.join(words)}" for what, words in parts.items() if words)


def _batch_size(data: Prepared, groups: Mapping[str, Any]) -> tuple[int, str]:
    sequences = len(data["train"])
    size = 2 ** int(math.log2(max(sequences / STEPS, 1)))
    size = min(max(size, FEWEST), LARGEST)
    return size, f"{sequences:,} sequences, {-(-sequences // size):,} steps an epoch"


def _steps(data: Prepared, groups: Mapping[str, Any]) -> int:
    return -(-len(data["train"]) // int(groups["train"].batch_size))


def _patience(data: Prepared, groups: Mapping[str, Any]) -> tuple[int, str]:
    _, most = EPOCHS_OF_PATIENCE
    if data.sparse:
        return most, "validations without a better one: a sparse log's curves are nearly level for long"
    epochs = int(np.clip(math.ceil(PATIENCE / max(_steps(data, groups), 1)), *EPOCHS_OF_PATIENCE))
    return epochs, f"validations without a better one, {epochs * _steps(data, groups):,} steps"


def _length(data: Prepared, groups: Mapping[str, Any]) -> tuple[int, str]:
    length, lengths = window_length(data), np.diff(data["train"].offsets)
    return length, f"{np.mean(lengths <= length):.0%} of the sequences are no longer"


def _blocks(data: Prepared, groups: Mapping[str, Any]) -> tuple[int, str]:
    mean = data["train"].events / max(len(data["train"]), 1)
    return (2 if mean >= LONG else 1), f"a mean sequence has {mean:.0f} actions"


def _sparsity(data: Prepared) -> tuple[float, str]:
    """Sparsity of the log, from 1 (sparse) to 0 (dense), and its reason."""
    density = data["train"].events / max(data.n_items, 1)
    share = math.log(DENSE / max(density, 1e-9)) / math.log(DENSE / SPARSE)
    return min(max(share, 0.0), 1.0), f"{density:.3g} events an item"


def _between(most: float, least: float, share: float) -> float:
    return round(least + (most - least) * share, 3)


def _dropout(data: Prepared, groups: Mapping[str, Any]) -> tuple[float, str]:
    share, why = _sparsity(data)
    return _between(*DROPOUT, share), why


def _weight_decay(data: Prepared, groups: Mapping[str, Any]) -> tuple[float, str]:
    share, why = _sparsity(data)
    steps, events = max(_steps(data, groups), 1), max(data["train"].events, 1)
    decay = _between(*DECAY, share) * min(1.0, DECAY_STEPS / steps) * min(1.0, math.sqrt(DECAY_EVENTS / events))
    return round(decay, 3), f"{why}, {events:,} events"


def _features(data: Prepared, groups: Mapping[str, Any]) -> tuple[list[str], str]:
    """Columns of the item table that are informative, if input and head share item embeddings; and the reason."""
    if not learnt_columns(data.catalogue):
        return [], ""
    if not groups["model"].tied:
        return [], "heads that are not tied have rows of their own"
    found = column_relevance(data)
    said = "; ".join(
        f"{each.column} {'tells' if each.believed else 'is left out: it tells'} {_beyond(each)}" for each in found
    )
    return [each.column for each in found if each.believed], said


def _beyond(column: ColumnRelevance) -> str:
    most = max(column.pairs, -math.inf if column.rewards is None else column.rewards)
    return f"{most:.0f} standard deviations more than chance" if column.believed else "no more than chance would"


RULES = {
    ("data", "length"): _length,
    ("train", "batch_size"): _batch_size,
    ("train", "epochs"): lambda data, groups: (MOST_EPOCHS, "while they help"),
    ("train", "patience"): _patience,
    ("model", "width"): lambda data, groups: (WIDTH, "the same for any log"),
    ("model", "blocks"): _blocks,
    ("model", "dropout"): _dropout,
    ("train", "weight_decay"): _weight_decay,
    ("model", "features"): _features,
}
