"""Settings that follow the log, and the averaged weights."""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from measured import evaluate_policy

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import DataError
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.model.baselines import BASELINES
from localpolicy.runs.auto import sentence
from localpolicy.runs.config import PRESETS, Config, config_of, configure
from localpolicy.training.average import averaged, keep_average
from localpolicy.training.setup import OF_VECTORS, build_optimiser, build_reader, resolve
from localpolicy.training.train import train


def write_log(
    path: Path, *, sequences: int, length: int = 5, items: int = 20, rewards=(1.0,), long: int = 0
) -> Prepared:
    """The next item is the one after; `long` of the sequences are a hundred times as long."""
    events = ["click", "purchase"][: len(rewards)]
    with writing(path, kind="interactions", events=events, rewards=dict(zip(events, rewards, strict=True))) as store:
        for split, share in (("train", 1.0), ("validation", 0.2), ("test", 0.2)):
            lengths = np.full(max(round(sequences * share), 3), length)
            lengths[: long if split == "train" else 0] *= 100
            start = np.random.default_rng(0).integers(0, items, len(lengths))
            place = np.concatenate([np.arange(each) for each in lengths])
            item = (np.repeat(start, lengths) + place) % items
            event = place % len(rewards)
            store.splits[split].append(lengths, {"item": item, "event": event, "reward": np.array(rewards)[event]})
            store.splits[split].append_ids(pa.array([f"{split}-{number}" for number in range(len(lengths))]))
        store.write_items(np.arange(items), np.ones(items, np.int64))
    return Prepared(path)


