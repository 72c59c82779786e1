"""Logs in buckets: their objects are fetched, and then read like files of this machine, with the same settings.

    s3://shop/logs/day.csv        one object
    s3://shop/logs/               the logs of a folder
    s3://shop/logs/*.parquet      a pattern: * and ? within a folder's name, ** over folders

Keys are those that the AWS tools find (variables, profiles, the machine's role). AWS_ENDPOINT_URL_S3 or
AWS_ENDPOINT_URL names another store that speaks S3. gs:// is Google's store, through the same protocol, with an HMAC
pair in GCS_KEY_ID and GCS_SECRET. Lake tables are in `lakes`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localpolicy.data.lakes import LAKES, LakeTable
from localpolicy.data.object_store import ENDPOINTS, Object, endpoint_of, store_errors, store_of
from localpolicy.data.sources import Origin, is_log
from localpolicy.errors import ConfigError, DataError, LocalPolicyError

ADDRESS = re.compile(r"(s3|gs)://([^/*?\[]+)/(.*)", re.DOTALL)
FETCHED = "fetched"  # in the scratch folder: a folder per scheme and bucket, so that a path tells its address
AT_ONCE = 4  # objects
BLOCK = 1 << 23  # bytes

log = logging.getLogger(__name__)


Remote = Object | LakeTable


def remote(address: str) -> Remote | None:
    """Object or lake table of an address; None for a path of this machine. Raise ConfigError if it is malformed."""
    lake, plus, place = address.partition("+")
    if plus and lake in LAKES:
        return LakeTable(lake, place)
    if not address.startswith(("s3:", "gs:")):
        return None
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise ConfigError(
            f"'{address}' is no address: expected s3://BUCKET/KEY or gs://BUCKET/KEY, as s3://shop/logs/*.parquet. "
            "delta+ or iceberg+ before it names a lake table."
        )
    return Object(*match.groups())


def fetch(wanted: Object, scratch: Path) -> tuple[list[Path], dict[Path, Origin]]:
    """Copy the objects into `scratch`; return the paths to read, and the origin of each file.

    A folder's path is returned as one, so that its files are found as in a folder of this machine.
    """
    store = store_of(wanted)
    with store_errors(wanted):
        found, is_folder = _found(store, wanted)
    root = scratch / FETCHED / wanted.scheme
    size = sum(info.size or 0 for info in found)
    log.info(f"fetching {len(found):,} object(s), {size / 2**20:,.1f} MiB, from {wanted}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        origins = dict(pool.map(lambda info: _copy(store, wanted.scheme, info, root), found))
    folder = root / wanted.bucket / wanted.key
    return ([folder] if is_folder else [*origins]), origins


@contextmanager
def named_by_address(scratch: Path) -> Iterator[None]:
    """Context manager: errors within name a fetched file by its address."""
    try:
        yield
    except LocalPolicyError as error:
        message = str(error)
        for scheme in ENDPOINTS:
            message = message.replace(f"{scratch / FETCHED / scheme}/", f"{scheme}://")
        if message == str(error):
            raise
        raise type(error)(message) from None


def _found(store: Any, wanted: Object) -> tuple[list[Any], bool]:
    """Objects of an address, and whether a folder was named."""
    from pyarrow import fs

    def listed(place: str) -> list[Any]:
        infos = store.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
        found = sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: str(info.path))
        if not found and store.get_file_info([wanted.bucket])[0].type == fs.FileType.NotFound:
            raise DataError(f"{wanted} cannot be read: {endpoint_of(wanted.scheme) or 'the store'} has no such bucket.")
        return found

    place, key = f"{wanted.bucket}/{wanted.key}".rstrip("/"), wanted.key
    if wildcard := re.search(r"[*?]", key):
        below = f"{wanted.bucket}/{key[: wildcard.start()].rpartition('/')[0]}".rstrip("/")
        pattern = re.compile(f"{re.escape(wanted.bucket)}/{_expression(key)}", re.DOTALL)
        found = [info for info in listed(below) if pattern.fullmatch(info.path)]
        if not found:
            raise DataError(f"no object matches {wanted}.")
        return found, False
    (info,) = store.get_file_info([place])
    if info.type == fs.FileType.File and not key.endswith("/"):
        return [info], False
    files = listed(place)
    logs = [info for info in files if is_log(Path(info.path).relative_to(place))]
    if not logs:
        missing = f"{wanted} does not exist, and no folder of that name holds a log."
        odd = f"{wanted} holds no log: {len(files):,} objects, and no name that ends as a log's does."
        raise DataError(odd if files else missing)
    return logs, True


def _expression(pattern: str) -> str:
    """Regular expression of a pattern: ** is any text, * and ? are any without a slash."""
    parts = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*|[*?])", pattern))


def _copy(store: Any, scheme: str, info: Any, root: Path) -> tuple[Path, Origin]:
    """Copy one object; raise DataError if it is cut short, or replaced meanwhile."""
    address = f"{scheme}://{info.path}"
    if not all(part not in ("", ".", "..") for part in info.path.split("/")):
        raise DataError(f"{address} has a name that is no path: give it another.")
    target = root / info.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with store_errors(address):
        with store.open_input_stream(info.path, compression=None) as stream, target.open("wb") as file:
            version = _version(stream.metadata())
            while block := stream.read(BLOCK):
                file.write(block)
            copied = file.tell()
        with store.open_input_stream(info.path, compression=None) as stream:
            after = _version(stream.metadata())
    if copied != info.size or after != version:
        raise DataError(f"{address} was replaced while it was read. Run this again.")
    return target, Origin(address, version)


def _version(metadata: Any) -> str:
    """Version of an object if its bucket keeps versions, else its ETag."""
    fields = {(name if isinstance(name, str) else name.decode()): value.decode() for name, value in metadata.items()}
    return str(fields.get("VersionId") or fields.get("ETag", "")).strip('"')
