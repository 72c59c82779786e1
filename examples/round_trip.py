"""The whole loop of production: train, serve, log, audit, prepare, train again, gate, roll out, swap.

    python examples/round_trip.py [VISITS [SEED [ROUNDS]]]

A shop's own policy, a poor one, writes the first log. From then on simulated shoppers call the service over HTTP,
and each round learns from what the last deployed policy logged. The world is small enough that the true expected
reward of every deployed policy is an exact sum: it rises from round to round.
"""

import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

import localpolicy as lp
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.rollout import RolloutRules, judge, plan
from localpolicy.serving.sampling import first_place
from localpolicy.simulation import load_world

K, FLOOR = 4, 0.05  # length of a list; exploration floor ε
CLIENTS = 16  # shoppers at a time: their records share one flush of the disk
VISITS = int(sys.argv[1]) if len(sys.argv) > 1 else 500
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 0
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3

ANSWERS = JoinConfig(rewards="none=0,click=1", window=2)
# Items differ in appeal, and the shop's own policy rather shows the worse ones (quality below 0).
DIALS = ["contexts=24", "history=2", "taste=0.3", "appeal=1.8", "base=-1.5", "quality=-0.3", "popularity=0.3"]
TRAIN = ["model.width=16", "data.length=8", "train.device=cpu", "train.learning_rate=0.005", f"train.seed={SEED}"]
IMPROVE = ["objective.beta=0.5", "train.epochs=15"]


class Shop:
    """A server and shoppers that visit it."""

    def __init__(self, here: Path, *options: str) -> None:
        self.world = load_world(here / "first")
        command = [
            sys.executable, "-m", "localpolicy", "serve", str(here / "served"), "--log", str(here / "log.db"),
            "--port", "0", "--floor", str(FLOOR), "--set", "poll_seconds=0.1", "--set", f"seed={SEED}", *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        self.port = int(match[1])

    def visits(self, count: int, name: str) -> np.ndarray:
        """Mean reward of a shown item in each of `count` visits, many at a time."""
        shares = np.array_split(np.arange(count), CLIENTS)
        with ThreadPoolExecutor(CLIENTS) as pool:
            return np.concatenate(list(pool.map(lambda numbers: self._shopper(numbers, name), shares)))

    def _shopper(self, numbers: np.ndarray, name: str) -> np.ndarray:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        world, rewards = self.world, np.empty(len(numbers))
        for row, number in enumerate(numbers):
            rng = np.random.default_rng([SEED, int(number), *name.encode()])
            context = rng.choice(len(world.contexts), p=world.context_probabilities)
            history = [{"item": int(item), "event": "context"} for item in world.contexts[context]]
            asked = {"person": f"{name}-{number}", "history": history, "k": K}
            made = call(connection, "/v1/recommend", asked)
            clicked = [item for item in made["items"] if rng.random() < world.reward[context, item]]
            for item in clicked:
                answer = {"id": f"{made['request']}-{item}", "request": made["request"], "item": item, "event": "click"}
                call(connection, "/v1/feedback", answer)
            rewards[row] = len(clicked) / K
        connection.close()
        return rewards

    def __enter__(self) -> "Shop":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()


def call(connection: http.client.HTTPConnection, path: str, body: dict) -> dict:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    assert answer.status == 200, content
    return content


def true_reward(policy: lp.Recommender, world) -> float:
    """Σ_x d(x) Σ_a π(a|x) r(x,a) of the first place of a list, as it is served: exact."""
    histories = [[int(item) for item in context] for context in world.contexts]
    logits = policy.logits(histories, [["context"] * len(history) for history in histories])
    probabilities = np.zeros(world.reward.shape)
    probabilities[:, policy.ids] = first_place(logits, floor=FLOOR)
    return world.value(probabilities)


def train(data: lp.Prepared, out: Path, objective: str, *changes: str) -> lp.Run:
    return lp.train(data, out=out, config=lp.configure(changes=[f"objective.name={objective}", *TRAIN, *changes]))


def swap(new: Path, served: Path) -> None:
    """Put another export in the place of the one that is served; the server finds it there."""
    shutil.copytree(new, served.with_name("coming"))
    served.rename(served.with_name(f"before-{new.name}"))
    served.with_name("coming").rename(served)


def main(here: Path) -> list[float]:
    lp.simulate("bandit", here / "first", sequences=1000, items=12, changes=DIALS)
    world = load_world(here / "first")
    data = lp.prepare("events", [here / "first"], out=here / "data-0")
    current = train(data, here / "run-0", "mle", "train.epochs=8")
    rewards = [true_reward(lp.export(current.folder, out=here / "export-0"), world)]
    shutil.copytree(here / "export-0", here / "served")
    with Shop(here) as shop:
        seen = shop.visits(VISITS, "round-0")
    print(f"round 0: true reward {rewards[0]:.4f}; shoppers gave {said(seen)} per shown item", flush=True)
    for number in range(1, ROUNDS + 1):
        # What was served becomes the next log; its propensities are checked before they are believed.
        (log,) = lp.rotate(
            here / "log.db", out=here / f"events-{number}", upto=time.time_ns() // 10**6 + 1,
            config=ANSWERS,
        )  # fmt: skip
        audit = lp.audit(log.parent, runs=sorted(here.glob("export-*")))
        assert audit.exit_code == 0, audit
        data = lp.prepare("events", [log], out=here / f"data-{number}", like=here / f"data-{number - 1}")
        candidate = train(data, here / f"run-{number}", "lpi_cb_weighted", *IMPROVE)
        verdict = lp.gate(candidate.folder, against=[current.folder], data=data)
        exported, rollout = here / f"export-{number}", here / f"rollout-{number}.json"
        rewards.append(true_reward(lp.export(candidate.folder, out=exported), world))
        # The candidate meets half of the traffic first, and goes back by itself where it does harm.
        least = {"units": VISITS // 4, "people": VISITS // 16, "lists": VISITS // 16}
        wide = {"alpha": 0.001, "margin": 0.5}  # few shoppers, and who is in which arm differs from trip to trip
        rules = RolloutRules(answers=ANSWERS, horizon=1, places=K, **wide, **least)
        plan(rollout, candidate=exported, stages=["50", "100"], rules=rules)
        with Shop(here, "--rollout", str(rollout)) as shop:
            shop.visits(VISITS // 2, f"rollout-{number}")
            time.sleep(rules.ripe_ms / 1000)  # shoppers answer at once; then nothing can change any more
            decision = judge(rollout, log=here / "log.db").decision
            assert decision == "advance", decision
            swap(exported, here / "served")
            current = candidate
            seen = shop.visits(VISITS, f"round-{number}")
        print(
            f"round {number}: audit of {audit.lists:,} lists passed; gate: {verdict.answer}; rollout: {decision}; "
            f"true reward {rewards[-1]:.4f}; shoppers gave {said(seen)}", flush=True,
        )  # fmt: skip
    return rewards


def said(rewards: np.ndarray) -> str:
    return f"{rewards.mean():.4f} ± {rewards.std(ddof=1) / np.sqrt(len(rewards)):.4f}"


if __name__ == "__main__":
    torch.set_num_threads(1)  # networks this small are not worth a second one
    with tempfile.TemporaryDirectory() as folder:
        rewards = main(Path(folder))
    print(f"true reward of the first place: {' -> '.join(f'{reward:.4f}' for reward in rewards)}")
    assert rewards == sorted(rewards), "it rises in every round"
