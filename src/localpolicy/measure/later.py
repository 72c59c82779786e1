"""Does what is shown now change what a visit earns later? A test on randomised logs, and what a policy changes.

A value per decision speaks of the next reward alone. It is all there is to ask where nothing that is shown now changes
what comes later. Persons differ, and a policy that knows them shows each another item: so an item may predict the rest
of a visit and change nothing in it. Logged propensities p tell the two apart: with π̄ the share of each item in the log
and any function g of items,

    E_μ[π̄(a)/p(a) (g(a) - Σ_b π̄(b) g(b)) | x] = 0    in every context x,

so that this product is correlated with what the visit earns later only where the item itself changes it. g is the mean
of the later rewards after an item, fitted on other visits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from localpolicy.data.store import Prepared
from localpolicy.measure.decisions import OverlapRules
from localpolicy.measure.estimate import CONFIDENCE, clustered_se, sequences_of, t_quantile, t_reach
from localpolicy.measure.returns import ReturnGain, ReturnModel, Visits, decision_rows, read_visits, return_gain

if TYPE_CHECKING:
    from localpolicy.measure.position_metrics import Scores

FEWEST_VISITS = 20  # below these the future is not tested


class Later(NamedTuple):
    """Test of whether items shown now change later rewards: its t, in standard errors."""

    t: float
    least: float  # t above which the future matters
    n: int

    @property
    def matters(self) -> bool:
        """Whether items shown now significantly change later rewards, so that a value per decision misses them."""
        return self.t > self.least


def later_effect(visits: Visits, propensity: np.ndarray, *, n_items: int, confidence: float = CONFIDENCE) -> Later:
    """One-sided test of whether the item drawn now changes later rewards; errors are clustered by visit.

    Each half of the visits is judged by means of the other half. Visits with an unknown propensity are left out.
    """
    known = ~np.isin(visits.sequence, visits.sequence[~(propensity > 0)])
    visits, propensity = visits.at(known), propensity[known]
    count, nothing = sequences_of(visits.sequence), Later(0.0, np.inf, int(known.sum()))
    if count < FEWEST_VISITS or not (visits.step > 0).any():
        return nothing
    share = np.bincount(visits.item, minlength=n_items) / len(visits.item)
    half = np.cumsum(visits.step == 0) % 2 == 1
    products, later = np.zeros(len(half)), visits.returns(1.0) - visits.reward
    for judged in (half, ~half):
        model = ReturnModel.fit(visits.at(~judged), gamma=1.0, n_items=n_items, target=later[~judged])
        centred = model.of_taken - share @ model.of_taken
        here = visits.at(judged)
        drawn = share[here.item] / propensity[judged] * centred[here.item]
        products[judged] = drawn * (later[judged] - model.context(here))
    se = clustered_se(products, visits.sequence)
    if not se > 0:
        return nothing
    return Later(float(products.mean()) / se, t_quantile(confidence, count - 1), len(products))


def later_in(data: Prepared) -> Later:
    """`later_effect` on the rows of a log with propensities that do not judge; of a list the first place counts."""
    found = [_visits(data, split) for split in ("train", "validation")]
    sequence = np.concatenate([each.sequence + 10**9 * number for number, (each, _) in enumerate(found)])
    columns = [np.concatenate([each[0][at] for each in found]) for at in range(1, 5)]
    propensity = np.concatenate([each for _, each in found])
    return later_effect(Visits(sequence, *columns), propensity, n_items=data.n_items)


def _visits(data: Prepared, split: str) -> tuple[Visits, np.ndarray]:
    """Decisions of a split, and their logged propensities (NaN if there are none)."""
    visits, arrays = Visits.of_split(data, split), data[split].arrays
    if "propensity" not in arrays:
        return visits, np.full(len(visits.item), np.nan)
    rows, starts = decision_rows(data, split)
    return visits, np.asarray(arrays["propensity"])[rows[starts]].astype(np.float64)


# ---------------------------------------------------------------------- what a policy changes


class Returns(NamedTuple):
    """Gain in return of one policy over another, and tests of whether later rewards matter."""

    gain: ReturnGain
    base: float  # what a visit, or a decision of one, earned by the log
    later: Later
    own: float  # by how much the new policy's choices change later rewards, in standard errors
    reach: float  # of these, from where on they matter

    @property
    def decides(self) -> bool:
        """Whether the return decides instead of the next reward, since later rewards change."""
        return self.later.matters or abs(self.own) > self.reach


def returns_of(
    new: Scores, old: Scores | None, known: Visits, later: Later, *, n_items: int, rules: OverlapRules | None = None,
    confidence: float = CONFIDENCE,
) -> Returns | None:  # fmt: skip
    """Gain in return over the old policy, or over the log; None if visits have one decision, or μ is unknown.

    Q̂ is fitted on the `known` visits, which are others than those that were scored.
    """
    read = read_visits(new)
    if read is None or not (read[0].step > 0).any():
        return None
    (visits, weight), beside = read, None if old is None else read_visits(old)
    base = np.ones(len(weight)) if beside is None else beside[1]
    model = ReturnModel.fit(known, gamma=1.0, n_items=n_items)
    gain = return_gain(visits, weight, None if beside is None else base, model, rules=rules)
    here = visits.known(weight + base)
    visits, moved = visits.at(here), (weight - base)[here]
    rest = visits.returns(1.0) - visits.reward
    changed = moved * (rest - model.context(visits) + visits.reward.mean())
    se, count = clustered_se(changed, visits.sequence), sequences_of(visits.sequence)
    own = float(changed.mean()) / se if se > 0 else 0.0
    reach = t_reach(count - 1, confidence) if count > 1 else np.inf
    earned = gain.old.mean if gain.asked == "visit" else float(visits.reward.mean())
    return Returns(gain, earned, later, own, reach)
