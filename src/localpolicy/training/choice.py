"""How far an improved policy moves from μ̂: how much its critics count (their slope), and β.

Both are found on validation sequences that chose no epoch. The slope (see `training.critic_quality`) comes first; at 0
the policy stays at μ̂. β is given, or chosen:

- with logged propensities: the largest lower confidence bound of the value among μ̂ (β = ∞) and a grid of multiples of
  the advantage's spread, of those within the divergence budget and with an effective sample of a tenth. The bounds hold
  for all candidates at once (δ/K each), sequences being the independent unit. It is the value of one deviation from μ,
  of a whole list where the log has lists.
  `train.estimator` says how it is estimated (see `measure.value`).
- on impression logs without propensities: the same with μ̂'s probabilities in their place, which is a guess.
- on interaction logs, where no action was passed over: never so. β is the spread itself.

A divergence budget is a ceiling, never a target: β is raised until it is met, not lowered until it is used up.
β is a multiple of the spread of Â *before* calibration, so that it means the same at any scale of rewards; the spread
of s Â would undo the calibration. s is at most 1: a critic that says too little is not multiplied up, since nothing but
its own spread says how far β should go.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from localpolicy.catalogue import backend, sharded
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.decisions import LEAST_EFFECTIVE, Decisions, estimand_of, whole_lists
from localpolicy.measure.score import ItemMeans
from localpolicy.measure.value import value_bounds
from localpolicy.model.policy import Policy
from localpolicy.model.readout import critic_targets
from localpolicy.model.towers import Towers
from localpolicy.objectives.lpi import ClosedForm
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.critic_quality import Calibration, calibrate
from localpolicy.training.validation import batch_size, reward_model, reward_scale

MULTIPLES = (4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25)  # of the advantage's spread
USUAL = 1.0  # the multiple where nothing can choose
STEPS = 30  # halvings in search of a β within the budget


class BetaCandidate(NamedTuple):
    """A β that was considered, with its value, lower bound and distance from μ̂."""

    beta: float | None  # None: μ̂ itself
    value: float  # of one deviation from μ
    low: float  # its lower bound, for all candidates at once
    effective: float  # effective sample, as a share of the decisions
    js: float

    def json(self) -> dict[str, Any]:
        """For the manifest."""
        return self._asdict()


class Choice(NamedTuple):
    """The slope and β of a policy, and why."""

    beta: float
    slope: float  # 0: the policy is μ̂
    calibration: Calibration
    by: str
    candidates: tuple[BetaCandidate, ...] = ()
    said: str | None = None  # what a user should know

    def figures(self) -> dict[str, float]:
        """Beside the validation's other figures."""
        named = {"slope": self.calibration.slope, "slope_low": self.calibration.low, "r2_within": self.calibration.r2}
        return {name: value for name, value in named.items() if math.isfinite(value)}

    def json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "beta": self.beta,
            "slope": self.slope,
            "chosen_by": self.by,
            "calibration": self.calibration.json(),
            "candidates": [candidate.json() for candidate in self.candidates],
            "said": self.said,
        }


class HeldOut(NamedTuple):
    """One number per held-out position, all [n]."""

    sequence: np.ndarray
    reward: np.ndarray
    returns: np.ndarray  # G, as the critic's targets: discounted, and as at a list's first place
    weight: np.ndarray  # of the critic's squared error
    taken: np.ndarray  # Q(x, a)
    expected: np.ndarray  # Σ_a μ̂(a|x) Q(x, a), over what could be chosen
    item: np.ndarray
    place: np.ndarray  # in its list: how many stand above
    log_mu: np.ndarray  # log μ(a|x) among what could be chosen: as logged, or μ̂'s; NaN where it is unknown
    known: bool  # whether the log states μ
    begins: np.ndarray  # where in its sequence the list begins
    stated: np.ndarray | None = None  # its place as the log states it

    def decisions(self, logp: np.ndarray, taken: np.ndarray | None, expected: np.ndarray | None) -> Decisions:
        """Of a policy with these log π(a|x): of whole lists, where the log has any."""
        log = Decisions(np.exp(logp - self.log_mu), self.reward, self.sequence, taken, expected)
        if estimand_of(self.place) == "decision":
            return log.at(~np.isnan(log.weight))
        another = (np.diff(self.sequence, prepend=-1) != 0) | (np.diff(self.begins, prepend=-1) != 0)
        another |= np.diff(self.place, prepend=-1) <= 0  # two histories of one sequence may be equally long
        return whole_lists(log, self.place, np.cumsum(another), place=self.stated)


