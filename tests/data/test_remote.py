"""Buckets and lake tables: what is read there is what is read here, and errors are single sentences.

The store is moto's server, a process of its own: the one next to this Python, or the one that LOCALPOLICY_MOTO names.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from localpolicy.data import object_store, remote
from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError, DataError

SERVER = os.environ.get("LOCALPOLICY_MOTO") or shutil.which("moto_server", path=str(Path(sys.executable).parent))
NAMES = "sequence_id,item_id,event,timestamp"


def lines(first: int, count: int = 800) -> list[str]:
    """Rows of a log; `first` tells days apart."""
    rows = range(count)
    return [f"{first + row // 4},{row % 7:03d},click,{1_700_000_000 + first + row}" for row in rows]


def log_text(first: int = 0, delimiter: str = ",") -> bytes:
    return "\n".join([NAMES, *lines(first), ""]).replace(",", delimiter).encode()


@pytest.fixture(scope="module")
def endpoint():
    """The address of a store that speaks S3."""
    if SERVER is None:
        pytest.skip("moto is not installed: pip install 'moto[server]', or name its moto_server in LOCALPOLICY_MOTO")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "the server ended"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def bucket(endpoint, monkeypatch, request):
    """Puts bytes at a key of this test's own bucket, and returns the object's address."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "ENDPOINT_URL": endpoint,
                        "DEFAULT_REGION": "us-east-1", "EC2_METADATA_DISABLED": "true"}.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"shop{abs(hash(request.node.nodeid))}"
    _send(f"{endpoint}/{name}", b"")

    def put(key: str, content: bytes) -> str:
        _send(f"{endpoint}/{name}/{key}", content)
        return f"s3://{name}/{key}"

    return put


def _send(url: str, content: bytes, query: str = "") -> None:
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request",
               "Content-Type": "application/octet-stream"}  # fmt: skip
    urllib.request.urlopen(urllib.request.Request(url + query, content, headers, method="PUT"), timeout=30).close()


def events(data) -> list[dict]:
    return data.to_arrow().to_pylist()


def test_objects_give_the_bytes_that_local_files_give(bucket, tmp_path):
    table = pa.csv.read_csv(pa.BufferReader(log_text()))
    pq.write_table(table, tmp_path / "log.parquet")
    kinds = {"log.csv": log_text(), "log.csv.gz": gzip.compress(log_text()), "log.parquet": None,
             "log.jsonl": b"\n".join(json.dumps(row).encode() for row in table.to_pylist())}  # fmt: skip
    for number, (name, content) in enumerate(kinds.items()):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        there = bucket(f"logs/{name}", (tmp_path / name).read_bytes())
        here = prepare(tmp_path / name, out=tmp_path / f"here{number}")
        far = prepare(there, out=tmp_path / f"far{number}")
        assert events(far) == events(here) and len(here.catalogue) == 7
        assert far.catalogue.schema.field("item_id").type == here.catalogue.schema.field("item_id").type, name
        (taken,) = far.manifest["inputs"]["taken"]
        (known,) = here.manifest["inputs"]["taken"]
        assert taken["name"] == there and taken["version"] and taken["sha256"] == known["sha256"]
        assert taken["bytes"] == known["bytes"] == (tmp_path / name).stat().st_size


def test_ids_and_delimiters_are_those_that_were_asked_for(bucket, tmp_path):
    there = bucket("odd.txt", log_text(delimiter=";"))
    texts = prepare(there, out=tmp_path / "texts", ids="text", delimiter=";")
    assert sorted(texts.catalogue["item_id"].to_pylist()) == [f"{item:03d}" for item in range(7)]
    with pytest.raises(DataError, match=r"s3://\S+/odd\.txt"):
        prepare(there, out=tmp_path / "other", delimiter="|")


