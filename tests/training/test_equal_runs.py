"""Equal runs give equal bytes on several threads too: no gradient is summed in the order in which threads arrive."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from forms import weighted
from small_logs import write_small

from localpolicy.model.backbones import BACKBONES
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.numerics import deterministic
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer

SEQUENCES = 10_000  # 36,000 actions in a step: torch splits no smaller work over threads


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("data") / "large", sequences=SEQUENCES)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def loaded():
    """A machine with more to do than it has cores."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 2)]
    yield
    for other in others:
        other.kill()
        other.wait()


class Gradients:
    """Gradients of one large batch, computed again and again."""

    def __init__(self, data, out, *, name="lpi_rl", backbone="sasrec"):
        objective = {"name": "lpi_cb", "baseline": "value"} if name == "value" else {"name": name}
        settings = {
            "model": {"backbone": backbone, "width": 4},
            "objective": weighted(objective),  # all heads in one step
            "train": {"batch_size": SEQUENCES, "device": "cpu"},
        }
        self.trainer = Trainer.start(data, Run(out), resolve(Config.parse(settings), data))
        (self.batch,) = self.trainer.windows.shuffled(SEQUENCES, seed=0, epoch=0)

    def again(self):
        torch.manual_seed(1)
        trainer = self.trainer
        trainer.optimiser.zero_grad()
        loss, _, _ = trainer.losses(self.batch, 0, True, len(self.batch.scored))
        loss.backward()
        return {name: one.grad for name, one in trainer.network.named_parameters() if one.grad is not None}

    def ordered(self):
        """As `train.deterministic` has them: it sums in one order alone."""
        with deterministic(True):
            return self.again()


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert any(gradient.abs().sum() > 0 for gradient in expected.values())
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("backbone", BACKBONES)
def test_gradients_on_two_threads_have_one_order(backbone, large, tmp_path):
    """Gradients that always equal the ordered sum have no other order."""
    gradients = Gradients(large, tmp_path / "run", backbone=backbone)
    expected = gradients.ordered()
    for _ in range(2):
        assert_equal(gradients.again(), expected)


@pytest.mark.usefixtures("two_threads", "loaded")
def test_gradients_have_one_order_on_a_loaded_machine(large, tmp_path):
    gradients = Gradients(large, tmp_path / "run")
    expected = gradients.ordered()
    for _ in range(3):
        assert_equal(gradients.again(), expected)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["lpi_cb", "ips_pg", "value"])
def test_the_gradients_of_every_head_have_one_order(name, large, tmp_path):
    gradients = Gradients(large, tmp_path / "run", name=name)
    assert_equal(gradients.again(), gradients.ordered())
