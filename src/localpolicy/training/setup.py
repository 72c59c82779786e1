"""Setup before the first step: the resolved config, the network, its reader and optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from localpolicy.catalogue import backend, chosen, fused, sharded
from localpolicy.catalogue.sampled import Sampler
from localpolicy.catalogue.shards import Shard
from localpolicy.data.item_features import ItemFeatures
from localpolicy.data.item_mixtures import NewItems
from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.errors import ConfigError, RunError
from localpolicy.measure.metrics import by_meetings
from localpolicy.model.item_embeddings import ABSENT, ItemInputs
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.model.readout import NetworkReader, heads_for
from localpolicy.objectives.objective import Objective
from localpolicy.runs.auto import fill
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.devices import device_called
from localpolicy.runtime.ranks import Ranks
from localpolicy.settings import AUTO
from localpolicy.training.adam import TableAdamW
from localpolicy.training.checks import BLOCK, holds_meetings
from localpolicy.training.logging_policy import over_catalogue, served
from localpolicy.training.losses import Losses
from localpolicy.training.numerics import half
from localpolicy.training.selection import rule

# Decay bounds a weight by its inverse, and that of gains bounds probabilities: without it sparse logs are overfitted,
# with all of it predictable logs are not learnt (docs/results/defaults.md).
OF_VECTORS = 0.4
# Fields that need a whole row: a sample would make noisy weights of them.
WHOLE = {"logp_logging", "q_expected", "q_policy", "q_max", "cross_entropy"}
OF_VALUE = 1e-2  # weight decay of the value head: 1/β amplifies its noise


def resolve(config: Config, data: Prepared, begun: Run | None = None) -> Config:
    """Fill in every default that depends on data or machine; `begun` is this run if it resumes."""
    older = _inherited(config) if begun is None else begun.config.model_dump()
    if config.objective.reads().teacher and config.model.features == AUTO:  # a student learns rows that are there
        config = config.model_copy(update={"model": config.model.model_copy(update={"features": []})})
    config = fill(config, data, older, resumed=begun is not None)
    embedded = config.model.event_embeddings
    if embedded is None:  # a first log of answers begins with them: they start at zero, so nothing known is lost
        embedded = bool(older and older["model"]["event_embeddings"]) or _events_differ(data)
    device = device_called(config.train.device)
    train: dict[str, Any] = {} if "min_history" in config.train.model_fields_set else _histories(data)
    train |= {
        "device": device,
        "select": rule(config.train.select, data, config.objective),
        "catalogue": chosen(config.train.catalogue, device),
        "calibrate": data.sparse if config.train.calibrate is None else config.train.calibrate,
    }
    changes = {
        "objective": resolved_by(_credited(config, data, begun), data),
        "model": config.model.model_copy(update={"event_embeddings": embedded}),
        "train": config.train.model_copy(update=train),
    }
    return config.model_copy(update=changes)


def _histories(data: Prepared) -> dict[str, int]:
    """`min_history` 0 if every validation sequence is one action or one list, else no override."""
    offsets, arrays = data["validation"].offsets, data["validation"].arrays
    before = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    before = before - arrays["above"] if "above" in arrays else before
    return {"min_history": 0} if len(before) and before.max() == 0 else {}


def _credited(config: Config, data: Prepared, begun: Run | None) -> Objective:
    """Objective with `credit` filled in; a resumed run keeps the value it started with."""
    objective = config.objective
    if begun is not None and (older := dict(begun.config.objective)).get("credit") is None:
        known = {name: value for name, value in older.items() if getattr(objective, name, value) is None}
        return objective.model_copy(update=known)
    if objective.reads().meetings and data.kind == "interactions" and not holds_meetings(data, config.data):
        raise ConfigError(
            "objective.credit: the first meetings of the validation split all earned the same, so they say nothing of "
            "a critic (a meeting has no later rewards where the last action alone is held out or read). Use rows."
        )
    return objective.crediting(meetings=lambda: by_meetings(data) and holds_meetings(data, config.data))


def resolved_by(objective: Objective, data: Prepared) -> Objective:
    """The objective with its defaults that depend on the log filled in."""
    return objective.resolved(propensities=states_propensities(data)).scaled(rewards=lambda: rewards_of(data))


def rewards_of(data: Prepared) -> list[float]:
    """Smallest three distinct rewards of the training split's actions (or lists), in order."""
    arrays = data["train"].arrays
    reward = arrays["reward"]
    if data.one_reward and "above" in arrays:
        reward = np.add.reduceat(reward, np.flatnonzero(np.asarray(arrays["above"]) == 0))
    elif CONTEXT in data.events:
        reward = reward[arrays["event"] != data.events.index(CONTEXT)]
    known = np.empty(0, reward.dtype)
    for start in range(0, len(reward), BLOCK):
        known = np.unique(np.concatenate([known, reward[start : start + BLOCK]]))[:3]
    return [float(each) for each in known]


