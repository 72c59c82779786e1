"""`Policy`: rows, the dial, files, and errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from small import EVENTS, HEADS, ITEMS, SEQUENCES, network, policy, prepared, scores, whole

from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.model.heads import ProjectedHead
from localpolicy.model.policy import Policy

HISTORIES = [["i3", "i1", "i4"], [], ["i5", "i0", "i6", "i1", "i2", "i3", "i0"]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data") / "prepared")


def float32(**settings):
    return network(**settings).float()


# ---------------------------------------------------------------------- what it believes


def test_rows_are_the_policy_heads_scores(data):
    made, batch = network(), whole(data)
    rows = policy(made).logits(batch)
    hidden = made.hidden(batch).detach()
    for n, token in enumerate(batch.scored.tolist()):
        torch.testing.assert_close(
            rows.chunk(0, ITEMS)[n], scores(made, hidden[token], "policy").detach(), rtol=1e-11, atol=1e-12
        )
    assert rows.shape == (len(batch.scored), ITEMS)
    assert not rows.chunk(0, ITEMS).requires_grad


def test_log_probabilities_of_histories_are_those_of_windows(data):
    """The context after all but the last action of each sequence, as a history and as a window's last token."""
    made, batch = policy(network(event_embeddings=True)), whole(data, last=1)
    histories = [[f"i{action[0]}" for action in sequence[:-1]] for sequence in SEQUENCES]
    answers = [[EVENTS[action[1]] for action in sequence[:-1]] for sequence in SEQUENCES]
    expected = torch.log_softmax(made.logits(batch).chunk(0, ITEMS), 1)
    torch.testing.assert_close(made.log_probabilities(histories, answers), expected, rtol=1e-11, atol=1e-12)
    plain = made.log_probabilities(histories)
    assert (plain - expected).abs().max() > 1e-3, "answers must matter"


def test_unknown_items_are_left_out_of_histories():
    made = policy(network())
    seen = made.log_probabilities([["i3", "i1"]])
    torch.testing.assert_close(made.log_probabilities([["new", "i3", "other", "i1"]]), seen, rtol=0, atol=0)


@pytest.mark.parametrize("beta", [5.0, 1.0, 0.2])
@pytest.mark.parametrize("critic", ["q", "reward"])
@pytest.mark.parametrize("estimates", ["logging", "policy"])
def test_the_dial_is_mu_tilted_by_q(data, beta, critic, estimates):
    """π_β(a|x) = μ̂ e^{Q/β} / Σ μ̂ e^{Q/β}, Q the mean of both heads (or r̂)."""
    heads = [head for head in HEADS if critic == "reward" or head != "reward"]
    made = network(heads=tuple(head for head in heads if critic == "q" or not head.startswith("q_")))
    batch = whole(data)
    found = torch.softmax(policy(made, estimates=estimates).dialled(beta).logits(batch).chunk(0, ITEMS), 1)
    hidden = made.hidden(batch).detach()
    for n, token in enumerate(batch.scored.tolist()):
        mu = scores(made, hidden[token], estimates).softmax(0)
        q = (scores(made, hidden[token], "q_a") + scores(made, hidden[token], "q_b")) / 2 if critic == "q" else scores(
            made, hidden[token], "reward"
        )  # fmt: skip
        expected = mu * (q / beta).exp()
        torch.testing.assert_close(found[n], (expected / expected.sum()).detach(), rtol=1e-9, atol=1e-12)
        assert (found[n] - mu.detach()).abs().max() > 1e-3


def test_no_beta_is_the_trained_head_and_a_large_one_is_mu(data):
    made, batch = policy(network()), whole(data)
    trained = made.logits(batch).chunk(0, ITEMS)
    assert torch.equal(made.dialled(2.0).dialled(None).logits(batch).chunk(0, ITEMS), trained)
    logging = made.logging().logits(batch).chunk(0, ITEMS).softmax(1)
    torch.testing.assert_close(made.dialled(1e12).logits(batch).chunk(0, ITEMS).softmax(1), logging, rtol=0, atol=1e-10)
    assert (logging - trained.softmax(1)).abs().max() > 1e-2


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan")])
def test_the_dial_refuses_a_beta_that_is_not_positive(beta):
    with pytest.raises(ConfigError, match="beta must be > 0"):
        policy(network()).dialled(beta)


def test_the_dial_needs_a_critic_and_an_estimate_of_the_logging_policy():
    with pytest.raises(ConfigError, match="has no critic"):
        policy(network(heads=("policy", "logging"))).dialled(1.0)
    with pytest.raises(ConfigError, match="has no estimate of the logging policy"):
        policy(network(), estimates=None).dialled(1.0)
    with pytest.raises(ConfigError, match="has no estimate of the logging policy"):
        policy(network(), estimates=None).logging()


def test_a_policy_is_read_without_dropout(data):
    made, batch = network(dropout=0.5).train(), whole(data)
    held = policy(made)
    assert torch.equal(held.logits(batch).chunk(0, ITEMS), held.logits(batch).chunk(0, ITEMS))


def test_events_must_be_known_and_as_many_as_items():
    made = policy(network())
    with pytest.raises(DataError, match="history 0 has 2 items and 1 events"):
        made.batch([["i1", "i2"]], [["click"]])
    with pytest.raises(DataError, match="did you mean 'purchase'"):
        made.batch([["i1"]], [["purchas"]])


# ---------------------------------------------------------------------- lists


