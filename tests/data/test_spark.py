"""Spark and DuckDB give the same bytes."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_logs import random_log, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.store import LOG, Prepared
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.files import SEAL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark (the extra 'spark')")
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "3").getOrCreate()  # several, so that order is at stake
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def impressions() -> list[dict]:
    rng = np.random.default_rng(0)
    rows = []
    for row in random_log(step=60_000):
        event = str(rng.choice(["click", "none"]))
        propensity = float(rng.uniform(0.01, 1)) if rng.random() < 0.9 else None
        logged = {"propensity": propensity, "policy": str(rng.choice(["a", "b"]))}
        rows.append({**row, "event": event, "reward": float(rng.normal()) * (event == "click"), **logged})
    return rows


def with_text_ids() -> list[dict]:
    log = random_log()
    return [{**row, "item_id": f"é{row['item_id']}", "sequence_id": f"{row['sequence_id']:03d}"} for row in log]


FILTERS = {"min_clicks": 2, "min_item_events": 9, "min_item_sequences": 2, "iterate": True}
WINDOWS = {"session_gap": 600, "duplicates": "exact", "most_recent": 3, "split": "time"}
CASES: dict[str, tuple[list[dict], dict]] = {
    "plain": (random_log(step=60_000), {}),
    "filters": (random_log(step=60_000, events=1500), FILTERS),
    "last": (random_log(step=60_000, sequences=300, events=1500), {"split": "last", "min_item_events": 2}),
    "windows": (random_log(step=60_000), WINDOWS),
    "impressions": (impressions(), {"duplicates": "consecutive"}),
    "text": (with_text_ids(), {}),
    "large": ([*random_log(events=1500), {**random_log()[0], "sequence_id": 2**40, "item_id": -(2**31) - 1}], {}),
    "floats": ([{**row, "item_id": float(row["item_id"])} for row in random_log()], {}),
    "rows": ([{k: v for k, v in row.items() if k != "timestamp"} for row in random_log()], {}),
}


def decisive(data: Prepared) -> dict[str, Any]:
    """The manifest but for the kept log, whose rows Spark may put in another order."""
    files = {name: file for name, file in data.manifest["files"].items() if name != LOG}
    return {**data.manifest, "files": files, SEAL: None}


def test_what_it_starts_on_this_machine_no_other_can_reach(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from localpolicy.data.engines.spark import Spark\n"
        "engine = Spark(pathlib.Path(sys.argv[1]))\n"
        "conf = engine._session.sparkContext.getConf()\n"
        "print(conf.get('spark.driver.host'), conf.get('spark.driver.bindAddress'), conf.get('spark.ui.enabled'))\n"
        "engine.close()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["127.0.0.1", "127.0.0.1", "false"]


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_are_equal(tmp_path: Path, session: Any, name: str) -> None:
    rows, settings = CASES[name]
    for part, some in (("a", rows[:300]), ("b", rows[300:])):
        write_parquet(tmp_path / "log" / f"{part}.parquet", some)
    duck = prepare("events", [tmp_path / "log"], out=tmp_path / "duck", **settings)
    spark = prepare("events", [tmp_path / "log"], out=tmp_path / "spark", engine="spark", spark=session, **settings)
    assert decisive(spark) == decisive(duck)  # digests of every file among it
    spark.verify()


def test_ids_of_text_files_are_the_same_integers(tmp_path: Path, session: Any) -> None:
    rows = [{**row, "item_id": f"{2**62 + row['item_id']}.0"} for row in random_log()]
    log = write_csv(tmp_path / "log.csv", rows)
    made = [prepare("events", [log], out=tmp_path / e, engine=e, spark=session, threads=1) for e in ("duckdb", "spark")]
    assert decisive(made[0]) == decisive(made[1])
    assert {2**62 + row["item_id"] for row in random_log()} == set(made[1].catalogue["item_id"].to_pylist())


def test_spark_reads_original_files_and_skips_bad_rows(tmp_path: Path, session: Any) -> None:
    rows = random_log(sequences=200, events=1500)
    for event, name in (("click", "clicks"), ("purchase", "buys")):
        chosen = [r for r in rows if r["event"] == event]
        minutes = [row["timestamp"] // 60_000 % 60 for row in chosen]
        more = ",0,1" if event == "purchase" else ",0"
        lines = [
            f"{row['sequence_id']},2014-04-07T10:{minute:02d}:09.277Z,{row['item_id']}{more}"
            for row, minute in zip(chosen, minutes, strict=True)
        ]
        (tmp_path / f"yoochoose-{name}.dat").write_text("\n".join(lines) + "\n")
    made = [
        prepare("yoochoose", [tmp_path], out=tmp_path / e, engine=e, spark=session, threads=1)
        for e in ("duckdb", "spark")
    ]
    assert decisive(made[0]) == decisive(made[1])
    text = write_csv(tmp_path / "log.csv", rows).read_text().splitlines()
    text[5], text[9] = "1,2", ",7,click,1600000000000"
    packed = tmp_path / "bad.csv.gz"
    packed.write_bytes(gzip.compress(("\n".join(text) + "\n").encode()))
    options: dict[str, Any] = {"engine": "spark", "spark": session}
    with pytest.raises(DataError, match="line 6"):
        prepare("events", [packed], out=tmp_path / "no", **options)
    skipped = prepare("events", [packed], out=tmp_path / "skipped", skip_bad_rows=True, **options)
    again = prepare("events", [packed], out=tmp_path / "again", skip_bad_rows=True)
    assert skipped.manifest == again.manifest
    assert sum(skipped.manifest["bad_rows"].values()) == 2


def test_text_without_times_is_refused(tmp_path: Path, session: Any) -> None:
    rows = [{k: v for k, v in row.items() if k != "timestamp"} for row in random_log()]
    with pytest.raises(ConfigError, match="no order"):
        prepare("events", [write_csv(tmp_path / "log.csv", rows)], out=tmp_path / "no", engine="spark", spark=session)
