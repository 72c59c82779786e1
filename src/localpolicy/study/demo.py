"""The demo: simulate -> prepare -> train every objective -> evaluate -> report, in minutes on two cores.

Two worlds whose truth is known. In the *bandit* J(π) is an exact sum; in the *store* it comes from rollouts against
shoppers who change with what they are shown. The same policies are trained whatever comes out: findings are computed
from the figures and say where the paper's ordering does not hold.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.runs.config import PLAIN_TRAINING, Config
from localpolicy.runs.run import Run
from localpolicy.simulation import simulate
from localpolicy.study.settings import ITEMS
from localpolicy.training.jobs import Job, train_all

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
DIAL = (2.0, 1.0, 0.5)
LOG = logging.getLogger(__name__)
PAID = ("click", "purchase")  # events whose ranking is shown


def run_scenario(scenario: Scenario, folder: Path, *, seed: int, episodes: int) -> tuple[Comparison, dict[str, str]]:
    """Simulate, prepare, train and compare one scenario in `folder`; return it with display names of the runs."""
    LOG.info("%s: simulating %s sequences", scenario.world, f"{scenario.sequences:,}")
    simulate(scenario.world, folder / "log", sequences=scenario.sequences, items=scenario.items, seed=seed)
    data = prepare("events", [folder / "log" / "events.parquet"], out=folder / "data", seed=seed)
    jobs = []
    for arm in scenario.arms:
        config = scenario.training(arm.objective, seed=10 * seed + arm.seed)
        jobs.append(Job(arm.name, data.path, folder / "runs" / arm.folder, config))
    runs = train_all(jobs, label=f"{scenario.world}: ")
    LOG.info("%s: measuring %d policies", scenario.world, len(scenario.arms))
    measured = [arm for arm in scenario.arms if arm.name != REFERENCE]
    dials = {arm.name: _dial(runs[arm.name]) for arm in measured}
    comparison = compare(
        [runs[arm.name] for arm in measured],
        dials=[(runs[name], beta) for name, betas in dials.items() for beta in betas],
        against=[runs[REFERENCE]],
        world=folder / "log",
        columns=[f"{event}.nDCG@20" for event in PAID if event in data.events],
        baselines=False,
        episodes=episodes,
        device="cpu",
    )
    names = {}
    for arm in scenario.arms:
        betas = dials.get(arm.name, ())
        names[arm.folder] = f"{arm.name} (β chosen)" if betas else arm.name
        names |= {f"{arm.folder} β={beta:g}": f"{arm.name} β={beta:g}" for beta in betas}
    return comparison, names


def _dial(run: Run) -> tuple[float, ...]:
    """β values to show in addition: multiples of the advantage's spread; none without a trusted critic."""
    improvement = run.manifest.get("improvement")
    if improvement is None or not improvement["slope"]:
        return ()
    return tuple(float(f"{multiple * improvement['calibration']['spread']:.2g}") for multiple in DIAL)
