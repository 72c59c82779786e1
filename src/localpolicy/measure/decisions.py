"""Logged decisions as an estimator reads them, estimands of a log of lists, and whether the log covers a policy.

A list's places are drawn one after the other, each from what is still open, so that place j has the ratio
ρ_j = π(a_j|x, open) / μ(a_j|x, open). There are four questions, and each has its own weights, sample and refusal:

    first place         reward of the first place under π, weighted by ρ_1: exact always
    one place changed   reward of a place drawn by π below places that μ drew, weighted by ρ_j. It is no list's value: a
                        good item is earned again at every place where μ had not shown it yet. Never summed over a list,
                        and it decides nothing
    whole list          reward of the list under π, weighted by ρ_1 ρ_2 ... ρ_k: exact whatever a reward depends on
     under a cascade    the same, the reward of place j weighted by ρ_1 ρ_2 ... ρ_j: exact where it depends on this
                        place and those above alone. It decides nothing

Enumerated, 4 of 12: a list of π earns 1.375, both of the last give 1.375, single places 2.680, and μ earns 1.722.
McInerney et al. 2020 (the cascade's weights), Kiyohara et al. 2022 (doubly robust); Swaminathan et al. 2017 (slates).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field

from localpolicy.errors import DataError, nearest
from localpolicy.measure.estimate import REACH, clustered_se
from localpolicy.settings import Settings

if TYPE_CHECKING:  # rules and estimates are read without torch
    from localpolicy.measure.position_metrics import Scores

Estimand = Literal["decision", "first place", "one place changed", "whole list", "whole list under a cascade"]
CASCADE: Literal["whole list under a cascade"] = "whole list under a cascade"
OF_LISTS: tuple[Estimand, ...] = ("whole list", CASCADE, "first place", "one place changed")  # the first decides


class Decisions(NamedTuple):
    """n decisions of μ, all [n]; for the value of whole lists they are in the order of lists, then of places."""

    weight: np.ndarray  # π(a|x) / μ(a|x); of a whole list: that of this place times those of all above
    reward: np.ndarray
    sequence: np.ndarray  # decisions of one sequence are not independent
    value_taken: np.ndarray | None = None  # r̂(x, a)
    value_expected: np.ndarray | None = None  # Σ_a π(a|x) r̂(x, a)
    place: np.ndarray | None = None  # whole lists: places above this one

    def at(self, chosen: np.ndarray) -> Decisions:
        """Decisions at the chosen positions."""
        return Decisions(*(None if column is None else column[chosen] for column in self))  # type: ignore[arg-type]

    def with_more(self, others: Decisions) -> Decisions:
        """Decisions followed by those of other lists."""
        pairs = zip(self, others, strict=True)
        return Decisions(*(None if one is None else np.concatenate([one, other]) for one, other in pairs))  # type: ignore[arg-type]

    @property
    def lists(self) -> bool:
        """Whether the estimand is the value of whole lists: one contribution per list, not per decision."""
        return self.place is not None

    @property
    def places(self) -> np.ndarray:
        """Number of list places above each decision, [n]; 0 if decisions are single."""
        return np.zeros(len(self.weight), np.int64) if self.place is None else self.place

    @property
    def starts(self) -> np.ndarray:
        """Index of the first decision of each list [U]; of every decision if they are single."""
        return np.arange(len(self.weight)) if self.place is None else np.flatnonzero(self.place == 0)

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Values [n] summed over each list [U]; unchanged if decisions are single."""
        return values if self.place is None else np.add.reduceat(values, self.starts)

    @property
    def clusters(self) -> np.ndarray:
        """Sequence of each list, or of each single decision [U]."""
        return self.sequence if self.place is None else self.sequence[self.starts]

    @property
    def whole_weight(self) -> np.ndarray:
        """π/μ of each whole list, or of each decision [U]."""
        if self.place is None or not len(self.weight):
            return self.weight
        return np.asarray(self.weight[np.append(self.starts[1:], len(self.weight)) - 1])

    @property
    def earned(self) -> np.ndarray:
        """Logged reward of each list, or of each single decision [U]."""
        return self.summed(self.reward)

    @property
    def before(self) -> np.ndarray:
        """Weight of the list places above each decision [n]; 1 if there are none."""
        return np.where(self.places > 0, np.roll(self.weight, 1), 1.0)

    @property
    def one_place(self) -> np.ndarray:
        """π/μ of each decision's own place [n], without the weights of the places above."""
        above = self.before
        return np.asarray(np.divide(self.weight, above, out=np.zeros_like(self.weight), where=above > 0))


