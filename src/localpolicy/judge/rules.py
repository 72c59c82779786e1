"""What a policy must show before it is deployed: settings, or a small YAML file. Each rule is a check of the gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from localpolicy.errors import ConfigError
from localpolicy.measure.decisions import OverlapRules
from localpolicy.measure.estimate import LEAST
from localpolicy.measure.estimators import JUDGING, Judging
from localpolicy.runtime.files import read_yaml
from localpolicy.settings import Settings

# Nats that a reference may be below popularity: what learning costs where there is nothing to learn but popularity, and
# counting is exact (docs/results/evaluation.md). For JS that is about a hundredth (KL / 4).
CLOSE = 0.05


class GateRules(Settings):
    """Thresholds that a policy must pass before it is deployed."""

    metric: str | None = Field(
        None,
        description="what must gain, as purchase.nDCG@20 (default: what the log can answer: the value where "
        "propensities were logged, the reward per answer on logs of actions, else how well what is ranked high was "
        "liked)",
    )
    min_gain: float = Field(0.0, description="the lower end of the gain's interval must be above this")
    smallest_gain: float = Field(
        0.01, ge=0, description="a gain below this share of the deployed figure is not worth a deployment: where the "
        "whole interval lies below it the answer is no"
    )  # fmt: skip
    confidence: float = Field(0.95, gt=0.5, lt=1, description="of every interval")
    min_sequences: int = Field(
        LEAST, ge=2, description="fewest sequences for a verdict (default: enough to find a difference of half a "
        "standard deviation with 80 % power; below 197, which is enough for a fifth of one, the check warns)"
    )  # fmt: skip
    baselines: bool = Field(
        True,
        description="no simple baseline (popularity, item-kNN, ALS, item mean, …) may do better",
    )
    reference_fit: bool = Field(
        True, description="the references must predict the log significantly better than uniform, and not "
        f"significantly worse than popularity by more than {CLOSE} nats; or come as close to the logged propensities. "
        "Where the value by these propensities decides, that is asked only beside a rule on the distance"
    )  # fmt: skip
    max_js: float | None = Field(None, gt=0, description="budget: largest mean JS from the references, in nats")
    max_floor_ratio: float | None = Field(None, gt=0, description="largest JS as a multiple of the noise floor")
    max_event_loss: float = Field(0.0, ge=0, description="no other event may lose significantly more than this")
    max_segment_loss: float = Field(0.0, ge=0, description="no segment may lose significantly more than this")
    min_segment: int = Field(100, ge=2, description="positions a segment needs to be judged")
    min_coverage_ratio: float = Field(0.5, ge=0, description="least coverage, as a share of the deployed policy's")
    value_margin: float = Field(
        0.05,
        ge=0,
        description="where `metric` decides: the estimated value must significantly be above the deployed one "
        "less this share of it",
    )
    estimator: Judging = Field(
        "snips", description="how the value is estimated: snips, as epochs and β are chosen by default; one of "
        f"{', '.join(JUDGING)}"
    )  # fmt: skip
    min_effective_share: float | None = Field(
        None, ge=0, lt=1, description="smallest effective sample a value is judged with, as a share of the decisions "
        "(default: that of `overlap`)"
    )  # fmt: skip
    overlap: OverlapRules = Field(OverlapRules(), description="when an off-policy estimate is refused")

    @property
    def bounds_distance(self) -> bool:
        """Whether a rule limits the distance from the references."""
        return self.max_js is not None or self.max_floor_ratio is not None

    @property
    def refusals(self) -> OverlapRules:
        """Rules by which an off-policy estimate is refused: `overlap` with `min_effective_share` if it is set."""
        share = self.min_effective_share
        return self.overlap if share is None else self.overlap.model_copy(update={"min_effective_share": share})

    def smallest(self, old: float) -> float:
        """Smallest change of a metric whose deployed level is `old` that matters (a share of its size)."""
        return self.smallest_gain * abs(old)


def rules_of(rules: GateRules | Mapping[str, Any] | Path | str | None) -> GateRules:
    """Gate rules from an object, a mapping or a YAML file; the defaults for None."""
    if isinstance(rules, GateRules):
        return rules
    if rules is None or isinstance(rules, Mapping):
        return GateRules.parse(rules or {}, prefix="rules: ")
    path = Path(rules)
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: expected a YAML file of gate rules.")
    content = read_yaml(path)
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{path}: expected 'rule: value' lines, got {type(content).__name__}.")
    return GateRules.parse(content or {})
