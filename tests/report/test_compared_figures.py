"""A figure that is compared has one name and one number: in the frame, on the terminal, in JSON."""

from __future__ import annotations

import numpy as np
from measured import scores

from localpolicy.judge import comparison
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import ranking
from localpolicy.report.tables import comparison_table


def test_a_figure_that_is_compared_is_in_the_frame_on_the_terminal_and_in_json(monkeypatch):
    """A new column is a figure and its name among those compared; nothing else lists them."""
    monkeypatch.setattr(comparison, "COMPARED", ("novelty@{lists}", "coverage@{lists}"))
    policies = []
    for number, (name, rank) in enumerate((("a", 1.0), ("b", 9.0))):
        found = scores(rank=np.array([1.0, rank]))
        figures = {**ranking(found, ["nDCG@20"]), "coverage@20": 0.5, "novelty@20": 0.25 + number}
        settings = {"lists": 20, "split": "test", "exclude_seen": False, "min_history": 1}
        policies.append(Evaluation(name, figures, None, found, np.ones(3), settings))
    compared = Comparison(policies, ["all.nDCG@20"], [], None, [], [])
    assert compared.to_arrow()["novelty@20"].to_pylist() == [0.25, 1.25]
    shown = comparison_table(compared)
    place = shown.columns.index("novelty@20")
    assert [row[place] for row in shown.plain()] == ["0.2500", "1.2500"]
    assert compared["b"].to_dict()["policy"]["novelty@20"] == 1.25
