"""What is played: the two worlds whose truth is known, the policies that are trained there, and the settings of a loop.

In the *bandit* J(π) is an exact sum; in the *store* it comes from rollouts against shoppers who change with what they
are shown. Importing this needs no torch, so that --help is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from localpolicy.errors import ConfigError, nearest
from localpolicy.limits import LARGEST_SEED
from localpolicy.runs.config import PLAIN_TRAINING, Config
from localpolicy.settings import Settings, repeated
from localpolicy.simulation.truth import EPISODES
from localpolicy.study.settings import Listed, Processes

# Of each world: its items, here and in the demo; objectives and sequences per round by default.
ITEMS = {"bandit": 100, "store": 300}
OBJECTIVES = {
    "bandit": ("mle", "reward_weighted", "ips", "lpi_cb"),
    "store": ("mle", "reward_weighted", "ips_pg", "lpi_rl"),
}
SEQUENCES = {"bandit": 10_000, "store": 2_000}
REFERENCE = "μ̂'"  # the second estimate of the logging policy, with another seed


@dataclass(frozen=True)
class PolicySpec:
    """Specification of one policy to train: objective, settings and seed."""

    name: str
    objective: dict[str, Any]
    seed: int = 0

    @property
    def folder(self) -> str:
        """Folder name made from the objective's settings and the seed."""
        parts = [str(value) if name == "name" else f"{name}-{value}" for name, value in self.objective.items()]
        return "-".join([*parts, *([f"seed-{self.seed}"] if self.seed else [])]).replace("/", "_")


def policies_of(objectives: Sequence[str], betas: Sequence[float]) -> list[PolicySpec]:
    """Specifications of one policy per objective (`name:setting=value:…`), and per β if it has a free one."""
    arms = []
    for text in objectives:
        name, *pairs = text.split(":")
        named = Config.parse({"objective": {"name": name}})
        settings = named.with_changes([f"objective.{pair}" for pair in pairs]).objective
        given = settings.model_dump(exclude_unset=True)
        free = "beta" in type(settings).model_fields and "beta" not in given
        rest = "".join(f" {pair}" for pair in pairs if not pair.startswith("beta="))
        for beta in betas or (None,) if free else (given.get("beta"),):
            said = "" if beta is None else f" β={beta:g}"
            arms.append(PolicySpec(f"{settings.name}{said}{rest}", given if beta is None else {**given, "beta": beta}))
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigError(f"two arms are called '{max(names, key=names.count)}': name each objective and each β once.")
    return arms


@dataclass(frozen=True)
class Scenario:
    """A simulated world, the size of its log, and the policies to train on it."""

    world: str
    title: str
    about: str
    sequences: int
    items: int
    settings: dict[str, dict[str, Any]]
    arms: tuple[PolicySpec, ...]

    def training(self, objective: dict[str, Any], *, seed: int) -> Config:
        """Configuration to train one policy of the scenario."""
        train = {**self.settings["train"], "seed": seed, "device": "cpu"}
        return Config.parse({**self.settings, "objective": objective, "train": train})


def _arms(*objectives: str) -> tuple[PolicySpec, ...]:
    """Specifications of the logging policy with two seeds, then of the other policies."""
    estimates = (PolicySpec("μ̂ (mle)", {"name": "mle"}), PolicySpec(REFERENCE, {"name": "mle"}, seed=1))
    return (*estimates, *(PolicySpec(name, {"name": name}) for name in objectives))


def _settings(length: int, epochs: int, batch_size: int) -> dict[str, dict[str, Any]]:
    training = {"epochs": epochs, "batch_size": batch_size, "learning_rate": 0.003, "patience": None}
    return {
        "data": {"length": length},
        "model": {"width": 32, "blocks": 1, "dropout": 0.1},
        "train": {**training, **PLAIN_TRAINING},
    }


