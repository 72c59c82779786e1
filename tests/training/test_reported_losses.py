"""What a run reports and what it descends is the mean over positions, as one would write it down by hand."""

from __future__ import annotations

import pytest
import torch

from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.setup import resolve
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer

ONE_BATCH = {"epochs": 1, "batch_size": 4096, "device": "cpu"}


def settings(name, **objective):
    return Config.parse(
        {"model": {"width": 8, "dropout": 0.0}, "objective": {"name": name, **objective}, "train": ONE_BATCH}
    )


def by_hand(trainer):
    """-log π(a|x), r and μ(a|x) of every position, over the whole catalogue at once."""
    (batch,) = trainer.windows.shuffled(4096, seed=0, epoch=0)
    head = trainer.network.head("policy")
    logits = trainer.network.hidden(batch)[batch.scored] @ head.weight.T + head.bias
    loss = torch.nn.functional.cross_entropy(logits, batch.item[batch.scored], reduction="none")
    return loss, batch.reward[batch.scored], batch.propensity[batch.scored]


@pytest.mark.parametrize(
    ("name", "objective"), [("mle", {"propensities": "unused"}), ("mle", {"clip": 1e6}), ("reward_weighted", {})]
)
def test_the_first_step_is_that_of_the_mean_written_by_hand(name, objective, small, tmp_path, monkeypatch):
    config = settings(name, **objective)
    start = Trainer.start(small, Run(tmp_path / "start"), resolve(config, small))
    loss, reward, stated = by_hand(start)
    expected = (loss if name == "mle" else reward * loss).sum() / len(loss)
    control = ((-loss).exp() / stated - 1).mean() if "clip" in objective else torch.zeros(())
    (expected + control).backward()

    taken = []
    step = Trainer.step

    def watched(self, batch, number, **options):
        terms = step(self, batch, number, **options)
        taken.append({key: one.grad.clone() for key, one in self.network.named_parameters() if one.grad is not None})
        return terms

    monkeypatch.setattr(Trainer, "step", watched)
    run = train(small, out=tmp_path / "run", config=config)
    (gradients,) = taken
    (line,) = run.metrics()
    assert line["losses"]["policy"] == pytest.approx(expected.item(), rel=1e-5)
    assert line["losses"].get("control", 0.0) == pytest.approx(control.item(), rel=1e-5)
    for key, one in start.network.named_parameters():
        torch.testing.assert_close(gradients[key], one.grad, rtol=1e-4, atol=1e-7)
    assert sum(float(one.abs().sum()) for one in gradients.values()) > 0.1


def test_the_weights_it_reports_are_those_written_by_hand(small, tmp_path):
    config = settings("reward_weighted")
    _, reward, _ = by_hand(Trainer.start(small, Run(tmp_path / "start"), resolve(config, small)))
    (line,) = train(small, out=tmp_path / "run", config=config).metrics()
    weights = line["weights"]
    assert weights["mean"] == pytest.approx(float(reward.double().mean()))
    assert weights["max"] == pytest.approx(float(reward.max()))
    share = float(reward.double().sum() ** 2 / (len(reward) * (reward.double() ** 2).sum()))
    assert weights["effective_share"] == pytest.approx(share)


def test_a_step_starts_from_no_gradient(small, tmp_path):
    """At a rate too small to move anything two steps have the same gradient, not its double."""
    settings = {"model": {"width": 4, "dropout": 0.0}, "objective": {"name": "mle"}}
    config = Config.parse({**settings, "train": {"learning_rate": 1e-12, "device": "cpu"}})
    trainer = Trainer.start(small, Run(tmp_path), resolve(config, small))
    batch, found = next(trainer.windows.shuffled(16, seed=0, epoch=0)), []
    for number in range(2):
        trainer.step(batch, number)
        found.append(trainer.network.embedding.grad.clone())
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0])
