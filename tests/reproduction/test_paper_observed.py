"""LPI by observed weights in Table 3: a row of its own, its claims, and purchases against clicks at every β."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from shop_logs import from_markdown, write_shop

from localpolicy.measure.estimate import Estimate
from localpolicy.measure.significance import paired
from localpolicy.reproduction.data_sets import DataSet
from localpolicy.reproduction.recipe import CURVES, Recipe
from localpolicy.reproduction.table3 import choices, findings, frontier, main_table, table3_tables
from localpolicy.reproduction.tables import even_point, label_of, table3
from localpolicy.study.arms import Study
from localpolicy.study.measured import Pooled

SMALL = ("train.epochs=2", "model.width=8", "train.batch_size=16", "train.learning_rate=0.01", "train.patience=null")
RECIPE = Recipe(
    mild=(0.5, 3.0), lambdas=(1.0,), rates=(), seeds=2, changes=SMALL, device="cpu", network="ours",
    policies=("mle", "sqn", "sac", "lpi_observed", "lpi_observed_dial"),
)  # fmt: skip
SEEN = ("purchase.nDCG@20", "click.nDCG@20")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("observed")
    data = DataSet("shop", write_shop(folder / "data"), "events", original=False)
    return table3(data, Study(data.data, folder / "out", processes=1), RECIPE)


def test_it_has_a_row_and_a_grid(table):
    row = table.row("lpi_observed")
    assert row in table.rows and len(row.seeds) == 2
    assert [tried.point.name for tried in row.grid] == ["beta=0.5", "beta=3"]
    assert label_of(row) in from_markdown(main_table(table).markdown(), "Table 3: shop")
    assert {seed.record["config"]["objective"]["form"] for seed in row.seeds} == {"exponential"}
    assert len(choices(table).body) == 2 + 2 + 1 + 1 + 1, "two β each, one λ each, and μ̂"
    json.dumps(table.to_dict(), allow_nan=False)


def test_purchases_against_clicks_has_every_beta_and_every_rival(table):
    found = {each.name: each for each in table.frontier}
    row, base = table.row("lpi_observed"), table.row("mle")
    other = next(tried for tried in row.grid if tried.point != row.point)
    dial = {"LPI, observed, as a dial (β=0.5)", "LPI, observed, as a dial (β=3)"}
    weights = {label_of(row), f"LPI, observed ({other.name.replace('beta', 'β')})"}
    assert set(found) == {*weights, *dial, "SQN (λ=1)", "SAC (λ=1)"}
    for name in SEEN:
        whole = paired(row.values(name)[0], *base.values(name))
        assert found[label_of(row)].gains[name].difference == pytest.approx(whole.difference)
        beside = next(each for each in table.curves["lpi_observed"] if each.point == other.point)
        assert [seed.seed for seed in beside.seeds] == [0, 1], "every point is trained with every seed"
        alone = paired(beside.values(name)[0], *base.values(name))
        there = found[f"LPI, observed ({other.name.replace('beta', 'β')})"].gains[name]
        assert there.difference == pytest.approx(alone.difference)
    shown = from_markdown(frontier(table).markdown(), "Purchases against clicks")
    assert {name: cells[-1] == "yes" for name, cells in shown.items()} == {
        name: not each.beaten_by for name, each in found.items()
    }
    assert "frontier" in table.to_dict() and len(table3_tables(table)) == 4
    assert replace(table, rows=[row]).frontier == [], "without μ̂ there is nothing to gain over"


def of_validation(purchase: float, click: float) -> Pooled:
    """A point of a grid with these figures on the validation split."""

    class Known(Pooled):
        good = ("a seed",)

        def estimate(self, name, split="test"):
            assert split == "validation"
            return Estimate(purchase if name == SEEN[0] else click, 0.01, 10, 0.01)

    return Known("", [])


def test_the_even_point_is_the_largest_in_purchases_among_those_no_lower_in_clicks():
    grid = [of_validation(0.5, 0.10), of_validation(0.4, 0.14), of_validation(0.45, 0.15), of_validation(0.3, 0.2)]
    assert even_point(grid, of_validation(0.2, 0.14)) is grid[2]
    assert even_point(grid, of_validation(0.2, 0.16)) is grid[3]
    assert even_point(grid, of_validation(0.9, 0.3)) is None


@pytest.mark.parametrize("curve", list(CURVES))
def test_a_point_that_gives_away_no_clicks_has_a_row(table, curve):
    """Unless the rule chose that point itself."""
    row, even = table.row(curve), table.row(CURVES[curve])
    kept = even_point(table.curves[curve], table.row("sac"))
    assert (even is None) == (kept is None or kept.point == row.point)
    if even is not None:
        assert even.point == kept.point and even.seeds == kept.seeds and even in table.rows


def moved(table, purchase: float, click: float):
    """The same table, its observed row being μ̂'s with these additions to ranks' metrics."""

    class Moved(Pooled):
        def values(self, name):
            values, sequence = table.row("mle").values(name)
            return values + (purchase if name.startswith("purchase") else click), sequence

    known = {key: Pooled(key, table.row("mle").seeds, key=key) for key in ("mle", "sqn", "sac")}
    rows = [*known.values(), Moved("LPI, observed", table.row("mle").seeds, key="lpi_observed")]
    return replace(table, rows=rows)


@pytest.mark.parametrize(("purchase", "click", "holds"), [
    (0.1, 0.0, [True, True]),
    (0.1, 0.01, [True, True]),
    (0.0, 0.0, [None, True]),
    (0.1, -0.1, [True, False]),
    (-0.1, 0.01, [False, True]),
], ids=str)  # fmt: skip
def test_its_claim_is_more_purchases_at_no_fewer_clicks(table, purchase, click, holds):
    claims = [claim for claim in findings(moved(table, purchase, click)) if claim.claim.startswith("LPI, observed")]
    assert [claim.holds for claim in claims] == holds
    assert [claim.figure for claim in claims] == list(SEEN)
    absent = replace(table, rows=[row for row in table.rows if not row.key.startswith("lpi_observed")])
    assert not [claim for claim in findings(absent) if claim.claim.startswith("LPI, observed")]


def test_all_points_of_the_dial_are_read_from_the_same_two_networks(table):
    """At β = 0.5 it goes beyond the end, at β = 3 a third of the way."""
    records = {
        (point.point.name, seed.seed): seed.record
        for point in table.curves["lpi_observed_dial"]
        for seed in point.seeds
    }
    assert set(records) == {(name, seed) for name in ("beta=0.5", "beta=3") for seed in (0, 1)}
    for seed in (0, 1):
        far, near = (records[name, seed]["run"] for name in ("beta=0.5", "beta=3"))
        assert far["stages"] == near["stages"] and set(far["stages"]) == {"logging", "end"}
        assert far["improvement"]["beta"] == 0.5 and near["improvement"]["beta"] == 3.0
    js = {name: records[name, 0]["validation"]["divergence"]["js"]["mean"] for name in ("beta=0.5", "beta=3")}
    assert js["beta=0.5"] > js["beta=3"]
