"""The demo: simulate -> prepare -> train every objective -> evaluate -> report, in minutes on two cores.

Two worlds whose truth is known. In the *bandit* J(π) is an exact sum; in the *store* it comes from rollouts against
shoppers who change with what they are shown. The same arms run whatever comes out: findings are computed from the
figures and say where the paper's ordering does not hold.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.evaluation.compare import Comparison, compare
from localpolicy.experiments.jobs import Job, train_all
from localpolicy.experiments.scenes import REFERENCE, Scene
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.simulation import simulate

LOG = logging.getLogger(__name__)
PAID = ("click", "purchase")  # events whose ranking is shown


@dataclass(frozen=True)
class Played:
    """One scene, trained and measured."""

    scene: Scene
    comparison: Comparison
    names: dict[str, str]  # of a run's folder -> as people call the policy
    folder: Path


def play(scene: Scene, folder: Path, *, seed: int, episodes: int) -> Played:
    """Simulate, prepare, train and measure one scene into `folder`."""
    LOG.info("%s: simulating %s sequences", scene.world, f"{scene.sequences:,}")
    simulate(
        scene.world, folder / "log", sequences=scene.sequences, items=scene.items, seed=seed, changes=scene.changes
    )
    data = prepare("events", [folder / "log" / "events.parquet"], out=folder / "data", seed=seed)
    runs = _train_all(scene, data, folder / "runs", seed=seed)
    LOG.info("%s: measuring %d policies", scene.world, len(scene.arms))
    measured = [arm for arm in scene.arms if arm.name != REFERENCE]
    comparison = compare(
        [runs[arm.name] for arm in measured],
        against=[runs[REFERENCE]],
        world=folder / "log",
        columns=[f"{event}.nDCG@20" for event in PAID if event in data.events],
        baselines=False,
        episodes=episodes,
        device="cpu",
    )
    return Played(scene, comparison, {arm.folder: arm.name for arm in scene.arms}, folder)


def _train_all(scene: Scene, data: Prepared, folder: Path, *, seed: int) -> dict[str, Run]:
    jobs = []
    for arm in scene.arms:
        training = {**scene.settings["train"], "seed": 10 * seed + arm.seed, "device": "cpu"}
        config = Config.parse({**scene.settings, "objective": arm.objective, "train": training})
        jobs.append(Job(arm.name, data.path, folder / arm.folder, config))
    return train_all(jobs, label=f"{scene.world}: ")
