"""Object stores that speak S3: address, keys, and errors as sentences."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from localpolicy.errors import ConfigError, DataError

ENDPOINTS = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ()}  # variables that name one
GOOGLE = "https://storage.googleapis.com"
CONNECT_SECONDS, ANSWER_SECONDS, TRIES = 5, 6, 2  # a store that stalls is given up within half a minute


class Object(NamedTuple):
    """Address of a log in a bucket: scheme, bucket and key."""

    scheme: str
    bucket: str
    key: str  # may hold wildcards, or name a folder

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def endpoint_of(scheme: str) -> str | None:
    """Address of the store, or None for Amazon's."""
    return GOOGLE if scheme == "gs" else next(filter(None, map(os.environ.get, ENDPOINTS[scheme])), None)


def store_of(wanted: Object) -> Any:
    """File system of an object's store, which gives up on stalled requests after `TRIES` tries."""
    from pyarrow import fs

    settings: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "request_timeout": ANSWER_SECONDS,
                                "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=TRIES)}  # fmt: skip
    endpoint = endpoint_of(wanted.scheme)
    if endpoint is not None:
        settings["endpoint_override"] = endpoint
    if wanted.scheme == "gs":
        if missing := [name for name in ("GCS_KEY_ID", "GCS_SECRET") if not os.environ.get(name)]:
            raise ConfigError(f"gs:// needs an HMAC key: set {' and '.join(missing)} in the environment.")
        settings |= {"access_key": os.environ["GCS_KEY_ID"], "secret_key": os.environ["GCS_SECRET"]}
    elif endpoint is None and not any(map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))):
        with store_errors(wanted):
            settings["region"] = fs.resolve_s3_region(wanted.bucket)
    return fs.S3FileSystem(**settings)


@contextmanager
def store_errors(wanted: Object | str) -> Iterator[None]:
    """Context manager: turn the store's errors into one sentence with a remedy."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # of this machine's disk
        text = " ".join(str(error).split())
        raise DataError(f"{wanted} cannot be read: {_remedy(text, str(wanted)[:2])}") from None


def _remedy(text: str, scheme: str) -> str:
    where = endpoint_of(scheme) or "the store"
    names = (
        "GCS_KEY_ID and GCS_SECRET"
        if scheme == "gs"
        else "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE,"
    )
    refused = ("ACCESS_DENIED", "HTTP status 403", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "status 401")
    if any(word in text for word in refused):
        return f"access was denied. Set {names} to keys that may read it."
    if "NETWORK_CONNECTION" in text or "REQUEST_TIMEOUT" in text or "timeout" in text.lower() or "curlCode" in text:
        return f"{where} did not answer in time ({text[-160:]}). Run this again, or copy the files to this machine."
    return text[:300]