def test_recommend_returns_ids():
    made = policy(network())
    logp = made.log_probabilities(HISTORIES)
    lists = made.recommend(HISTORIES, 3)
    value, index = logp.topk(3, dim=1)
    assert lists.items == [[f"i{item}" for item in row] for row in index.tolist()]
    torch.testing.assert_close(lists.log_probability, value, rtol=1e-11, atol=1e-12)
    assert lists.propensity is None


def test_lists_of_parts_are_those_of_the_whole(monkeypatch):
    made, many = policy(network()), HISTORIES * 5
    whole = made.recommend(many, 3)
    monkeypatch.setattr("localpolicy.model.lists.CACHED", 4)
    parts = made.recommend(many, 3)
    assert len(many) > 2 * 4 and parts.items == whole.items
    torch.testing.assert_close(parts.log_probability, whole.log_probability)


def test_recommend_leaves_out_excluded_items():
    made = policy(network())
    lists = made.recommend(HISTORIES, 1, exclude_seen=True, exclude=["i6", "unknown"])
    logp = made.log_probabilities(HISTORIES)
    for row, history in enumerate(HISTORIES):
        gone = sorted({int(item[1]) for item in history} | {6})
        left = logp[row].clone()
        left[gone] = -torch.inf
        expected = torch.log_softmax(left, 0).topk(1)
        assert lists.indices[row].tolist() == expected.indices.tolist()
        torch.testing.assert_close(lists.log_probability[row], expected.values, rtol=1e-11, atol=1e-12)
    with pytest.raises(DataError, match="between 1 and 0 "):
        made.recommend([[f"i{item}" for item in range(ITEMS)]], 1, exclude_seen=True)
    with pytest.raises(DataError, match=f"between 1 and {ITEMS} .*got 0"):
        made.recommend(HISTORIES, 0)


def test_draws_depend_on_the_seed_alone():
    made = policy(network())
    one, same, other = (made.recommend(HISTORIES * 5, 4, sample=True, seed=seed).items for seed in (1, 1, 2))
    assert one == same != other


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tied": True},
        {"event_embeddings": True, "backbone": "gru"},
        {"backbone": "convolution"},
        {"backbone": "gated"},
    ],
    ids=str,
)
def test_a_loaded_policy_equals_the_saved_one(tmp_path, settings):
    made = policy(float32(**settings))
    made.save(tmp_path / "run")
    loaded = Policy.load(tmp_path / "run")
    torch.testing.assert_close(loaded.log_probabilities(HISTORIES), made.log_probabilities(HISTORIES), rtol=0, atol=0)
    assert loaded.origin == made.origin
    dialled = Policy.load(tmp_path / "run", beta=0.5)
    torch.testing.assert_close(
        dialled.log_probabilities(HISTORIES), made.dialled(0.5).log_probabilities(HISTORIES), rtol=0, atol=0
    )
    assert (loaded.network.embedding is loaded.network.heads["policy"].weight) == bool(settings.get("tied"))


def test_reading_a_policy_does_not_load_torchs_compiler(tmp_path):
    policy(float32(tied=True)).save(tmp_path / "run")
    check = (
        "import sys; from localpolicy.model.policy import Policy; Policy.load(sys.argv[1]); "
        "print([name for name in ('sympy', 'torch._dynamo') if name in sys.modules])"
    )
    read = subprocess.run([sys.executable, "-c", check, tmp_path / "run"], capture_output=True, text=True, check=True)
    assert read.stdout.strip() == "[]"


def test_equal_policies_give_equal_bytes(tmp_path):
    for folder, seed in (("one", 0), ("same", 0), ("other", 1)):
        policy(float32(seed=seed)).save(tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["items.parquet", "policy.json", "policy.safetensors"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "same" / name).read_bytes(), name
    assert (tmp_path / "one" / "policy.safetensors").read_bytes() != (
        tmp_path / "other" / "policy.safetensors"
    ).read_bytes()


def test_a_tied_head_is_the_embedding():
    made = network(tied=True)
    assert made.heads["policy"].weight is made.embedding
    assert isinstance(made.heads["logging"], ProjectedHead)
    untied = network(tied=False)
    assert untied.heads["policy"].weight is not untied.embedding


def test_load_refuses_missing_and_altered_files(tmp_path):
    with pytest.raises(RunError, match="is not a run"):
        Policy.load(tmp_path)
    made = policy(float32())
    made.save(tmp_path / "run")
    with pytest.raises(RunError, match="missing"):
        Policy.load(tmp_path / "run", weights="last.safetensors")
    about = json.loads((tmp_path / "run" / "policy.json").read_text())
    (tmp_path / "run" / "policy.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(RunError, match="format 99"):
        Policy.load(tmp_path / "run")
    (tmp_path / "run" / "policy.json").write_text(
        json.dumps({**about, "network": {**about["network"], "items": ITEMS + 1}})
    )
    with pytest.raises(RunError, match="does not fit"):
        Policy.load(tmp_path / "run")
    (tmp_path / "run" / "policy.json").write_text(
        json.dumps({**about, "network": {**about["network"], "heads": ["policy", "logging"]}})
    )
    with pytest.raises(RunError, match="too many"):
        Policy.load(tmp_path / "run")
    (tmp_path / "run" / "policy.json").write_text(json.dumps(about))
    weights = tmp_path / "run" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(RunError, match="truncated or altered"):
        Policy.load(tmp_path / "run")
