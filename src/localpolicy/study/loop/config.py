"""The settings of a loop, and the arms they ask for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from localpolicy.errors import ConfigError, nearest
from localpolicy.measure.truth import EPISODES
from localpolicy.runs.config import Config
from localpolicy.settings import Settings
from localpolicy.study.scenarios import SCENARIOS, PolicySpec, Scenario

USUAL = {  # objectives and sequences per round unless told otherwise
    "bandit": (("mle", "reward_weighted", "ips", "lpi_cb"), 10_000),
    "store": (("mle", "reward_weighted", "ips_pg", "lpi_rl"), 2_000),
}


class LoopConfig(Settings):
    """Everything that decides a loop, its number of rounds aside."""

    world: Literal["bandit", "store"] = Field(description="bandit or store")
    items: int = Field(ge=2, description="size of the catalogue")
    dials: tuple[str, ...] = Field((), description="other changes to the world, as temperature=2")
    world_seed: int = Field(0, ge=0, description="which world of this kind")
    sequences: int = Field(10_000, ge=30, description="sequences that each policy serves")
    seeds: tuple[int, ...] = Field((0,), description="of logs and training: one whole loop each")
    objectives: tuple[str, ...] = Field(description="objectives, as lpi_cb or lpi_cb:advantage=observed")
    betas: tuple[float, ...] = Field(
        (), description="one arm of each objective that has a β for each of these (default: one arm, which chooses)"
    )
    logging: Literal["served", "head"] = Field("served", description="μ̂ from round 2 on: the served run, or a head")
    keep_logs: bool = Field(False, description="train on all logs so far, not on the last alone (μ̂ is then a head)")
    changes: tuple[str, ...] = Field((), description="changes to the training settings, as train.epochs=4")
    episodes: int = Field(EPISODES, ge=2, description="rollouts behind the store's true reward")

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


def scenario_of(world: str) -> Scenario:
    """The demo's settings for a world hold here too."""
    return next(scenario for scenario in SCENARIOS if scenario.world == world)


def loop_config(world: str, **given: Any) -> LoopConfig:
    """The config of a loop; what is None keeps the world's default."""
    if world not in USUAL:
        raise ConfigError(f"no world '{world}' with a known truth{nearest(world, USUAL)}")
    objectives, sequences = USUAL[world]
    usual = {"world": world, "objectives": objectives, "sequences": sequences}
    usual["items"] = scenario_of(world).items
    return LoopConfig.parse({**usual, **{name: value for name, value in given.items() if value is not None}})


def arms_of(config: LoopConfig) -> list[PolicySpec]:
    """One arm per objective, and per β where it has one that is not given with it."""
    arms = []
    for text in config.objectives:
        name, *pairs = text.split(":")
        named = Config.parse({"objective": {"name": name}})
        settings = named.with_changes([f"objective.{pair}" for pair in pairs]).objective
        given = settings.model_dump(exclude_unset=True)
        free = "beta" in type(settings).model_fields and "beta" not in given
        rest = "".join(f" {pair}" for pair in pairs if not pair.startswith(("beta=", "improve=")))
        for beta in config.betas or (None,) if free else (given.get("beta"),):
            said = "" if beta is None else f" β={beta:g}"
            arms.append(PolicySpec(f"{settings.name}{said}{rest}", given if beta is None else {**given, "beta": beta}))
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigError(f"two arms are called '{max(names, key=names.count)}': name each objective and each β once.")
    return arms