SCENARIOS = {
    "bandit": Scenario(
        world="bandit",
        title="A contextual bandit",
        about="200 contexts, 100 items, one click or none per impression; the logging policy follows a noisy estimate "
        "of what is clicked, and popularity. True reward is an exact sum over every context and item.",
        sequences=40_000,
        items=ITEMS["bandit"],
        settings=_settings(length=4, epochs=8, batch_size=512),
        arms=_arms("reward_weighted", "ips", "lpi_cb"),
    ),
    "store": Scenario(
        world="store",
        title="A store whose shoppers change",
        about="Shoppers see one item at a time and answer with nothing, a click or a purchase; tastes and the intent "
        "to buy change with what they click, so the best immediate reward is not always the best choice. True reward "
        "is the mean per impression of simulated visits of 20.",
        sequences=6_000,
        items=ITEMS["store"],
        settings=_settings(length=20, epochs=10, batch_size=64),
        arms=_arms("reward_weighted", "pg", "ips_pg", "sqn", "sac", "lpi_rl"),
    ),
}


# ---------------------------------------------------------------------- a loop


class LoopConfig(Settings):
    """Settings that decide a loop, apart from its number of rounds."""

    world: Literal["bandit", "store"] = Field(description="bandit or store")
    items: int = Field(ITEMS["bandit"], ge=2, description="size of the catalogue (default: the demo's)")
    dials: tuple[str, ...] = Field(
        (), description="a setting of the world, as temperature=2; may be repeated",
        json_schema_extra=repeated("--dial", "KEY=VALUE"),
    )  # fmt: skip
    world_seed: int = Field(0, ge=0, le=LARGEST_SEED, description="seed of the world itself")
    sequences: int = Field(
        SEQUENCES["bandit"],
        ge=30,
        description="sequences that each policy serves (default: 10,000; in the store 2,000)",
    )
    seeds: Listed[int] = Field((0,), description="seeds of logs and training, such as 0,1,2; each runs a whole loop")
    objectives: Listed[str] = Field(
        OBJECTIVES["bandit"],
        description="objectives, such as mle,ips,lpi_cb (default: four of the world); with settings: "
        "lpi_cb:advantage=observed",
    )
    betas: tuple[float, ...] = Field(
        (), description="one arm of each objective that has a β with this β; may be repeated (default: one arm, which "
        "chooses)", json_schema_extra=repeated("--beta"),
    )  # fmt: skip
    logging: Literal["served", "head"] = Field(
        "served", description="where μ̂ comes from after round 1: the run that served, or a head that estimates it"
    )
    keep_logs: bool = Field(False, description="train on all logs so far, not only on the last (μ̂ is then a head)")
    changes: tuple[str, ...] = Field(
        (), description="a training setting, such as train.epochs=4; may be repeated",
        json_schema_extra=repeated("--set", "KEY=VALUE"),
    )  # fmt: skip
    episodes: int = Field(EPISODES, ge=2, description="simulated visits behind the store's true reward")

    @field_validator("seeds", "objectives", "betas")
    @classmethod
    def _distinct(cls, value: tuple[Any, ...], about: ValidationInfo) -> tuple[Any, ...]:
        if not value and about.field_name != "betas":
            raise ValueError("expected at least one value")
        if len(set(value)) < len(value):
            raise ValueError("expected none twice")
        if any(isinstance(given, int) and given < 0 for given in value):
            raise ValueError("a seed must not be negative")
        return value

    @property
    def logging_is_served(self) -> bool:
        """Whether μ of a round is the run that served its log; false if logs of several rounds are kept."""
        return self.logging == "served" and not self.keep_logs


class LoopOptions(Settings):
    """Options of a loop that do not change its rounds: how many, and in how many processes."""

    rounds: int = Field(10, ge=1, description="number of rounds; a larger number continues an earlier loop")
    processes: Processes = None


def loop_config(world: str, **given: Any) -> LoopConfig:
    """Build the config of a loop; None keeps the world's default."""
    if world not in ITEMS:
        raise ConfigError(f"no world '{world}' with a known truth{nearest(world, ITEMS)}")
    usual = {"items": ITEMS[world], "objectives": OBJECTIVES[world], "sequences": SEQUENCES[world]}
    told = {name: value for name, value in given.items() if value is not None}
    return LoopConfig.parse({"world": world, **usual, **told})
