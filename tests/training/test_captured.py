"""Steps of a fixed size, as a GPU captures them, train what plain steps train. Capture itself: tests/gpu."""

from __future__ import annotations

import pytest

from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import ALONE
from localpolicy.training import captured, trainer
from localpolicy.training.train import train


@pytest.mark.parametrize("windows", [{"length": 20}, {"length": 6, "last": 3}], ids=str)
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("lpi_cb", "lpi_rl")])
def test_steps_of_a_fixed_size_train_the_same(name, windows, small, tmp_path, monkeypatch):
    groups = {"model": {"width": 8, "dropout": 0.0}, "objective": {"name": name}, "data": windows}
    config = Config.parse({**groups, "train": {"epochs": 2, "batch_size": 16, "device": "cpu"}})
    plain = train(small, out=tmp_path / "plain", config=config)
    monkeypatch.setattr(trainer, "refusal", lambda *_: None)
    start = captured.CapturedSteps.__init__

    def on_a_cpu(self, *given):
        start(self, *given)
        self.refused = "a CPU has no graphs"

    monkeypatch.setattr(captured.CapturedSteps, "__init__", on_a_cpu)
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
    assert captured.refusal(config, None, None, ALONE) == "train.capture is false"
