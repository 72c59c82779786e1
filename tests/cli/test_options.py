"""The command line is made from the settings: an option is a field of a settings class, and a field is an option."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import get_args

import pytest
import typer
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

import localpolicy
from localpolicy.cli import main
from localpolicy.cli.data import prepare
from localpolicy.cli.evaluate import MEASURED, gate
from localpolicy.cli.options import Fields, _option, complete
from localpolicy.cli.studies import PAPER, loop, sweep
from localpolicy.cli.train import train
from localpolicy.data.config import PrepareConfig, PrepareOptions, WindowConfig
from localpolicy.data.prepare import prepare as prepare_log
from localpolicy.errors import ConfigError, RunError
from localpolicy.judge.rules import GateRules
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.model.config import ModelConfig
from localpolicy.objectives import OBJECTIVES
from localpolicy.objectives.distill import Distill
from localpolicy.reproduction.settings import WHAT, PaperConfig, paper_config
from localpolicy.runs.config import TrainConfig
from localpolicy.serving.config import ServeConfig
from localpolicy.study.settings import SweepConfig
from localpolicy.worlds.scenarios import LoopConfig, LoopOptions

# What is about the command itself: what it reads, where results go, how it is run.
FILES = {"out", "json", "markdown", "latex", "data", "rules", "config", "device"}
RUN = {"preset", "changes", "processes", "resume", "resume_older", "print_config", "force", "objective"}
SETTINGS = {
    "prepare": (prepare, {"source", "paths"} | FILES, [PrepareConfig, PrepareOptions]),
    "train": (train, FILES | RUN, [TrainConfig, ModelConfig, WindowConfig, *OBJECTIVES.values()]),
    "sweep": (sweep, FILES | {"preset", "changes", "objective", "epochs"}, [SweepConfig]),
    "loop": (loop, FILES | {"world"}, [LoopConfig, LoopOptions]),
    "gate": (gate, {"run", "against", "beta", "why"} | FILES, [GateRules]),
}


def parameters(verb):
    (command,) = [typer.main.get_command(app_of(verb))]
    return {one.name: one for one in command.params}


def app_of(verb):
    app = typer.Typer(add_completion=False)
    app.command()(complete(verb))
    return app


@pytest.mark.parametrize("name", SETTINGS)
def test_every_option_is_a_field_and_every_field_an_option(name):
    verb, own, classes = SETTINGS[name]
    fields = {key: field for one in reversed(classes) for key, field in one.model_fields.items()}
    plain = {key for key, field in fields.items() if not hasattr(field.annotation, "model_fields")}
    measured = set(MEASURED) if name == "gate" else set()  # of EvaluateConfig
    found = parameters(verb)
    assert found.keys() - own - measured == plain - own
    for key in plain - own:
        assert found[key].help.startswith(fields[key].description), key


@pytest.mark.parametrize("name", SETTINGS)
def test_no_verb_declares_a_setting_twice(name):
    verb, own, _ = SETTINGS[name]
    assert set(inspect.signature(verb).parameters) <= own


@pytest.mark.parametrize(
    ("verb", "name", "home"),
    [
        ("compare", "metrics", EvaluateConfig),
        ("recommend", "exclude_seen", EvaluateConfig),
        ("sweep", "exclude_seen", EvaluateConfig),
        ("go", "exclude_seen", EvaluateConfig),
        ("evaluate", "device", TrainConfig),
        ("compare", "device", TrainConfig),
        ("gate", "device", TrainConfig),
        ("go", "device", TrainConfig),
        ("train", "device", TrainConfig),
        ("distill", "beta", Distill),
        ("serve", "log", ServeConfig),
    ],
)
def test_an_option_has_the_words_of_the_setting_of_its_name(verb, name, home):
    assert parameters(main.VERBS[verb])[name].help.startswith(home.model_fields[name].description)


def test_replacing_a_folder_has_one_text():
    forced = [found["force"].help for verb in main.VERBS.values() if "force" in (found := parameters(verb))]
    assert len(forced) > 5 and set(forced) == {"replace the folder"}


def test_options_of_a_sweep_and_a_loop_keep_their_names():
    """A field that is a list has an option that may be repeated; one that has no default is required."""
    options = {name: {each for one in parameters(verb).values() for each in one.opts} for name, verb in (
        ("sweep", sweep), ("loop", loop))}  # fmt: skip
    assert options["sweep"] >= {"--over", "--seeds", "--max-js", "--against", "--trials", "--set", "--epochs"}
    assert options["loop"] >= {"--beta", "--dial", "--set", "--rounds", "--processes", "--objectives"}
    assert [one.name for one in parameters(sweep).values() if one.required] == ["data", "objective", "out", "over"]
    assert [one.name for one in parameters(loop).values() if one.required] == ["world", "out"]


@pytest.mark.parametrize("what", WHAT)
def test_every_setting_of_a_table_of_the_paper_is_an_option(what):
    assert parameters(PAPER[what]).keys() == {"out", *WHAT[what]}


def test_every_setting_of_the_paper_is_used_somewhere():
    assert {name for names in WHAT.values() for name in names} == PaperConfig.model_fields.keys()
    assert WHAT.keys() == PAPER.keys()
    with pytest.raises(ConfigError, match=r"lambdas: figure-beta does not use it \(used by table3, figure-lambda"):
        paper_config("figure-beta", {"lambdas": "1"})


def test_every_verb_is_a_public_name_of_python():
    """A verb with verbs of its own is a module: lp.rollout.plan."""
    (group,) = [typer.main.get_command(main.app)]
    assert {name.replace("-", "_") for name in group.commands} <= set(localpolicy.__all__)


def test_doctor_and_verify_return_results_in_python(tmp_path):
    found = localpolicy.doctor()
    assert found.healthy and found.to_dict()["torch"]["state"] == "found" and "torch" in str(found)
    with pytest.raises(RunError, match=r"has no manifest.json"):
        localpolicy.verify(tmp_path)


def test_options_of_prepare_have_the_defaults_of_the_function():
    given = inspect.signature(prepare_log).parameters
    for name, field in PrepareOptions.model_fields.items():
        assert given[name].default == field.default, name


def test_help_shows_them_and_they_reach_the_settings():
    run = CliRunner()
    shown = run.invoke(main.app, ["train", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    assert "--batch-size" in shown and "--critic-rate" in shown and "--width" in shown
    words = ["train", "x", "--objective", "lpi_rl", "--width", "8", "--patience", "3", "--no-capture", "--print-config"]
    printed = run.invoke(main.app, words).stdout
    assert "width: 8" in printed and "patience: 3" in printed and "capture: false" in printed


def test_a_number_that_may_be_a_word_is_read_as_text():
    options = Fields("localpolicy.runs.config:TrainConfig").found()
    assert get_args(_option("epochs", FieldInfo(annotation=int, default="auto"), Fields("")))[0] == str | None
    assert get_args(_option("validate_every", options["validate_every"], Fields("")))[0] == int | None


def test_the_environment_may_state_where_to_serve(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr("localpolicy.serving.service.serve", lambda run, **options: given.update(options))
    words = ["serve", str(tmp_path), "--share", "0.5"]
    assert CliRunner().invoke(main.app, words, env={"LPI_PORT": "0", "LPI_SHARE": "0.1"}).exit_code == 0
    assert (given["port"], given["share"]) == (0, 0.5) and "host" not in given, "what is not stated is the setting's"


def test_the_list_of_verbs_needs_no_settings():
    code = (
        "import sys; from typer.testing import CliRunner; from localpolicy.cli.main import app\n"
        "assert 'prepare' in CliRunner().invoke(app, ['--help']).stdout\n"
        "import json; print(json.dumps([name for name in ('torch', 'pydantic', 'duckdb') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_help_of_verbs_needs_no_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from localpolicy.cli.main import PAPER, VERBS, app\n"
        "verbs = [[name] for name in VERBS]\n"
        "verbs += [['paper', name] for name in PAPER]\n"
        "verbs += [['paper'], ['rollout'], ['rollout', 'plan'], ['rollout', 'judge'], ['explore', 'plan']]\n"
        "for verb in verbs:\n"
        "    assert CliRunner().invoke(app, [*verb, '--help']).exit_code == 0, verb\n"
        "    assert 'torch' not in sys.modules, verb\n"
        "print(len(verbs))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 27
