"""Validation: metrics of the policy on the validation split, which judge an epoch."""

from __future__ import annotations

import logging
import math

import numpy as np
import torch

from localpolicy.catalogue import backend
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.decisions import Decisions, OverlapRules, decisions, overlap
from localpolicy.measure.estimate import REACH, Estimate, mean_estimate
from localpolicy.measure.estimators import by_name
from localpolicy.measure.metrics import AT_20
from localpolicy.measure.position_metrics import flat
from localpolicy.measure.score import ItemMeans, score
from localpolicy.measure.value import value_bounds
from localpolicy.model.baselines import popularity
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.model.readout import critic_targets, returns_to_go
from localpolicy.runs.config import Config
from localpolicy.runs.run import LIKELIHOOD, PLAIN
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.finite import refuse_broken_weights

LOG = logging.getLogger(__name__)
SHARES = np.linspace(0.02, 0.98, 49)  # of popularity in the blend
ON_A_GPU, ON_A_CPU = 8192, 64  # sequences of a batch in validation, at least
CLOSED_PAIRS = 1 << 24  # pairs of a position and an earlier one in one block


def validate(
    policy: Policy, windows: Windows, config: Config, *, data: Prepared, step: int, ranks: Ranks
) -> dict[str, float]:
    """Metrics as plain numbers, equal on all ranks, which share the work. TrainingError for a broken policy."""
    scores = score(
        policy,
        windows,
        events=data.events,
        reward_model=reward_model(data, config),
        min_history=config.train.min_history,
        batch_size=batch_size(config),
        description="validation",
        ranks=ranks,
    )
    figures = flat(scores, AT_20)
    if data.sparse:
        known = data.known_items[scores.item]
        judged = known if known.any() else ~known
        share = popularity(data).double().numpy()[scores.item[judged]]
        figures |= {PLAIN: figures[LIKELIHOOD], LIKELIHOOD: blended_likelihood(scores.logp[judged], share)}
    refuse_broken_weights(policy.network, figures[LIKELIHOOD], step, ranks)
    if "value" in policy.network.heads:
        figures["value_error"], figures["constant_error"] = _value_errors(policy, windows, config, ranks)
    if (log := decisions(scores)) is not None:
        figures |= _value(log, config.train.estimator, reward_scale(data))
    # An empty group of positions has no metric.
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def blended_likelihood(logp: np.ndarray, share: np.ndarray) -> float:
    """max over m of the mean of log((1 - m) π(a|x) + m q(a)), from log π(a|x) and the popularity q(a) of logged items.

    On a sparse log the mean of log π alone falls long before ranking stops to improve: it is ruled by rare items, of
    which no network can know more than their popularity. A mixture with popularity (Jelinek and Mercer 1980) has that
    much for free, so that the policy's knowledge of the others decides. Items that training never shows are left out by
    the caller: they are only ever pushed down, whatever is learnt.
    """
    probability = np.exp(logp.astype(np.float64))
    return max(float(np.log((1 - m) * probability + m * share).mean()) for m in SHARES)


def reward_model(data: Prepared, config: Config) -> ItemMeans | None:
    """Reward model r̂, or None if the estimator that chooses needs none."""
    return ItemMeans.fit(data) if by_name(config.train.estimator).reward_model else None


