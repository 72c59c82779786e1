"""Starting from an older run: what is known is kept, what is new starts low but not at nothing."""

from __future__ import annotations

import shutil
from math import log, log1p

import pyarrow.parquet as pq
import pytest
import torch
from broken_runs import train_until
from forms import weighted
from small_logs import write_small

from localpolicy.errors import ConfigError, RunError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.setup import resolve
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
from localpolicy.training.warm_start import NEWCOMERS, _by_event, warm_start

NEWER = [205, 111, 100, 101, 110, 102, 103, 204, 104, 105, 106, 109, 107, 108]  # another order, and two new ones


def config(name="lpi_rl", *, model=None, length=6, objective=None, **changes):
    return Config.parse(
        {
            "data": {"length": length},
            "model": {"width": 8, **(model or {})},
            "objective": weighted({"name": name, **(objective or {})}),
            "train": {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, **changes},
        }
    )


@pytest.fixture(scope="module")
def older(small, tmp_path_factory):
    return train(small, out=tmp_path_factory.mktemp("older") / "run", config=config())


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("newer") / "data", item_id=NEWER, seed=3)


def started(data, folder, settings=None):
    """Trainer whose network has the older run's weights, and its note on them."""
    trainer = Trainer.start(data, Run("unused"), resolve(settings or config(), data))
    return trainer, warm_start(trainer.network, folder, data)


HISTORIES = [[], [100], [103, 111, 107], [104] * 5]
ANSWERS = [[], ["none"], ["click", "none", "purchase"], ["click"] * 5]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("backbone", ["sasrec", "gru", "convolution"])
def test_known_items_keep_their_odds_and_new_ones_hold_at_most_a_hundredth(backbone, tied, small, newer, tmp_path):
    settings = config("mle", model={"backbone": backbone, "tied": tied}, epochs=1)
    older = train(small, out=tmp_path / "older", config=settings)
    trainer, said = started(newer, older.folder, settings)
    assert (said["known_items"], said["new_items"]) == (12, 2)
    before = older.policy().log_probabilities(HISTORIES, ANSWERS)
    after = trainer.policy().log_probabilities(HISTORIES, ANSWERS)
    index = {item: place for place, item in enumerate(NEWER)}
    known, new = [index[item] for item in range(100, 112)], [index[204], index[205]]
    held = after[:, new].exp().sum(1)
    assert (held > 0).all(), "or they could never be learnt"
    # Jensen: Σ_new <= NEWCOMERS Σ_known, so a known item loses a factor 1 + NEWCOMERS at most, the same for each.
    assert (held <= NEWCOMERS / (1 + NEWCOMERS)).all()
    lost = before - after[:, known]
    torch.testing.assert_close(lost, -torch.log1p(-held)[:, None].expand_as(lost), rtol=0, atol=1e-5)
    kl = (before.exp() * lost).sum(1)
    assert (kl <= log1p(NEWCOMERS)).all() and (kl > 0).all()
    assert (held > 0.2 * NEWCOMERS).all(), "these rows are small: the bound is nearly met, so it is tested"


def test_a_few_new_items_among_many_need_no_lower_bias(small, tmp_path):
    """m/n <= NEWCOMERS: the mean item is low enough as it is."""
    data = write_small(tmp_path / "many", items=200)
    older = train(data, out=tmp_path / "older", config=config("mle", epochs=1))
    more = write_small(tmp_path / "more", items=201)
    trainer, _ = started(more, older.folder, config("mle"))
    bias = trainer.network.heads["policy"].bias
    assert bias[200].item() == pytest.approx(bias[:200].mean().item(), abs=1e-6)


