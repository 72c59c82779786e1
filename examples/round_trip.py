"""The whole loop of production: train, serve, log, audit, prepare, train again, gate, roll out, swap.

    python examples/round_trip.py [VISITS]

A shop's own policy writes the first log. From then on simulated shoppers call the service over HTTP, and each round
learns from what the last deployed policy logged. The reward is what the shoppers really gave: it should rise.
"""

import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import localpolicy as lp
from localpolicy.serving.rollout import RolloutRules, judge, plan
from localpolicy.simulation import load_world
from localpolicy.simulation.shoppers import Shoppers

ROUNDS, K, LISTS = 3, 4, 2  # rounds; length of a list; lists per visit
VISITS = int(sys.argv[1]) if len(sys.argv) > 1 else 200  # fewer leave a split without sequences
EVENTS, REWARDS = ["none", "click", "purchase"], [0.0, 0.2, 1.0]

DIALS = ["categories=5", "lookahead=0", "taste=1.5", "appeal=1.2", "mean_length=10"]
rng = np.random.default_rng(0)


class Shop:
    """A server and shoppers that visit it."""

    def __init__(self, here: Path, *options: str) -> None:
        self.world = load_world(here / "first")
        command = [sys.executable, "-m", "localpolicy", "serve", str(here / "served"), "--log", str(here / "log.db")]
        more = [
            "--port",
            "0",
            "--empty-history",
            "model",
            "--floor",
            "0.02",
            "--set",
            "poll_seconds=0.1",
            "--set",
            "seed=0",
            *options,
        ]
        self.process = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        self.connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)

    def call(self, path: str, body: dict) -> dict:
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = self.connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        return content

    def visit(self, count: int, name: str) -> float:
        """Mean reward per shown item of `count` visits."""
        total = 0.0
        for number in range(count):
            shopper = Shoppers.arrive(1, self.world.config, self.world.goods, rng)
            history: list[dict] = []
            for _ in range(LISTS):
                asked = {"person": f"{name}-{number}", "history": history, "k": K}
                found = self.call("/v1/recommend", asked)
                for item in found["items"]:
                    event = int(shopper.answer(np.array([item]), rng)[0])
                    total += REWARDS[event]
                    history.append({"item": item, "event": EVENTS[event]})
                    if event:
                        answer = {"id": f"{found['request']}-{item}", "request": found["request"], "item": item}
                        self.call("/v1/feedback", {**answer, "event": EVENTS[event]})
        return total / (count * LISTS * K)

    def __enter__(self) -> "Shop":
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()


def train(data: lp.Prepared, out: Path, objective: str, *changes: str) -> lp.Run:
    settings = ["model.width=16", "data.length=8", "train.device=cpu", "model.event_embeddings=true", *changes]
    return lp.train(data, out=out, config=lp.configure(changes=[f"objective.name={objective}", *settings]))


def swap(new: Path, served: Path) -> None:
    """Put another export in the place of the one that is served; the server finds it there."""
    shutil.copytree(new, served.with_name("coming"))
    served.rename(served.with_name(f"before-{new.name}"))
    served.with_name("coming").rename(served)


def main(here: Path) -> list[float]:
    lp.simulate("store", here / "first", sequences=1500, items=40, changes=DIALS)
    data = lp.prepare("events", [here / "first"], out=here / "data-0")
    current = train(data, here / "run-0", "mle", "train.epochs=4")
    lp.export(current.folder, out=here / "export-0")
    shutil.copytree(here / "export-0", here / "served")
    with Shop(here) as shop:
        earned = [shop.visit(VISITS, "round-0")]
    print(f"round 0: {current.version} earns {earned[0]:.4f} per shown item", flush=True)
    for number in range(1, ROUNDS + 1):
        # What was served becomes the next log; its propensities are checked before they are believed.
        (log,) = lp.rotate(here / "log.db", out=here / f"events-{number}", upto=time.time_ns() // 10**6 + 1)
        audit = lp.audit(log.parent, runs=sorted(here.glob("export-*")))
        assert audit.exit_code == 0, audit
        data = lp.prepare("events", [log], out=here / f"data-{number}", like=here / f"data-{number - 1}")
        changes = ("train.epochs=6", "objective.improve=weighted", "objective.beta=0.15")
        candidate = train(data, here / f"run-{number}", "lpi_cb", *changes)
        verdict = lp.gate(candidate.folder, against=[current.folder], data=data)
        exported, rollout = here / f"export-{number}", here / f"rollout-{number}.json"
        lp.export(candidate.folder, out=exported)
        # The candidate meets half of the traffic first, and goes back by itself where it does harm.
        plan(rollout, stages=["50", "100"], salt="s", rules=RolloutRules(units=VISITS // 4, largest_reward=K))
        with Shop(here, "--candidate", str(exported), "--rollout", str(rollout)) as shop:
            shop.visit(VISITS // 4, f"rollout-{number}")
            decision = judge(rollout, log=here / "log.db").decision
            if decision == "advance":
                swap(exported, here / "served")
                current = candidate
            earned.append(shop.visit(VISITS, f"round-{number}"))
        print(
            f"round {number}: audit of {audit.lists:,} lists passed; gate: {verdict.answer}; rollout: {decision}; "
            f"{current.version} earns {earned[-1]:.4f}", flush=True,
        )  # fmt: skip
    return earned


with tempfile.TemporaryDirectory() as folder:
    rewards = main(Path(folder))
print(f"from {rewards[0]:.4f} to {rewards[-1]:.4f} per shown item in {ROUNDS} rounds")
if VISITS >= 1000:  # fewer visits are too few to tell
    assert rewards[-1] > rewards[0]
