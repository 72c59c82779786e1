"""What a comparison asks of its log, with how many sequences, and what JS cannot see."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from measured import scores
from pyarrow import csv

from localpolicy.data.store_writer import writing
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import gate
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import SHOWN, WORTH
from localpolicy.measure.estimate import Estimate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import Question
from localpolicy.measure.position_metrics import ranking
from localpolicy.measure.significance import Paired
from localpolicy.report.comparison import comparison_section
from localpolicy.report.comparison_headline import comparison_headline
from localpolicy.report.page import policies_table
from localpolicy.report.table import Cell

pytest.importorskip("altair", reason="the extra `report` is not installed")


def evaluated(name: str, rank: np.ndarray, settings: dict[str, Any]) -> Evaluation:
    made = scores(rank=rank)
    figures = ranking(made, ["nDCG@20"])
    return Evaluation(name, figures, None, made, np.ones(3), settings)


def test_a_comparison_needs_as_many_sequences_as_the_gate():
    few, enough = (
        Comparison([evaluated("a", np.ones(count), settings={"lists": 20})], ["all.nDCG@20"], [], None, [], []).too_few
        for count in (31, 32)
    )
    assert few == "31 held-out sequences are too few to tell (least: 32)" and enough is None


@pytest.mark.parametrize(
    ("worth", "kind", "words"),
    [
        ({"view": 1.0, "buy": 1.0}, "nothing", "Nothing to decide: all events are worth the same"),
        ({"view": 0.2, "buy": 1.0}, "rewards", "whether to deploy it is for the gate to say."),
    ],
)
def test_a_comparison_asks_the_logs_own_question(tmp_path, worth, kind, words):
    """Two files of lists on one small log, read at two prices: the same ranks, another answer."""
    rng = np.random.default_rng(0)
    with writing(tmp_path / "data", kind="interactions", events=[*worth], rewards=worth) as store:
        for split in ("train", "validation", "test"):
            item, event = rng.integers(0, 8, 400), rng.integers(0, 2, 400)
            reward = np.array([*worth.values()])[event]
            store.splits[split].append(np.full(100, 4), {"item": item, "event": event, "reward": reward})
        store.write_items(np.arange(8), np.full(8, 50))
    for name, probability in (("old", np.full(8, 0.125)), ("new", np.arange(1, 9) / 36)):
        csv.write_csv(pa.table({"item_id": np.arange(8), "probability": probability}), tmp_path / f"{name}.csv")
    found = compare([tmp_path / "old.csv", tmp_path / "new.csv"], data=tmp_path / "data", baseline="old.csv")
    assert found.question.kind == kind and found.rivals == ["new.csv"] and found.main != found.value
    answer = comparison_headline(found, comparison_section(found, samples=False))
    assert words in answer.verdict and "imitates the log" not in answer.verdict


def test_a_till_ranks_models_by_what_is_bought_next_and_names_the_money(tmp_path):
    """Fuel is dear and rare: a sort by price wins every sum of money, and predicts the next purchase worse."""
    rng = np.random.default_rng(0)
    columns = {"reward": "sales_value"}
    with writing(tmp_path / "data", kind="interactions", events=["interaction"], rewards={},
                 settings={"columns": columns}) as store:  # fmt: skip
        for split in ("train", "validation", "test"):
            item = rng.choice(8, 800, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.06, 0.05, 0.04])
            reward = np.where(item == 7, 60.0, 2.0 + 0.1 * rng.integers(0, 9, 800))
            store.splits[split].append(np.full(200, 4), {"item": item, "event": item * 0, "reward": reward})
        store.write_items(np.arange(8), np.full(8, 50))
    by_price, popular = np.where(np.arange(8) == 7, 9.0, 1.0), np.arange(8, 0, -1.0)
    for name, weight in (("dear", by_price), ("popular", popular)):
        csv.write_csv(
            pa.table({"item_id": np.arange(8), "probability": weight / weight.sum()}), tmp_path / f"{name}.csv"
        )
    paths = [tmp_path / "dear.csv", tmp_path / "popular.csv"]
    found = compare(paths, data=tmp_path / "data", baseline="popular.csv")
    assert found.question.kind == "nothing" and "how much sales_value another policy would bring" in found.question.why
    weighted = "reward-weighted.nDCG@20"
    assert found.level("dear.csv", weighted) > found.level("popular.csv", weighted), "as any sort by price"
    assert found.main == "interaction.nDCG@20"
    assert found.order(found.main).index("popular.csv") < found.order(found.main).index("dear.csv")
    views = replace(found, question=Question("rewards", "sales differ", "sales_value"))
    assert views.main == found.main, "beside views as well, a sort by price must not win the ranks"
    judged = gate(paths[0], against=paths[1], data=tmp_path / "data", rules=GateRules(reference_fit=False))
    assert (judged.answer, judged.metric) == ("nothing to decide", found.main)
    assert judged.next_step == SHOWN and "views with the sales" in SHOWN
    assert "deployed" not in SHOWN + WORTH, "nobody said what is deployed"
    section = comparison_section(found, samples=False)
    names = {each.name: Cell(each.name) for each in section.policies}
    assert "add up sales_value: a list of dear items wins them" in policies_table(section, names).note
    assert "dear items" not in policies_table(replace(section, amount=""), names).note


def test_js_is_blind_where_it_is_within_noise_and_ranks_differ():
    def measured(name: str, js: float) -> SimpleNamespace:
        spread = SimpleNamespace(overall=Estimate(js, 0.001, 50, 0.001))
        return SimpleNamespace(name=name, divergence=SimpleNamespace(js=spread, floor_js=spread))

    class Fixed(Comparison):
        ranked = "click.nDCG@20"
        floor = Estimate(0.04, 0.001, 50, 0.001)
        gains: ClassVar = {
            name: {"click.nDCG@20": Paired(-0.2, 0.005, -0.4, high, 0.01, 0.01, 900, 0.01)}
            for name, high in (("near", -0.1), ("near too", 0.1), ("far", -0.1))
        }

    evaluations = [measured("near", 0.039), measured("near too", 0.039), measured("far", 0.2)]
    found = Fixed(evaluations, [], [], data=None, candidates=[], references=[]).unseen_by_js
    assert found == ["near"]
