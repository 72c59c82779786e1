"""Temperature of the kept weights, and the likelihood of a mixture with popularity that picks the epoch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_logs import write_small

from localpolicy.catalogue import backend
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.errors import ConfigError
from localpolicy.judge.compare import compare
from localpolicy.measure.evaluate import evaluate
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.report.comparison import write_comparison
from localpolicy.runs.config import config_of, configure
from localpolicy.runs.run import IMITATION, Run
from localpolicy.runtime.ranks import ALONE
from localpolicy.training.selection import check_select
from localpolicy.training.setup import resolve
from localpolicy.training.temperature import scales, sharpened, sharpness
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import SHARES, blended_likelihood, validate

SETTINGS = {"epochs": 3, "batch_size": 16, "learning_rate": 0.03, "width": 8, "length": 6, "device": "cpu"}


@pytest.fixture(scope="module")
def interactions(tmp_path_factory):
    """A small interaction log: about 21 training actions for each of 20 items."""
    return write_small(tmp_path_factory.mktemp("data") / "interactions", items=20, propensity=False)


@pytest.fixture(scope="module")
def learnt(interactions, tmp_path_factory):
    """A network that knows something, so that its logits have a best scale; not calibrated."""
    folder = tmp_path_factory.mktemp("runs") / "learnt"
    return train(interactions, "mle", out=folder, calibrate=False, **SETTINGS).policy().network.eval()


def likelihood(made, windows, data, s):
    """By the definition: log softmax(s z) at the logged items that training shows, after at least one action."""
    total, count = 0.0, 0
    for batch in windows.in_order(256):
        at = batch.scored[batch.history[batch.scored] > 0]
        at = at[torch.from_numpy(data.known_items)[batch.item[at]]]
        logits = made.hidden(batch)[at] @ made.embedding.T + made.heads["policy"].bias
        total += float(torch.log_softmax(s * logits.double(), 1)[torch.arange(len(at)), batch.item[at]].sum())
        count += len(at)
    return total / count


def test_the_sharpness_is_where_the_held_out_likelihood_is_largest(interactions, learnt):
    made, windows = learnt, Windows(interactions, "train", WindowConfig(length=6))
    s = sharpness(made, windows, interactions, backend(), batch_size=64, ranks=ALONE)
    with torch.no_grad():
        here, below, above = (likelihood(made, windows, interactions, s * factor) for factor in (1, 0.9, 1.1))
    assert here > max(below, above)


def test_it_is_sought_among_positions_whose_item_training_shows(interactions, learnt, monkeypatch):
    made, windows = learnt, Windows(interactions, "train", WindowConfig(length=6))
    known = interactions.known_items.copy()
    known[:6] = False
    monkeypatch.setitem(interactions.__dict__, "known_items", known)
    s = sharpness(made, windows, interactions, backend(), batch_size=64, ranks=ALONE)
    with torch.no_grad():
        here, below, above = (likelihood(made, windows, interactions, s * factor) for factor in (1, 0.9, 1.1))
    assert here > max(below, above)


def test_a_network_twice_as_sure_needs_half_the_sharpness(interactions, learnt):
    made, windows = learnt, Windows(interactions, "train", WindowConfig(length=6))
    found = sharpness(made, windows, interactions, backend(), batch_size=64, ranks=ALONE)
    with sharpened(made, 2.0):
        halved = sharpness(made, windows, interactions, backend(), batch_size=64, ranks=ALONE)
    assert halved == pytest.approx(found / 2, rel=0.01)


def test_sharpened_multiplies_all_logits_and_leaves_no_trace(interactions, learnt):
    made, batch = learnt, next(Windows(interactions, "test", WindowConfig(length=6)).in_order(8))
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}

    def logits():
        return made.head("policy").logits(made.hidden_without_dropout(batch)).chunk(0, 20)

    plain = logits()
    with sharpened(made, 0.3):
        torch.testing.assert_close(logits(), 0.3 * plain)
    assert all(tensor.equal(before[name]) for name, tensor in made.state_dict().items())


def test_only_a_policy_alone_on_a_backbone_of_ours_can_be_scaled(learnt):
    assert scales(learnt) is not None
    assert scales(Network(ModelConfig(width=8), items=5, events=0, length=6, heads=("policy", "reward"))) is None
    own = torch.nn.GRU(8, 8)
    assert scales(Network(ModelConfig(width=8), items=5, events=0, length=6, backbone=own)) is None


def test_what_is_judged_and_kept_is_calibrated_and_training_is_the_same(interactions, tmp_path):
    plain = train(interactions, "mle", out=tmp_path / "plain", calibrate=False, **SETTINGS)
    run = train(interactions, "mle", out=tmp_path / "run", **SETTINGS)
    assert run.config.train.calibrate is True, "the default on a sparse interaction log"
    assert (run.folder / "last.safetensors").read_bytes() == (plain.folder / "last.safetensors").read_bytes()
    sharper = 0
    for ours, theirs in zip(run.metrics(), plain.metrics(), strict=True):
        ours, theirs = ours["validation"], theirs["validation"]
        assert ours["all.nDCG@20"] == pytest.approx(theirs["all.nDCG@20"], abs=1e-6), "rankings stay as they are"
        assert ours["plain_logp"] >= theirs["plain_logp"] - 1e-6
        sharper += not math.isclose(ours["temperature"], 1, rel_tol=0.01)
    assert sharper, "the comparison has something to compare"
    kept = run.selected_metrics()["validation"]["plain_logp"]
    held_out = evaluate(run, data=interactions, config={"split": "validation"})
    assert held_out.estimate("logp").mean == pytest.approx(kept, abs=1e-5), "what was judged is what was kept"


def test_impressions_dense_logs_and_the_papers_presets_are_left_alone(small, interactions, tmp_path):
    dense = write_small(tmp_path / "dense", items=12, propensity=False)
    assert len(dense["train"].arrays["item"]) >= 30 * 12
    for data in (small, dense):
        assert resolve(config_of("mle"), data).train.calibrate is False and not data.sparse
    assert resolve(config_of("mle"), interactions).train.calibrate is True
    for preset in ("rl", "bandit"):
        assert resolve(configure(preset=preset), interactions).train.calibrate is False


def test_the_plain_likelihood_may_choose_where_it_is_another(small, interactions):
    check_select("plain_logp", interactions)
    with pytest.raises(ConfigError, match="plain_logp"):
        check_select("plain_logp", small)


def test_the_blend_by_hand():
    logp, share = np.log([0.5, 0.001]), np.array([0.1, 0.2])
    by_hand = [(math.log((1 - m) * 0.5 + m * 0.1) + math.log((1 - m) * 0.001 + m * 0.2)) / 2 for m in SHARES]
    assert blended_likelihood(logp, share) == pytest.approx(max(by_hand))
    assert by_hand.index(max(by_hand)) not in (0, len(SHARES) - 1), "the best share is within"


def test_a_policy_that_is_popularity_gains_nothing_from_it():
    share = np.array([0.1, 0.6, 0.3])
    assert blended_likelihood(np.log(share), share) == pytest.approx(np.log(share).mean())


def test_an_item_that_a_policy_excludes_costs_no_more_than_its_popularity():
    value = blended_likelihood(np.array([-900.0, math.log(0.9)]), np.array([0.01, 0.01]))
    assert value > (math.log(0.01) + math.log(0.9)) / 2 - 1


@pytest.mark.parametrize("unknown", [True, False])
def test_what_training_never_shows_does_not_decide(interactions, tmp_path, monkeypatch, unknown):
    """Pushing an item down costs likelihood, unless training never showed it."""
    trainer = Trainer.start(interactions, Run(tmp_path), resolve(config_of("mle", **SETTINGS), interactions))
    item = int(np.bincount(interactions["validation"].arrays["item"]).argmax())
    known = np.ones(interactions.n_items, bool)
    known[item] = not unknown
    monkeypatch.setitem(interactions.__dict__, "known_items", known)

    def figures():
        policy, config = trainer.policy(), trainer.config
        return validate(policy, trainer.held_out, config, data=interactions, step=0, ranks=ALONE)

    before = figures()
    with torch.no_grad():
        trainer.network.heads["policy"].bias[item] -= 20
    after = figures()
    assert after["plain_logp"] < before["plain_logp"] - 0.5
    assert (after["logp"] < before["logp"]) is (not unknown)


def test_on_a_sparse_log_an_estimate_and_what_is_made_with_it_are_kept_by_ranking_too(tmp_path):
    """So that the two are compared as they were kept, and either with a rival's weights of the best likelihood."""
    data = write_small(tmp_path / "data", items=150, sequences=800, propensity=False)
    short = SETTINGS | {"epochs": 1}
    runs = {name: train(data, name, out=tmp_path / name, **short) for name in ("mle", "lpi_cb")}
    assert [run.kept_by for run in runs.values()] == [IMITATION, IMITATION]
    runs["pg"] = train(data, "pg", out=tmp_path / "pg", select="click.nDCG@20", **short)
    line = runs["mle"].selected_metrics()
    assert line["selected_by"] == pytest.approx(line["validation"]["logp"] + 3 * line["validation"]["all.nDCG@20"])
    alike, unlike = (compare([runs[name], runs["mle"]], data=data, baselines=False) for name in ("lpi_cb", "pg"))
    assert "chosen by different figures" not in str(alike.notes)
    assert "chosen by different figures" in str(unlike.notes)
    told = "not of the figures next to them"
    for each, says in ((alike, False), (unlike, True)):
        write_comparison(each, tmp_path / "page.html")
        assert (told in (tmp_path / "page.html").read_text()) is says