def test_every_row_comes_from_its_item(older, newer):
    network, said = started(newer, older.folder)[0].network, started(newer, older.folder)[1]
    old = older.policy().network
    index = {item: place for place, item in enumerate(NEWER)}
    for item in range(100, 112):
        assert torch.equal(network.embedding[index[item]], old.embedding[item - 100])
        for name in ("policy", "logging", "q_a", "q_b"):
            found, expected = (one.heads[name].bias for one in (network, old))
            assert torch.equal(found[index[item]], expected[item - 100]), name
    lowered = log(2 / (12 * NEWCOMERS))
    for item in (204, 205):
        torch.testing.assert_close(network.embedding[index[item]], old.embedding.mean(0))
        for name, low in {"policy": lowered, "logging": lowered, "q_a": 0.0, "q_b": 0.0}.items():
            torch.testing.assert_close(network.heads[name].bias[index[item]], old.heads[name].bias.mean() - low)
    for name in ("logging", "q_a", "q_b"):
        assert torch.equal(network.heads[name].projection, old.heads[name].projection)
        assert torch.equal(network.heads[name].context, old.heads[name].context)
    assert torch.equal(network.answer, old.answer)
    assert torch.equal(network.backbone.position, old.backbone.position)
    assert said["heads"] == ["policy", "logging", "q_a", "q_b"]
    assert said["policy_sha256"] == older.manifest["policy_sha256"]


def test_heads_the_older_run_lacks_start_as_in_a_new_run(small, newer, tmp_path):
    older = train(small, out=tmp_path / "mle", config=config("mle"))
    trainer, said = started(newer, older.folder)
    fresh = Trainer.start(newer, Run("unused"), resolve(config(), newer)).network
    assert (said["heads"], said["fresh_heads"]) == (["policy"], ["logging", "q_a", "q_b"])
    for name in said["fresh_heads"]:
        assert torch.equal(trainer.network.heads[name].projection, fresh.heads[name].projection)
    assert not torch.equal(trainer.network.heads["policy"].weight, fresh.heads["policy"].weight)


def test_it_learns_new_items_and_begins_where_the_older_run_ended(small, newer, tmp_path):
    older = train(small, out=tmp_path / "older", config=config("mle", epochs=15))
    warm = train(newer, out=tmp_path / "warm", config=config("mle", epochs=1, warm_start=str(older.folder)))
    cold = train(newer, out=tmp_path / "cold", config=config("mle", epochs=1))
    assert warm.metrics()[0]["step"] == cold.metrics()[0]["step"]
    said = warm.manifest["warm_start"]
    assert said["run"] == str(older.folder)
    assert said["new_items"] == 2
    assert warm.config.train.warm_start == str(older.folder)
    # Here the same ids lead to others than before, so only the new items' rise is sure.
    trained = warm.policy().network.heads["policy"].bias.detach()
    begun = started(newer, older.folder, config("mle"))[0].network.heads["policy"].bias.detach()
    new = [NEWER.index(204), NEWER.index(205)]
    assert (trained[new] > begun[new] + 0.02).all(), "taken a few times, they rise at once"


def test_a_resumed_run_needs_the_older_one_no_more(older, newer, tmp_path):
    shutil.copytree(older.folder, tmp_path / "older")
    settings = config(warm_start=str(tmp_path / "older"), checkpoint_every=2)
    whole = train(newer, out=tmp_path / "whole", config=settings)
    train_until(5, newer, out=tmp_path / "broken", config=settings)
    shutil.rmtree(tmp_path / "older")
    resumed = train(newer, out=tmp_path / "broken", config=settings, resume=True)
    for name in ("policy.safetensors", "metrics.jsonl", "last.safetensors"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert resumed.manifest["warm_start"] == whole.manifest["warm_start"]


def test_event_embeddings_that_the_older_run_lacks_start_at_nothing(newer, tmp_path):
    plain = config("mle", model={"event_embeddings": False}, epochs=1)
    older = train(newer, out=tmp_path / "plain", config=plain)
    trainer, _ = started(newer, older.folder, config("mle", warm_start=str(older.folder)))
    assert trainer.config.model.event_embeddings and not trainer.network.answer.any()
    batch = next(trainer.windows.in_order(16))
    trainer.network.eval()
    assert torch.equal(trainer.network.hidden(batch), older.policy().network.hidden(batch))


def test_longer_windows_keep_the_positions_that_the_older_run_knows(older, newer):
    trainer, _ = started(newer, older.folder, config(length=9))
    known = older.policy().network.backbone.position
    position = trainer.network.backbone.position
    assert known.shape == (6, 8) and torch.equal(position[:6], known)
    assert torch.equal(position[6:], known[-1:].expand(3, -1)), "beyond them the last one goes on"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config(model={"width": 16}), "model.width is 8 there and 16 here"),
        (config(model={"backbone": "gru"}), "model.backbone is sasrec there and gru here"),
        (config(model={"blocks": 2, "tied": False}), "model.blocks is 1 there and 2 here, model.tied is True there"),
        (config(length=5), "data.length is 6 there and 5 here"),
        (config(model={"event_embeddings": False}), "model.event_embeddings is True there and False here"),
    ],
    ids=["width", "backbone", "two", "length", "event_embeddings"],
)
def test_another_network_is_refused_with_the_difference(settings, message, older, newer):
    with pytest.raises(RunError, match=message):
        started(newer, older.folder, settings)
    started(newer, older.folder, config(model={"dropout": 0.4}))  # no weight depends on it


