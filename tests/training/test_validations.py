"""Validations between epochs: records of their own, the same training, exact resume; and what patience counts."""

from __future__ import annotations

import pytest
from broken_runs import Killed, train_until
from forms import weighted
from small_logs import write_small

from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import validate

BATCHES = 6  # of an epoch: 96 sequences, 16 each


def config(name="lpi_rl", **changes):
    train = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, **changes}
    return Config.parse(
        {"data": {"length": 6}, "model": {"width": 8}, "objective": weighted({"name": name}), "train": train}
    )


def content(run, *names):
    return [(run.folder / name).read_bytes() for name in names]


def test_each_is_a_record_of_its_own_and_training_is_the_same(small, tmp_path):
    plain = train(small, out=tmp_path / "plain", config=config())
    often = train(small, out=tmp_path / "often", config=config(validate_every=4))
    lines = often.metrics()
    assert [line["step"] for line in lines] == [4, 6, 8, 12], "12 is an epoch's end: one record, not two"
    assert [line["epoch"] for line in lines] == [1, 1, 2, 2]
    assert [line.get("epoch_share") for line in lines] == [4 / BATCHES, None, 2 / BATCHES, None]
    assert [line for line in lines if "epoch_share" not in line] == plain.metrics(), "the epochs' own are as ever"
    assert content(often, "last.safetensors") == content(plain, "last.safetensors")
    selected = often.manifest["selected"]
    assert selected["step"] == max(lines, key=lambda line: line["selected_by"])["step"]
    assert often.selected_metrics()["selected_by"] == selected["value"]


def test_the_best_may_lie_within_an_epoch(small, tmp_path, monkeypatch):
    """The weights kept are those of the step that was best, not of its epoch's end."""
    values = iter([0.1, 0.5, 0.2, 0.3])
    kept = {}
    monkeypatch.setattr("localpolicy.training.trainer.selection_score", lambda select, figures: next(values))

    def remembers(policy, *positional, **named):
        kept[len(kept)] = policy.network.embedding.detach().clone()
        return validate(policy, *positional, **named)

    monkeypatch.setattr("localpolicy.training.trainer.validate", remembers)
    run = train(small, out=tmp_path / "run", config=config(validate_every=8))
    assert [line["step"] for line in run.metrics()] == [6, 8, 12]
    assert run.manifest["selected"] == {"by": run.config.train.select, "value": 0.5, "epoch": 2, "step": 8}
    assert run.policy().network.embedding.equal(kept[1])
    assert run.policy(last=True).network.embedding.equal(kept[2])


