"""The demo: simulate -> prepare -> train every objective -> evaluate -> report, in minutes on two cores.

Two worlds whose truth is known. In the *bandit* J(π) is an exact sum; in the *store* it comes from rollouts against
shoppers who change with what they are shown. The same arms run whatever comes out: findings are computed from the
figures and say where the paper's ordering does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.experiments.comparison_report import comparison_section
from localpolicy.experiments.findings import findings, verdict
from localpolicy.experiments.jobs import Job, Say, train_all
from localpolicy.report.contents import Contents, Section
from localpolicy.report.page import write_report
from localpolicy.simulate import simulate
from localpolicy.train.config import Config
from localpolicy.train.run import Run
from localpolicy.verdict.compare import compare
from localpolicy.vocabulary.files import whole_folder, write_json

REFERENCE = "μ̂'"  # the second estimate of the logging policy, with another seed
PAID = ("click", "purchase")  # events whose ranking is shown


@dataclass(frozen=True)
class Arm:
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
class Scene:
    """A world, how a log of it is made, and what is trained on it."""

    world: str
    title: str
    about: str
    sequences: int
    items: int
    settings: dict[str, dict[str, Any]]
    arms: tuple[Arm, ...]
    changes: tuple[str, ...] = field(default=())


def _arms(*objectives: dict[str, Any]) -> tuple[Arm, ...]:
    """The logging policy twice, with different seeds, then the rest."""
    arms = [Arm("μ̂ (mle)", {"name": "mle"}), Arm(REFERENCE, {"name": "mle"}, seed=1)]
    for settings in objectives:
        beta = f" β={settings['beta']:g}" if "beta" in settings else ""
        arms.append(Arm(f"{settings['name']}{beta}", settings))
    return tuple(arms)


SCENES = (
    Scene(
        world="bandit",
        title="A contextual bandit",
        about="200 contexts, 100 items, one click or none per impression; the logging policy follows a noisy estimate "
        "of what is clicked, and popularity. True reward is an exact sum over every context and item.",
        sequences=40_000,
        items=100,
        settings={
            "data": {"length": 4},
            "model": {"width": 32},
            "train": {"epochs": 8, "batch_size": 512, "learning_rate": 0.003},
        },
        arms=_arms(
            {"name": "reward_weighted"},
            {"name": "ips"},
            *({"name": "lpi_cb", "beta": beta} for beta in (1.0, 0.3, 0.1)),
        ),
    ),
    Scene(
        world="store",
        title="A store whose shoppers change",
        about="Shoppers see one item at a time and answer with nothing, a click or a purchase; tastes and the intent "
        "to buy change with what they click, so the best immediate reward is not always the best choice. True reward "
        "is the mean per impression of simulated visits of 20.",
        sequences=6_000,
        items=300,
        settings={
            "data": {"length": 20},
            "model": {"width": 32},
            "train": {"epochs": 10, "batch_size": 64, "learning_rate": 0.003},
        },
        arms=_arms(
            {"name": "reward_weighted"},
            {"name": "pg"},
            {"name": "ips_pg"},
            {"name": "sqn"},
            {"name": "sac"},
            *({"name": "lpi_rl", "beta": beta} for beta in (1.0, 0.1, 0.03)),
        ),
    ),
)


def demo(
    *, out: Path | str, seed: int = 0, force: bool = False, episodes: int = 4_000, say: Say = lambda text: None
) -> Contents:
    """Run every scene into the folder `out`; `report.html` and `demo.json` lie in it when it is done."""
    with whole_folder(Path(out), force=force) as folder:
        sections = [_play(scene, folder / scene.world, seed=seed, episodes=episodes, say=say) for scene in SCENES]
        contents = Contents(
            title="localpolicy demo",
            verdict=verdict(sections),
            sections=sections,
            settings={"seed": str(seed), "rollouts per policy": f"{episodes:,} visits of 20 impressions"},
        )
        write_report(contents, folder / "report.html")
        write_json(folder / "demo.json", contents.json())
    return contents


def _play(scene: Scene, folder: Path, *, seed: int, episodes: int, say: Say) -> Section:
    say(f"{scene.world}: simulating {scene.sequences:,} sequences")
    simulate(
        scene.world, folder / "log", sequences=scene.sequences, items=scene.items, seed=seed, changes=scene.changes
    )
    data = prepare("events", [folder / "log" / "events.parquet"], out=folder / "data", seed=seed)
    runs = _train_all(scene, data, folder / "runs", seed=seed, say=say)
    say(f"{scene.world}: measuring {len(scene.arms)} policies")
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
    names = {arm.folder: arm.name for arm in scene.arms}
    section = comparison_section(comparison, names=names, base=folder.parent)
    return replace(
        section,
        title=scene.title,
        about=scene.about,
        reference="an mle run of another seed",
        findings=findings(section.rows),
    )


def _train_all(scene: Scene, data: Prepared, folder: Path, *, seed: int, say: Say) -> dict[str, Run]:
    jobs = []
    for arm in scene.arms:
        training = {**scene.settings["train"], "seed": 10 * seed + arm.seed, "device": "cpu"}
        config = Config.parse({**scene.settings, "objective": arm.objective, "train": training})
        jobs.append(Job(arm.name, data.path, folder / arm.folder, config))
    return train_all(jobs, say=lambda text: say(f"{scene.world}: {text}"))
