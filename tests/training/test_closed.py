"""LPI in closed form, from a log to a policy on disk: stages, exact resume, what is served, and when it is silent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from broken_runs import train_until
from several_processes import in_processes
from small_logs import write_small

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, RunError, Stopped
from localpolicy.measure.truth import PolicyAgent
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.model.weights import load_weights
from localpolicy.objectives.mle import MLE
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.simulation import BanditConfig, BanditWorld, write_prepared
from localpolicy.training import setup
from localpolicy.training.distill import distill
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer

HISTORIES, ANSWERS = [[100, 101, 105], [], [111]], [["click", "none", "purchase"], [], ["none"]]
LOGGING_STEPS = 12  # 96 sequences in batches of 16, two epochs


def config(name="lpi_rl", *, objective=None, epochs=2, **changes):
    return Config.parse(
        {
            "data": {"length": 6},
            "model": {"width": 8},
            "objective": {"name": name, "beta": 0.3, "calibrate_critic": False, **(objective or {})},
            "train": {"epochs": epochs, "batch_size": 16, "learning_rate": 0.01, **changes},
        }
    )


def comparable(run):
    return [(run.folder / name).read_bytes() for name in ("policy.safetensors", "policy.json", "metrics.jsonl")]


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    return train(small, out=tmp_path_factory.mktemp("closed") / "run", config=config(checkpoint_every=2))


@pytest.mark.parametrize("name", ["lpi_rl", "mle"])
def test_settings_are_resolved_once_in_a_training(name, small, tmp_path, monkeypatch):
    """Stages have the settings of the run, and what the closed form changes in them."""
    asked, rule = [], setup.rule
    monkeypatch.setattr(setup, "rule", lambda *given: asked.append(given) or rule(*given))
    train(small, name, out=tmp_path, epochs=1, width=4)
    assert len(asked) == 1


class Twice(MLE):
    """An estimate of the log, and then another from where it ended."""

    def fit(self, fitting):
        first = fitting.logging_policy("head")
        assert first.manifest["objective"] == "mle" and first.folder.parent == fitting.run.stages
        return fitting.network()


def test_an_objective_of_ones_own_brings_its_way_to_be_fitted(small, tmp_path):
    run = train(small, Twice(), out=tmp_path, epochs=1, width=4)
    assert run.finished and (run.stages / "logging" / "manifest.json").exists()


@pytest.mark.parametrize(("name", "critic", "k"), [("lpi_cb", "reward", 1), ("lpi_rl", "q", 2)])
def test_what_is_served_is_mu_tilted_by_the_critics(name, critic, k, small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config(name, objective={"critics": k}))
    policy = run.policy()
    network, batch = policy.network, policy.batch(HISTORIES, ANSWERS)
    assert isinstance(network, Towers) and len(network.critics) == k
    mu = torch.log_softmax(network.logging.head("policy").logits(states(network.logging, batch)).chunk(0, 12), 1)
    q = sum(one.head(critic).logits(states(one, batch)).chunk(0, 12) for one in network.critics) / k
    assert q.std(1).min() > 1e-3, "a critic that says the same of all items would prove nothing"
    advantage, cap = q - (mu.exp() * q).sum(1, keepdim=True), {"lpi_cb": math.inf, "lpi_rl": math.log(10)}[name]
    small = float(advantage.detach().max()) / 4  # at which the cap binds
    for beta, served in {0.3: policy, small: run.policy(beta=small), 2.0: policy.dialled(2.0)}.items():
        expected = torch.log_softmax(mu + (advantage / beta).clamp(max=cap), 1)
        torch.testing.assert_close(served.log_probabilities(HISTORIES, ANSWERS), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(policy.logging().log_probabilities(HISTORIES, ANSWERS), mu, rtol=0, atol=2e-5)
    about = run.manifest
    assert list(about["stages"]) == ["logging", *(f"critic-{number + 1}" for number in range(k))]
    assert about["improvement"]["beta"] == 0.3 and about["improvement"]["slope"] == 1.0
    form = {"lpi_cb": "closed form; the next reward", "lpi_rl": "closed form; rewards discounted by 0.5 a step"}
    assert f"{name} ({form[name]})" in run.summary()
    assert about["stages"]["logging"]["selected"]["by"] == "logp"
    assert about["stages"]["critic-1"]["selected"]["by"] == "-1*return_error"
    assert about["parameters"] == network.n_parameters
    assert run.selected_metrics()["stage"] == "policy"
    assert not run.stages.exists()


def states(tower, batch):
    return tower.hidden_without_dropout(batch)[batch.scored]


def test_the_first_stage_is_an_mle_run_and_the_critic_starts_from_it(small, tmp_path, monkeypatch):
    begun = {}
    start = Trainer.step

    def first(self, batch, number, **options):
        if self.config.objective.name == "critic" and number == 0:
            begun.update({key: value.clone() for key, value in self.network.state_dict().items()})
        return start(self, batch, number, **options)

    monkeypatch.setattr(Trainer, "step", first)
    run = train(small, out=tmp_path / "run", config=config())
    weights = load_weights(run.folder / "policy.safetensors")
    mle = load_weights(train(small, out=tmp_path / "mle", config=mle_config()).folder / "last.safetensors")
    last = load_weights(run.folder / "last.safetensors")
    for name, tensor in mle.items():
        assert torch.equal(last[f"logging.{name}"], tensor), name
    for name in ("embedding", "start", "answer", "backbone.position"):
        assert torch.equal(begun[name], weights[f"logging.{name}"]), name
        assert not torch.equal(weights[f"critics.0.{name}"], weights[f"logging.{name}"]), "it is trained on"


def mle_config(**changes):
    settings = config(**changes).model_dump()
    return Config.parse({**settings, "objective": {"name": "mle"}, "train": {**settings["train"], "select": "auto"}})


@pytest.mark.parametrize("stop", [1, 7, LOGGING_STEPS - 1])
@pytest.mark.parametrize("stage", ["mle", "critic"])
def test_a_run_killed_in_any_stage_resumes_exactly(stage, stop, small, whole, tmp_path):
    settings = config(checkpoint_every=2)
    train_until(stop, small, out=tmp_path / "broken", config=settings, objective=stage)
    broken = Run(tmp_path / "broken")
    assert not broken.finished and broken.started
    assert Run(broken.stages / "logging").finished == (stage == "critic")
    assert comparable(train(small, out=broken.folder, config=settings, resume=True)) == comparable(whole)


def test_a_run_killed_before_its_assembly_resumes(small, whole, tmp_path, monkeypatch):
    settings = config(checkpoint_every=2)
    with monkeypatch.context() as patch, pytest.raises(KeyError, match="now"):
        patch.setattr("localpolicy.training.closed_form.choose", lambda *a, **k: (_ for _ in ()).throw(KeyError("now")))
        train(small, out=tmp_path / "broken", config=settings)
    assert comparable(train(small, out=tmp_path / "broken", config=settings, resume=True)) == comparable(whole)


def test_a_stage_that_is_done_is_not_taken_over_by_other_settings_or_data(small, tmp_path):
    train_until(3, small, out=tmp_path / "run", config=config(checkpoint_every=2), objective="critic")
    with pytest.raises(RunError, match=r"stages/logging was made with another config"):
        train(small, out=tmp_path / "run", config=config(checkpoint_every=2, learning_rate=0.5), resume=True)
    with pytest.raises(RunError, match=r"stages/logging was made with another data"):
        other = write_small(tmp_path / "other", seed=5)
        train(other, out=tmp_path / "run", config=config(checkpoint_every=2), resume=True)


def test_a_run_of_another_objective_is_not_taken_over(small, tmp_path, monkeypatch):
    """Resumed without its objective's name, it became the default one, and what it had learnt was gone."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("localpolicy.training.trainer.stop_requested", asked)
        train(small, out=tmp_path / "run", config=mle_config())
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="was begun with the objective mle; it cannot continue with lpi_rl"):
        train(small, out=tmp_path / "run", config=config(), resume=True)
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_stopping_names_the_run_not_the_stage(small, tmp_path, monkeypatch):
    monkeypatch.setattr("localpolicy.training.trainer.stop_requested", asked)
    with pytest.raises(Stopped, match=r"Continue with resume=True: .*/run$"):
        train(small, out=tmp_path / "run", config=config())