@pytest.mark.parametrize(
    ("every", "steps", "epochs"), [(None, [6, 12, 18], 3), (2, [2, 4, 6], 1), (4, [4, 6, 8], 1)], ids=str
)
def test_patience_counts_validations(every, steps, epochs, small, tmp_path, monkeypatch):
    """The first is the best; after two more that are not, it ends at once, within an epoch too."""
    values = iter([3.0, 2.0, 2.5, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr("localpolicy.training.trainer.selection_score", lambda select, figures: next(values))
    run = train(small, out=tmp_path / "run", config=config(epochs=9, patience=2, validate_every=every))
    assert [line["step"] for line in run.metrics()] == steps
    assert run.manifest["steps"] == steps[-1]
    assert run.manifest["epochs"] == epochs
    assert run.manifest["selected"]["step"] == steps[0]


@pytest.mark.parametrize("stop", [1, 4, 5, 7, 8, 11])
@pytest.mark.parametrize("checkpoint_every", [None, 3])
def test_killed_and_resumed_it_ends_the_same(stop, checkpoint_every, small, tmp_path):
    settings = config(validate_every=4, checkpoint_every=checkpoint_every, patience=3)
    whole = train(small, out=tmp_path / "whole", config=settings)
    train_until(stop, small, out=tmp_path / "broken", config=settings)
    if stop in (4, 5):
        assert (tmp_path / "broken" / "checkpoint" / "step-4.json").exists(), "a validation is not done twice"
    resumed = train(small, out=tmp_path / "broken", config=settings, resume=True)
    names = ("policy.safetensors", "last.safetensors", "metrics.jsonl")
    assert content(resumed, *names) == content(whole, *names)
    assert resumed.manifest["selected"] == whole.manifest["selected"]


def test_out_of_patience_and_killed_before_the_end_was_written(small, tmp_path, monkeypatch):
    """The checkpoint of the last validation knows that it was the last."""
    monkeypatch.setattr(
        "localpolicy.training.trainer.selection_score", lambda select, figures: 1.0
    )  # none is better than the first
    settings = config(epochs=9, patience=2, validate_every=4)
    whole = train(small, out=tmp_path / "whole", config=settings)
    assert whole.manifest["steps"] % BATCHES, "it ended within an epoch"

    def dies(self, done, seconds):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "_finish", dies)
        train(small, out=tmp_path / "broken", config=settings)
    resumed = train(small, out=tmp_path / "broken", config=settings, resume=True)
    assert content(resumed, "policy.safetensors", "last.safetensors", "metrics.jsonl") == content(
        whole, "policy.safetensors", "last.safetensors", "metrics.jsonl"
    )


# ---------------------------------------------------------------------- messages meanwhile


def test_one_line_per_epoch_where_there_is_no_terminal(small, tmp_path, messages):
    run = train(small, out=tmp_path / "run", config=config(validate_every=2))
    said = messages("localpolicy.training.epochs")
    assert len(said) == 2
    first = run.metrics()[2]
    assert first["step"] == BATCHES
    for text in ("epoch 1 of 2", f"policy {first['losses']['policy']:.4f}", f"td {first['losses']['td']:.4f}",
                 f"effective sample {first['weights']['effective_share']:.0%}", "sequences/s", "left"):  # fmt: skip
        assert text in said[0], text
    assert "0:00:00 left" in said[1]


def test_the_bar_asks_for_a_note_twice_a_second_at_most(small, tmp_path, monkeypatch):
    from localpolicy.runtime import progress
    from localpolicy.training import display

    notes = []
    note = display.Display.note
    monkeypatch.setattr(display.Display, "note", lambda *given: notes.append(note(*given)) or notes[-1])
    train(small, out=tmp_path / "plain", config=config())
    assert notes == [], "without a terminal nothing waits for the device"
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    train(small, out=tmp_path / "bar", config=config(epochs=1))
    assert 1 <= len(notes) < BATCHES
    assert "epoch 1  loss policy" in notes[0]
    assert "effective sample" in notes[0] and "sequences/s" in notes[0]


# ---------------------------------------------------------------------- TensorBoard


def events(folder):
    """(step, value) of every scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_events_say_what_the_metrics_say_and_nothing_twice(small, tmp_path):
    pytest.importorskip("tensorboard")
    settings = config(validate_every=4, tensorboard=True)
    train_until(8, small, out=tmp_path / "run", config=settings)
    # Two lines from a future that the checkpoint does not know.
    newest = max((tmp_path / "run" / "checkpoint").glob("step-*.json"), key=lambda path: int(path.stem[5:]))
    newest.unlink()
    run = train(small, out=tmp_path / "run", config=settings, resume=True)
    found, lines = events(run.folder), run.metrics()
    assert [step for step, _ in found["losses/policy"]] == [4, 6, 8, 12]
    for tag, values in found.items():
        group, _, name = tag.partition("/")
        for line, (step, value) in zip(lines, values, strict=True):
            name = name.replace("_at_", "@")
            expected = line["selected_by"] if name == "selected_by" else line[group][name]
            assert (step, value) == (line["step"], pytest.approx(expected, rel=1e-6)), tag
    assert {"losses/td", "weights/effective_share", "validation/click.nDCG_at_20"} <= set(found)


def test_events_change_nothing_and_may_be_wanted_later(small, tmp_path):
    pytest.importorskip("tensorboard")
    settings = config(checkpoint_every=2)
    whole = train(small, out=tmp_path / "whole", config=settings)
    assert not (whole.folder / "tensorboard").exists()
    train_until(7, small, out=tmp_path / "run", config=settings)
    run = train(small, out=tmp_path / "run", config=config(checkpoint_every=2, tensorboard=True), resume=True)
    assert content(run, "policy.safetensors", "metrics.jsonl") == content(whole, "policy.safetensors", "metrics.jsonl")
    assert len(events(run.folder)["losses/policy"]) == 2


def test_a_missing_extra_is_refused_before_anything_is_replaced(small, tmp_path, monkeypatch):
    from localpolicy.errors import ConfigError

    run = train(small, out=tmp_path / "run", config=config())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'localpolicy\[track\]'"):
        train(small, out=tmp_path / "run", config=config(tensorboard=True), force=True)
    assert Run(run.folder).finished


def test_a_long_run_says_so_first(monkeypatch):
    from localpolicy.training import display as module
    from localpolicy.training.checkpoint import Progress

    clock = iter([0.0, *(2.0 * step for step in range(1, 9))])  # each step takes two seconds
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    shown = module.Display(Progress(), sequences=1600, batch_size=4, epochs=200, patience=4)
    said = [shown.forecast(Progress(step=step)) for step in range(1, 9)]
    assert said[:4] == [None] * 4 and said[5:] == [None] * 3, "by steps 4 and 5, and once"
    assert "an epoch takes about 0:13:20 here: 5 to 200 epochs, until 4 bring nothing better" in said[4]
    assert "1:06:40 to 44:26:40" in said[4]
    clock = iter([0.0, *(2.0 * step for step in range(1, 9))])
    fixed = module.Display(Progress(), sequences=1600, batch_size=4, epochs=3, patience=12)
    (text,) = filter(None, (fixed.forecast(Progress(step=step)) for step in range(1, 9)))
    assert "here: 3 epochs, so 0:40:00 (h:mm:ss)" in text, "no range from 3 to 3 epochs"
    clock = iter([0.0, *(2.0 * step for step in range(1, 9))])
    short = module.Display(Progress(), sequences=100, batch_size=4, epochs=200, patience=4)
    assert [short.forecast(Progress(step=step)) for step in range(1, 9)] == [None] * 8


def test_sequences_are_counted_over_uneven_batches(tmp_path):
    from localpolicy.training.checkpoint import Progress
    from localpolicy.training.display import Display

    display = Display(Progress(), sequences=103, batch_size=16, epochs=3)
    assert display._seen(Progress(epoch=1, batch=2)) == 103 + 32
    assert display._seen(Progress(epoch=1, batch=7)) == 206, "the last batch is smaller"
    assert write_small(tmp_path / "x", sequences=129)["train"].offsets.shape == (104,)