def test_folders_and_patterns_match_many_objects(bucket, tmp_path):
    days = [bucket(f"logs/2026/day{day}.csv", log_text(1000 * day)) for day in (1, 2, 3)]
    bucket("logs/notes.md", b"not a log")
    bucket("logs/_temporary/day9.csv", log_text(9000))
    top, name = days[0].rpartition("logs/")[0], "name"
    for number, (address, expected) in enumerate(
        [(f"{top}logs/", days), (f"{top}logs", days), (f"{top}logs/2026/day?.csv", days), (f"{top}**day[2.csv", None),
         (f"{top}logs/**2.csv", days[1:2]), (f"{top}logs/*.csv", None)]
    ):  # fmt: skip
        if expected is None:
            with pytest.raises((DataError, ConfigError)):
                prepare(address, out=tmp_path / f"data{number}")
            continue
        data = prepare(address, out=tmp_path / f"data{number}")
        assert [one[name] for one in data.manifest["inputs"]["taken"]] == expected
        assert data.manifest["counts"]["sequences"] == 200 * len(expected)


def test_one_object_counts_once_wherever_it_is_read(bucket, tmp_path):
    (tmp_path / "day1.csv").write_bytes(log_text())
    there, tomorrow = bucket("day1.csv", log_text()), bucket("day2.csv", log_text(1000))
    with pytest.raises(DataError, match=r"has the bytes of day1\.csv, which was given too"):
        prepare(tmp_path / "day1.csv", there, out=tmp_path / "both")
    prepare(tmp_path / "day1.csv", out=tmp_path / "data")
    with pytest.raises(DataError, match=r"s3://\S+/day1\.csv is part of .* already \(the same bytes, then called day1"):
        prepare(there, append=tmp_path / "data", out=tmp_path / "data-2")
    added = prepare(there, tomorrow, append=tmp_path / "data", new_only=True, out=tmp_path / "data-3")
    assert [one["name"] for one in added.manifest["inputs"]["taken"]] == ["day1.csv", tomorrow]
    assert added.manifest["counts"]["sequences"] == 2 * 200


def test_a_version_is_the_buckets_own_where_it_keeps_versions(bucket, endpoint, tmp_path):
    before = bucket("day.csv", log_text())
    name = before.split("/")[2]
    setting = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    _send(f"{endpoint}/{name}", setting, "?versioning")
    versions = []
    for first in (0, 1000):
        data = prepare(bucket("day.csv", log_text(first)), out=tmp_path / f"data{first}")
        versions.append(data.manifest["inputs"]["taken"][0]["version"])
    assert len(set(versions)) == 2 and all(len(version) >= 32 and version.isascii() for version in versions)


def test_an_unreadable_object_is_reported_in_a_sentence(bucket, tmp_path, monkeypatch):
    there = bucket("day.csv", log_text())
    cases = {there.replace("day.csv", "night.csv"): "does not exist, and no folder of that name holds a log",
             there.replace("shop", "nobodys"): "has no such bucket",
             there.replace("day.csv", "*.parquet"): "no object matches",
             bucket("empty.csv", b""): r"s3://\S+/empty\.csv is empty"}  # fmt: skip
    for address, said in cases.items():
        with pytest.raises(DataError, match=said) as raised:
            prepare(address, out=tmp_path / "data")
        assert str(tmp_path) not in str(raised.value) and len(str(raised.value)) < 400
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")  # before the other, as the AWS tools have it
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9 did not answer"):
        prepare(there, out=tmp_path / "data")
    assert not (tmp_path / "data").exists()


class Store(threading.Thread):
    """A store that gives one answer to every request: these bytes, and then silence or the connection's end."""

    def __init__(self, answer: bytes, *, stalls: bool) -> None:
        super().__init__(daemon=True)
        self.answer, self.stalls, self.held = answer, stalls, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def run(self) -> None:
        """Answer until the socket is closed."""
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            connection.recv(65536)
            connection.sendall(self.answer)
            self.held.append(connection) if self.stalls else connection.close()


