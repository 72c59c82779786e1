"""What a loop can be told. It is read without torch, for `lpi loop --help`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from localpolicy.limits import LARGEST_SEED
from localpolicy.settings import Settings
from localpolicy.simulation.truth import EPISODES


class LoopConfig(Settings):
    """Everything that decides a loop, its number of rounds aside."""

    world: Literal["bandit", "store"] = Field(description="bandit or store")
    items: int = Field(ge=2, description="size of the catalogue (default: the demo's)")
    dials: tuple[str, ...] = Field((), description="other changes to the world, as temperature=2")
    world_seed: int = Field(0, ge=0, le=LARGEST_SEED, description="seed of the world itself")
    sequences: int = Field(
        10_000, ge=30, description="sequences that each policy serves (default: 10,000; in the store 2,000)"
    )
    seeds: tuple[int, ...] = Field(
        (0,), description="seeds of logs and training, such as 0,1,2; each runs a whole loop"
    )
    objectives: tuple[str, ...] = Field(
        description="objectives, such as mle,ips,lpi_cb; with settings: lpi_cb:advantage=observed"
    )
    betas: tuple[float, ...] = Field(
        (), description="one arm of each objective that has a β for each of these (default: one arm, which chooses)"
    )
    logging: Literal["served", "head"] = Field(
        "served", description="where μ̂ comes from after round 1: the run that served, or a head that estimates it"
    )
    keep_logs: bool = Field(False, description="train on all logs so far, not only on the last (μ̂ is then a head)")
    changes: tuple[str, ...] = Field((), description="changes to the training settings, as train.epochs=4")
    episodes: int = Field(EPISODES, ge=2, description="simulated visits behind the store's true reward")

    @field_validator("seeds", "objectives", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """`0,1,2` is a list too."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("seeds", "objectives")
    @classmethod
    def _any(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError("expected at least one value")
        return value

    @field_validator("seeds", "objectives", "betas")
    @classmethod
    def _some(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(value)) < len(value):
            raise ValueError("expected none twice")
        if any(isinstance(given, int) and given < 0 for given in value):
            raise ValueError("a seed must not be negative")
        return value