@torch.no_grad()
def read_held_out(policy: Policy, windows: Windows, *, gamma: float, config: Config, ranks: Ranks) -> HeldOut:
    """What calibration and estimates need, in one pass."""
    network = policy.network
    assert isinstance(network, Towers)
    catalogue = backend(config.train.catalogue) if network.shard is None else sharded
    logging, critic = network.head("logging").detach(), network.head(network.critic).detach()
    columns: list[tuple[Tensor, ...]] = []
    for batch in windows.in_order(batch_size(config), rank=ranks.rank, ranks=ranks.total):
        at = batch.scored
        hidden = network.hidden_without_dropout(batch)[at]
        q, item = critic.logits(hidden), batch.item[at]
        estimate, open_items = logging.logits(hidden), OpenItems.of(batch)
        log_mu, mean_q = catalogue.log_prob_and_mean(estimate, item, q, open_items)
        if open_items is not None:
            log_mu = log_mu.masked_fill(open_items.unknown, torch.nan)
        log_propensity = torch.full_like(log_mu, torch.nan) if batch.propensity is None else batch.propensity[at].log()
        above = torch.zeros_like(at) if batch.context is None else at - batch.context[at]
        window = batch.sequences[batch.row[at]]
        place = windows.places_at(window, batch.history[at]) if batch.context is not None else None
        columns.append(
            (batch.owners[batch.row[at]], item, above, batch.history[at] - above, above if place is None else place,
             batch.reward[at], *critic_targets(batch, gamma=gamma), q.at(item), mean_q, log_mu, log_propensity)
        )  # fmt: skip
    gathered = [ranks.all_gather(torch.cat(column))[0].cpu().numpy() for column in zip(*columns, strict=True)]
    (sequences, items, above_each, begins, places), numbers = (
        gathered[:5],
        [column.astype(np.float64) for column in gathered[5:]],
    )
    reward, returns, weight, q_taken, q_mean, estimated, stated = numbers
    known = bool(len(stated)) and not np.isnan(stated).any()
    log_mu = np.where(np.isnan(estimated), np.nan, stated) if known else estimated
    return HeldOut(
        sequences, reward, returns, weight, q_taken, q_mean, items, above_each, log_mu, known, begins, places
    )


def choose(
    policy: Policy,
    windows: Windows,
    objective: ClosedForm,
    data: Prepared,
    config: Config,
    *,
    ranks: Ranks,
    again: bool = False,
) -> Choice:
    """The slope and β of a policy, on sequences that chose no epoch. All ranks ask together, and agree.

    `again`: the log is an improved policy's own, so that this step follows an earlier one.
    """
    read = read_held_out(policy, windows, gamma=objective.critic_objective("").gamma, config=config, ranks=ranks)
    calibration = calibrate(
        read.returns, read.expected, read.taken, read.sequence, weight=read.weight, place=read.place
    )
    slope = calibration.factor if objective.calibrate_critic else 1.0
    spread = calibration.spread if calibration.spread > 0 else 1.0
    usual = objective.beta or USUAL * spread
    if slope == 0:
        return Choice(usual, slope, calibration, "calibration", said=SILENT.format(calibration.slope, calibration.low))
    curve = _Curve(policy, windows, slope, config, ranks, reward_model(data, config))
    ceiling = objective.max_js if objective.beta else objective.ceiling(again=again)
    if objective.beta is not None or data.kind != "impressions" or np.isnan(read.log_mu).all():
        beta, by = _within(curve, usual, ceiling), "given" if objective.beta else "spread"
        said = None if beta == usual else f"β was raised from {usual:.3g} to {beta:.3g} to stay within max_js."
        return Choice(beta, slope, calibration, by, said=said)
    candidates = _judged(curve, [multiple * spread for multiple in MULTIPLES], read, scale=reward_scale(data))
    most = math.inf if ceiling is None else ceiling
    allowed = [
        each for each in candidates if each.beta is None or (each.effective >= LEAST_EFFECTIVE and each.js <= most)
    ]
    best = max(allowed, key=lambda each: each.low)
    by = "value by logged propensities" if read.known else "value by μ̂'s own propensities: a guess"
    if best.beta is None:
        said = "no tilt has a larger lower bound of its value than μ̂ itself: the policy stays at μ̂."
        return Choice(usual, 0.0, calibration, by, tuple(candidates), said)
    return Choice(best.beta, slope, calibration, by, tuple(candidates))


