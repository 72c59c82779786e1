"""Runs that take turns in one process: each gives the bytes it gives alone, and ends as it does alone."""

from __future__ import annotations

import os
import signal

import pytest

from localpolicy.errors import Stopped
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.interrupt import stop_asked_for
from localpolicy.runtime.lanes import in_turn, to_end
from localpolicy.study.jobs import Job, Sharing, train_all
from localpolicy.training.numerics import deterministic
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer


def config(objective="mle", **train_settings):
    settings = {"epochs": 2, "batch_size": 32, "device": "cpu", **train_settings}
    return Config.parse({"model": {"width": 4}, "objective": {"name": objective}, "train": settings})


KINDS = {
    "plain": config(),
    "weighted": config("lpi_rl_weighted", seed=1),
    "closed": config("lpi_cb", seed=2, deterministic=False),
    "longer": config("sac", epochs=3, seed=3),
}


def jobs(small, folder):
    return [Job(name, small.path, folder / name, each) for name, each in KINDS.items()]


def digests(runs):
    return {name: run.manifest["policy_sha256"] for name, run in runs.items()}


@pytest.fixture(scope="module")
def alone(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return digests(train_all(jobs(small, folder), processes=1, lanes=1))


@pytest.mark.parametrize("lanes", [2, 4])
def test_runs_that_take_turns_give_the_bytes_of_runs_alone(small, alone, lanes, tmp_path):
    order, step = [], Trainer.step

    def noted(self, batch, number, **options):
        order.append(self.run.folder.name)
        return step(self, batch, number, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", noted)
        together = digests(train_all(jobs(small, tmp_path), processes=1, lanes=lanes))
    assert len(set(order[:lanes])) == lanes, "they do take turns"
    assert together == alone


def test_a_wish_to_stop_reaches_all_and_all_go_on_later(small, alone, tmp_path, monkeypatch):
    step = Trainer.step

    def asked(self, batch, number, **options):
        if number == 4 and self.run.folder.name == "weighted":
            signal.raise_signal(signal.SIGTERM)
        return step(self, batch, number, **options)

    with monkeypatch.context() as patch, pytest.raises(Stopped, match="the same command goes on"):
        patch.setattr(Trainer, "step", asked)
        train_all(jobs(small, tmp_path), processes=1, lanes=4)
    saved = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("checkpoint/step-*.json")}
    assert saved == set(KINDS)
    assert not any(Run(tmp_path / name).finished for name in KINDS)
    assert digests(train_all(jobs(small, tmp_path), processes=1, lanes=4)) == alone


def test_a_run_that_fails_leaves_the_others_their_bytes(small, alone, tmp_path):
    wild = Job("wild", small.path, tmp_path / "wild", config("reward_weighted", learning_rate=1e36))
    failures = {}
    together = digests(train_all([wild, *jobs(small, tmp_path)], processes=1, lanes=3, failures=failures))
    assert list(failures) == ["wild"]
    assert together == alone


def test_an_error_ends_the_others_and_frees_their_folders(small, tmp_path):
    def work(name):
        yield
        if name == "broken":
            raise ValueError(name)
        closed.append(name)
        try:
            for _ in range(100):
                yield
        finally:
            closed.remove(name)

    closed = []
    with pytest.raises(ValueError, match="broken"):
        list(in_turn(work, ["one", "two", "broken"], lanes=3, device="cpu"))
    assert closed == []


def test_a_task_waits_for_its_lane_and_a_lane_for_its_device():
    asked, order = [], []

    def work(name):
        order.append(name)
        if name == "slow":
            yield lambda: len(asked) > 3 or asked.append(name)
        yield
        order.append(name)
        return name.upper()

    done = list(in_turn(work, ["slow", "quick", "third"], lanes=2, device="cpu"))
    assert done == [("quick", "QUICK"), ("third", "THIRD"), ("slow", "SLOW")]
    assert order == ["slow", "quick", "quick", "third", "third", "slow"]
    assert to_end(work("slow")) == "SLOW"


def test_blocks_that_overlap_are_set_back_by_the_last():
    import torch

    handler = signal.getsignal(signal.SIGTERM)
    blocks = [stop_asked_for(), stop_asked_for()]
    asked = [block.__enter__() for block in blocks]
    signal.raise_signal(signal.SIGTERM)
    assert [each() for each in asked] == [True, True]
    blocks[0].__exit__(None, None, None)  # the first begun ends first
    assert signal.getsignal(signal.SIGTERM) is not handler
    blocks[1].__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is handler
    with stop_asked_for() as again:
        assert not again(), "an older wish is forgotten"
    blocks = [deterministic(True), deterministic(True)]
    for block in blocks:
        block.__enter__()
    blocks[0].__exit__(None, None, None)
    assert torch.are_deterministic_algorithms_enabled()
    blocks[1].__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()


def test_runs_share_a_process_where_they_can():
    some = [config(), config(deterministic=True)]
    assert Sharing.of(some, processes=2, lanes=4) == Sharing(2, 1, "cpu")
    assert Sharing.of(some[:1], processes=2, lanes=4) == Sharing(2, 4, "cpu")
    assert Sharing.of(some[:1]).lanes == 1, "unless asked"


def test_lanes_ask_for_no_more_queues_than_they_use(monkeypatch):
    for lanes, queues in ((1, None), (2, "8"), (7, "14"), (40, "32")):
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
        assert list(in_turn(lambda task: iter(()), [], lanes=lanes, device="cpu")) == []
        assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == queues


def test_one_run_needs_no_lane(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=KINDS["plain"])
    assert run.finished