def batch_size(config: Config) -> int:
    """Number of sequences in a batch of validation: more than in a step, which may have few."""
    size = max(config.train.batch_size, ON_A_GPU if config.train.device.startswith("cuda") else ON_A_CPU)
    if config.objective.reads().meetings:  # each position closes what its window held before
        return min(size, max(1, CLOSED_PAIRS // int(config.data.length) ** 2))
    return size


def reward_scale(data: Prepared) -> float:
    """Largest reward of any event, if rewards follow from events: the scale of value bounds, known beforehand."""
    return float(max(data.manifest["rewards"].values(), default=1.0)) or 1.0


def _value(log: Decisions, estimator: str, scale: float) -> dict[str, float]:
    """Value of one deviation from μ to this policy by logged propensities, and the bound that chooses.

    If the log covers too little of the policy, the bound is the smallest reward.
    """
    (bound,) = value_bounds([log], estimator, scale=scale)
    lowest = float(log.earned.min())
    low = max(bound.low, lowest) if bound.enough else lowest
    covered = overlap(log)
    return {
        "value": bound.value,
        "value_low": low,
        "effective": bound.effective,
        "mean_weight": covered.mean_weight,
        "mean_weight_se": covered.mean_weight_se,
    }


def warn_of_propensities(figures: dict[str, float], data: Prepared) -> None:
    """Warn if propensities break what true ones obey, whatever π: E_μ[π/μ] = 1, and E_μ[log π - log μ] <= 0.

    An estimate of μ that learns from stated propensities learns their faults too: then π/μ is 1, and only the second
    rule shows it, for the items' own frequencies.
    """
    mean, se = figures.get("mean_weight", 1.0), figures.get("mean_weight_se", 0.0)
    if not data.known_items.all():  # the log never shows some: what π gives to these is missing from the mean
        mean = max(mean, 1.0)
    lead = frequencies_lead(data)
    if abs(mean - 1) > max(OverlapRules().max_bias, 4 * se):
        found = f"the mean of π/μ over held-out actions is {mean:.3f} ± {REACH * se:.3f} (95 %), and should be 1"
    elif lead.n and lead.mean > 4 * lead.se:
        found = (
            f"held-out actions are likelier by the items' frequencies than by what the log states, by {lead.mean:.3f} "
            f"± {REACH * lead.se:.3f} nats (95 %)"
        )
    else:
        return
    LOG.warning(
        "the log's propensities are doubtful: %s. μ̂ learns from them; objective.propensities=unused leaves them out.",
        found,
    )


def frequencies_lead(data: Prepared) -> Estimate:
    """Mean of log f(a) - log μ(a|x) over held-out actions drawn from the whole catalogue; f: counts in training."""
    split = data["validation"]
    arrays = {name: np.asarray(array) for name, array in split.arrays.items()}
    here = ~np.isnan(arrays["propensity"]) & (arrays["propensity"] > 0) & (arrays.get("above", np.zeros(1)) == 0)
    if "filter" in arrays:  # a filter narrows what could be drawn, and frequencies know nothing of it
        here &= False
    counts = np.bincount(np.asarray(data["train"].arrays["item"]), minlength=data.n_items) + 1.0
    lead = np.log(counts / counts.sum())[arrays["item"]] - np.log(np.where(here, arrays["propensity"], 1.0))
    return mean_estimate(lead[here], split.sequence[here])


@torch.no_grad()
def validate_critic(
    policy: Policy, windows: Windows, config: Config, *, data: Prepared, step: int, ranks: Ranks
) -> dict[str, float]:
    """Squared errors of a critic alone, and of the best constant, to the observed return."""
    network, reads = policy.network, config.objective.reads()
    assert reads.critic is not None
    errors, targets, weights = [], [], []
    for batch in windows.in_order(batch_size(config), rank=ranks.rank, ranks=ranks.total):
        hidden = network.hidden_without_dropout(batch)[batch.scored]
        target, weight = critic_targets(batch, gamma=reads.gamma)
        targets.append(target)
        weights.append(weight)
        off = network.head(reads.critic).logits(hidden).at(batch.item[batch.scored]) - target
        errors.append(weight * off**2)
    error, target, weight = (ranks.all_gather(torch.cat(parts))[0].double() for parts in (errors, targets, weights))
    mean = (weight * target).sum() / weight.sum()
    mean_error, constant = float(error.mean()), float((weight * (target - mean) ** 2).mean())
    refuse_broken_weights(network, mean_error, step, ranks)
    return {"return_error": mean_error, "constant_error": constant}


@torch.no_grad()
def distance(policy: Policy, teacher: Policy, windows: Windows, config: Config, ranks: Ranks) -> float:
    """Mean JS of a policy from the one it imitates."""
    divergences = [
        backend(config.train.catalogue).divergence(policy.logits(batch), teacher.logits(batch))[0]
        for batch in windows.in_order(batch_size(config), rank=ranks.rank, ranks=ranks.total)
    ]
    return float(ranks.all_gather(torch.cat(divergences))[0].double().mean())


@torch.no_grad()
def _value_errors(policy: Policy, windows: Windows, config: Config, ranks: Ranks) -> tuple[float, float]:
    """Held-out squared errors of V(x), and of the best constant.

    V is measured against what it estimates: rewards in a bandit, and returns (which TD only approaches) otherwise.
    """
    network, errors, targets = policy.network, [], []
    assert isinstance(network, Network)  # towers have no value head
    gamma = config.objective.reads().gamma
    for batch in windows.in_order(batch_size(config), rank=ranks.rank, ranks=ranks.total):
        predicted = network.value(network.hidden_without_dropout(batch)[batch.scored])
        targets.append(returns_to_go(batch, gamma=gamma)[batch.scored])
        errors.append((predicted - targets[-1]) ** 2)
    error, target = (ranks.all_gather(torch.cat(parts))[0] for parts in (errors, targets))
    return float(error.mean()), float(target.var(correction=0))