def test_batches_leave_two_hundred_steps_an_epoch(tmp_path):
    for sequences, size in ((100, 4), (2000, 8), (13_000, 64), (110_000, 256)):
        data = write_log(tmp_path / str(sequences), sequences=sequences, length=1)
        config = resolve(Config(), data)
        assert config.train.batch_size == size
        assert config.train.patience == min(max(-(-1500 // -(-sequences // size)), 3), 12)


def test_regularisation_follows_density_and_size(tmp_path):
    sparse = resolve(Config(), write_log(tmp_path / "sparse", sequences=100, items=100))  # 5 events an item
    assert (sparse.model.dropout, sparse.train.weight_decay) == (0.25, 1.0)
    dense = resolve(Config(), write_log(tmp_path / "dense", sequences=1200, items=20))  # 300
    assert (dense.model.dropout, dense.train.weight_decay) == (0.1, 0.0)
    between = resolve(Config(), write_log(tmp_path / "between", sequences=240, items=12))  # 100
    share = log(300 / 100) / log(300 / 30)
    assert between.model.dropout == pytest.approx(0.1 + 0.15 * share, abs=1e-3)
    assert between.train.weight_decay == pytest.approx(share, abs=1e-3)
    large = resolve(Config(), write_log(tmp_path / "large", sequences=100_000, length=6, items=20_000))
    steps = -(-100_000 // 256)
    assert large.train.weight_decay == pytest.approx(min(1, 400 / steps) * sqrt(150_000 / 600_000), abs=1e-3)


def test_windows_hold_what_people_do_and_long_histories_get_two_blocks(tmp_path):
    short = resolve(Config(), write_log(tmp_path / "short", sequences=300, length=6, long=2))
    assert (short.data.length, short.model.blocks) == (6, 1)
    long = resolve(Config(), write_log(tmp_path / "long", sequences=300, length=6, long=30))
    assert (long.data.length, long.model.blocks) == (200, 2)


def test_given_settings_and_presets_stay(small):
    config = resolve(config_of("mle", batch_size=7, width=9, dropout=0.3, patience=None), small)
    assert (config.train.batch_size, config.model.width, config.model.dropout) == (7, 9, 0.3)
    assert config.train.patience is None
    assert "train.batch_size" not in config.auto and "data.length" in config.auto
    for preset in PRESETS:
        resolved = resolve(configure(preset=preset), small)
        assert not resolved.auto and sentence(resolved, small) is None
        assert (resolved.train.average, resolved.train.weight_decay) == (0, 0)


def test_the_manifest_and_the_first_line_say_what_was_chosen_and_why(small, tmp_path, messages):
    run = train(small, "mle", out=tmp_path / "run", epochs=1)
    assert run.manifest["auto"]["train.batch_size"] == "4: 96 sequences, 24 steps an epoch"
    assert any("settings chosen from the log (96 sequences" in line for line in messages("localpolicy.training.train"))
    assert run.config.train.batch_size == 4 and run.config.auto == run.manifest["auto"]


def test_a_warm_start_inherits_the_network_and_trains_it_as_the_log_asks(tmp_path):
    settings = {"epochs": 1, "learning_rate": 0.01}
    older = train(
        write_log(tmp_path / "a", sequences=100), "mle", out=tmp_path / "older", width=8, blocks=1, **settings
    )
    grown = write_log(tmp_path / "b", sequences=2000, length=9, rewards=(0.2, 1.0))
    fresh, config = resolve(config_of("mle"), grown), resolve(config_of("mle", warm_start=str(older.folder)), grown)
    assert (fresh.train.batch_size, fresh.data.length, fresh.model.width) == (8, 9, 128)
    assert fresh.model.event_embeddings and config.model.event_embeddings, "what came of past actions is new here"
    assert (config.train.batch_size, config.train.epochs, config.model.width) == (8, 200, 8)
    assert config.data.length == 9, "windows may grow: none of its contexts is cut off"
    assert sentence(config, grown).endswith("; settings of the run it starts from: width 8, 1 block")
    shorter = resolve(config_of("mle", warm_start=str(older.folder)), write_log(tmp_path / "c", sequences=60, length=3))
    assert shorter.data.length == 5, "and never shrink"
    given = resolve(config_of("lpi_cb", logging=str(older.folder)), grown)
    assert (given.data.length, given.train.batch_size) == (5, 8), "towers of one policy have the same windows"
    given = resolve(config_of("mle", warm_start=str(older.folder), width=8, epochs=3), grown)
    assert "width" not in sentence(given, grown) and "up to" not in sentence(given, grown)


def test_single_actions_are_evaluated_without_a_history(tmp_path):
    data = write_log(tmp_path / "data", sequences=60, length=1)
    run = train(data, "mle", out=tmp_path / "run", epochs=1, width=8)
    assert run.config.train.min_history == 0 and run.metrics()[-1]["validation"]["logp"] < 0
    with pytest.raises(DataError, match="min_history=1 asks for more"):
        train(data, "mle", out=tmp_path / "given", epochs=1, width=8, min_history=1)
    assert resolve(Config(), write_log(tmp_path / "two", sequences=60, length=2)).train.min_history == 1


def test_event_embeddings_are_on_where_events_differ_in_reward(tmp_path):
    for rewards, expected in (((1.0,), False), ((0.5, 0.5), False), ((0.2, 1.0), True)):
        data = write_log(tmp_path / str(rewards), sequences=20, rewards=rewards)
        assert resolve(Config(), data).model.event_embeddings is expected


def test_a_log_of_200_sequences_trains_hundreds_of_steps_and_beats_popularity(tmp_path):
    data = write_log(tmp_path / "data", sequences=200)
    run = train(data, "mle", out=tmp_path / "run", epochs=6, width=32)
    assert run.manifest["steps"] == 6 * 50

    def ndcg(policy):
        scored = evaluate_policy(policy, data, name="x", window=run.config.data, config=EvaluateConfig())
        return scored.metrics["all"]["nDCG@10"].mean

    assert ndcg(run.policy()) > 0.9 > 0.5 > ndcg(BASELINES["popularity"](data))


def test_gains_and_biases_are_decayed_less(small):
    config = resolve(config_of("mle", width=8, weight_decay=0.5, device="cpu"), small)
    network = build_reader(small, config).network
    decay = {
        id(each): group["weight_decay"]
        for group in build_optimiser(network, config).param_groups
        for each in group["params"]
    }
    for parameter in network.parameters():
        assert decay[id(parameter)] == (0.5 if parameter.ndim > 1 else 0.5 * OF_VECTORS)


def test_the_average_is_the_recursion_and_is_swapped_in_and_out():
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimiser = torch.optim.SGD([parameter], lr=0.5)
    optimiser.register_step_post_hook(
        lambda stepped, *_: stepped.state[parameter].update(step=_count(stepped, parameter))
    )
    keep_average(optimiser, 0.3)
    seen, expected = [], None
    for step in range(1, 5):
        parameter.grad = torch.tensor([1.0, 2.0]) * step
        optimiser.step()
        now = parameter.detach().clone()
        share = min(0.3, step / (step + 9))
        expected = now if expected is None else share * expected + (1 - share) * now
        seen.append(now)
    with averaged(optimiser):
        assert torch.allclose(parameter, expected) and not torch.allclose(parameter, seen[-1])
    assert torch.equal(parameter, seen[-1])


def _count(optimiser, parameter):
    return torch.tensor(float(optimiser.state[parameter].get("step", 0)) + 1)


def test_without_averaging_the_weights_are_kept_as_they_are(small, tmp_path):
    settings = {"epochs": 1, "width": 8, "calibrate": False}
    plain = train(small, "mle", out=tmp_path / "plain", average=0, **settings)
    mean = train(small, "mle", out=tmp_path / "mean", **settings)
    losses = [run.metrics()[-1]["losses"]["policy"] for run in (plain, mean)]
    assert losses[0] == losses[1], "training itself does not read the average"
    assert plain.manifest["policy_sha256"] != mean.manifest["policy_sha256"]
