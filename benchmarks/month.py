"""A month of the daily round in a world that drifts, through examples/daily.sh and examples/rollout.sh as they are.

    python benchmarks/month.py [--days 30] [--visits 2000] [--seed 0] [--bad 6] [--killed 10] [--floor 0.05]
    python benchmarks/month.py --fresh 20 [--days 3]      this number of new shops, with the script's own settings

A shop of 20 items has four kinds of visitor; what they like drifts a little every day, and every fifth day two items
are new (`--new`): the script learns of them from a table of items, and the service draws them by its exploration
floor (`--floor`), which is in all values. The first policy is learnt from what people did (a CSV file). From then on
all days run as follows: visitors come in three parts of the day and get lists of three by the routes of the service;
between the parts rollout.sh judges; at night daily.sh rotates the log, audits it, appends it (a window of days),
trains from what is deployed, asks the gate, exports, and plans a rollout. A tenth of the evening's answers arrive the
next morning. One night (the first from `--bad` on in which no rollout runs) makes a candidate that was never
trained, and its gate is overruled; one night is killed (SIGKILL) while it trains, and is never run again: the next
night finds what it left. A clock of the world's own replaces the machine's.

Printed for each day, as JSON: the true reward of a list of what was served in the morning and in the evening, of all
that was shown, of the night's candidate, of the first policy, and of the best list there is (which drifts too), with
and without items that are new; exit codes; at the end whether all that was acknowledged is there once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, closing, contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
DAILY, FURTHER = (ROOT / "examples" / name for name in ("daily.sh", "rollout.sh"))
ITEMS, KINDS, PLACES = 20, 4, 3
CONTEXTS = 20  # histories of each kind, by which values are taken
BUYS = 0.5  # of those who answer: the others look
REWARDS = "buy=1.0,view=0.2"
MEAN_REWARD = BUYS * 1.0 + (1 - BUYS) * 0.2  # of an answer
START, HOUR = 1_790_035_200_000, 3_600_000  # a midnight
PARTS = ((6.0, 9.0, 11.2), (12.0, 14.0, 16.2), (17.0, 20.0, 22.2))  # hours: visitors from, to, then a judgement
NIGHT, MORNING = 27.5, 30.5  # when daily.sh runs; when answers that were held up arrive
HELD_UP = 0.1  # of the evening's answers
NEW_EVERY = 5  # days
SETTINGS = ("model.width=16", "model.event_embeddings=true", "data.length=16", "train.batch_size=64",
            "train.learning_rate=0.01")  # fmt: skip
CLIENT = """#!{python} -SE
import json, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({place!r})
    line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    answer = json.loads(line.makefile().readline())
