"""Buckets and lake tables: the SQL that is made, and what is said where an extension cannot be had. No network."""

from __future__ import annotations

import duckdb
import pytest
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.data.prepare import prepare
from localpolicy.data.remote import RemoteTable, is_remote, source_of
from localpolicy.errors import ConfigError, DataError


class Connection:
    """DuckDB whose extensions are all there, and which finds every address in one local file."""

    def __init__(self, file=None, known=("httpfs", "aws", "delta", "iceberg")):
        self.said, self.file, self.known, self.inner = [], file, known, duckdb.connect()

    def execute(self, sql):
        self.said.append(sql)
        word, _, rest = sql.partition(" ")
        if (word == "LOAD" and rest not in self.known) or word == "INSTALL":
            raise duckdb.IOException(f"Failed to download extension {rest}\nand more")

    def sql(self, query):
        self.said.append(query)
        return self.inner.sql(f"SELECT * FROM read_parquet('{self.file}')")


@pytest.mark.parametrize(
    ("address", "extensions", "query"),
    [
        ("s3://shop/logs/*.parquet", ("httpfs", "aws"), "read_parquet('s3://shop/logs/*.parquet', hive_partitioning"),
        ("s3://shop/a'b.csv.gz", ("httpfs", "aws"), "read_csv('s3://shop/a''b.csv.gz', all_varchar = true)"),
        ("delta+s3://shop/events", ("httpfs", "aws", "delta"), "delta_scan('s3://shop/events')"),
        ("delta+/lake/events", ("delta",), "delta_scan('/lake/events')"),
        ("iceberg+s3://shop/events", ("httpfs", "aws", "iceberg"), "iceberg_scan('s3://shop/events')"),
    ],
)
def test_the_sql_of_an_address(address, extensions, query):
    source = source_of(address)
    assert source.extensions == extensions and f"SELECT * FROM {query}" in source.query
    assert (source.secret is None) == (not address.partition("+")[2].startswith("s3:") and address[0] != "s")
    assert is_remote(address) and not is_remote("logs/s3.csv") and not is_remote("/delta+x")


def test_google_needs_its_key(monkeypatch):
    monkeypatch.delenv("GCS_KEY_ID", raising=False)
    monkeypatch.setenv("GCS_SECRET", "it's")
    with pytest.raises(ConfigError, match="set GCS_KEY_ID in the environment"):
        source_of("gs://shop/a.parquet")
    monkeypatch.setenv("GCS_KEY_ID", "me")
    assert source_of("gs://shop/a.parquet").secret == "CREATE SECRET (TYPE gcs, KEY_ID 'me', SECRET 'it''s')"


@pytest.mark.parametrize("address", ["s3://shop", "s3:shop/a.parquet", "gs:/shop/a", "delta+ftp://shop/a"])
def test_an_address_that_is_none(address):
    with pytest.raises(ConfigError, match="is no address"):
        source_of(address)


def test_an_extension_that_cannot_be_had_is_an_error_that_says_what_to_do(monkeypatch, tmp_path):
    made = Connection(known=("httpfs",))
    monkeypatch.setattr("localpolicy.data.inputs.RemoteTable", lambda name: RemoteTable(name, connect=lambda: made))
    asked = CliRunner().invoke(app, ["prepare", "events", "s3://shop/a.parquet", "--out", str(tmp_path / "data")])
    assert isinstance(asked.exception, DataError)
    assert "DuckDB's extension 'aws', which is not here and could not be fetched" in str(asked.exception)
    assert "copy the files to this machine" in str(asked.exception) and not (tmp_path / "data").exists()


def test_what_an_address_holds_is_prepared_like_a_file(monkeypatch, tmp_path):
    lines = [f"s{number // 4},i{number % 7},click,{1_700_000_000 + number}" for number in range(200)]
    (tmp_path / "log.csv").write_text("sequence_id,item_id,event,timestamp\n" + "\n".join(lines) + "\n")
    here = prepare(tmp_path / "log.csv", out=tmp_path / "here")
    duckdb.sql(f"SELECT * FROM read_csv('{tmp_path}/log.csv')").write_parquet(str(tmp_path / "log.parquet"))
    made = Connection(tmp_path / "log.parquet")
    monkeypatch.setattr("localpolicy.data.inputs.RemoteTable", lambda name: RemoteTable(name, connect=lambda: made))
    there = prepare("s3://shop/log.parquet", out=tmp_path / "there")
    assert there.to_arrow().drop(["reward"]).equals(here.to_arrow().drop(["reward"]))
    assert made.said[:2] == ["LOAD httpfs", "LOAD aws"] and made.said[2].startswith("CREATE SECRET (TYPE s3")
