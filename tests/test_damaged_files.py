"""Files that were damaged or crafted end in few words, never in a traceback."""

from __future__ import annotations

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError, DataError, LocalPolicyError, RunError
from localpolicy.runs.run import Run
from localpolicy.runtime.files import SEAL
from localpolicy.serving.recommender import Recommender

ROWS = {"sequence_id": [n // 3 for n in range(600)], "item_id": [n % 7 for n in range(600)], "event": ["click"] * 600,
        "timestamp": [1_714_521_600 + n for n in range(600)]}  # fmt: skip


@pytest.mark.parametrize("kind", ["csv.gz", "parquet"])
def test_a_flipped_bit_is_found_out_or_changes_nothing(tmp_path, kind):
    whole, path = tmp_path / f"whole.{kind}", tmp_path / f"log.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(ROWS), whole)
    else:
        lines = [",".join(ROWS), *(",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True))]
        whole.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    rng, content, told = random.Random(0), whole.read_bytes(), 0
    for _ in range(40):
        place = rng.randrange(20, len(content) - 8)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
        try:
            prepare(path, out=tmp_path / "data", force=True)
        except LocalPolicyError:
            told += 1
    assert told > 10


@pytest.mark.parametrize("memory", ["-1GB", "0GB", "GB", "1 parsec", ""])
def test_a_memory_that_is_none_is_refused(tmp_path, memory):
    with pytest.raises(ConfigError, match="memory"):
        prepare(pa.table(ROWS), out=tmp_path / "data", memory=memory)


@pytest.mark.parametrize("change", [
    {"selected": []}, {"data": "x"}, {"policy_sha256": 5}, {"objective": None}, {"seed": {}},
], ids=str)  # fmt: skip
def test_a_manifest_without_a_seal_and_of_other_types_is_refused(tmp_path, change):
    about = {"objective": "mle", "seed": 0, "data": {}, "selected": {}, "policy_sha256": "x", SEAL: ""}
    (tmp_path / "manifest.json").write_text(json.dumps({**{k: v for k, v in about.items() if k != SEAL}, **change}))
    with pytest.raises(RunError, match="was altered"):
        Run(tmp_path).summary()


@pytest.mark.parametrize(
    "content", [{}, [], {"format": 1}, {"graphs": 5}, {"events": None, "graphs": {}}, "x"], ids=str
)
def test_a_crafted_export_is_refused(tmp_path, content):
    (tmp_path / "export.json").write_text(json.dumps(content))
    (tmp_path / "items.json").write_text("5")
    with pytest.raises(LocalPolicyError):
        Recommender(tmp_path)


def test_missing_titles_are_refused_before_training(tmp_path):
    import localpolicy

    pq.write_table(pa.table(ROWS), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="titles of items, does not exist"):
        localpolicy.go(tmp_path / "log.parquet", out=tmp_path / "out", titles=tmp_path / "none.csv")
    assert not (tmp_path / "out").exists()
