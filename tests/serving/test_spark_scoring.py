"""The exported policy gives the same lists on Spark."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("pyspark")

from localpolicy.data.engines.spark import Spark
from localpolicy.serving.spark import recommend_table

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


def test_a_table_gets_the_lists_of_pytorch(run, exported, tmp_path):
    rng = np.random.default_rng(0)
    histories = [rng.integers(100, 112, rng.integers(0, 9)).tolist() for _ in range(60)]
    events = [[["none", "click", "purchase"][item % 3] for item in history] for history in histories]
    engine = Spark(tmp_path, session=None, master=None)
    engine._session.sparkContext.pythonExec = sys.executable  # workers need what this process has
    try:
        rows = [(number, *one) for number, one in enumerate(zip(histories, events, strict=True))]
        table = engine._session.createDataFrame(rows, "number int, history array<bigint>, events array<string>")
        for beta in (None, 0.2):
            found = recommend_table(table, exported.folder, 4, beta=beta).orderBy("number").collect()
            expected = run.policy(beta=beta).recommend(histories, 4, events=events)
            assert [row["items"] for row in found] == expected.items
            logp = np.array([row["log_probability"] for row in found])
            assert np.abs(logp - expected.log_probability.numpy()).max() < 1e-5
    finally:
        engine.close()
