"""A GPU gives the numbers of a CPU. Needs a CUDA device: run by hand with `pytest -m gpu`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from broken_runs import train_until
from small_logs import write_small

from localpolicy.catalogue import backend, dense
from localpolicy.logits import Head, LinearLogits
from localpolicy.measure.candidates import open_run
from localpolicy.measure.truth import PolicyAgent
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.training.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", ["chunked", "dense"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 2), (33, 1271), (512, 48_255)], ids=str)
def test_statistics_equal_the_float64_definition(name, shape):
    n, v = shape
    exact = LinearLogits(torch.randn(n, 64).double(), Head((torch.randn(v, 64) / 8).double(), torch.randn(v).double()))
    other = LinearLogits(torch.randn(n, 64).double(), Head((torch.randn(v, 64) / 8).double(), torch.randn(v).double()))
    items = torch.randint(v, (n,))

    def on_gpu(rows):
        return LinearLogits(rows.hidden.float().cuda(), Head(*(part.float().cuda() for part in rows.head)))

    p, q, at = on_gpu(exact), on_gpu(other), items.cuda()
    for found, expected in [
        (backend(name).log_prob(p, at), dense.log_prob(exact, items)),
        (backend(name).mean(p, q), dense.mean(exact, other)),
        (backend(name).entropy(p), dense.entropy(exact)),
        (backend(name).divergence(p, q)[0], dense.divergence(exact, other)[0]),
        (backend(name).divergence(p, q)[1], dense.divergence(exact, other)[1]),
        (backend(name).maximum(p)[0], dense.maximum(exact)[0]),
    ]:
        torch.testing.assert_close(found.cpu().double(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_gives_what_a_cpu_gives(name, tmp_path):
    data = write_small(tmp_path / "data")
    # Without dropout both devices see the same numbers; coins come from the CPU's generator on both.
    groups = {"model": {"width": 8, "dropout": 0.0}, "objective": {"name": name}}
    runs = [
        train(
            data,
            out=tmp_path / device,
            config=Config.parse({**groups, "train": {"device": device, "epochs": 2, "batch_size": 16}}),
        )
        for device in ("cpu", "cuda")
    ]
    one, two = (run.metrics()[-1]["losses"] for run in runs)
    assert one.keys() == two.keys()
    for term in one:
        assert two[term] == pytest.approx(one[term], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("greedy", [False, True])
def test_a_policy_shows_the_same_items_from_a_gpu(greedy, tmp_path):
    world = StoreWorld(StoreConfig(items=40, categories=4), seed=0)
    write_prepared(world, tmp_path / "data", sequences=400, seed=0)
    config = Config.parse({"model": {"width": 8}, "train": {"epochs": 1, "device": "cpu"}})
    run = train(tmp_path / "data", out=tmp_path / "run", config=config)
    items, events = np.random.default_rng(0).integers(0, [[[40]], [[2]]], (2, 200, 6))
    (one, share), (two, other) = (
        PolicyAgent(open_run(run, "run", device=device).policy, world, greedy=greedy)(
            items, events, np.random.default_rng(1)
        )
        for device in ("cpu", "cuda")
    )
    assert (one == two).mean() > 0.99, "a draw on the edge between two items may fall to either side"
    np.testing.assert_allclose(share[one == two], other[one == two], rtol=1e-4)


@pytest.mark.parametrize("first", ["cuda", "cpu"])
@pytest.mark.parametrize("then", ["cuda", "cpu"])
@pytest.mark.parametrize("name", ["mle", "lpi_rl"])
def test_a_stopped_run_resumes_on_either_device(name, then, first, tmp_path):
    data = write_small(tmp_path / "data")

    def on(device):
        train_settings = {"device": device, "epochs": 2, "batch_size": 16, "checkpoint_every": 2}
        groups = {"model": {"width": 8, "dropout": 0.0}, "objective": {"name": name}, "train": train_settings}
        return Config.parse(groups)

    whole = train(data, out=tmp_path / "whole", config=on("cpu"))
    train_until(5, data, out=tmp_path / "broken", config=on(first))
    resumed = train(data, out=tmp_path / "broken", config=on(then), resume=True)
    for term, value in whole.metrics()[-1]["losses"].items():
        assert resumed.metrics()[-1]["losses"][term] == pytest.approx(value, rel=1e-3, abs=1e-4)
