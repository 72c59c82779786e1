"""The demo: simulate -> prepare -> train every objective -> evaluate -> report, in minutes on two cores.

Two worlds whose truth is known. In the *bandit* J(π) is an exact sum; in the *store* it comes from rollouts against
shoppers who change with what they are shown. The same arms run whatever comes out: findings are computed from the
figures and say where the paper's ordering does not hold.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.experiments.comparison_report import comparison_section
from localpolicy.experiments.demo_words import findings, verdict
from localpolicy.experiments.jobs import Job, Say, train_all
from localpolicy.experiments.scenes import REFERENCE, SCENES, Scene
from localpolicy.report.contents import Contents, Section
from localpolicy.report.page import write_report
from localpolicy.simulate import simulate
from localpolicy.train.config import Config
from localpolicy.train.run import Run
from localpolicy.verdict.compare import compare
from localpolicy.vocabulary.files import whole_folder, write_json

PAID = ("click", "purchase")  # events whose ranking is shown


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