SILENT = (
    "the log does not tell good items from bad: on held-out actions the slope of the return on the critic's advantage "
    "is {:.3g} (at least {:.3g} with 95 % confidence). The policy stays at μ̂; "
    "objective.calibrate_critic=false tilts it anyway."
)


class _Curve:
    """π_β ∝ μ̂ exp(s Q/β) on held-out sequences: for any β, log π_β at the taken items, and JS from μ̂."""

    def __init__(
        self, policy: Policy, windows: Windows, slope: float, config: Config, ranks: Ranks, model: ItemMeans | None
    ) -> None:
        network = policy.network
        assert isinstance(network, Towers)
        self.network, self.windows, self.slope, self.config, self.ranks = network, windows, slope, config, ranks
        self.model = model  # r̂ of the doubly robust estimate
        self.catalogue = backend(config.train.catalogue) if network.shard is None else sharded
        self.logging = network.head("logging").detach()
        assert network.slope == 1.0, "the slope is not chosen yet"

    def js(self, beta: float) -> float:
        """JS(π_β, μ̂), its mean."""
        return float(self.at([beta]).js[0])

    @torch.no_grad()
    def at(self, betas: list[float]) -> _Points:
        """Every position at every β, among what could be chosen."""
        logp: list[list[Tensor]] = [[] for _ in betas]
        js: list[list[Tensor]] = [[] for _ in betas]
        expected: list[list[Tensor]] = [[] for _ in betas]
        size, ranks = batch_size(self.config), self.ranks
        for batch in self.windows.in_order(size, rank=ranks.rank, ranks=ranks.total):
            hidden = self.network.hidden_without_dropout(batch)[batch.scored]
            reference, item = self.logging.logits(hidden), batch.item[batch.scored]
            open_items = OpenItems.of(batch)
            for index, beta in enumerate(betas):
                logits = self.network.policy(hidden, beta=beta / self.slope)
                logp[index].append(self.catalogue.log_prob(logits, item, open_items))
                js[index].append(self.catalogue.divergence(logits, reference)[0])
                if self.model is not None:
                    expected[index].append(self.catalogue.mean(logits, self.model.logits(batch), open_items))

        def gathered(parts: list[list[Tensor]]) -> np.ndarray:
            return np.stack([ranks.all_gather(torch.cat(each))[0].double().cpu().numpy() for each in parts])

        values = None if self.model is None else gathered(expected)
        return _Points(gathered(logp), gathered(js).mean(1), values)


class _Points(NamedTuple):
    """K policies on n positions."""

    logp: np.ndarray  # [K, n] log π_β(a|x), among what could be chosen
    js: np.ndarray  # [K] JS(π_β, μ̂), the mean
    expected: np.ndarray | None  # [K, n] Σ_a π_β(a|x) r̂(a), over what could be chosen


def _judged(curve: _Curve, betas: list[float], read: HeldOut, *, scale: float) -> list[BetaCandidate]:
    """μ̂ and every β: the value of one deviation, its lower bound for all of them at once, and the overlap."""
    points = curve.at([*betas, math.inf])
    taken = None if curve.model is None else curve.model.mean.double().numpy()[read.item]
    logs = []
    for index, logp in enumerate(points.logp):
        expected = None if points.expected is None else points.expected[index]
        logs.append(read.decisions(logp, taken, expected))
    bounds = value_bounds(logs, curve.config.train.estimator, scale=scale)
    return [
        BetaCandidate(beta, bound.value, bound.low, bound.effective, float(js))
        for beta, bound, js in zip([*betas, None], bounds, points.js, strict=True)
    ]


def _within(curve: _Curve, beta: float, max_js: float | None) -> float:
    """The smallest β from this one on whose JS from μ̂ is within the ceiling: JS falls as β rises."""
    if max_js is None or curve.js(beta) <= max_js:
        return beta
    low, high = math.log(beta), math.log(beta) + math.log(1e6)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if curve.js(math.exp(middle)) <= max_js else (middle, high)
    return math.exp(high)