def test_strangers_and_itself_are_refused(older, small, newer, tmp_path):
    others = write_small(tmp_path / "others", item_id=range(900, 912))
    with pytest.raises(RunError, match="no item in common"):
        started(others, older.folder)
    words = write_small(tmp_path / "words", item_id=[f"x{item}" for item in range(12)])
    with pytest.raises(RunError, match="no item in common"):
        started(words, older.folder)
    with pytest.raises(RunError, match="is not a run"):
        train(newer, out=tmp_path / "run", config=config(warm_start=str(tmp_path / "nothing")))
    digest = older.manifest["policy_sha256"]
    with pytest.raises(ConfigError, match="itself"):
        train(small, out=older.folder, config=config(warm_start=str(older.folder)), force=True)
    assert older.manifest["policy_sha256"] == digest, "and nothing was removed"


def test_events_are_matched_by_name():
    old = torch.arange(6.0).view(3, 2)
    found = _by_event(torch.full((3, 2), -1.0), old, ["click", "order", "none"], ["none", "click", "purchase"])
    assert found.tolist() == [[2, 3], [-1, -1], [0, 1]]


@pytest.mark.parametrize("objective", ["lpi_rl", "lpi_rl_weighted"])
def test_a_refused_start_leaves_its_folder_free_for_the_command_as_corrected(older, newer, tmp_path, objective):
    """Nothing was learned yet, so there is nothing to keep, and no --force to be asked for."""
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"model\.width is 8 there and 16 here"):
        train(
            newer,
            out=out,
            config=config(objective, model={"width": 16}, warm_start=str(older.folder)),
        )
    assert not list(out.iterdir())
    assert train(newer, out=out, config=config(objective, warm_start=str(older.folder), epochs=1)).finished


def test_a_run_that_fails_after_a_checkpoint_keeps_it(small, tmp_path, monkeypatch):
    def failing(self, done, log, *, epoch):
        raise RunError("no more")

    monkeypatch.setattr(Trainer, "_validated", failing)
    with pytest.raises(RunError, match="no more"):
        train(small, out=tmp_path / "run", config=config("mle", checkpoint_every=1))
    assert Run(tmp_path / "run").saved


def _flipped(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("policy.safetensors", _flipped), ("policy.json", lambda path: path.write_text(path.read_text() + " ")),
     ("items.parquet", lambda path: path.write_bytes(path.read_bytes()[:-9])),
     ("items.parquet", lambda path: pq.write_table(pq.read_table(path)[::-1], path))],
    ids=["a bit of a weight", "a letter", "cut short", "other order of items"],
)  # fmt: skip
def test_a_damaged_run_starts_nothing(older, newer, tmp_path, name, damage):
    copy = shutil.copytree(older.folder, tmp_path / "copy")
    damage(copy / name)
    with pytest.raises(RunError, match=f"{name} was altered"):
        started(newer, copy)
