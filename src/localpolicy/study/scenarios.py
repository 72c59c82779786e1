"""Scenarios of the demo and the loop: a world, how a log of it is made, and what is trained on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localpolicy.runs.config import PLAIN_TRAINING

REFERENCE = "μ̂'"  # the second estimate of the logging policy, with another seed


@dataclass(frozen=True)
class PolicySpec:
    """One policy to train."""

    name: str
    objective: dict[str, Any]
    seed: int = 0

    @property
    def folder(self) -> str:
        """The name of its run."""
        beta = f"-beta-{self.objective['beta']:g}" if "beta" in self.objective else ""
        return f"{self.objective['name']}{beta}" + (f"-seed-{self.seed}" if self.seed else "")


@dataclass(frozen=True)
class Scenario:
    """A world, how a log of it is made, and what is trained on it."""

    world: str
    title: str
    about: str
    sequences: int
    items: int
    settings: dict[str, dict[str, Any]]
    arms: tuple[PolicySpec, ...]
    changes: tuple[str, ...] = field(default=())


def _arms(*objectives: dict[str, Any]) -> tuple[PolicySpec, ...]:
    """The logging policy twice, with different seeds, then the rest."""
    arms = [PolicySpec("μ̂ (mle)", {"name": "mle"}), PolicySpec(REFERENCE, {"name": "mle"}, seed=1)]
    for settings in objectives:
        beta = f" β={settings['beta']:g}" if "beta" in settings else ""
        arms.append(PolicySpec(f"{settings['name']}{beta}", settings))
    return tuple(arms)


SCENARIOS = (
    Scenario(
        world="bandit",
        title="A contextual bandit",
        about="200 contexts, 100 items, one click or none per impression; the logging policy follows a noisy estimate "
        "of what is clicked, and popularity. True reward is an exact sum over every context and item.",
        sequences=40_000,
        items=100,
        settings={
            "data": {"length": 4},
            "model": {"width": 32, "blocks": 1, "dropout": 0.1},
            "train": {"epochs": 8, "batch_size": 512, "learning_rate": 0.003, "patience": None, **PLAIN_TRAINING},
        },
        arms=_arms(
            {"name": "reward_weighted"},
            {"name": "ips"},
            {"name": "lpi_cb"},
        ),
    ),
    Scenario(
        world="store",
        title="A store whose shoppers change",
        about="Shoppers see one item at a time and answer with nothing, a click or a purchase; tastes and the intent "
        "to buy change with what they click, so the best immediate reward is not always the best choice. True reward "
        "is the mean per impression of simulated visits of 20.",
        sequences=6_000,
        items=300,
        settings={
            "data": {"length": 20},
            "model": {"width": 32, "blocks": 1, "dropout": 0.1},
            "train": {"epochs": 10, "batch_size": 64, "learning_rate": 0.003, "patience": None, **PLAIN_TRAINING},
        },
        arms=_arms(
            {"name": "reward_weighted"},
            {"name": "pg"},
            {"name": "ips_pg"},
            {"name": "sqn"},
            {"name": "sac"},
            {"name": "lpi_rl"},
        ),
    ),
)
