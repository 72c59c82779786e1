"""`lpi paper` stays the paper's, whatever our own defaults become: the settings that decide its tables, spelled out."""

from __future__ import annotations

import pytest

from localpolicy.errors import ConfigError
from localpolicy.reproduction.paper import paper
from localpolicy.reproduction.recipe import BANDIT, OBSERVED, OURS, POLICIES, SELECT, Recipe
from localpolicy.reproduction.settings import WHAT, PaperConfig
from localpolicy.runs.config import Config
from localpolicy.study.settings import NO_POINT, Point

WEIGHTED = {"cap": 20.0, "baseline": "expected", "td_weight": 1.0, "logging": "head"}


def resolved(config):
    found = config.model_dump()
    return {group: found[group] for group in ("data", "model", "train")}, found["objective"]


@pytest.mark.parametrize("objective", POLICIES)
def test_clicks_and_purchases_are_trained_as_in_the_paper(objective):
    settings, _ = resolved(Recipe().config(objective, Point(), 3))
    assert settings["data"] == {"length": 20, "last": None}
    model = settings["model"]
    assert {key: model[key] for key in ("backbone", "blocks", "heads", "width", "dropout", "tied")} == {
        "backbone": "sasrec", "blocks": 1, "heads": 1, "width": 64, "dropout": 0.1, "tied": False,
    }  # fmt: skip
    train = settings["train"]
    assert (train["batch_size"], train["epochs"], train["learning_rate"], train["seed"]) == (256, 20, 1e-3, 3)
    assert (train["select"], train["patience"], train["min_history"]) == (SELECT, None, 0)


def test_lpi_is_weighted_cross_entropy_towards_the_largest_q():
    _, found = resolved(Recipe().config("lpi_rl", Point(), 0))
    for key, value in {**WEIGHTED, "name": "lpi_rl_weighted", "target": "max", "advantage": "td", "gamma": 0.5}.items():
        assert found[key] == value, key


def test_ratings_are_trained_as_in_the_paper():
    settings, found = resolved(BANDIT.config("lpi_cb", BANDIT.points("lpi_cb")[1], 0))
    for key, value in {**WEIGHTED, "name": "lpi_cb_weighted", "advantage": "direct", "beta": 0.1}.items():
        assert found[key] == value, key
    assert settings["data"] == {"length": 200, "last": 50}
    assert settings["model"]["tied"] is False
    assert (settings["train"]["select"], settings["train"]["patience"], settings["train"]["epochs"]) == (
        "AR@1",
        None,
        30,
    )


@pytest.mark.parametrize("fast", [False, True])
def test_how_much_is_trained_by_default(fast, monkeypatch, tmp_path):
    """Figures have one seed, and finer grids than the table."""
    monkeypatch.setattr("localpolicy.reproduction.paper.studies", lambda config, out, what: [])
    monkeypatch.setattr("localpolicy.reproduction.paper.made", lambda what, recipe, studies, out: recipe)
    found = {what: paper(what, out=tmp_path, fast=fast) for what in WHAT if what != "table2"}
    seeds = {"table3": 5, "figure-breakdown": 5, "table1": 5, "figure-beta": 1, "figure-lambda": 1}
    assert {what: recipe.seeds for what, recipe in found.items()} == (dict.fromkeys(found, 1) if fast else seeds)
    assert found["figure-beta"].betas == (0.03, 0.1, 0.3, 1.0, 3.0)
    assert found["figure-lambda"].lambdas == (0.1, 0.3, 1.0, 3.0, 10.0)
    assert found["table1"].betas == (0.001, 0.1, 1.0, 1000.0)
    assert found["table3"].betas == ((0.3, 1.0) if fast else (0.5, 2.0))
    assert found["table3"].lambdas == ((1.0,) if fast else (0.1, 0.3, 1.0, 3.0))
    assert found["figure-breakdown"].policies == ("sqn", "sac", "lpi_rl")


def test_our_network_follows_the_log_and_has_observed_weights_as_a_further_policy():
    """Its rule for epochs and its positions are the paper's; nothing else of the preset is."""
    recipe = Recipe.of(PaperConfig(network="ours", device="cpu"))
    assert recipe.policies == (*POLICIES, *OBSERVED) and Recipe.of(PaperConfig()).policies == tuple(POLICIES)
    for objective in recipe.policies:
        config = recipe.config(objective, NO_POINT, 3)
        assert config.model == Config().model and config.data == Config().data
        given = {"select": SELECT, "min_history": 0, "seed": 3, "device": "cpu"}
        assert config.train == Config().train.model_copy(update=given)
    assert [point.name for point in recipe.points("lpi_observed")] == ["beta=0.8", "beta=1.5", "beta=3", "beta=6"]
    told = Recipe.of(PaperConfig(network="ours", betas="2"))
    assert [point.name for point in told.points("lpi_observed")] == ["beta=2"]
    assert recipe.config("lpi_observed_td", NO_POINT, 0).objective.td_weight == 1
    assert {objective: len(recipe.points(objective)) for objective in recipe.policies} == dict.fromkeys(
        recipe.policies, 4
    ), "equal tuning"
    assert {name: len(recipe.points(name)) for name in OURS} == dict.fromkeys(OURS, 1)
    assert recipe.config("mle", recipe.points("mle")[0], 0).train.learning_rate == recipe.rates[0]
    assert [point.name for point in Recipe.of(PaperConfig(rates="0.01")).points("pg")] == ["learning_rate=0.01"]
    with pytest.raises(ConfigError, match="its rows are of the paper's network"):
        Recipe.of(PaperConfig(network="ours", ours=True))