class asked:
    def __enter__(self):
        return lambda: True

    def __exit__(self, *problem):
        return None


def test_a_given_logging_policy_is_used_as_it_is(small, tmp_path):
    logging = train(small, out=tmp_path / "mle", config=mle_config())
    run = train(small, out=tmp_path / "run", config=config(objective={"logging": str(logging.folder)}))
    theirs, ours = (load_weights(one.folder / "policy.safetensors") for one in (logging, run))
    assert all(torch.equal(ours[f"logging.{name}"], tensor) for name, tensor in theirs.items())
    assert list(run.manifest["stages"]) == ["critic-1"]
    assert run.manifest["logging"]["policy_sha256"] == logging.manifest["policy_sha256"]
    with pytest.raises(RunError, match="the run that served the log"):
        train(small, out=tmp_path / "again", config=config(objective={"logging": str(run.folder)}))


def test_an_improved_policy_that_served_the_log_is_distilled_into_mu(tmp_path):
    """Taught by whole rows, μ̂ is nearer to what served than an estimate from the items shown; and the next tower
    stands on one network again."""
    world = BanditWorld(BanditConfig(contexts=20, items=15))
    settings = config("lpi_cb", objective={"beta": 0.1}, epochs=4)
    write_prepared(world, tmp_path / "first", sequences=600)
    served = train(Prepared(tmp_path / "first"), out=tmp_path / "served", config=settings)
    shares = world.table(PolicyAgent(served.policy(), world))
    write_prepared(
        world, tmp_path / "log", sequences=600, seed=1, chunks=world.log(600, 1, probabilities=shares),
        policy=served.version, like=Prepared(tmp_path / "first"),
    )  # fmt: skip
    log = Prepared(tmp_path / "log")
    taught = settings.with_changes([f"objective.logging={served.folder}"])
    runs = [train(log, out=tmp_path / name, config=each) for name, each in (("taught", taught), ("anew", settings))]
    distance = [
        float(np.abs(world.table(PolicyAgent(run.policy().logging(), world)) - shares).sum(1).mean()) for run in runs
    ]
    assert distance[0] < 0.8 * distance[1], distance
    about = runs[0].manifest
    assert list(about["stages"]) == ["logging", "critic-1"]
    assert about["stages"]["logging"]["selected"]["by"] == "-1*teacher_js"
    assert about["logging"] == {"run": str(served.folder), "policy_sha256": served.manifest["policy_sha256"]}
    towers = runs[0].policy().network
    assert isinstance(towers, Towers) and len(towers.towers) == 2
    # A log that gives no reason to move leaves the policy as it was, not as its student has it.
    shown = [replace(chunk, reward=np.arange(len(chunk)) % 8 // 7) for chunk in world.log(300, 3, probabilities=shares)]
    write_prepared(
        world, tmp_path / "nothing", sequences=300, seed=2, like=log, policy=served.version, chunks=shown
    )  # fmt: skip
    careful = config("lpi_cb", objective={"calibrate_critic": True, "logging": str(served.folder)}, epochs=1)
    stayed = train(Prepared(tmp_path / "nothing"), out=tmp_path / "stayed", config=careful)
    assert stayed.manifest["improvement"]["slope"] == 0
    assert stayed.manifest["improvement"]["said"].endswith("this run gives what that one gave.")
    assert stayed.version == served.version
    assert np.array_equal(world.table(PolicyAgent(stayed.policy(), world)), shares)
    # One network that imitates the run which served is an estimate of the log's policy, and taken as it is.
    student = distill(served, data=log, out=tmp_path / "student")
    upon = train(log, out=tmp_path / "upon", config=settings.with_changes([f"objective.logging={student.folder}"]))
    assert list(upon.manifest["stages"]) == ["critic-1"]
    dialled = distill(served, data=log, beta=5.0, out=tmp_path / "dialled")
    with pytest.raises(RunError, match="the run that served the log"):
        train(log, out=tmp_path / "no", config=settings.with_changes([f"objective.logging={dialled.folder}"]))


def test_the_policy_that_served_is_mu_where_items_came_since(tmp_path):
    dials = {"features": 1, "feature_values": 3, "new_items": 0.4, "new_rounds": 2}
    world = BanditWorld(BanditConfig(contexts=20, items=20, **dials))
    settings = config("lpi_cb", objective={"beta": 0.1}, epochs=4).with_changes(["model.features=[true_1]"])
    write_prepared(world, tmp_path / "first", sequences=600, round_number=1)
    first = Prepared(tmp_path / "first")
    served = train(first, out=tmp_path / "served", config=settings)
    shares = world.table(PolicyAgent(served.policy(), world))

    def log(name, chunks, **about):
        write_prepared(
            world, tmp_path / name, sequences=600, seed=1, like=first, chunks=chunks, round_number=2, **about
        )
        return Prepared(tmp_path / name)

    shown = world.log(600, 1, probabilities=shares)
    data = log("log", shown, policy=served.version)
    assert (first.n_items, data.n_items) == (world.on_sale(1), world.on_sale(2)) == (16, 20)
    taught = settings.with_changes([f"objective.logging={served.folder}"])
    runs = [train(data, out=tmp_path / name, config=each) for name, each in (("taught", taught), ("anew", settings))]
    given = [world.table(PolicyAgent(run.policy().logging(), world)) for run in runs]
    known = [each[:, :16] / each[:, :16].sum(1, keepdims=True) for each in given]
    distance = [float(np.abs(each - shares[:, :16]).sum(1).mean()) for each in known]
    assert distance[0] < 0.8 * distance[1], distance
    assert list(runs[0].manifest["stages"]) == ["logging", "critic-1"]
    new = given[0][:, 16:].sum(1)
    assert (new > 0).all() and (new / (1 - new) <= 1 + 1e-6).all()
    # A log that gives no reason to move: the policy is the student, which knows the new items.
    blind = [replace(chunk, reward=np.arange(len(chunk)) % 8 // 7) for chunk in world.log(300, 3, probabilities=shares)]
    careful = taught.with_changes(["objective.calibrate_critic=true", "train.epochs=1"])
    stayed = train(log("nothing", blind, policy=served.version), out=tmp_path / "stayed", config=careful)
    assert stayed.manifest["improvement"]["slope"] == 0 and stayed.policy().n_items == 20
    # Nor is it μ of a log that another one wrote.
    with pytest.raises(RunError, match="the run that served the log"):
        train(log("other", blind, policy="another"), out=tmp_path / "no", config=taught)


def test_a_later_run_may_start_from_a_closed_one(small, whole, tmp_path):
    run = train(small, out=tmp_path / "warm", config=config(warm_start=str(whole.folder), learning_rate=1e-9, epochs=1))
    old, new = (load_weights(one.folder / "policy.safetensors") for one in (whole, run))
    torch.testing.assert_close(new["logging.embedding"], old["logging.embedding"], rtol=0, atol=1e-6)
    assert run.manifest["warm_start"]["run"] == str(whole.folder)


def test_equal_runs_are_equal_and_seeds_differ(small, whole, tmp_path):
    assert comparable(train(small, out=tmp_path / "same", config=config(checkpoint_every=2))) == comparable(whole)
    other = train(small, out=tmp_path / "other", config=config(checkpoint_every=2, seed=1))
    assert comparable(other)[0] != comparable(whole)[0]


def test_it_needs_two_validation_sequences(tmp_path):
    with pytest.raises(DataError, match="at least 2 validation sequences"):
        train(write_small(tmp_path / "few", sequences=10), out=tmp_path / "run", config=config())


def test_saved_and_loaded_it_is_the_same_policy(whole, tmp_path):
    policy = whole.policy()
    policy.save(tmp_path / "copy")
    again = Policy.load(tmp_path / "copy")
    assert torch.equal(again.log_probabilities(HISTORIES, ANSWERS), policy.log_probabilities(HISTORIES, ANSWERS))
    with pytest.raises(ConfigError, match="beta must be > 0"):
        policy.dialled(0.0)


WAYS = {"copies": False, "shards": True}  # of two processes to share one training: shard_catalogue


def train_together(ranks, data, out):
    torch.set_default_dtype(torch.float64)
    for name, shard in WAYS.items():
        train(data, out=f"{out}/{name}", config=without_dropout(shard))


def without_dropout(shard):
    """Dropout differs between ranks on purpose; without it the numbers must agree."""
    settings = config(objective={"critic_dropout": 0.0}, shard_catalogue=shard, batch_size=8, device="cpu").model_dump()
    return Config.parse({**settings, "model": {**settings["model"], "dropout": 0.0}})


@pytest.mark.cluster
def test_two_processes_train_what_one_does(small, tmp_path):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        alone = train(small, out=tmp_path / "alone", config=without_dropout(False))
    finally:
        torch.set_default_dtype(before)
    in_processes(2, train_together, str(small.path), str(tmp_path))
    expected = load_weights(alone.folder / "policy.safetensors")
    for name in WAYS:
        together = Run(tmp_path / name)
        found = load_weights(together.folder / "policy.safetensors")
        for key, tensor in expected.items():
            torch.testing.assert_close(
                found[key], tensor, rtol=1e-6, atol=1e-7, msg=lambda said, at=f"{name}: {key}": f"{at}: {said}"
            )
        slopes = [run.manifest["improvement"]["calibration"]["slope"] for run in (together, alone)]
        assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)
