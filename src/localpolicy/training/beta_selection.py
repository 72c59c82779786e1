"""Choice of the critics' slope and of β: how far an improved policy moves from μ̂.

Both are found on validation sequences that chose no epoch. The slope (see `training.critic_quality`) comes first; at 0
the policy stays at μ̂. β is given, or chosen:

- with logged propensities: the largest lower confidence bound among μ̂ (β = ∞) and a grid of multiples of the
  advantage's spread, of those within the divergence budget and with an effective sample of a tenth; of these those that
  the gate can judge, if there are any: whose effective sample on the test rows would be large enough. The bounds hold
  for all candidates at once (δ/K each), sequences being the independent unit.
  The bounded value is that of one deviation from μ, or of a whole list if the log has lists; `train.estimator` names
  its estimator (see `measure.value`). If the critic looks ahead (γ > 0) it is the gain in the return of one
  deviation over that of μ̂, paired, doubly robust (see `measure.returns`): by the next reward alone, the best way there
  looks like a loss.
- on impression logs without propensities: likewise, with μ̂'s probabilities in their place, which is a guess.
- on interaction logs, where no action was passed over: not from values. β is the spread itself.

A divergence budget is a ceiling, never a target: β is raised until it is met, not lowered until it is used up. β is a
multiple of the spread of Â *before* calibration, so that it means the same at any scale of rewards; the spread of s Â
would undo the calibration. s is at most 1: a critic whose predictions vary too little is not multiplied up, since
nothing but its own spread says how far β should go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from localpolicy.catalogue import backend, sharded
from localpolicy.catalogue.open_items import OpenItems
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.decisions import LEAST_EFFECTIVE, effective_sample
from localpolicy.measure.intervals import lower_bound
from localpolicy.measure.returns import Opinion, ReturnModel, Visits, of_deviations
from localpolicy.measure.score import ItemMeans
from localpolicy.measure.value import DELTA, value_bounds
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.objectives.lpi import ClosedForm
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.critic_quality import Calibration, calibrate
from localpolicy.training.held_out import HeldOut, read_held_out
from localpolicy.training.validation import batch_size, reward_model, reward_scale

MULTIPLES = (4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25)  # of the advantage's spread
USUAL = 1.0  # the multiple if values cannot choose
ENOUGH = 120.0  # effective decisions on the test rows: a fifth more than the least that the gate asks for
STEPS = 30  # halvings in search of a β within the budget


class BetaCandidate(NamedTuple):
    """A considered β, with its value, lower bound and distance from μ̂."""

    beta: float | None  # None: μ̂ itself
    value: float  # value of one deviation from μ; if the critic looks ahead, the gain in return over μ̂
    low: float  # its lower bound, for all candidates at once
    effective: float  # effective sample, as a share of the decisions
    js: float

    def json(self) -> dict[str, Any]:
        """The candidate as an entry of the manifest."""
        return self._asdict()


class Choice(NamedTuple):
    """Slope and β of a policy, and the reasons."""

    beta: float
    slope: float  # 0: the policy is μ̂
    calibration: Calibration | None  # None: nothing was to be calibrated
    by: str
    candidates: tuple[BetaCandidate, ...] = ()
    said: str | None = None  # note for the user

    def figures(self) -> dict[str, float]:
        """Metrics that are recorded with those of the validation."""
        if self.calibration is None:
            return {}
        named = {"slope": self.calibration.slope, "slope_low": self.calibration.low, "r2_within": self.calibration.r2}
        return {name: value for name, value in named.items() if math.isfinite(value)}

    def json(self) -> dict[str, Any]:
        """The choice as an entry of the manifest."""
        return {
            "beta": self.beta,
            "slope": self.slope,
            "chosen_by": self.by,
            **({"calibration": self.calibration.json()} if self.calibration is not None else {}),
            "candidates": [candidate.json() for candidate in self.candidates],
            "said": self.said,
        }


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
    """Choose the slope and β of a policy, on sequences that chose no epoch. All ranks call, and agree.

    `again`: the log is an improved policy's own, so that this step follows an earlier one.
    """
    gamma = objective.critic_objective("").gamma
    read = read_held_out(policy, windows, gamma=gamma, config=config, ranks=ranks)
    calibration = calibrate(
        read.returns, read.expected, read.taken, read.sequence, weight=read.weight, place=read.place
    )
    slope = calibration.factor if objective.calibrate_critic else 1.0
    spread = calibration.spread if calibration.spread > 0 else 1.0
    usual = objective.beta or USUAL * spread
    if slope == 0:
        sure = (
            f"at least {calibration.low:.3g} with 95 % confidence" if calibration.low > -math.inf else "not known well"
        )
        return Choice(usual, slope, calibration, "calibration", said=SILENT.format(calibration.slope, sure))
    returns = ReturnModel.fit(Visits.of_split(data, "train"), gamma=gamma, n_items=data.n_items) if gamma > 0 else None
    curve = _Curve(policy, windows, slope, config, ranks, returns or reward_model(data, config))
    ceiling = objective.max_js if objective.beta else objective.ceiling(again=again)
    if objective.beta is not None or data.kind != "impressions" or np.isnan(read.log_mu).all():
        beta, by = _within(curve, usual, ceiling), "given" if objective.beta else "spread"
        said = None if beta == usual else f"β was raised from {usual:.3g} to {beta:.3g} to stay within max_js."
        return Choice(beta, slope, calibration, by, said=said)
    betas = [multiple * spread for multiple in MULTIPLES]
    candidates = (
        _by_value(curve, betas, read, scale=reward_scale(data))
        if returns is None
        else _by_return(curve, betas, read, returns)
    )
    what = "value" if returns is None else "return"
    by = f"{what} by logged propensities" if read.known else f"{what} by μ̂'s own propensities: a guess"
    best = _best(candidates, most=math.inf if ceiling is None else ceiling, judged=judged_rows(data, config))
    if best.beta is None:
        said = f"no tilt has a larger lower bound of its {what} than μ̂ itself: the policy stays at μ̂."
        return Choice(usual, 0.0, calibration, by, tuple(candidates), said)
    return Choice(best.beta, slope, calibration, by, tuple(candidates))


def _best(candidates: Sequence[BetaCandidate], *, most: float, judged: int) -> BetaCandidate:
    """Candidate of the largest lower bound within the ceiling, covered by the log, and judgeable if any is."""
    allowed = [
        each for each in candidates if each.beta is None or (each.effective >= LEAST_EFFECTIVE and each.js <= most)
    ]
    least = ENOUGH / max(judged, 1)
    can_be_judged = [each for each in allowed if each.beta is None or each.effective >= least]
    if any(each.beta is not None for each in can_be_judged):
        allowed = can_be_judged
    return max(allowed, key=lambda each: each.low)


def judged_rows(data: Prepared, config: Config) -> int:
    """Number of decisions, or lists, of the test split that the gate will judge by; reads nothing else of it."""
    if data.holds_out_last:
        return len(data["test"])
    arrays, (offsets, _) = data["test"].arrays, data["test"].histories
    above = np.asarray(arrays["above"]).astype(np.int64) if "above" in arrays else np.zeros(offsets[-1], np.int64)
    before = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets)) - above
    chosen = data.chosen("test")
    return int((chosen & (above == 0) & (before >= config.train.min_history)).sum())


SILENT = (
    "the log does not tell good items from bad: on held-out actions the slope of the return on the critic's advantage "
    "is {:.3g} ({}). The policy stays at μ̂; "
    "objective.calibrate_critic=false tilts it anyway."
)


class _Curve:
    """π_β ∝ μ̂ exp(s Q/β) on held-out sequences: for any β, log π_β at the taken items, and JS from μ̂."""

    def __init__(
        self, policy: Policy, windows: Windows, slope: float, config: Config, ranks: Ranks,
        model: ItemMeans | ReturnModel | None,
    ) -> None:  # fmt: skip
        network = policy.network
        assert isinstance(network, Towers)
        self.network, self.windows, self.slope, self.config, self.ranks = network, windows, slope, config, ranks
        self.model = None if network.shard is not None else model  # of the doubly robust estimate: it reads whole rows
        self.catalogue = backend(config.train.catalogue) if network.shard is None else sharded
        self.logging = network.head("logging").detach()
        assert network.slope == 1.0, "the slope is not chosen yet"

    def js(self, beta: float) -> float:
        """Mean JS(π_β, μ̂)."""
        return float(self.at([beta]).js[0])

    @torch.no_grad()
    def at(self, betas: list[float]) -> _Points:
        """Probabilities of every position at every β, among the items that could be chosen."""
        logp: list[list[Tensor]] = [[] for _ in betas]
        js: list[list[Tensor]] = [[] for _ in betas]
        expected: list[list[Tensor]] = [[] for _ in betas]
        size, ranks = batch_size(self.config), self.ranks
        for batch in self.windows.in_order(size, rank=ranks.rank, ranks=ranks.total):
            batch = replace(batch, scored=batch.scored_after(self.config.train.min_history))
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
    """K policies on n positions: log-probabilities, divergences and expected rewards."""

    logp: np.ndarray  # [K, n] log π_β(a|x), among what could be chosen
    js: np.ndarray  # [K] JS(π_β, μ̂), the mean
    expected: np.ndarray | None  # [K, n] Σ_a π_β(a|x) r̂(a), over what could be chosen


def _by_value(curve: _Curve, betas: list[float], read: HeldOut, *, scale: float) -> list[BetaCandidate]:
    """Candidates for every β and μ̂: value of one deviation, its lower bound for all at once, and the overlap."""
    points = curve.at([*betas, math.inf])
    taken = curve.model.mean.double().numpy()[read.item] if isinstance(curve.model, ItemMeans) else None
    logs = []
    for index, logp in enumerate(points.logp):
        expected = None if points.expected is None else points.expected[index]
        logs.append(read.decisions(logp, taken, expected))
    bounds = value_bounds(logs, curve.config.train.estimator, scale=scale)
    return [
        BetaCandidate(beta, bound.value, bound.low, bound.effective, float(js))
        for beta, bound, js in zip([*betas, None], bounds, points.js, strict=True)
    ]


def _by_return(curve: _Curve, betas: list[float], read: HeldOut, model: ReturnModel) -> list[BetaCandidate]:
    """Candidates for every β and μ̂: gain in the return of one deviation over μ̂, its bound, and the overlap."""
    points, found, shares = curve.at([*betas, math.inf]), [], []
    for index, logp in enumerate(points.logp):
        visits, weight = read.visits(logp)
        known = visits.known(weight)
        # Of a list's places E_π q is not that of the list.
        expected = points.expected[index][known] if points.expected is not None and len(known) == len(logp) else None
        visits, weight = visits.at(known), weight[known]
        found.append(of_deviations(visits, weight, Opinion.of(model, visits, expected), gamma=model.gamma))
        shares.append(effective_sample(weight) / max(len(weight), 1))
    candidates = []
    for beta, each, share, js in zip([*betas, None], found, shares, points.js, strict=True):
        gain = each - found[-1]
        low = lower_bound(gain.values, gain.clusters, confidence=1 - DELTA / len(betas))
        candidates.append(BetaCandidate(beta, gain.mean, 0.0 if beta is None else low, share, float(js)))
    return candidates


def _within(curve: _Curve, beta: float, max_js: float | None) -> float:
    """Smallest β ≥ `beta` whose JS from μ̂ is at most `max_js`, for JS that falls as β rises."""
    if max_js is None or curve.js(beta) <= max_js:
        return beta
    low, high = math.log(beta), math.log(beta) + math.log(1e6)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if curve.js(math.exp(middle)) <= max_js else (middle, high)
    return math.exp(high)