def decisions(scores: Scores, *, propensities: str | None = None, estimand: Estimand | None = None) -> Decisions | None:
    """Decisions that a policy was scored on; None if the log has no propensities.

    `propensities` names a reference μ̂ whose probabilities stand for logged ones: an interaction log's μ̂ is the
    distribution of what users did, so the estimate then speaks of rewards given that they did something.

    Where the log has lists or filters, π and μ̂ are those among what could be chosen, as logged propensities are.
    Where what was seen is never shown, π is that among the rest, and gives what was seen no probability.
    Decisions under a filter whose items the log does not state are left out. The estimand is by default that of the
    log: whole lists where it has any.
    """
    weight = ratios(scores, propensities=propensities)
    if weight is None:
        return None
    model = [
        None if values is None else values.astype(np.float64) for values in (scores.value_taken, scores.value_expected)
    ]
    log = Decisions(weight, scores.reward.astype(np.float64), scores.sequence, *model)
    estimand = estimand or estimand_of(scores.above)
    if scores.above is not None:
        log = of_estimand(log, estimand, scores.above, scores.list_number, place=scores.place)
    log = log if log.lists else log.at(~np.isnan(log.weight))
    return log if len(log.weight) else None


def ratios(scores: Scores, *, propensities: str | None = None) -> np.ndarray | None:
    """π(a|x) / μ(a|x) at each position, NaN if one is unknown; None if the log has no propensities."""
    if propensities is not None:
        if propensities not in scores.logp_reference:
            raise DataError(f"no reference '{propensities}'{nearest(propensities, scores.logp_reference)}")
        log_mu = (scores.logp_open_reference or scores.logp_reference)[propensities].astype(np.float64)
    elif scores.propensity is not None:
        log_mu = np.log(scores.propensity.astype(np.float64))
    else:
        return None
    logp = (scores.logp if scores.logp_open is None else scores.logp_open).astype(np.float64)
    if scores.settings.get("exclude_seen") and scores.logp_unseen is not None:
        logp = np.where(scores.repeat, -np.inf, scores.logp_unseen.astype(np.float64))
    return np.exp(logp - log_mu)


def of_estimand(
    log: Decisions, estimand: Estimand, above: np.ndarray, list_number: np.ndarray, *, place: np.ndarray | None = None
) -> Decisions:
    """Decisions for one estimand, from ratios of single places; rows of a list must be consecutive."""
    if estimand in ("whole list", CASCADE):
        return whole_lists(log, above, list_number, place=place)
    return log.at(above == 0) if estimand == "first place" else log


def estimand_of(above: np.ndarray | None) -> Estimand:
    """Estimand of a log, by the number of places above each position: whole lists if any place is below another."""
    return "decision" if above is None or not (above > 0).any() else "whole list"


def whole_lists(
    log: Decisions, above: np.ndarray, list_number: np.ndarray, *, place: np.ndarray | None = None
) -> Decisions:
    """Decisions as lists, weighted by the ratios down to each place. Lists of which a place is not known are left out.

    So are lists that the log does not hold whole: a `place` other than the number of rows above it says that a row is
    missing, or there twice, and a product over the others would be of another list.
    """
    begins = np.flatnonzero(np.diff(list_number, prepend=-1))
    step = np.arange(len(above)) - np.repeat(begins, np.diff(np.append(begins, len(above))))
    broken = np.isnan(log.weight) | (above != step) | (above != (above if place is None else place))
    whole = ~np.isin(list_number, list_number[broken])
    log, step = log.at(whole), step[whole].astype(np.int64)
    weight = log.weight.copy()
    for number in range(1, int(step.max(initial=0)) + 1):
        here = np.flatnonzero(step == number)
        weight[here] *= weight[here - 1]
    return log._replace(weight=weight, place=step)


