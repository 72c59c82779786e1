"""Steps of a fixed size, as a GPU captures them, train what plain steps train. Capture itself: tests/gpu."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from localpolicy.data.batches import Windows
from localpolicy.objectives import OBJECTIVES
from localpolicy.objectives.critic import Critic
from localpolicy.objectives.distill import Distill
from localpolicy.objectives.mle import MLE
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import ALONE
from localpolicy.training import cuda_graphs, trainer
from localpolicy.training.setup import build_reader, resolve
from localpolicy.training.train import train


@pytest.mark.parametrize("windows", [{"length": 20}, {"length": 6, "last": 3}], ids=str)
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("lpi_cb", "lpi_rl")])
def test_steps_of_a_fixed_size_train_the_same(name, windows, small, tmp_path, monkeypatch):
    groups = {"model": {"width": 8, "dropout": 0.0}, "objective": {"name": name}, "data": windows}
    config = Config.parse({**groups, "train": {"epochs": 2, "batch_size": 16, "device": "cpu"}})
    plain = train(small, out=tmp_path / "plain", config=config)
    monkeypatch.setattr(trainer, "refusal", lambda *_: None)
    start = cuda_graphs.CapturedSteps.__init__

    def on_a_cpu(self, *given):
        start(self, *given)
        self.refused = "a CPU has no graphs"

    monkeypatch.setattr(cuda_graphs.CapturedSteps, "__init__", on_a_cpu)
    fixed = train(small, out=tmp_path / "fixed", config=config)
    assert fixed.manifest["steps_not_captured"] == "a CPU has no graphs"
    for one, two in zip(plain.metrics(), fixed.metrics(), strict=True):
        for group in ("losses", "weights", "validation"):
            assert two[group] == pytest.approx(one[group], rel=2e-3, abs=2e-4), group


def test_what_cannot_be_captured_says_why(small, tmp_path):
    run = train(
        small,
        out=tmp_path / "run",
        config=Config.parse({"objective": {"name": "mle"}, "train": {"epochs": 1, "device": "cpu"}}),
    )
    assert not run.manifest["steps_captured"]
    assert run.manifest["steps_not_captured"] == "graphs are captured on CUDA devices alone"
    config = Config.parse({"train": {"device": "cuda", "capture": False}})
    assert cuda_graphs.refusal(config, None, None, ALONE) == "train.capture is false"


class Likelier(MLE):
    """An objective of the user's."""


class SameSteps(MLE):
    """Objective that declares all its steps equal."""

    capturable = True


@pytest.mark.parametrize(("objective", "captured_steps"), [(MLE, True), (Likelier, False), (SameSteps, True)])
def test_an_objective_says_itself_whether_its_steps_may_be_replayed(objective, captured_steps, small, monkeypatch):
    config = resolve(Config.parse({"objective": objective(), "train": {"device": "cpu"}}), small)
    reader = build_reader(small, config)
    config = config.model_copy(update={"train": config.train.model_copy(update={"device": "cuda"})})
    said = cuda_graphs.refusal(config, reader, Windows(small, "train", config.data), ALONE)
    assert (said is None) == captured_steps and (said is None or "capturable" in said)


def test_every_objective_of_this_package_with_steps_is_capturable():
    made_of_others = {"lpi_cb", "lpi_rl"}
    assert {name for name, objective in OBJECTIVES.items() if not objective.capturable} == made_of_others
    assert Critic.capturable and Distill.capturable, "what these are made of"


class GeneratorState:
    """A device generator's state, as torch keeps it: a seed, and whether a capture has begun and not ended."""

    seed = 0
    capturing = False

    def draw(self) -> int:
        """Return the seed, as a step or a replay draws it."""
        if self.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        return self.seed


class FakeDevice:
    """A step, and captures of it on a CPU: a graph reads the generator's state of its capture, as torch's do."""

    def __init__(self):
        self.state = GeneratorState()
        self.recording = False
        self.seeds = []  # of the steps that were made
        self.optimiser = SimpleNamespace(zero_grad=lambda set_to_none: None)

    def __call__(self, *given, **named):
        if not self.recording:
            self.seeds.append(self.state.draw())

    @contextmanager
    def captured_into(self, graph, stream, pool):
        self.recording, self.state.capturing = True, True
        try:
            yield
            if graph.fails:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.state.capturing = False
        finally:
            self.recording = False

    def restart_generator(self, _):
        seed, self.state = self.state.seed, GeneratorState()
        self.state.seed = seed

    def graph(self, *, fails):
        state = self.state

        def replay():
            self.seeds.append(state.draw())

        return SimpleNamespace(fails=fails, replay=replay, pool=lambda: 0)


def test_a_later_capture_that_fails_leaves_every_step_right(small, monkeypatch):
    device = FakeDevice()
    fails = iter([False, True])
    monkeypatch.setattr(cuda_graphs.torch.cuda, "CUDAGraph", lambda: device.graph(fails=next(fails)))
    monkeypatch.setattr(cuda_graphs, "_captured_into", device.captured_into)
    monkeypatch.setattr(cuda_graphs, "_restart_generator", device.restart_generator)
    config = resolve(Config.parse({"objective": {"name": "mle"}, "train": {"device": "cpu", "batch_size": 4}}), small)
    steps = cuda_graphs.CapturedSteps(device, Windows(small, "train", config.data), config)
    batch = next(iter(steps.planner.epoch(seed=0, epoch=0)))
    coins = [True, True, False, True, False, True, False, True]  # the second coin's capture is the one that fails
    replayed = []
    for number, coin in enumerate(coins):
        device.state.seed = number + 1  # as `Step.begin` seeds the generator
        steps.step(batch, number, coin)
        replayed.append(len(steps.graphs))
    assert device.seeds == list(range(1, len(coins) + 1)), "each step is made once, by its own seed"
    assert replayed == [0, 1, 1, 1, 0, 0, 0, 0]
    assert steps.refused == "capture failed: operation not permitted when stream is capturing"