def answered(status: str, body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f'HTTP/1.1 {status}\r\nContent-Length: {size}\r\nETag: "1"\r\n\r\n'.encode() + body


@pytest.mark.parametrize(
    ("answer", "stalls", "said"),
    [
        pytest.param(b"", True, "did not answer in time", id="silent", marks=pytest.mark.slow),
        pytest.param(answered("200 OK", b"a", 1 << 20), True, "cannot be read", id="stalled", marks=pytest.mark.slow),
        pytest.param(answered("403 Forbidden"), False, "access was denied. Set AWS_ACCESS_KEY_ID", id="refused"),
        pytest.param(answered("500 Oops"), False, "cannot be read", id="broken"),
    ],
)
def test_a_store_that_stalls_or_refuses_ends_the_command(answer, stalls, said, tmp_path, monkeypatch):
    """The seconds are bounds of the client's own settings: 2 tries of 5 to connect and 6 to answer."""
    store = Store(answer, stalls=stalls)
    store.start()
    for name, value in {"ENDPOINT_URL": store.url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b",
                        "EC2_METADATA_DISABLED": "true", "DEFAULT_REGION": "us-east-1"}.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    began = time.monotonic()
    with pytest.raises(DataError, match=said):
        prepare("s3://shop/day.csv", out=tmp_path / "data")
    store.socket.close()
    print(f"ended after {time.monotonic() - began:.1f} s")
    assert object_store.TRIES * (object_store.CONNECT_SECONDS + object_store.ANSWER_SECONDS) <= 30
    assert not (tmp_path / "data").exists()


def test_google_needs_its_key_and_is_read_through_the_same_protocol(bucket, endpoint, tmp_path, monkeypatch):
    there = bucket("day.csv", log_text()).replace("s3:", "gs:")
    monkeypatch.setattr(object_store, "GOOGLE", endpoint)
    monkeypatch.delenv("GCS_KEY_ID", raising=False)
    monkeypatch.setenv("GCS_SECRET", "secret")
    with pytest.raises(ConfigError, match="set GCS_KEY_ID in the environment"):
        prepare(there, out=tmp_path / "data")
    monkeypatch.setenv("GCS_KEY_ID", "key")
    data = prepare(there, out=tmp_path / "data")
    assert data.manifest["inputs"]["taken"][0]["name"] == there


@pytest.mark.parametrize(
    "address",
    ["s3://shop", "s3:shop/a.parquet", "gs:/shop/a", "s3://sh*p/a", "delta+ftp://shop/a", "iceberg+s3://shop"],
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match="is no address"):
        remote.remote(address)


def test_what_is_no_address_is_a_path():
    assert [remote.remote(path) for path in ("logs/s3.csv", "/delta+x", "data", "gs")] == [None] * 4


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_lake_table_without_its_library_names_the_extra(lake, tmp_path, monkeypatch):
    for name in ("deltalake", "pyiceberg", "pyiceberg.catalog.noop"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"pip install 'localpolicy\[lakes\]'"):
        prepare(f"{lake}+{tmp_path}/events", out=tmp_path / "data")


def lake_table(lake: str, folder: str) -> None:
    """Write a table in two steps, so that its newest version has both."""
    days = [pa.csv.read_csv(pa.BufferReader(log_text(first))) for first in (0, 1000)]
    if lake == "delta":
        deltalake = pytest.importorskip("deltalake")
        options = {"AWS_ALLOW_HTTP": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
        for day in days:
            deltalake.write_deltalake(folder, day, mode="append", storage_options=options)
        return
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    at = {} if folder.startswith("/") else {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]}
    catalog = sql.SqlCatalog("made", uri="sqlite://", warehouse=folder, **at)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.events", days[0].schema, location=folder)
    for day in days:
        table.append(day)


@pytest.mark.parametrize("where", ["here", "bucket"])
@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_lake_table_is_read_by_its_folder(lake, where, tmp_path, request):
    if where == "here":
        folder = str(tmp_path / "events")
    else:
        folder = request.getfixturevalue("bucket")("lake/other", b"x").replace("other", "events")
    lake_table(lake, folder)
    data = prepare(f"{lake}+{folder}", out=tmp_path / "data")
    assert data.manifest["counts"]["sequences"] == 2 * 200
    (taken,) = data.manifest["inputs"]["taken"]
    assert taken["name"] == f"{lake}+{folder}" and taken["version"].isdecimal()
    with pytest.raises(DataError, match=r"cannot be read|is no"):
        prepare(f"{lake}+{folder}-none", out=tmp_path / "none")
