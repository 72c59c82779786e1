"""Logs that lie elsewhere: buckets (s3://, gs://) and lake tables (Delta, Iceberg), through DuckDB's extensions.

    s3://bucket/logs/*.parquet       files of a bucket, also gs://; a name that ends in .csv or .csv.gz is text
    delta+s3://bucket/shop/events    a Delta table in a bucket; delta+/lake/events one on this machine
    iceberg+s3://bucket/shop/events  an Iceberg table likewise

DuckDB fetches an extension once, when it is first needed. Keys of s3:// come from where the AWS tools find them
(variables, profiles, the machine's role); those of gs:// are an HMAC pair in GCS_KEY_ID and GCS_SECRET.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from localpolicy.errors import ConfigError, DataError

BUCKET = re.compile(r"(s3|gs)://[^/]+/.+")
LAKES = {"delta": "delta_scan", "iceberg": "iceberg_scan"}
ADDRESS = re.compile(rf"(?:({'|'.join(LAKES)})\+)?(.+)", re.DOTALL)


class Source(NamedTuple):
    """How DuckDB reads an address."""

    extensions: tuple[str, ...]
    secret: str | None  # SQL that says where keys are
    query: str


def is_remote(address: str) -> bool:
    """Whether an input is none of this machine's files and folders."""
    return address.startswith(("s3:", "gs:", *(f"{lake}+" for lake in LAKES)))


def source_of(address: str) -> Source:
    """The SQL of an address, and what it needs."""
    match = ADDRESS.fullmatch(address)
    assert match is not None
    lake, place = match.groups()
    in_bucket = BUCKET.fullmatch(place)
    if in_bucket is None and (lake is None or re.match(r"\w+:", place)):
        raise ConfigError(
            f"'{address}' is no address: expected s3://BUCKET/KEY or gs://BUCKET/KEY, perhaps with delta+ or iceberg+ "
            "before it, such as s3://shop/logs/*.parquet."
        )
    scheme = None if in_bucket is None else in_bucket[1]
    extensions = ("httpfs", *(("aws",) if scheme == "s3" else ())) if scheme else ()
    extensions += (lake,) if lake else ()
    text = "'" + place.replace("'", "''") + "'"
    if lake:
        query = f"SELECT * FROM {LAKES[lake]}({text})"
    elif place.endswith((".csv", ".csv.gz", ".tsv", ".txt")):
        query = f"SELECT * FROM read_csv({text}, all_varchar = true)"
    else:
        query = f"SELECT * FROM read_parquet({text}, hive_partitioning = false)"
    return Source(extensions, _secret(scheme), query)


def _secret(scheme: str | None) -> str | None:
    if scheme == "s3":
        return "CREATE SECRET (TYPE s3, PROVIDER credential_chain)"
    if scheme == "gs":
        names = ("GCS_KEY_ID", "GCS_SECRET")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise ConfigError(f"gs:// needs an HMAC key: set {' and '.join(missing)} in the environment.")
        key, secret = (os.environ[name].replace("'", "''") for name in names)
        return f"CREATE SECRET (TYPE gcs, KEY_ID '{key}', SECRET '{secret}')"
    return None


class RemoteTable:
    """The rows at an address, read when they are asked for."""

    def __init__(self, address: str, *, connect: Callable[[], Any] | None = None) -> None:
        import duckdb

        self.label, self._source = address, source_of(address)
        self._connection = (connect or duckdb.connect)()
        for extension in self._source.extensions:
            self._load(extension, duckdb.Error)

    def _load(self, extension: str, refused: type[Exception]) -> None:
        try:
            self._connection.execute(f"LOAD {extension}")
        except refused:
            try:
                self._connection.execute(f"INSTALL {extension}")
                self._connection.execute(f"LOAD {extension}")
            except refused as error:
                raise DataError(
                    f"{self.label} is read through DuckDB's extension '{extension}', which is not here and could not "
                    f"be fetched ({str(error).splitlines()[0]}). Where there is a network, run 'INSTALL {extension}' "
                    "in DuckDB once; or copy the files to this machine and name those."
                ) from None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import duckdb

        try:
            if self._source.secret is not None:
                self._connection.execute(self._source.secret)
            rows = self._connection.sql(self._source.query).to_arrow_table()
        except duckdb.Error as error:
            raise DataError(f"{self.label} cannot be read: {str(error).splitlines()[0]}") from None
        return rows.__arrow_c_stream__(requested_schema)
