"""The paper's tables: made in pieces, without weights, chosen on validation, as in the JSON."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from measured import holm
from scipy import stats
from shop_logs import from_markdown, measured, write_shop
from small_logs import write_small

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError, DataError, RunError, TrainingError
from localpolicy.measure.estimate import mean_estimate
from localpolicy.measure.metrics import metric
from localpolicy.measure.significance import paired
from localpolicy.measure.truth import true_value
from localpolicy.report.page import MISSING, tables_page
from localpolicy.reproduction.data_sets import DataSet, data_sets
from localpolicy.reproduction.paper import breakdown_tables, dial_tables, draw, table1_tables, table2_table
from localpolicy.reproduction.paper import made as made_and_written
from localpolicy.reproduction.recipe import BANDIT, METRICS, POLICIES, SELECT, Recipe
from localpolicy.reproduction.settings import PaperConfig
from localpolicy.reproduction.table3 import choices, findings, main_table, table3_tables
from localpolicy.reproduction.tables import best_of, dial_figure, label_of, table1, table3
from localpolicy.runs.run import Run
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.study.arms import Study
from localpolicy.training.train import training

SMALL = ("train.epochs=2", "model.width=8", "train.batch_size=16", "train.learning_rate=0.01")
RECIPE = Recipe(
    betas=(0.1, 1.0), lambdas=(1.0,), lambdas_by_beta=(1.0,), rates=(), seeds=2, changes=SMALL, device="cpu"
)


def study(data, out, **options):
    return Study(data.data, out, processes=1, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table3")
    data = DataSet("shop", write_shop(folder / "data"), "retailrocket", original=False)
    return folder, data, table3(data, study(data, folder / "out"), RECIPE)


def test_every_policy_of_the_paper_has_its_row(made):
    _, _, table = made
    assert [row.key for row in table.rows] == list(POLICIES)
    assert [len(row.seeds) for row in table.rows] == [2] * 7
    assert [point.name for point in table.row("lpi_rl").grid] == ["beta=0.1 td_weight=1", "beta=1 td_weight=1"]


def test_the_recipe_is_the_papers(made):
    _, _, table = made
    config = Recipe().config("lpi_rl", Recipe().points("lpi_rl")[0], 0)
    assert (config.data.length, config.model.width, config.model.blocks, config.model.heads) == (20, 64, 1, 1)
    assert (config.train.batch_size, config.train.epochs, config.train.min_history) == (256, 20, 0)
    for row in table.rows:
        for one in row.seeds:
            assert one.record["config"]["train"]["select"] == SELECT
            assert one.record["test"]["settings"]["min_history"] == 0
            assert [each["seed"] for each in one.record["against"]] == [101, 102]


def test_points_are_chosen_on_validation_with_one_seed(made):
    _, _, table = made
    row = table.row("lpi_rl")
    selection_score = {one.name: one.selection_score for one in row.grid}
    assert row.point.name == max(selection_score, key=selection_score.get)
    assert [[seed.seed for seed in one.seeds] for one in row.grid] == [[0], [0]]
    assert all("seed=0" in one.seeds[0].name for one in row.grid)


def test_figures_are_means_over_seeds_of_what_was_measured(made):
    _, _, table = made
    row = table.row("sqn")
    name = "purchase.nDCG@20"
    each = [one.record["test"]["metrics"]["purchase"]["nDCG@20"]["mean"] for one in row.seeds]
    assert row.estimate(name).mean == pytest.approx(np.mean(each))
    lines = table.to_dict()["measurements"]
    mine = [line for line in lines if (line["policy"], line["group"], line["figure"]) == ("sqn", "purchase", "nDCG@20")]
    assert [(line["seed"], line["mean"]) for line in mine[1:]] == list(enumerate(each)) and mine[0]["seed"] is None
    assert all(line["split"] == "test" for line in lines)
    js = [one.record["test"]["divergence"]["js"]["mean"] for one in row.seeds]
    assert row.estimate("JS").mean == pytest.approx(np.mean(js), rel=1e-5)
    # Kept positions are enough to find every figure of each seed again.
    scores = row.seeds[1].scores
    here = scores.event == scores.events.index("purchase")
    found = mean_estimate(metric("nDCG@20")(scores.rank[here]), scores.sequence[here])
    there = row.seeds[1].record["test"]["metrics"]["purchase"]["nDCG@20"]
    assert (found.mean, found.se, found.plain_se) == pytest.approx((there["mean"], there["se"], there["plain_se"]))


def test_stars_are_tests_of_the_two_best_on_the_same_positions(made):
    _, _, table = made
    for name in METRICS:
        order = sorted(table.rows, key=lambda row: -row.estimate(name).mean)
        lead = table.leads[name]
        assert (lead.best, lead.second) == (order[0].name, order[1].name)
        test = paired(order[0].values(name)[0], *order[1].values(name))
        assert lead.test.p == pytest.approx(test.p, nan_ok=True)
        assert lead.test.holm_p >= lead.test.p


def test_the_table_says_what_the_json_says(made):
    _, _, table = made
    content = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    rows = from_markdown(main_table(table).markdown(), "Table 3: shop")
    for row in table.rows:
        cells = rows[label_of(row)]
        for cell, name in zip(cells, METRICS, strict=False):
            there = measured(content, row.key, name)
            assert float(cell.rstrip("*")) == pytest.approx(there, abs=5e-4), (row.key, name)
        assert float(cells[12]) == pytest.approx(measured(content, row.key, "JS"), abs=5e-4)
    grid = from_markdown(choices(table).markdown(), "How the points")
    assert float(grid["SQN"][1]) == pytest.approx(
        content["policies"]["sqn"]["grid"]["td_weight=1"]["validation"], abs=5e-5
    )
    latex = main_table(table).latex()
    assert latex.count(r"\\") == 2 + 2 * 7 - 1  # a heading and two lines per policy
    page = tables_page(table3_tables(table), title="Table 3")
    assert page.count("<table") == 4
    assert "published" in page


def test_bold_is_what_is_shown_as_best(made):
    _, _, table = made
    own = [row for row in main_table(table).body if not row[0].text.startswith("  ")]
    for place in range(1, 13):
        largest = max(row[place].text for row in own)
        assert [row[place].best for row in own] == [row[place].text == largest for row in own]
    assert not any(row[13].best for row in own), "a distance is no merit"
    chosen = [(row[0].text, row[1].text) for row in choices(table).body if row[-1].text == "chosen"]
    assert ("LPI", table.row("lpi_rl").point.name) in chosen and len(chosen) == len(table.rows)


def test_claims_are_judged_by_the_figures(made):
    _, _, table = made
    found = {one.claim: one for one in findings(table)}
    lpi = found["LPI outperforms SQN, SAC in nDCG@20"]
    gains = [
        paired(table.row("lpi_rl").values(name)[0], *table.row(other).values(name))
        for other in ("sqn", "sac")
        for name in ("purchase.nDCG@20", "click.nDCG@20")
    ]
    sure = [p < 0.05 for p in holm([test.p for test in gains])]
    if any(here and test.difference < 0 for here, test in zip(sure, gains, strict=True)):
        assert lpi.holds is False
    else:
        assert lpi.holds is (True if all(sure) else None)
    assert f"{min(test.difference for test in gains):+.4f}" in lpi.because
    most = next(one for claim, one in found.items() if claim.startswith("LPI has the largest"))
    won = sum(lead.best == "LPI" for lead in table.leads.values())
    assert most.holds == (won > 6) and most.because.startswith(f"{won} of 12")
    worst = next(one for claim, one in found.items() if claim.startswith("IPS-PG"))
    lowest = [min(table.rows, key=lambda row: row.estimate(name).mean).key for name in METRICS].count("ips_pg")
    furthest = max(table.rows, key=lambda row: row.estimate("JS").mean)
    assert worst.holds == (lowest == 12 and furthest.key == "ips_pg")
    said = f"lowest in {lowest} of 12 columns; furthest: {furthest.name} at JS {furthest.estimate('JS').mean:.3f}"
    assert worst.because == said
    far = next(one for claim, one in found.items() if "another seed" in claim)
    floor = table.floor["test"]
    distances = [row.estimate("JS") for row in table.rows[1:]]
    beyond = [js for js in distances if js.mean - 1.96 * js.se > floor.mean + 1.96 * floor.se]
    assert far.holds == (len(beyond) == 6)
    # What a claim speaks of must be there.
    some = replace(table, rows=table.rows[:3])
    assert [one.holds for one in findings(some)[:4]] == [None] * 4


def test_published_figures_are_context_unless_the_data_is_the_papers(made):
    _, data, table = made
    assert table.distance("sqn", "purchase.HR@5") is None
    note = main_table(table).note
    assert "means nothing" in note
    assert "difference / s.e." not in main_table(table).markdown()
    original = replace(table, data=replace(data, original=True))
    ours = table.row("sqn").estimate("purchase.HR@5")
    expected = (ours.mean - 0.663) / np.hypot(ours.plain_se, 0.007)
    assert original.distance("sqn", "purchase.HR@5") == pytest.approx(expected)
    shown = from_markdown(main_table(original).markdown(), "Table 3: shop")
    assert float(shown["difference / s.e.#4"][0]) == pytest.approx(expected, abs=0.05)
    assert "means nothing" not in main_table(original).note


def test_pieces_without_weights_give_the_same_table(made, tmp_path, messages):
    """Some policies first, weights thrown away, figures carried to another place, the rest there."""
    _, data, whole = made
    first = study(data, tmp_path / "here", keep="figures")
    part = table3(data, first, replace(RECIPE, policies=("mle", "sqn")))
    assert [row.key for row in part.rows] == ["mle", "sqn"]
    left = sorted(path.name for path in (tmp_path / "here" / "runs").iterdir())
    assert left == ["mle-seed=101", "mle-seed=102"]  # references are needed again
    shutil.copytree(tmp_path / "here" / "figures", tmp_path / "there" / "figures")
    before = len(messages("localpolicy.study.arms"))
    second = table3(data, study(data, tmp_path / "there", keep="figures"), RECIPE)
    said = messages("localpolicy.study.arms")[before:]
    assert said.count("references first: mle-seed=101, mle-seed=102") == 1
    mine, theirs = second.to_dict(), whole.to_dict()
    for content in (mine, theirs):
        for seed in (seed for row in content["policies"].values() for seed in row["seeds"]):
            del seed["seconds"]
    assert mine == theirs
    # Nothing is trained once all figures are there, whether or not there are weights.
    shutil.rmtree(tmp_path / "there" / "runs")
    assert table3(data, study(data, tmp_path / "there"), RECIPE).to_dict()["policies"].keys() == mine["policies"].keys()
    assert not (tmp_path / "there" / "runs").exists()


def test_a_time_limit_leaves_a_table_that_says_what_is_missing(made, tmp_path):
    _, data, _ = made
    late = table3(data, study(data, tmp_path / "out", deadline=1.0), RECIPE)
    assert len(late.missing) == 16  # with two references, without the chosen point's other seed: none is chosen yet
    assert late.rows == []
    assert "NOT COMPLETE: 16 arms" in main_table(late).note
    json.dumps(late.to_dict(), allow_nan=False)


def test_a_policy_that_cannot_be_trained_is_named(made, tmp_path, monkeypatch):
    _, data, _ = made

    def diverging(data, run, config, **how):
        if config.objective.name == "pg" or getattr(config.objective, "beta", None) == 0.1:
            raise TrainingError("step 3: the term 'policy' is nan.")
        return training(data, run, config, **how)

    monkeypatch.setattr("localpolicy.training.jobs.training", diverging)
    recipe = replace(RECIPE, policies=("pg", "reward_weighted", "lpi_rl"), seeds=1)
    table = table3(data, study(data, tmp_path / "out"), recipe)
    assert [row.key for row in table.rows] == ["reward_weighted", "lpi_rl"]
    assert table.failed == {"pg": "step 3: the term 'policy' is nan."}
    assert table.row("lpi_rl").point.name == "beta=1 td_weight=1"
    assert "PG could not be trained: step 3" in main_table(table).note
    shown = dial_figure(data, study(data, tmp_path / "out"), replace(RECIPE, seeds=1), "beta")
    assert [row.name for row in shown.rows] == ["β=1"]
    assert "lpi_rl-beta=0.1-td_weight=1-seed=0 could not be trained: step 3" in dial_tables(shown)[0].note
    assert shown.to_dict()["failed"] == {"lpi_rl-beta=0.1-td_weight=1-seed=0": "step 3: the term 'policy' is nan."}
    assert table.to_dict()["policies"]["lpi_rl"]["grid"]["beta=0.1 td_weight=1"]["failed"]
    assert table.missing == []


def test_nothing_is_chosen_from_part_of_a_grid(made):
    _, _, table = made
    row, points = table.row("lpi_rl"), RECIPE.points("lpi_rl")
    assert best_of(row.grid, points).point == row.point
    for tried in row.grid:
        assert best_of([other for other in row.grid if other is not tried], points) is None


def test_a_claim_needs_more_than_a_larger_mean(made, monkeypatch):
    _, _, table = made
    for p, holds in ((0.2, None), (0.01, True)):
        monkeypatch.setattr(
            "localpolicy.reproduction.tables.paired_family",
            lambda values, p=p: dict.fromkeys(
                values, SimpleNamespace(difference=0.1, low=0.0, high=0.2, sign=int(p < 0.05))
            ),
        )
        assert findings(table)[0].holds is holds
    monkeypatch.setattr(
        "localpolicy.reproduction.tables.paired_family",
        lambda values: dict.fromkeys(values, SimpleNamespace(difference=-0.1, low=-0.2, high=0.0, sign=0)),
    )
    assert findings(table)[0].holds is None


def test_all_differences_that_the_paper_claims_are_one_family(made, monkeypatch):
    """Each claim was a family of its own, next to the other on the same page."""
    _, _, table = made
    families = []
    monkeypatch.setattr(
        "localpolicy.reproduction.tables.paired_family", lambda values: families.append(len(values)) or {}
    )
    findings(table)
    assert len(families) == 1


def test_what_cannot_be_made_is_refused(made, small, tmp_path):
    folder, data, _ = made
    with pytest.raises(ConfigError, match="did you mean 'lpi_rl'"):
        table3(data, study(data, tmp_path / "out"), replace(RECIPE, policies=("lpi_lr",)))
    with pytest.raises(RunError, match=r"another \w+\.\w+ \("):
        table3(data, study(data, folder / "out"), replace(RECIPE, changes=("model.width=4",)))
    with pytest.raises(DataError, match="neither a prepared data set nor the original files"):
        data_sets(PaperConfig(data=(tmp_path,)), tmp_path / "out", "table3")
    with pytest.raises(DataError, match="does not exist"):
        data_sets(PaperConfig(data=(tmp_path / "nowhere",)), tmp_path / "out", "table3")
    with pytest.raises(ConfigError, match="did you mean 'retailrocket'"):
        data_sets(PaperConfig(simulate="retailrokcet"), tmp_path / "out", "table3")


def test_the_figures_show_what_was_measured(made, monkeypatch, messages):
    folder, data, table = made
    shown = dial_figure(data, study(data, folder / "out"), replace(RECIPE, seeds=1), "beta")
    assert [row.key for row in shown.rows] == ["0.1", "1"]
    there, content = shown.rows[0].seeds[0].record["validation"], shown.to_dict()
    assert measured(content, "0.1", "click.nDCG@20") == there["metrics"]["click"]["nDCG@20"]["mean"]
    assert measured(content, "0.1", "JS") == there["divergence"]["js"]["mean"]
    assert {line["split"] for line in content["measurements"]} == {"validation"} and not content["leads"]
    rows = from_markdown(dial_tables(shown)[0].markdown(), "LPI over β: shop")
    assert float(rows["β=1"][2].partition(" ")[0]) == pytest.approx(measured(content, "1", "JS"), abs=5e-5)
    for number, figure in enumerate((shown, table)):
        svg, png = draw(figure, folder / "pictures", f"figure-{number}")
        assert svg.read_text().startswith("<svg")
        assert png.read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr("localpolicy.reproduction.paper.can_draw", lambda: False)
    assert draw(shown, folder / "pictures", "none") == []
    assert messages("localpolicy.reproduction.paper") == [MISSING]


def test_the_breakdown_is_by_events_per_sequence(made):
    _, _, table = made
    clicks = breakdown_tables(table)[1]
    buckets = table.breakdown("click")
    assert [bucket.label for bucket in buckets] == ["click ≤ 5", "click 6-10"]
    scores = table.row("lpi_rl").seeds[0].scores
    counts = np.bincount(scores.sequence[scores.event == scores.events.index("click")])
    assert buckets[0].means["LPI"].n == ((counts > 0) & (counts <= 5)).sum()
    rows = from_markdown(clicks.markdown(), clicks.title)
    assert set(rows) == {"SQN", "SAC", "LPI"}
    assert float(rows["LPI"][0].rstrip("*")) == pytest.approx(buckets[0].means["LPI"].mean, abs=5e-5)


def test_the_breakdowns_picture_says_how_many_and_how_sure(made):
    from localpolicy.reproduction.figures import breakdown_spec

    _, _, table = made
    shown = breakdown_spec(replace(table, recipe=replace(RECIPE, fast=True)))
    assert shown["title"]["text"] == "shop: FAST VERSION"
    assert breakdown_spec(table)["title"]["text"] == "shop"
    clicks = shown["hconcat"][1]
    assert clicks["layer"][0]["encoding"]["x"]["title"] == "clicks per sequence (n sequences)"
    rows = {(row["bucket"], row["policy"]): row for row in shown["datasets"][clicks["data"]["name"]]}
    for bucket in table.breakdown("click"):
        one = bucket.means["LPI"]
        row = rows[f"{bucket.label.removeprefix('click ')}|n = {one.n:,}", "LPI"]
        reach = stats.t.ppf(0.975, one.n - 1) * one.se
        assert row["high"] == pytest.approx(min(one.mean + reach, 1.0))
        assert row["low"] == pytest.approx(max(one.mean - reach, 0.0))


def test_pictures_are_among_what_was_written(made, tmp_path, messages):
    folder, data, _ = made
    studies = [(data, study(data, folder / "out"))]
    made_and_written("figure-beta", replace(RECIPE, seeds=1), studies, tmp_path)
    (said,) = messages("localpolicy.reproduction.paper")
    for form in ("json", "md", "tex", "html", "svg", "png"):
        assert (tmp_path / f"figure-beta.{form}").exists() and f"figure-beta.{form}" in said


def test_points_of_a_dial_stand_off_the_edges(made):
    from localpolicy.reproduction.figures import dial_spec

    folder, data, _ = made
    shown = dial_spec(dial_figure(data, study(data, folder / "out"), replace(RECIPE, seeds=1), "beta"))
    assert shown["title"]["text"] == "shop"
    low, high = shown["hconcat"][0]["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < 0.1 and high > 1.0 and 0.1 / low == pytest.approx(high / 1.0)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratings")
    rng = np.random.default_rng(0)
    events = ["1", "2", "3", "4", "5"]
    rewards = dict(zip(events, (0.0, 0.0, 0.5, 1.0, 1.0), strict=True))
    with writing(folder / "data", kind="interactions", events=events, rewards=rewards) as store:
        for split, users in (("train", 60), ("validation", 15), ("test", 15)):
            lengths = np.full(users, 8)
            item = np.concatenate([rng.permutation(20)[:8] for _ in range(users)])
            event = rng.integers(0, 5, len(item))
            reward = np.array(list(rewards.values()))[event]
            store.splits[split].append(lengths, {"item": item, "event": event, "reward": reward})
        store.write_items(np.arange(20), np.ones(20, np.int64))
    return folder, DataSet("ratings", Prepared(folder / "data"), "netflix", original=False)


def test_table_1_has_a_row_per_policy(ratings):
    folder, data = ratings
    changes = ("data.length=8", "data.last=4", "model.width=8", "model.heads=2", "model.blocks=1", "train.epochs=2")
    changes = (*changes, "train.batch_size=16")
    recipe = replace(BANDIT, betas=(0.1, 1000.0), rates=(0.001, 0.01), seeds=2, changes=changes, device="cpu")
    table = table1(data, study(data, folder / "out"), recipe)
    content = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert list(content["policies"]) == [
        "mle", "reward_weighted", "ips", "lpi_cb β=0.1", "lpi_cb β=1000", "references"
    ]  # fmt: skip
    rows = from_markdown(table1_tables(table)[0].markdown(), "Table 1: ratings")
    assert list(rows) == ["Logging (μ̂)", "𝓛_μ", "IPS", "LPI β=0.1", "LPI β=1000"]
    for row in table.rows:
        shown = zip(rows[row.name], ("AR@1", "iAR@1", "JS", "entropy"), (5e-5, 5e-4, 5e-4, 5e-3), strict=False)
        for cell, name, near in shown:
            assert float(cell) == pytest.approx(measured(content, row.key, name), abs=near)
    assert not any(row[3].best for row in table1_tables(table)[0].body), "JS is a distance"
    assert any(row[2].best for row in table1_tables(table)[0].body)
    assert rows["LPI β=0.1"][5:] == ["0.061", "0.739", "0.118"]
    assert rows["LPI β=1000"][5:] == ["0.060", "0.698", "0.081"]
    for row in table.rows[:3]:
        tried = {one.name: one.selection_score for one in row.grid}
        assert list(tried) == ["learning_rate=0.001", "learning_rate=0.01"]
        assert row.point.name == max(tried, key=tried.get)
    assert [[seed.seed for seed in row.seeds] for row in table.rows] == [[0, 1]] * 5, "a row for each β, with all seeds"
    dialled = {row.key: row.seeds[0].selection_score for row in table.rows[3:]}
    chosen = next(row for row in table.rows[3:] if row.grid)
    assert chosen.key == max(dialled, key=dialled.get)
    gains = from_markdown(table1_tables(table)[1].markdown(), "Differences in reward")
    names = [row.name for row in table.rows]
    pairs = [*((name, "μ̂, the references") for name in names), (chosen.name, "𝓛_μ"), (chosen.name, "IPS")]
    assert list(gains) == [f"{high} − {low}" for high, low in pairs]
    references = table.row("references")
    assert [seed.seed for seed in references.seeds] == [101, 102]
    for high, low in pairs:
        there = [row for row in (*table.rows, references) if row.name in (high, low)]
        means = {row.name: row.estimate("iAR@1").mean for row in there}
        assert float(gains[f"{high} − {low}"][2].split()[0]) == pytest.approx(means[high] - means[low], abs=6e-5)
    assert gains["Logging (μ̂) − μ̂, the references"][3] == "—", "the paper prints no difference of μ̂ from itself"
    assert gains["LPI β=0.1 − μ̂, the references"][3] == f"{0.739 - 0.696:+.3f}"
    assert gains["𝓛_μ − μ̂, the references"][1] == "+0.000"
    assert "context alone" in table1_tables(table)[0].note
    assert "seeds at each row: 2." in table1_tables(table)[0].note
    first = table.rows[0]
    some = replace(table, rows=[replace(first, seeds=first.seeds[:1]), *table.rows[1:]])
    assert "seeds at each row: 1 or 2." in table1_tables(some)[0].note
    for row, name in product(table.rows, ("AR@1", "iAR@1")):
        stored = [one.record["test"]["rewards"][name] for one in row.seeds]
        for one, there in zip(row.seeds, stored, strict=True):
            found = mean_estimate(one.earned[name], one.scores.sequence)
            assert (found.mean, found.se) == pytest.approx((there["mean"], there["se"]), rel=1e-5)
        assert row.estimate(name).mean == pytest.approx(np.mean([there["mean"] for there in stored]), rel=1e-5)
        # Of users over seeds: what one seed gets right by luck, another does not.
        assert 0 < row.estimate(name).se <= max(there["se"] for there in stored)
    paper = replace(table, data=replace(data, original=True))
    for row in table.rows:
        ours, there = row.estimate("AR@1"), paper.published[row.key]["AR@1"]
        error = math.hypot(ours.plain_se, there.se)
        assert paper.distance(row.key, "AR@1") == pytest.approx((ours.mean - there.value) / error)
    assert all(one.record["config"]["train"]["select"] == "AR@1" for row in table.rows for one in row.seeds)
    with pytest.raises(DataError, match="Table 3 needs both"):
        table3(data, study(data, folder / "other"), RECIPE)


def test_table_2_counts_what_is_there(made):
    _, data, _ = made
    table = table2_table(data)
    rows = from_markdown(table.markdown(), "Table 2: shop")
    counts = data.data.manifest["counts"]
    assert rows["# of sequences"][0] == f"{counts['sequences']:,}"
    assert rows["# of purchases"][0] == f"{counts['events']['purchase']:,}"


def test_table_2_counts_events_that_the_paper_does_not_know(tmp_path):
    data = DataSet("small", write_small(tmp_path / "data"), None, original=False)
    counts = data.data.manifest["counts"]["events"]
    rows = from_markdown(table2_table(data).markdown(), "Table 2: small")
    assert rows["# of none"][0] == f"{counts['none']:,}"
    many = {**data.data.manifest["counts"], "events": {f"{stars:g}": 1 + stars for stars in range(11)}}
    data.data.manifest["counts"] = many
    rows = from_markdown(table2_table(data).markdown(), "Table 2: small")
    assert rows["# of other events"][0] == f"{sum(range(1, 12)):,}" and "# of 3" not in rows


def test_the_true_value_stands_next_to_each_point_and_each_policy(tmp_path):
    world = StoreWorld(StoreConfig(items=30, categories=3), seed=0)
    write_prepared(world, tmp_path / "data", sequences=300, seed=0, interactions=True)
    data = DataSet("store", Prepared(tmp_path / "data"), None, original=False)
    recipe = replace(RECIPE, lambdas=(0.5, 1.0), seeds=1, policies=("mle", "sqn"))
    without = table3(data, study(data, tmp_path / "out"), recipe)
    assert without.row("mle").truth is None
    weights = (tmp_path / "out" / "runs" / "mle-seed=0" / "policy.safetensors").stat().st_mtime_ns
    table = table3(data, study(data, tmp_path / "out", truth=True), recipe)  # measured again, not trained again
    assert (tmp_path / "out" / "runs" / "mle-seed=0" / "policy.safetensors").stat().st_mtime_ns == weights
    truths = {
        arm: true_value(Run(tmp_path / "out" / "runs" / arm).policy(), world).value
        for arm in ("mle-seed=0", "sqn-td_weight=0.5-seed=0", "sqn-td_weight=1-seed=0")
    }
    shown = [line.split("|")[6].strip() for line in choices(table).markdown().splitlines() if "| SQN |" in line]
    assert shown == [f"{truths[arm]:.4f}" for arm in list(truths)[1:]]
    assert table.row("mle").truth == pytest.approx(truths["mle-seed=0"])
    assert from_markdown(main_table(table).markdown(), "Table 3: store")["μ̂"][-1] == f"{truths['mle-seed=0']:.4f}"
    assert f"the logging policy's is {table.row('mle').seeds[0].truth['logging']:.4f}" in main_table(table).note