sys.stdout.write(answer["stdout"]); sys.stderr.write(answer["stderr"]); sys.exit(answer["code"])
"""
ALONE = """#!{python}
import sys
from localpolicy.serving import records
records.now = lambda: {now}
from localpolicy.cli.main import main
sys.argv[0] = "lpi"
main()
"""


class World:
    """What each kind of visitor likes, and how it changes."""

    def __init__(self, seed: int, *, drift: float, floor: float = 0.0) -> None:
        self.rng, self.drift, self.items, self.floor = np.random.default_rng([seed, 1]), drift, ITEMS, floor
        self.z = self.rng.standard_normal((KINDS, ITEMS))
        self.contexts = [self.history(kind, np.random.default_rng([seed, 3, kind])) for kind in range(KINDS)
                         for _ in range(CONTEXTS)]  # fmt: skip

    def pass_day(self, *, new: int = 0) -> None:
        """z changes by a share of `drift`, and keeps its spread; `new` items are new."""
        self.z = np.sqrt(1 - self.drift**2) * self.z + self.drift * self.rng.standard_normal(self.z.shape)
        self.z = np.concatenate([self.z, self.rng.standard_normal((KINDS, new))], axis=1)
        self.items += new

    @property
    def worth(self) -> np.ndarray:
        """The chance of an answer, [KINDS, ITEMS]."""
        return np.asarray(1 / (1 + np.exp(2.0 - 1.2 * self.z)))

    def write_items(self, path: Path) -> None:
        """The table of what may be shown."""
        path.write_text("item_id,name\n" + "".join(f"i{item},item {item}\n" for item in range(self.items)))

    def share_of_new(self, policy: Any) -> float:
        """The share of a request's first place that items get which were not there on the first day."""
        known = [item for item in range(ITEMS, self.items) if f"i{item}" in policy.index]
        if not known:
            return 0.0
        return float(self.shares(policy)[:, [policy.index[f"i{item}"] for item in known]].sum(1).mean())

    def best(self, items: int | None = None) -> float:
        """The mean reward of the best list of three for each kind, of all items or of the first: no policy has more."""
        return float(MEAN_REWARD * np.sort(self.worth[:, :items], axis=1)[:, -PLACES:].sum(1).mean())

    @staticmethod
    def history(kind: int, rng: np.random.Generator) -> list[tuple[str, str]]:
        """An item that tells the kind, and perhaps another that says nothing."""
        other = [(f"i{rng.integers(KINDS, ITEMS)}", "buy" if rng.random() < 0.5 else "view")]
        return [*(other if rng.random() < 0.5 else []), (f"i{kind}", "view")]

    def shares(self, policy: Any) -> np.ndarray:
        """The chance that each of the policy's items is drawn first, without the floor: [C, V]."""
        items, events = ([[one[part] for one in history] for history in self.contexts] for part in (0, 1))
        logits = policy.logits(items, events).astype(np.float64)
        share = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(share / share.sum(1, keepdims=True))

    def value(self, policy: Any) -> float:
        """The mean reward of a list of three, drawn by a policy now: exact, over many histories."""
        known = [item for item in range(self.items) if f"i{item}" in policy.index]  # the others it never shows
        shares = self.shares(policy)[:, [policy.index[f"i{item}"] for item in known]]
        kind = np.repeat(np.arange(KINDS), len(self.contexts) // KINDS)
        rewards = MEAN_REWARD * self.worth[kind][:, known]
        return float(np.mean([drawn_value(*each, self.floor) for each in zip(shares, rewards, strict=True)]))


def drawn_value(share: np.ndarray, reward: np.ndarray, floor: float) -> float:
    """Expected reward of three places: each (1 - ε) π(a) / Σ π(what is left) + ε / n of the n items left [V]."""
    n, earned = len(share), share * reward
    first = (1 - floor) * share + floor / n
    left = np.maximum(1 - share, 1e-15)
    second = first[:, None] * ((1 - floor) * share / left[:, None] + floor / (n - 1))  # of ordered pairs
    np.fill_diagonal(second, 0.0)
    pair = np.maximum(1 - share[:, None] - share, 1e-15)
    third = (1 - floor) * np.maximum(earned.sum() - earned[:, None] - earned, 0) / pair
    third += floor * (reward.sum() - reward[:, None] - reward) / (n - 2)
    return float(first @ reward + second.sum(0) @ reward + (second * third).sum())


class Played(NamedTuple):
    """Return the output of a script."""

    code: int
    told: str


class Shop:
    """The folder of one shop: its scripts, its log, and its clock."""

    def __init__(self, folder: Path, *, training: str, stages: str, people: int, margin: float) -> None:
        self.folder, self.now = folder, START
        self.line = socket.socket(socket.AF_UNIX)
        self.line.bind(str(folder / "line"))
        self.line.listen()
        self.line.settimeout(0.05)
        (folder / "bin").mkdir()
        (folder / "alone").mkdir()
        self._script(folder / "bin" / "lpi", CLIENT.format(python=sys.executable, place=str(folder / "line")))
        self.environment = {
            **os.environ, "TRAINING": training, "REWARDS": REWARDS, "DAYS": "3", "PREPARATION": "--test 0.3",
            "ITEMS": "items.csv",
            "ROTATION": "--grace 43200",
            "ROLLOUT": f"--stages {stages} --units {4 * people} --people {people} --places {PLACES} "
            f"--set lists={people} --margin {margin}",
        }  # fmt: skip
        self.requests: list[str] = []  # acknowledged
        self.answers: list[str] = []
        self.late: list[Any] = []  # answers that have not arrived

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def play(self, script: Path, *words: str, changed: dict[str, Any] | None = None) -> Played:
        """Run a script; `lpi` is answered by this process, in which torch is imported already."""
        from typer.testing import CliRunner

        from localpolicy.cli.main import app
        from localpolicy.errors import LocalPolicyError

        changed = changed or {}
        environment = {**self.environment, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        running = subprocess.Popen(["sh", str(script), *words], env=environment, text=True, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        while running.poll() is None:
            try:
                line, _ = self.line.accept()
            except TimeoutError:
                continue
            with line, line.makefile() as words_of:
                asked = json.loads(words_of.readline())
                asked = changed[asked[0]](asked) if callable(changed.get(asked[0])) else asked
                if isinstance(changed.get(asked[0]), int):
                    answer = {"stdout": "", "stderr": "", "code": changed[asked[0]]}
                else:
                    done = CliRunner().invoke(app, asked)
                    ours = isinstance(done.exception, LocalPolicyError)
                    if done.exception and not ours and not isinstance(done.exception, SystemExit):
                        running.kill()
                        raise done.exception
                    said = f"lpi {asked[0]}: {done.exception}\n" if ours else ""
                    answer = {"stdout": done.stdout, "stderr": said, "code": 2 if ours else done.exit_code}
                line.sendall(json.dumps(answer).encode() + b"\n")
        told, _ = running.communicate()
        return Played(running.returncode, told)

    def play_and_kill(self, script: Path, *words: str, when: Path) -> str:
        """Run a script with an `lpi` of its own, and kill all of it (SIGKILL) once a file is there."""
        self._script(self.folder / "alone" / "lpi", ALONE.format(python=sys.executable, now=self.now))
        environment = {**self.environment, "PATH": f"{self.folder / 'alone'}:{os.environ['PATH']}"}
        running = subprocess.Popen(
            ["sh", str(script), *words], env=environment, cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        while not when.exists() and running.poll() is None:
            time.sleep(0.05)
        if running.poll() is not None:
            raise RuntimeError(f"it ended before it could be killed:\n{running.communicate()[0]}")
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return f"killed once {when.relative_to(self.folder)} was there"

    def visits(self, world: World, count: int, hours: tuple[float, float], rng: np.random.Generator, *, held_up: float,
               day: int) -> tuple[dict[str, int], float]:  # fmt: skip
        """People come, get lists by the service's own routes, and answer: lists by arm, and all that they earned."""
        from localpolicy.serving.database import Database
        from localpolicy.serving.deployment import Deployment
        from localpolicy.serving.filters import Filter
        from localpolicy.serving.log import write
        from localpolicy.serving.records import Feedback, Request, new_id

        deployment = Deployment(self.folder / "served", rollout=self.folder / "rollout.json")
        worth, begin = world.worth, START + day * 24 * HOUR
        database = Database(self.folder / "log.db", create=True)
        shown: dict[str, int] = {}
        paid = 0.0
        with database.transaction():
            for number in range(count):
                at = begin + int((hours[0] + (hours[1] - hours[0]) * number / count) * HOUR)
                kind, person = int(rng.integers(KINDS)), f"d{day}h{hours[0]:g}n{number}"
                route, past = deployment.route(person), world.history(kind, rng)
                drawn = route.recommender.recommend(
                    [[item for item, _ in past]],
                    PLACES,
                    seed=int(rng.integers(2**31)),
                    events=[[event for _, event in past]],
                    floor=world.floor,
                )
                request = Request(
                    id=new_id(at), time=at, person=person, history=past, items=drawn.items[0],
                    propensities=drawn.propensity[0].tolist(), policy=route.recommender.version, beta=None,
                    mode="drawn", floor=world.floor, item_filter=Filter(), deferred=False, share=1.0, arm=route.arm,
                    stage=route.stage, rollout=route.rollout,
                )  # fmt: skip
                write(database, request)
                self.requests.append(request.id)
                shown[route.arm or "current"] = shown.get(route.arm or "current", 0) + 1
                for item in drawn.items[0]:
                    if rng.random() < worth[kind, int(item[1:])]:
                        event = "buy" if rng.random() < BUYS else "view"
                        answer = Feedback(
                            new_id(at), request.id, item, event, None, at + HOUR // 2, False, at + HOUR // 2
                        )
                        self.answers.append(answer.id)
                        paid += {"buy": 1.0, "view": 0.2}[event]
                        if rng.random() < held_up:
                            self.late.append(replace(answer, arrived=begin + int(MORNING * HOUR)))
                        else:
                            write(database, answer)
        database.close()
        return shown, paid

    def deliver(self) -> int:
        """The answers that were held up arrive."""
        from localpolicy.serving.database import Database
        from localpolicy.serving.log import write

        database, count = Database(self.folder / "log.db"), len(self.late)
        with database.transaction():
            for answer in self.late:
                write(database, answer)
        database.close()
        self.late.clear()
        return count

    def accounts(self) -> dict[str, int]:
        """How many acknowledged records are in the files or the log, once; and how many answers became events."""
        from localpolicy.serving.database import Database

        found = {}
        database = Database(self.folder / "log.db")
        for name, expected in (("requests", self.requests), ("feedback", self.answers)):
            ids = [id for (id,) in database.rows(f"SELECT id FROM {name}")]
            for file in sorted((self.folder / "events").glob(f"*/_{name}/*.parquet")):
                ids += pq.read_table(file)["id"].to_pylist()
            found[name] = len(expected)
            found[f"{name} lost"] = len(set(expected) - set(ids))
            found[f"{name} twice"] = len(ids) - len(set(ids))
        rotated = self.folder.glob("events/*/_feedback/*.parquet")
        found["answers late"] = sum(pq.read_table(file)["fate"].to_pylist().count("late") for file in rotated)
        database.close()
        return found


@contextmanager
def clock_of(shop: Shop) -> Iterator[None]:
    """The shop's clock in the place of the machine's."""
    from localpolicy.serving import records, rollout, rotate

    before = [(module, module.now) for module in (records, rollout, rotate)]
    for module, _ in before:
        module.now = lambda: shop.now  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, now in before:
            module.now = now  # type: ignore[attr-defined]


def organic(world: World, path: Path, day: str, *, sessions: int, seed: int, finds: float) -> None:
    """What people did before there was a service; `finds`: how well they found what they like."""
    rng = np.random.default_rng([seed, 4])
    lines = ["session,product,what,when"]
    for session in range(sessions):
        kind, step = int(rng.integers(KINDS)), 0
        share = np.exp(finds * world.z[kind])
        for item, event in world.history(kind, rng):
            lines.append(f"s{session},{item},{event},{day}T10:{session % 60:02d}:{step:02d}")
            step += 1
        for item in rng.choice(ITEMS, 2, replace=False, p=share / share.sum()):
            event = "buy" if rng.random() < BUYS else "view"
            lines.append(f"s{session},i{item},{event},{day}T10:{session % 60:02d}:{step:02d}")
            step += 1
    path.write_text("\n".join(lines) + "\n")


def ended(rollout: Path) -> bool:
    """Whether no rollout is running."""
    plan = json.loads(rollout.read_text()) if rollout.exists() else {"done": True}
    return bool(plan["done"] or plan["stage"] == "rolled back")


def untrained(words: list[str]) -> list[str]:
    """`lpi train` from nothing, and hardly at all."""
    at = words.index("--warm-start")
    kept = [*words[:at], *words[at + 2 :]]
    return [*kept, "--epochs", "1", "--set", "train.learning_rate=1e-9", "--set", "train.average=0"]


def month(
    folder: Path, *, days: int = 30, visits: int = 2000, seed: int = 0, bad: int | None = 6, killed: int | None = 10,
    drift: float = 0.12, epochs: int | None = 6, stages: str = "3,30,100", people: int | None = None,
    finds: float = 0.8, margin: float = 0.1, new: int = 2, floor: float = 0.05,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Play it: one entry per day, and the accounts at the end. Without `epochs` training has no settings of ours."""
    from localpolicy.serving.export import export
    from localpolicy.serving.recommender import Recommender

    world = World(seed, drift=drift, floor=floor)
    small = "" if epochs is None else f" --epochs {epochs} " + " ".join(f"--set {one}" for one in SETTINGS)
    people = people or max(5, visits // 20)
    training = f"--objective auto --device cpu{small}"
    shop = Shop(folder, training=training, stages=stages, people=people, margin=margin)
    name = [str(date(2026, 9, 22) + timedelta(days=day)) for day in range(days + 1)]
    organic(world, folder / "first.csv", name[0], sessions=2 * visits, seed=seed, finds=finds)
    with closing(shop.line), chdir(folder), clock_of(shop):
        world.write_items(folder / "items.csv")
        first = shop.play(DAILY, name[0], "first.csv")
        if first.code:
            raise RuntimeError(first.told)
        export(folder / "deployed", out=folder / "exports" / name[0])
        shutil.copytree(folder / "exports" / name[0], folder / "served")
        for day in range(1, days + 1):
            began = time.perf_counter()
            entry: dict[str, Any] = {"day": day, "served": name.index((folder / "deployed").resolve().name)}
            world.pass_day(new=new if day % NEW_EVERY == 0 else 0)
            world.write_items(folder / "items.csv")
            rng = np.random.default_rng([seed, 5, day])
            entry |= {"best": world.best(), "best without new items": world.best(ITEMS)}
            entry |= {"first": world.value(Recommender(folder / "exports" / name[0]))}
            entry["morning"] = world.value(Recommender(folder / "served"))
            entry["of new items"] = world.share_of_new(Recommender(folder / "served"))
            earned, ledger, codes, lists = 0.0, 0.0, [], 0
            for number, (start, stop, judged) in enumerate(PARTS):
                evening = number == len(PARTS) - 1
                plan = folder / "rollout.json"
                candidate = json.loads(plan.read_text())["candidate"]["export"] if plan.exists() else ""
                value = {"current": world.value(Recommender(folder / "served"))}
                arms, paid = shop.visits(
                    world, visits, (start, stop), rng, held_up=HELD_UP if evening else 0.0, day=day
                )
                value |= {"candidate": world.value(Recommender(Path(candidate)))} if "candidate" in arms else {}
                earned += sum(value[arm] * count for arm, count in arms.items())
                ledger, lists = ledger + paid, lists + sum(arms.values())
                shop.now = START + day * 24 * HOUR + int(judged * HOUR)
                codes.append(shop.play(FURTHER, "log.db").code)
                if number == 0 and day > 1:
                    entry["arrived late"] = shop.deliver()
            entry |= {"shown": earned / lists, "ledger": ledger / lists, "judged": codes}
            entry["evening"] = world.value(Recommender(folder / "served"))
            shop.now = START + day * 24 * HOUR + int(NIGHT * HOUR)
            if day == killed:
                entry["night"] = shop.play_and_kill(DAILY, name[day], "log.db", when=folder / "data" / name[day])
            else:
                spoilt = bad is not None and day >= bad and ended(folder / "rollout.json")
                changed = {"train": untrained, "gate": 0} if spoilt else None
                bad = None if spoilt else bad
                night = shop.play(DAILY, name[day], "log.db", changed=changed)
                if night.code not in (0, 3, 4, 5):
                    raise RuntimeError(f"day {day}, exit code {night.code}:\n{night.told}")
                entry |= {"night": night.code, "told": night.told.splitlines()}
                entry |= {"overruled": True} if spoilt else {}
                run, verdict = folder / "runs" / name[day], folder / "verdicts" / f"{name[day]}.json"
                if verdict.exists():  # not of a gate that was overruled
                    entry["gate"] = json.loads(verdict.read_text())["answer"]
                if run.exists():
                    entry["trained in"] = json.loads((run / "manifest.json").read_text())["seconds"]
                    export(run, out=folder / "looked-at", force=True)
                    entry["candidate"] = world.value(Recommender(folder / "looked-at"))
            entry["seconds"] = round(time.perf_counter() - began, 1)
            yield {key: round(value, 4) if isinstance(value, float) else value for key, value in entry.items()}
        shop.deliver()
        yield {"accounts": shop.accounts()}


def fresh(folder: Path, seed: int, *, days: int, visits: int) -> dict[str, Any]:
    """A new shop's first days: the round's verdict, and the truth."""
    played = list(month(folder, days=days, visits=visits, seed=seed, bad=None, killed=None, epochs=None, new=0))[:-1]
    deploys = [day for day in played if day.get("gate") in ("deploy", "test online")]
    last = played[-1]
    return {
        "seed": seed,
        "gates": [day.get("gate") for day in played],
        "first deploy": deploys[0]["day"] if deploys else None,
        "false deploys": sum(day["candidate"] <= day["evening"] for day in deploys),
        "true gain on the last evening": round(last["evening"] / last["first"] - 1, 4),
        "true gain of the best": round(last["best"] / last["first"] - 1, 4),
        "trained in": [day.get("trained in") for day in played],
        "seconds": [day["seconds"] for day in played],
    }


def best_falls(worlds: int = 200, days: int = 14, *, drift: float) -> dict[str, float]:
    """How often the best list there is earns over 2 % less than the day before: what no policy could prevent."""
    falls = []
    for seed in range(worlds):
        world, best = World(seed, drift=drift), []
        for _ in range(days):
            world.pass_day()
            best.append(world.best())
        falls.append(np.diff(best) / best[:-1] < -0.02)
    return {"of days": float(np.mean(falls)), "of two weeks, on some day": float(np.mean(np.any(falls, axis=1)))}


def first_stages(
    share: float, visits: int, *, worth: tuple[float, float], looks: int = 6, repeats: int = 200
) -> dict[str, list[float]]:
    """How often a candidate is found to do harm, and leaves the first stage, by each look; `worth`: current, candidate.

    The log has a day's visitors of the current policy.
    """
    from localpolicy.serving.experiment_units import Units
    from localpolicy.serving.past import Past
    from localpolicy.serving.rollout import RolloutRules
    from localpolicy.serving.rollout_decision import decide

    rng, stage = np.random.default_rng([0, 6]), f"{100 * share:g}"
    rules, count = RolloutRules(places=PLACES), looks * visits

    def brought(chance: np.ndarray) -> np.ndarray:
        answers = np.where(rng.random((len(chance), PLACES)) < BUYS, 1.0, 0.2)
        return np.asarray((answers * (rng.random((len(chance), PLACES)) < chance[:, None])).sum(1))

    ends = {"harm": np.zeros(looks), "left": np.zeros(looks)}
    for _ in range(repeats):
        arm = (rng.random(count) < share).astype(float)
        of = np.array(worth) / (PLACES * MEAN_REWARD)
        past = Past.of(brought(np.full(3 * visits, of[0])), days=1.0, most=rules.range[1])
        units = Units(arm, np.full(count, share), brought(of[arm.astype(int)]), np.zeros(count), np.ones(count),
                      np.zeros(count), np.full(count, stage, object))  # fmt: skip
        for look in range(looks):
            seen = units.where(np.arange(count) < (look + 1) * visits)
            said = decide(seen, rules, past, stage=stage, stages=[stage, "50"], shadow=(0, 0), at=rules.ripe_ms)
            if said.decision != "hold":
                ends["harm" if said.decision == "roll back" else "left"][look:] += 1
                break
    return {name: [float(number / repeats) for number in counts] for name, counts in ends.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Parse the command line and run the month."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--visits", type=int, default=2000, help="in each of a day's three parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bad", type=int, default=6, help="the night that makes a bad candidate; 0: none")
    parser.add_argument("--killed", type=int, default=10, help="the night that is killed; 0: none")
    parser.add_argument("--drift", type=float, default=0.12)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--stages", default="3,30,100", help="of a rollout, in percent of the visitors")
    parser.add_argument("--new", type=int, default=2, help="items that are new every fifth day")
    parser.add_argument("--floor", type=float, default=0.05, help="exploration floor of what is served")
    parser.add_argument(
        "--fresh", type=int, default=0, help="only: this number of new shops from --seed on, a line each"
    )
    parser.add_argument("--keep", type=Path, help="play in this folder, and leave it")
    parser.add_argument(
        "--shares", action="store_true", help="only: how often a first stage finds a bad candidate, or lets it pass"
    )
    parser.add_argument("--best", action="store_true", help="only: how often the best list there is falls by over 2 %%")
    given = parser.parse_args(words)
    if given.best:
        print(json.dumps({"the best list falls by over 2 %": best_falls(drift=given.drift)}))
        return
    if given.shares:
        for worth in ((0.86, 0.33), (0.5, 0.4), (0.5, 0.5), (0.5, 0.55)):
            for share in (0.01, 0.03, 0.1):
                found = first_stages(share, given.visits, worth=worth)
                print(json.dumps({"worth": worth, "share": share, "by the first to sixth look": found}), flush=True)
        return
    for seed in range(given.seed, given.seed + given.fresh):
        with tempfile.TemporaryDirectory(prefix="lpi-fresh-") as scratch:
            print(json.dumps(fresh(Path(scratch), seed, days=given.days, visits=given.visits)), flush=True)
    if given.fresh:
        return
    with tempfile.TemporaryDirectory(prefix="lpi-month-") as scratch:
        folder = (given.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for entry in month(
            folder, days=given.days, visits=given.visits, seed=given.seed, bad=given.bad or None,
            killed=given.killed or None, drift=given.drift, epochs=given.epochs, stages=given.stages, new=given.new,
            floor=given.floor,
        ):  # fmt: skip
            print(json.dumps(entry, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
