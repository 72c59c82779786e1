"""Lake tables as logs: rows of a Delta or Iceberg table at its newest version, read by deltalake or pyiceberg.

    delta+s3://shop/events      a Delta table in a bucket; delta+/lake/events one on this machine
    iceberg+s3://shop/events    an Iceberg table's folder, or one of its …/metadata/….metadata.json

Keys and the store's address come from the same variables as those of other objects (see `object_store`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localpolicy.data.object_store import CONNECT_SECONDS, Object, endpoint_of, store_of
from localpolicy.errors import ConfigError, DataError

PLACE = re.compile(r"(?:s3://[^/]+/)?[^:]+", re.DOTALL)
SECONDS = 10  # that a store may take


def _delta(place: str) -> tuple[Any, str]:
    """Rows of a Delta table, and its version."""
    from deltalake import DeltaTable

    endpoint = endpoint_of("s3") or ""
    options = {
        "timeout": f"{SECONDS}s",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "max_retries": "1",
        "retry_timeout": f"{SECONDS}s",
    }
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint}
    if endpoint.startswith("http:"):
        options |= {"AWS_ALLOW_HTTP": "true"}
    table = DeltaTable(place, storage_options=options if place.startswith("s3:") else None)
    return table.scan(), str(table.version())


def _iceberg(place: str) -> tuple[Any, str]:
    """Rows of an Iceberg table, and its snapshot. No property of the table decides how files are opened."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.io import load_file_io
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import Table

    endpoint = endpoint_of("s3")
    known = {
        "s3.connect-timeout": str(CONNECT_SECONDS),
        "s3.request-timeout": str(SECONDS),
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }
    known |= {} if endpoint is None else {"s3.endpoint": endpoint}
    file = place if place.endswith(".metadata.json") else _newest_metadata(place)
    io = load_file_io(known, file)
    metadata = FromInputFile.table_metadata(io.new_input(file))
    table = Table(("table",), metadata, file, io, NoopCatalog("none"))
    return table.scan().to_arrow_batch_reader(), str(metadata.current_snapshot_id)


def _newest_metadata(place: str) -> str:
    """Newest metadata file of a table's folder: names begin with their number, 00002-… or v2.…"""
    from pyarrow import fs

    folder = place.rstrip("/") + "/metadata"
    if place.startswith("s3:"):
        bucket, _, key = folder.removeprefix("s3://").partition("/")
        listed = store_of(Object("s3", bucket, key)).get_file_info(
            fs.FileSelector(f"{bucket}/{key}", allow_not_found=True)
        )
        names = [f"s3://{info.path}" for info in listed]
    else:
        names = [str(path) for path in Path(folder).glob("*.metadata.json")]
    numbered = [(int(match[1]), name) for name in names
                if (match := re.search(r"/v?(\d+)[^/]*\.metadata\.json$", name))]  # fmt: skip
    if not numbered:
        raise DataError(f"{place} is no Iceberg table: it has no metadata/….metadata.json.")
    return max(numbered)[1]


LAKES: dict[str, Callable[[str], tuple[Any, str]]] = {"delta": _delta, "iceberg": _iceberg}


class LakeTable:
    """Rows at an address, read on demand."""

    def __init__(self, lake: str, place: str) -> None:
        self.lake, self.place, self.label = lake, place, f"{lake}+{place}"
        self.version = ""  # known once its rows were read
        if not PLACE.fullmatch(place):
            raise ConfigError(
                f"'{self.label}' is no address: expected {lake}+s3://BUCKET/FOLDER, or {lake}+/FOLDER on this machine."
            )

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        try:
            rows, self.version = LAKES[self.lake](self.place)
            return rows.__arrow_c_stream__(requested_schema)
        except ImportError as error:
            raise DataError(f"{self.label} is read with {error.name}: pip install 'localpolicy[lakes]'.") from None
        except DataError:
            raise
        except Exception as error:  # each library raises its own types
            message = " ".join(str(error).split())[:300]
            raise DataError(
                f"{self.label} cannot be read: {message}. Expected the folder of a {self.lake.capitalize()} table; for "
                "s3:// with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of keys that may read it."
            ) from None
