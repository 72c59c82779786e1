"""The demo: simulate -> prepare -> train every objective -> evaluate -> report, in minutes on two cores.

Two worlds whose truth is known. In the *bandit* J(π) is an exact sum; in the *store* it comes from rollouts against
shoppers who change with what they are shown. The same arms run whatever comes out: findings are computed from the
figures and say where the paper's ordering does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpolicy.data.batches import Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.evaluate.figures import Figure, figure
from localpolicy.evaluate.score import Scores, score
from localpolicy.evaluate.summary import coverage, ranking
from localpolicy.evaluate.truth import true_value
from localpolicy.experiments.findings import findings, verdict
from localpolicy.experiments.jobs import Job, Say, train_all
from localpolicy.model.policy import Policy
from localpolicy.report.contents import Contents, Interval, PolicyRow, SampleLists, Section
from localpolicy.report.page import write_report
from localpolicy.simulate import BanditWorld, StoreWorld, simulate
from localpolicy.simulate.truth import load_world
from localpolicy.train.config import Config
from localpolicy.train.run import Run
from localpolicy.vocabulary.files import whole_folder, write_json

REFERENCE = "μ̂'"  # the second estimate of the logging policy, with another seed
PAID = ("click", "purchase")  # events whose ranking is shown


@dataclass(frozen=True)
class Arm:
    """One policy to train."""

    name: str
    objective: dict[str, Any]
    seed: int = 0


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


@dataclass(frozen=True)
class Trained:
    """An arm that has been trained and scored."""

    arm: Arm
    run: Run
    policy: Policy
    scores: Scores


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
    world = load_world(folder / "log")
    data = prepare("events", [folder / "log" / "events.parquet"], out=folder / "data", seed=seed)
    runs = _train_all(scene, data, folder / "runs", seed=seed, say=say)
    reference = runs[REFERENCE].policy()
    trained = []
    for arm in scene.arms:
        policy = runs[arm.name].policy()
        windows = Windows(data, "test", runs[arm.name].config.data)
        scores = score(policy, windows, events=data.events, references={REFERENCE: reference})
        trained.append(Trained(arm, runs[arm.name], policy, scores))
    return _section(scene, trained, world, data, episodes=episodes, say=say)


def _train_all(scene: Scene, data: Prepared, folder: Path, *, seed: int, say: Say) -> dict[str, Run]:
    jobs = []
    for arm in scene.arms:
        training = {**scene.settings["train"], "seed": 10 * seed + arm.seed, "device": "cpu"}
        config = Config.parse({**scene.settings, "objective": arm.objective, "train": training})
        jobs.append(Job(arm.name, data.path, folder / _folder_name(arm), config))
    return train_all(jobs, say=lambda text: say(f"{scene.world}: {text}"))


def _folder_name(arm: Arm) -> str:
    beta = f"-beta-{arm.objective['beta']:g}" if "beta" in arm.objective else ""
    return f"{arm.objective['name']}{beta}" + (f"-seed-{arm.seed}" if arm.seed else "")


def _section(
    scene: Scene,
    trained: Sequence[Trained],
    world: BanditWorld | StoreWorld,
    data: Prepared,
    *,
    episodes: int,
    say: Say,
) -> Section:
    floor = next(one for one in trained if one.arm.name == "μ̂ (mle)").scores
    rows, logging = [], None
    for one in trained:
        if one.arm.name == REFERENCE:
            continue
        say(f"{scene.world}: true reward of {one.arm.name}")
        truth = true_value(one.policy, world, episodes=episodes)
        logging = truth.logging
        rows.append(_row(one, truth, data))
    return Section(
        title=scene.title,
        about=scene.about,
        rows=rows,
        logging_value=None if logging is None else Interval(logging, logging, logging),
        reference="an mle run of another seed",
        floor=_interval(figure(floor.js[REFERENCE], floor.sequence)),
        findings=findings(rows),
        samples=_samples(trained, data),
        facts={
            "sequences": f"{len(data):,}",
            "items": f"{data.items:,}",
            **{f"events: {name}": f"{count:,}" for name, count in data.manifest["counts"]["events"].items()},
            "data digest": data.digest[:16],
        },
    )


def _interval(value: Figure) -> Interval:
    return Interval.of(value.mean, value.se)


def _row(one: Trained, truth: Any, data: Prepared) -> PolicyRow:
    scores, run = one.scores, one.run
    manifest, curve = run.manifest, run.metrics()
    selected = manifest["selected"]["epoch"]
    answers = [name for name in data.events if name in PAID]
    figures = ranking(scores, ("nDCG@20",))
    shown = {f"{name} nDCG@20": _interval(figures[name]["nDCG@20"]) for name in answers if name in figures}
    return PolicyRow(
        name=one.arm.name,
        objective=one.arm.objective["name"],
        beta=one.arm.objective.get("beta"),
        truth=Interval.of(truth.value, truth.se),
        gain=Interval.of(truth.gain, truth.gain_se),
        metrics=shown,
        js=_interval(figure(scores.js[REFERENCE], scores.sequence)),
        kl=_interval(figure(scores.kl[REFERENCE], scores.sequence)),
        coverage=coverage(scores.shown),
        entropy=float(scores.entropy.mean()),
        weights=run.selected_metrics()["weights"],
        curve=curve,
        selected_epoch=selected,
        selected_by=manifest["selected"]["by"],
        run=str(run.folder.relative_to(run.folder.parents[2])),
        digest=manifest["policy_sha256"],
    )


def _samples(trained: Sequence[Trained], data: Prepared, count: int = 3) -> list[SampleLists]:
    """What μ̂ and the last policy would show after a few histories of the test split."""
    shown = [trained[0], trained[-1]]
    ids = data.catalogue["item_id"].to_pylist()
    samples = []
    for index in range(count):
        sequence = data["test"][index]
        history = [ids[item] for item in sequence["item"][:-1]]
        answers = [data.events[code] for code in sequence["event"][:-1]]
        lists = {}
        for one in shown:
            found = one.policy.recommend([history], 5, answers=[answers])
            shares = found.log_probability[0].exp().tolist()
            lists[one.arm.name] = [(str(item), share) for item, share in zip(found.items[0], shares, strict=True)]
        samples.append(
            SampleLists([f"{item} ({answer})" for item, answer in zip(history, answers, strict=True)][-5:], lists)
        )
    return samples