# ---------------------------------------------------------------------- does the log cover a policy's actions?

LEAST_EFFECTIVE = 0.1  # share of the decisions: below it, estimates no longer rank policies as the truth does


class OverlapRules(Settings):
    """Limits of overlap below which an off-policy estimate is refused."""

    min_effective: float = Field(100.0, ge=1, description="smallest effective sample, in decisions (or whole lists)")
    min_effective_share: float = Field(
        LEAST_EFFECTIVE, ge=0, lt=1, description="the same as a share of the decisions, place by place in lists"
    )
    max_share: float = Field(0.1, gt=0, le=1, description="largest share of all weight on one decision")
    min_rewarded: int = Field(
        10, ge=0, description="fewest decisions (or lists) that earned anything: intervals hold from here on"
    )
    max_bias: float = Field(0.1, gt=0, description="how far the mean weight may be from 1 (beyond 4 standard errors)")


class Overlap(NamedTuple):
    """Diagnostics of how well the log's decisions cover a policy, with the refusal if they do not."""

    n: int  # decisions, or whole lists
    effective: float  # (Σ w)² / Σ w²: as many decisions of π itself would say as much
    largest: float
    largest_share: float  # of Σ w
    mean_weight: float  # E_μ[π/μ] = 1 where μ supports π and the propensities are right
    mean_weight_se: float
    unseen: float  # share of decisions that π would practically never have taken (w < 0.01)
    near: float  # effective share of single decisions, whatever stands above: how near π is to μ
    rewarded: int  # that earned more than the least
    refusal: str | None  # why no estimate is given, or None
    needed: int | None  # decisions, or lists, with which there might be one


def effective_sample(weight: np.ndarray) -> float:
    """(Σ w)² / Σ w²."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def overlap(log: Decisions, rules: OverlapRules | None = None, *, single: np.ndarray | None = None) -> Overlap:
    """Diagnostics of importance weights, with a refusal if they break one of the rules.

    `single` are the ratios of single decisions if the log's weights are products of several.
    """
    rules = rules or OverlapRules()
    weight, what = log.whole_weight, "lists" if log.lists else "decisions"
    total = float(weight.sum())
    effective, largest = effective_sample(weight), float(weight.max())
    share = largest / total if total > 0 else 1.0
    mean, se = float(weight.mean()), clustered_se(weight, log.clusters)
    single = log.one_place if single is None else single
    earned, near = log.earned, effective_sample(single) / len(single)
    rewarded = int((earned > earned.min()).sum())
    refusal, needed = None, None
    if effective < rules.min_effective:
        refusal = (
            f"effective sample {effective:.1f} of {len(weight):,} {what}; {rules.min_effective:g} are needed; the "
            f"largest weight is {largest:,.0f}"
        )
        needed = math.ceil(len(weight) * rules.min_effective / effective) if effective > 0 else None
    elif near < rules.min_effective_share:
        refusal = f"effective sample of {near:.1%} of the decisions; {rules.min_effective_share:.0%} are needed"
    elif share > rules.max_share:
        refusal = f"one of the {what} carries {share:.0%} of all weight (most: {rules.max_share:.0%})"
    elif abs(mean - 1) > max(rules.max_bias, 4 * se):
        cause = "the propensities are too small"
        if mean < 1:
            cause = "the propensities are too large, or the policy shows what the log never did"
        refusal = f"the mean weight is {mean:.3f} ± {REACH * se:.3f} (95 %) and should be 1: {cause}"
    elif rewarded < rules.min_rewarded:
        few = f"only {rewarded}" if rewarded else "none"
        refusal = f"{few} of {len(weight):,} {what} earned anything; {rules.min_rewarded} are needed"
        needed = math.ceil(len(weight) * rules.min_rewarded / rewarded) if rewarded else None
    unseen = float((single < 0.01).mean())
    return Overlap(len(weight), effective, largest, share, mean, se, unseen, near, rewarded, refusal, needed)