def states_propensities(data: Prepared) -> bool:
    """Whether the log states μ(a|x) and holds every shown item."""
    return data.kind == "impressions" and "propensity" in data["train"].arrays


def _inherited(config: Config) -> dict[str, Any] | None:
    """Settings of the run whose weights this one starts from, or whose logging policy it reads; else None."""
    folder = config.train.warm_start or config.objective.reads().logging
    older = None if folder == "head" else Run(folder)
    return older.config.model_dump() if older is not None and older.started else None


def _events_differ(data: Prepared) -> bool:
    """Whether past events carry information: their mean rewards in the training split differ."""
    arrays = data["train"].arrays
    counts = np.bincount(arrays["event"], minlength=len(data.events))
    counts[[code for code, name in enumerate(data.events) if name == CONTEXT]] = 0
    means = np.bincount(arrays["event"], arrays["reward"], minlength=len(data.events))[counts > 0] / counts[counts > 0]
    return len(means) > 1 and bool(np.ptp(means) > 0)


def shard_of(data: Prepared, config: Config, ranks: Ranks) -> Shard | None:
    """This rank's part of the catalogue, or None if it is not split."""
    if ranks.alone or not config.train.shard_catalogue:
        return None
    if data.n_items < ranks.total:
        raise ConfigError(
            f"--shard-catalogue: {data.path} has {data.n_items} items, fewer than the {ranks.total} processes that "
            "share them; use fewer processes, or leave the catalogue whole."
        )
    return Shard(ranks, data.n_items)


def build_reader(
    data: Prepared,
    config: Config,
    *,
    backbone: nn.Module | None = None,
    shard: Shard | None = None,
) -> NetworkReader:
    """New network with the heads that the objective needs, and the reader of its numbers."""
    reads = config.objective.reads()
    logging_policy = open_logging_policy(config, data, shard=shard)
    torch.manual_seed(config.train.seed)
    network = Network(
        config.model,
        items=data.n_items,
        events=len(data.events) if config.model.event_embeddings else 0,
        length=config.data.length,
        heads=heads_for(reads, logging_given=logging_policy is not None),
        backbone=backbone,
        shard=shard,
        features=item_inputs(data, config),
    )
    return NetworkReader(
        network.to(config.train.device),
        reads,
        backend(config.train.catalogue) if shard is None else sharded,
        logging_policy=logging_policy,
        sampler=sampler_of(data, config),
    )


def sampler_of(data: Prepared, config: Config) -> Sampler | None:
    """Sampler for `train.sampled`; None if the sample would be the whole catalogue.

    Raise ConfigError if the objective, the log or the device needs sums over all items.
    """
    size = config.train.sampled
    if size is None or size >= data.n_items:
        return None
    lists = "above" in data["train"].arrays or data.filters is not None
    reason = (
        "sums over all items are fast on a GPU" if config.train.device != "cpu"
        else "the catalogue is split over processes" if config.train.shard_catalogue
        else "this log holds lists or filters, whose softmax is over what could be chosen" if lists
        else f"{config.objective.name} weighs by probabilities, which a sample only estimates"
        if config.objective.reads().fields & WHOLE
        else None
    )  # fmt: skip
    if reason is not None:
        raise ConfigError(f"train.sampled: {reason}. Leave it out.")
    return Sampler.by_counts(torch.from_numpy(np.bincount(data["train"].arrays["item"], minlength=data.n_items)), size)


def item_inputs(data: Prepared, config: Config) -> ItemInputs | None:
    """Item features for the network, or None without features."""
    if not config.model.features:
        return None
    items = data.catalogue
    if config.model.shuffle_features is not None:
        items = items.take(np.random.default_rng(config.model.shuffle_features).permutation(len(items)))
    encoded = ItemFeatures.fit(items, config.model.features, data.known_items).encode(items)
    if not encoded.n_features:  # vectors that all items of the training split share
        raise ConfigError(
            f"model.features: {', '.join(config.model.features)} carries no information: all items of the training "
            "split have the same. Leave it out."
        )
    counts = np.bincount(data["train"].arrays["item"], minlength=data.n_items)
    return ItemInputs(encoded, data.known_items, NewItems.of(encoded, counts, bound=config.model.new_items))


