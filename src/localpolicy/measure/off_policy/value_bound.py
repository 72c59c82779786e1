"""What chooses between policies: a lower confidence bound of the value, by one of three estimators.

- `snips`: self-normalised importance weights, with the bound of a normal mean. The default: it chose best where the
  truth is known (docs/results/evaluation.md).
- `dr`: doubly robust, with items' mean rewards as r̂; the same bound.
- `log_smoothing`: a bound that holds for any number of sequences and any tails of the weights, for rewards >= 0 (see
  `smoothed_lower_bound`).

β (`training.choice`), epochs (`value_low` of `train.select`, and with it a sweep and the demo) and the gate (a paired
difference of `contributions`) all come here, so that they agree. Below an effective sample of a tenth of the decisions
nothing is chosen: estimates no longer rank policies as the truth does. All speak of one deviation from μ; where the log
has lists, of one whole list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from localpolicy.measure.off_policy.decisions import Decisions
from localpolicy.measure.off_policy.estimators import Contributions, contributions, importance
from localpolicy.measure.off_policy.intervals import lower_bound, smoothed_lower_bound
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE, effective_sample

if TYPE_CHECKING:
    from localpolicy.types import Estimator

Additive = Literal["snips", "dr"]  # a mean of contributions, of which differences can be taken
NAMES: dict[str, str] = {"snips": "SNIPS", "dr": "DR"}
DELTA = 0.05


def value_of(log: Decisions, estimator: Additive) -> Contributions:
    """What a policy's estimated value is the mean of."""
    return contributions(log, NAMES[estimator])


class ValueBound(NamedTuple):
    """An estimate of J(π), its lower bound, and the effective sample as a share of the decisions (or whole lists)."""

    value: float
    low: float
    effective: float

    @property
    def enough(self) -> bool:
        """Whether the log says enough of the policy to choose it."""
        return self.effective >= LEAST_EFFECTIVE


def value_bounds(
    logs: Sequence[Decisions], estimator: Estimator, *, delta: float = DELTA, scale: float = 1.0
) -> list[ValueBound]:
    """Lower bounds for K policies at once: with probability 1 - δ all of them hold, since each does with 1 - δ/K.

    Sequences are the independent unit. `scale` is the largest reward, for `log_smoothing`.
    """
    return [_bound(log, estimator, 1 - delta / len(logs), scale) for log in logs]


def _bound(log: Decisions, estimator: Estimator, confidence: float, scale: float) -> ValueBound:
    weight = log.whole_weight
    effective = effective_sample(weight) / len(weight)
    if estimator == "log_smoothing":
        low = smoothed_lower_bound(log, confidence=confidence, scale=scale)
        return ValueBound(float(importance(log).mean()), low, effective)
    found = value_of(log, estimator)
    low = lower_bound(found.values, found.clusters, confidence=confidence) - found.unknown
    return ValueBound(found.mean, low, effective)
