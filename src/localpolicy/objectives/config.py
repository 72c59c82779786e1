"""The settings of an objective. An objective refuses a setting it does not use."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from localpolicy.settings import Settings

Baseline = Literal["expected", "policy", "max", "value", "none"]
Advantage = Literal["direct", "observed", "td", "monte_carlo", "sampled"]


class ObjectiveConfig(Settings):
    """What is maximised."""

    name: str = Field("lpi_cb", description="the objective; docs/objectives.md lists them")
    beta: float = Field(1.0, gt=0, description="β: the price of divergence; smaller moves further from the log")
    gamma: float = Field(0.5, ge=0, lt=1, description="γ: discount of later rewards")
    td_weight: float = Field(1.0, ge=0, description="λ: weight of the critic's loss (TD, or squared error of r̂)")
    cap: float = Field(20.0, gt=0, description="largest exp(A/β)")
    clip: float = Field(30.0, gt=0, description="largest importance ratio π/μ̂")
    baseline: Baseline = Field("expected", description="g(x) of the advantage")
    advantage: Advantage | None = Field(
        None, description="how A is estimated: lpi_cb direct (default) or observed; lpi_rl td (default), "
        "monte_carlo or sampled"
    )  # fmt: skip
    target: Literal["max", "expected"] = Field("max", description="value of the next state in the TD target")
    propensities: Literal["estimated", "logged"] = Field(
        "estimated",
        description="where ips and ips_pg take μ(a|x) from: the logging policy's estimate, or the log",
    )
    logging: str = Field(
        "head", description="μ̂: 'head' (trained beside the policy), or the folder of a frozen run (items newer than it "
        "have probability 0)"
    )  # fmt: skip
    negatives: int = Field(10, ge=1, description="random items in the sampled advantage")
    warmup: int = Field(0, ge=0, description="sac: steps with weight 1 before Q is trusted")
