"""Every setting says what it is, and docs/settings.md says the same."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import warnings
from pathlib import Path

import pytest

import localpolicy
from localpolicy.errors import ConfigError
from localpolicy.runs.config import Config
from localpolicy.serving.rollout import RolloutRules
from localpolicy.settings import Settings

ROOT = Path(__file__).parents[1]


def settings_page():
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "tools" / "settings_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_model(base=Settings):
    """All models of the package, wherever they are."""
    for found in pkgutil.walk_packages(localpolicy.__path__, "localpolicy."):
        kernels = "kernel" in found.name and importlib.util.find_spec("triton") is None  # they import Triton
        if not found.name.endswith("__main__") and not kernels:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # MLflow's, of type hints of its own
                importlib.import_module(found.name)
    found = [base]
    for model in found:
        found += model.__subclasses__()
    return [model for model in found if model.__module__.startswith("localpolicy.") and model is not Settings]


def test_every_field_is_described():
    models = every_model()
    assert len(models) >= 13
    bare = [f"{model.__name__}.{name}" for model in models for name, field in model.model_fields.items()
            if not field.description or len(field.description) < 3]  # fmt: skip
    assert bare == []


def test_the_page_is_up_to_date():
    page = settings_page()
    assert page.PAGE.read_text() == page.page(), "run `make docs`"


def test_the_page_says_what_the_models_say():
    """By hand, so that the writer itself is tested."""
    text = settings_page().page()
    for line in (
        "| `train.learning_rate` | `0.001` | Adam's step size |",
        "| `model.width` | `auto` | size of embeddings and hidden states; auto: 128 |",
        "| `data.last` | – | score only the last m actions of a window (default: all) |",
        "| `time_unit` | `auto` | of times that are numbers (`auto`, `s`, `ms`, `us`, `ns`) |",
        "| `objective.td_weight` | `sqn`, `sac` | `1` | λ: weight of the TD loss |",
    ):
        assert line in text
    assert "### objective: what is maximised" in text


def test_true_is_no_number():
    """YAML reads `yes` as true, and Python would take it for 1."""
    for field, value in (("units", True), ("alpha", False), ("largest_reward", True)):
        with pytest.raises(ConfigError, match=f"{field}: expected a .*number, got {value}"):
            RolloutRules.parse({field: value})
    assert RolloutRules.parse({"units": 1}).units == 1


def test_a_number_is_no_truth():
    """Pydantic takes 0, `f` and `off` for false: a slip of the keyboard would turn a setting off."""
    for value in (0, 1.0, "f", "off", "1"):
        with pytest.raises(ConfigError, match="train.tensorboard: expected true or false, got "):
            Config.parse({"train": {"tensorboard": value}})
    for value, found in ((True, True), ("False", False)):
        assert Config.parse({"train": {"tensorboard": value}}).train.tensorboard is found
