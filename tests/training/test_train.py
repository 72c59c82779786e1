"""Training: every objective runs, equal runs are equal, stopped runs resume exactly, and mistakes are refused early."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from broken_runs import train_until
from forms import weighted
from small_logs import EVENTS, REWARDS, write_small

from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError, DataError, LocalPolicyError, RunError, Stopped, TrainingError
from localpolicy.objectives import OBJECTIVES, objective_of
from localpolicy.runs.config import Config, configure
from localpolicy.runs.run import Run
from localpolicy.runtime.interrupt import ASKING
from localpolicy.training.selection import check_select, rule
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer


def config(name="mle", *, epochs=2, **changes):
    objective = changes.pop("objective", {})
    return Config.parse(
        {
            "data": {"length": 6},
            "model": {"width": 8},
            "objective": weighted({"name": name, **objective}),
            "train": {"epochs": epochs, "batch_size": 16, "learning_rate": 0.01, **changes},
        }
    )


def comparable(run):
    """What equal runs share: weights, and metrics."""
    return (run.folder / "policy.safetensors").read_bytes(), (run.folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_trains_and_loads(name, small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config(name))
    first, last = run.metrics()[0], run.metrics()[-1]
    assert all(np.isfinite(list(line["losses"].values())).all() for line in (first, last))
    assert 0 < last["weights"]["effective_share"] <= 1
    lists = run.policy().recommend([[100, 101]], 3, events=[["click", "none"]])
    assert len(set(lists.items[0])) == 3
    assert set(lists.items[0]) <= set(range(100, 112))


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("lpi_cb", {"baseline": "policy"}),
        ("lpi_cb", {"baseline": "max"}),
        ("lpi_cb", {"baseline": "value"}),
        ("lpi_cb", {"baseline": "none", "advantage": "observed"}),
        ("lpi_rl", {"target": "expected"}),
        ("lpi_rl", {"advantage": "monte_carlo"}),
        ("lpi_rl", {"advantage": "sampled"}),
        ("sqn", {"target": "expected"}),
        ("sac", {"warmup": 3}),
        ("ips", {"propensities": "logged"}),
    ],
    ids=str,
)
def test_every_variant_trains(name, objective, small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config(name, objective=objective))
    assert run.finished
    assert ("value_error" in run.metrics()[-1]["validation"]) == (objective.get("baseline") == "value")


def test_a_frozen_run_stands_for_the_logging_policy(small, tmp_path):
    logging = train(small, out=tmp_path / "mle", config=config())
    run = train(small, out=tmp_path / "run", config=config("lpi_rl", objective={"logging": str(logging.folder)}))
    assert "logging" not in run.policy().network.heads
    with pytest.raises(RunError, match="only runs such as mle and sqn"):
        train(small, out=tmp_path / "no", config=config("ips", objective={"logging": str(run.folder)}))


def test_training_learns(small, tmp_path):
    # The probabilities that this log states are invented: they would teach another policy than the one that wrote it.
    run = train(
        small, out=tmp_path / "run", config=config(epochs=15, objective={"propensities": "unused"}, weight_decay=0)
    )
    losses = [line["losses"]["policy"] for line in run.metrics()]
    assert losses[-1] < losses[0] - 0.5
    assert losses[-1] < np.log(12) - 0.4, "the next item depends on the one before"


def test_equal_runs_are_equal_and_seeds_differ(small, tmp_path):
    one, two, other = (
        train(small, out=tmp_path / str(number), config=config("lpi_rl", seed=seed))
        for number, seed in enumerate((0, 0, 1))
    )
    assert comparable(one) == comparable(two)
    assert comparable(one)[0] != comparable(other)[0]


@pytest.mark.parametrize("name", ["mle", "lpi_rl", "lpi_cb"])
@pytest.mark.parametrize("stop", [1, 5, 7, 11])
def test_a_stopped_run_resumes_exactly(name, stop, small, tmp_path):
    settings = config(name, epochs=2, checkpoint_every=2)
    whole = train(small, out=tmp_path / "whole", config=settings)

    train_until(stop, small, out=tmp_path / "broken", config=settings)
    assert not Run(tmp_path / "broken").finished
    with pytest.raises(RunError, match="resume=True"):
        Run(tmp_path / "broken").policy()
    resumed = train(small, out=tmp_path / "broken", config=settings, resume=True)
    assert comparable(resumed) == comparable(whole)
    assert not (resumed.folder / "checkpoint").exists()


@pytest.mark.parametrize("number_of_signal", ASKING, ids=lambda one: one.name)
def test_ctrl_c_finishes_the_step_saves_and_says_how_to_resume(number_of_signal, small, tmp_path, monkeypatch):
    settings = config("lpi_rl", epochs=2)
    whole = train(small, out=tmp_path / "whole", config=settings)
    step = Trainer.step

    def interrupted(self, batch, number, **options):
        if number == 3:
            signal.raise_signal(number_of_signal)
        return step(self, batch, number, **options)

    # As in a terminal: what is started in the background may ignore the signal, and that would be respected.
    before = signal.signal(number_of_signal, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(Stopped, match="stopped after step 4.*resume=True"):
            patch.setattr(Trainer, "step", interrupted)
            train(small, out=tmp_path / "run", config=settings)
        assert signal.getsignal(number_of_signal) is signal.default_int_handler
    finally:
        signal.signal(number_of_signal, before)
    assert (tmp_path / "run" / "checkpoint" / "step-4.json").exists()
    assert comparable(train(small, out=tmp_path / "run", config=settings, resume=True)) == comparable(whole)


def test_what_nohup_ignores_stays_ignored(small, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    step = Trainer.step

    def hung_up(self, batch, number, **options):
        signal.raise_signal(signal.SIGHUP)
        return step(self, batch, number, **options)

    monkeypatch.setattr(Trainer, "step", hung_up)
    try:
        assert train(small, out=tmp_path / "run", config=config(epochs=1)).finished
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_kill_after_the_end_left_is_tidied(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config())
    whole = {path.name for path in run.folder.iterdir()}
    for name in ("checkpoint/step-1.json", "stages/logging/config.yaml", ".lock"):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).touch()
    train(small, out=tmp_path / "run", config=config(), resume=True)
    assert {path.name for path in run.folder.iterdir()} == whole


def test_resume_starts_a_run_and_leaves_a_finished_one_alone(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config(), resume=True)
    before = (run.folder / "manifest.json").stat().st_mtime_ns
    assert train(small, out=tmp_path / "run", config=config(), resume=True).finished
    assert (run.folder / "manifest.json").stat().st_mtime_ns == before


def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_serves(small, tmp_path):
    settings = config("lpi_rl", epochs=2, checkpoint_every=2)
    whole = train(small, out=tmp_path / "whole", config=settings)
    train_until(5, small, out=tmp_path / "broken", config=settings)
    newest = tmp_path / "broken" / "checkpoint" / "step-4.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(RunError, match=r"step-4\.safetensors is truncated or altered"):
        train(small, out=tmp_path / "broken", config=settings, resume=True)
    resumed = train(small, out=tmp_path / "broken", config=settings, resume=True, resume_older=True)
    assert comparable(resumed) == comparable(whole)


def test_another_data_set_or_config_is_refused_on_resume(small, tmp_path):
    settings = config(checkpoint_every=2)
    train_until(5, small, out=tmp_path / "run", config=settings)
    other = write_small(tmp_path / "other", seed=5)
    with pytest.raises(RunError, match="another data"):
        train(other, out=tmp_path / "run", config=settings, resume=True)
    with pytest.raises(RunError, match="another config"):
        train(small, out=tmp_path / "run", config=config(checkpoint_every=2, learning_rate=0.5), resume=True)


def test_the_data_are_remembered_as_given_and_as_seen_from_the_run(small, tmp_path, monkeypatch):
    monkeypatch.chdir(small.path.parent)
    run = train(small.path.name, out=tmp_path / "run", config=config(epochs=1))
    about = run.manifest["data"]
    assert about["path"] == small.path.name
    assert (run.folder / about["from_run"]).resolve() == small.path.resolve()
    monkeypatch.chdir(tmp_path)
    assert run.data_folders[-1] == small.path.resolve()


def test_a_full_folder_is_kept_unless_forced(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(LocalPolicyError, match="force=True"):
        train(small, out=tmp_path / "run", config=config())
    assert train(small, out=tmp_path / "run", config=config(), force=True).finished
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine", "only what a run wrote is replaced"


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_minutes_end_a_run_after_a_validation(steps, small, tmp_path, monkeypatch):
    """In the midst of an epoch (of 6 steps) or at its end, the run is whole."""
    made = 0
    step = Trainer.step

    def counted(self, *words, **more):
        nonlocal made
        made += 1
        if made == steps:
            self.ends = -1.0  # the clock is past it
        step(self, *words, **more)

    monkeypatch.setattr(Trainer, "step", counted)
    run = train(small, out=tmp_path / "run", config=config(epochs=5, minutes=60.0))
    assert run.finished and made == steps and run.metrics()[-1]["step"] == steps
    assert run.policy().recommend([[100]], 3).items


def test_best_and_last_are_kept_and_patience_stops(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config(epochs=40, patience=2, learning_rate=0.1))
    lines = run.metrics()
    best = max(range(len(lines)), key=lambda place: lines[place]["selected_by"]) + 1
    assert run.manifest["selected"]["epoch"] == best
    assert len(lines) == best + 2 < 40
    selected, last = run.policy(), run.policy(last=True)
    assert not torch.equal(selected.network.embedding, last.network.embedding)


def test_not_a_number_stops_the_run_with_the_step_and_the_term(small, tmp_path, monkeypatch):
    settings = config("reward_weighted", checkpoint_every=2)
    read = Trainer.step

    def poisoned(self, batch, number, **options):
        if number == 5:
            self.network.embedding.data.fill_(float("nan"))
        return read(self, batch, number, **options)

    monkeypatch.setattr(Trainer, "step", poisoned)
    with pytest.raises(TrainingError, match=r"step 5: the term 'policy' is nan \(largest weight"):
        train(small, out=tmp_path / "run", config=settings)
    assert (tmp_path / "run" / "checkpoint" / "step-4.json").exists(), "the last good checkpoint stays"


def assert_nothing_was_kept(folder):
    for name in ("policy.safetensors", "last.safetensors", "manifest.json", "checkpoint"):
        assert not (folder / name).exists(), name


@pytest.mark.parametrize("name", ["mle", "lpi_rl", "lpi_cb"])
def test_weights_that_an_epochs_last_step_broke_are_not_kept(name, small, tmp_path):
    settings = config(name, epochs=1, learning_rate=1e8, batch_size=4096)
    with pytest.raises(TrainingError, match=r"step 1: the weights are no longer finite.*Lower train\.learning_rate"):
        train(small, out=tmp_path / "run", config=settings)
    assert_nothing_was_kept(tmp_path / "run")


def test_a_critic_that_broke_is_not_kept_though_the_policy_is_whole(small, tmp_path, monkeypatch):
    step = Trainer.step

    def breaks(self, batch, number, **options):
        terms = step(self, batch, number, **options)
        self.network.heads["q_a"].bias.data[3] = float("inf")
        return terms

    monkeypatch.setattr(Trainer, "step", breaks)
    with pytest.raises(TrainingError, match="step 1: the weights are no longer finite"):
        train(small, out=tmp_path / "run", config=config("lpi_rl", epochs=1, batch_size=4096))
    assert_nothing_was_kept(tmp_path / "run")


def test_rewards_are_checked_before_the_first_step(tmp_path):
    negative = write_small(tmp_path / "negative", rewards={**REWARDS, "none": -1.0})
    with pytest.raises(DataError, match=r"sac needs rewards >= 0, found -1 at event \d+"):
        train(negative, out=tmp_path / "run", config=config("sac"))
    assert train(negative, out=tmp_path / "fine", config=config("lpi_rl")).finished
    zero = write_small(tmp_path / "zero", rewards=dict.fromkeys(EVENTS, 0.0))
    with pytest.raises(DataError, match="all rewards are 0"):
        train(zero, out=tmp_path / "run", config=config("reward_weighted"))
    assert train(zero, out=tmp_path / "mle", config=config("mle")).finished


def test_propensities_are_checked_before_the_first_step(tmp_path):
    without = write_small(tmp_path / "without", propensity=False)
    with pytest.raises(DataError, match="needs a log with propensities"):
        train(without, out=tmp_path / "run", config=config("ips", objective={"propensities": "logged"}))
    with writing(
        tmp_path / "bad", kind="impressions", events=EVENTS, rewards=REWARDS, optional=("propensity",)
    ) as store:
        for split in store.splits.values():
            arrays = {"item": [0, 1, 2], "event": [0, 1, 2], "reward": [0, 0.2, 1], "propensity": [0.5, 0.0, 0.5]}
            store.splits and split.append(np.array([3]), {name: np.array(values) for name, values in arrays.items()})
        store.write_items(np.arange(3), np.ones(3, np.int64))
    for name in ("ips", "mle"):
        with pytest.raises(DataError, match=r"in \(0, 1\]; event 1"):
            train(tmp_path / "bad", out=tmp_path / "run", config=config(name, objective={"propensities": "logged"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.beta=0"], "objective.beta: expected a number greater than 0"),
        (["objective.name=pg", "objective.gamma=1"], "objective.gamma: expected a number less than 1"),
        (["objective.baseline=mean"], "objective.baseline"),
        (["model.wdith=3"], r"model.wdith: no such key \(did you mean 'width'\?\)"),
        (["trian.epochs=3"], r"trian: no such key \(did you mean 'train'\?\)"),
        (["objective.beta=nan"], "objective.beta"),
        (["objective.beta"], "expected key=value"),
    ],
)
def test_errors_on_bad_settings_name_the_key(changes, message):
    with pytest.raises(ConfigError, match=message):
        configure(changes=changes)


def test_settings_an_objective_does_not_use_are_refused(small, tmp_path):
    with pytest.raises(ConfigError, match=r"objective.beta: mle does not use it \(used by .*lpi_cb, "):
        train(small, out=tmp_path / "run", config=config("mle", objective={"beta": 0.5}))
    with pytest.raises(ConfigError, match="no objective 'lpi_br'.*did you mean 'lpi_"):
        train(small, out=tmp_path / "run", config=config("lpi_br"))


def test_the_rule_of_auto_asks_only_for_what_is_held_out():
    def data(sparse=False, **events):
        manifest = {
            "rewards": {"none": 0.0, "click": 0.2, "purchase": 1.0},
            "splits": {"validation": {"events": events}},
        }
        held_out = manifest["splits"]["validation"]["events"]
        return SimpleNamespace(manifest=manifest, held_out_events=lambda split: held_out, sparse=sparse)

    assert (
        rule("auto", data(none=9, click=300, purchase=200), objective_of("lpi_rl"))
        == "0.2*click.nDCG@20 + 1*purchase.nDCG@20"
    )
    assert rule("auto", data(none=9, click=300, purchase=0), objective_of("lpi_rl")) == "0.2*click.nDCG@20"
    assert rule("auto", data(none=9, click=0, purchase=0, **{"4": 300}), objective_of("lpi_rl")) == "AR@1"
    assert rule("auto", data(none=9, click=300, purchase=200), objective_of("mle")) == "logp"
    assert rule("auto", data(sparse=True, click=300), objective_of("mle")) == "logp + 3*all.nDCG@20"
    assert rule("auto", data(sparse=True, click=30), objective_of("mle")) == "logp", "too few to rank"


def test_the_selection_rule_names_the_nearest_figure(small, tmp_path):
    with pytest.raises(ConfigError, match=r"no figure 'click.nDCG@21' \(did you mean 'click.nDCG@20'"):
        train(small, out=tmp_path / "run", config=config(select="click.nDCG@21"))
    assert not (tmp_path / "run").exists(), "said before training, so that the mended command finds its folder free"


def test_every_figure_of_a_validation_may_be_selected_by(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config(epochs=1))
    for name in run.metrics()[-1]["validation"]:
        check_select(f"0.5*{name} + AR@1", small)


def test_an_altered_data_set_is_refused(tmp_path):
    data = write_small(tmp_path / "data")
    path = data.path / "train" / "reward.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="reward.npy was altered"):
        train(data.path, out=tmp_path / "run", config=config())


def test_the_config_on_disk_gives_the_same_run(small, tmp_path):
    one = train(small, out=tmp_path / "one", config=config("lpi_cb", objective={"beta": 0.3}))
    two = train(small, out=tmp_path / "two", config=configure(file=one.folder / "config.yaml"))
    assert comparable(one) == comparable(two)
    manifest = json.loads((one.folder / "manifest.json").read_text())
    assert manifest["data"]["digest"] == small.digest


def test_where_saving_takes_longer_than_training_it_waits_and_nothing_else_changes(small, tmp_path):
    settings = config("lpi_rl", epochs=3)
    rarely = config("lpi_rl", epochs=3, checkpoint_seconds=36_000)
    whole = train(small, out=tmp_path / "whole", config=settings)
    assert comparable(train(small, out=tmp_path / "rarely", config=rarely)) == comparable(whole)
    # Killed in the second epoch: nothing was written that a checkpoint does not know of, and all begins again.
    train_until(8, small, out=tmp_path / "killed", config=rarely)
    assert not list((tmp_path / "killed").rglob("*.safetensors"))
    assert comparable(train(small, out=tmp_path / "killed", config=rarely, resume=True)) == comparable(whole)
    # Asked to stop: the weights chosen so far are saved with the checkpoint.
    step = Trainer.step

    def asked(self, batch, number, **options):
        if number == 8:
            signal.raise_signal(signal.SIGTERM)
        return step(self, batch, number, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "step", asked)
        train(small, out=tmp_path / "stopped", config=rarely)
    assert (tmp_path / "stopped" / "policy.safetensors").exists()
    assert comparable(train(small, out=tmp_path / "stopped", config=rarely, resume=True)) == comparable(whole)


def test_a_log_without_histories_needs_no_setting(tmp_path):
    """As Open Bandit's: each impression is a sequence of its own."""
    with writing(tmp_path / "data", kind="impressions", events=["none", "click"], rewards={"none": 0.0, "click": 1.0},
                 optional=("propensity",)) as store:  # fmt: skip
        rng = np.random.default_rng(0)
        for part in store.splits.values():
            event = rng.integers(0, 2, 60)
            arrays = {"item": rng.integers(0, 5, 60), "event": event, "reward": event.astype(float)}
            part.append(np.ones(60, np.int64), {**arrays, "propensity": np.full(60, 0.2)})
        store.write_items(np.arange(5), np.ones(5, np.int64))
    tiny = Config.parse({"model": {"width": 8}, "train": {"epochs": 1, "device": "cpu"}})
    with pytest.raises(DataError, match="train with min_history=0"):
        train(tmp_path / "data", "mle", out=tmp_path / "run", config=tiny.with_changes(["train.min_history=1"]))
    assert not (tmp_path / "run" / "config.yaml").exists(), "told before anything is done"
    run = train(tmp_path / "data", "mle", out=tmp_path / "run", config=tiny)
    assert run.config.train.min_history == 0