def build_losses(reader: NetworkReader, config: Config, ranks: Ranks) -> nn.Module:
    """Module from a batch to its loss, wrapped in DDP if several ranks have copies of the network."""
    losses = Losses(reader, config.objective, half=half(config.train))
    if ranks.alone or reader.network.shard is not None:
        return losses
    # The coin leaves one Q head out of each step, and a softmax does not see what the logging head adds to all items of
    # a context: DDP must look for parameters without a gradient.
    return DistributedDataParallel(
        losses,
        find_unused_parameters=not {"q_a", "logging"}.isdisjoint(reader.network.heads),
        gradient_as_bucket_view=True,  # gradients are summed where they lie
    )


def build_optimiser(network: Network, config: Config, *, unit: float = 1.0) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay. The value head has its own decay; heads take steps of `unit` times the rate."""
    train, device = config.train, network.embedding.device
    parameters: dict[str, list[nn.Parameter]] = {"heads.value.": [], "heads.": [], "features.": [], "": []}
    for name, parameter in network.named_parameters():
        parameters[next(prefix for prefix in parameters if name.startswith(prefix))].append(parameter)
    groups: list[dict[str, Any]] = []
    for prefix, members in parameters.items():
        step = unit if prefix == "heads." else 1.0
        for vectors in (False, True):
            chosen = [parameter for parameter in members if (parameter.ndim < 2) == vectors]
            rate: float | torch.Tensor = train.learning_rate * step
            if network.embedding.is_cuda:  # on the device, where a captured step reads it
                rate = torch.tensor(rate, device=device)
            decay = train.weight_decay * (OF_VECTORS if vectors else 1.0)
            decay = OF_VALUE if prefix == "heads.value." else decay
            # A step shrinks weights by rate · decay: by the same share, whatever the unit of rewards, and so of steps.
            groups += [{"params": chosen, "weight_decay": decay / step, "lr": rate}] if chosen else []
    if network.embedding.is_cuda and fused.missing() is None:
        return TableAdamW(groups, capturable=True)
    return torch.optim.AdamW(groups, fused=True, capturable=network.embedding.is_cuda)


def open_logging_policy(config: Config, data: Prepared, *, shard: Shard | None = None) -> Policy | None:
    """Frozen run for μ̂, if one is named: an estimate of μ, or the run that served the log. Else None."""
    reads = config.objective.reads()
    folder = reads.logging
    if folder == "head":
        return None
    if reads.teacher and shard is not None:
        raise ConfigError("--shard-catalogue: distilling reads whole rows; leave the catalogue whole.")
    run = Run(folder)
    policy = run.policy(beta=reads.beta, shard=shard)
    if not reads.teacher and policy.origin.estimates_logging != "policy" and not served(run, data):
        raise RunError(
            f"objective.logging: {folder} is a {policy.origin.objective} run; only runs such as mle and sqn estimate "
            "the logging policy. (Any run may stand for it on an impression log that it served alone, named there by "
            "its folder's name or its digest.)"
        )
    if policy.origin.events != data.events:
        raise RunError(f"objective.logging: {folder} knows the events {policy.origin.events}, not {data.events}.")
    if policy.network.length < config.data.length:
        raise RunError(
            f"objective.logging: {folder} reads contexts of at most {policy.network.length} actions; set "
            f"data.length (now {config.data.length}) to that, or train it with longer ones."
        )
    if shard is not None and not policy.items["item_id"].equals(data.catalogue["item_id"]):
        raise RunError(
            f"objective.logging: {folder} knows other items than {data.path}; with --shard-catalogue the "
            "frozen run must know the same ones."
        )
    # Of items that came later the run that served a log says the truth: it showed none of them.
    if reads.teacher and not served(run, data) and not policy.items["item_id"].equals(data.catalogue["item_id"]):
        raise RunError(
            f"{folder} knows other items than {data.path}, and can teach nothing about those. Distil it on the data it "
            "was trained on (leave --data out), or train a run on the new data first."
        )
    policy.network.requires_grad_(False).to(config.train.device)
    return over_catalogue(policy, data, folder, absent=ABSENT if reads.teacher else -torch.inf)
