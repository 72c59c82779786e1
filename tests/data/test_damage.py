"""A data set whose files were damaged or altered: a sentence that names the file, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_logs import random_log, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared, verify
from localpolicy.errors import DataError
from localpolicy.runtime.files import sealed


@pytest.fixture
def data(tmp_path: Path) -> Prepared:
    return prepare(write_parquet(tmp_path / "log.parquet", random_log()), out=tmp_path / "data")


def same_size(header: bytes, old: bytes, new: bytes) -> bytes:
    """`header` with `old` replaced, padded to its size."""
    assert old in header
    changed = header.replace(old, new)
    return changed[: len(header) - 1].rstrip().ljust(len(header) - 1) + b"\n"


HEADERS: dict[str, Callable[[bytes, int], bytes]] = {
    "shorter": lambda h, n: same_size(h, b"(%d,)" % n, b"(%d,)" % (n - 1)),
    "negative": lambda h, n: same_size(h, b"(%d,)" % n, b"(-%d,)" % n),
    "huge": lambda h, n: same_size(h, b"(%d,)" % n, b"(%d,)" % 10**15),
    "two axes": lambda h, n: same_size(h, b"(%d,)" % n, b"(1,%d)" % n),
    "another type of the same width": lambda h, n: same_size(h, b"<i4", b"<f4"),
    "another byte order": lambda h, n: same_size(h, b"<i4", b">i4"),
    "objects": lambda h, n: same_size(h, b"<i4", b"|O8"),
    "another key": lambda h, n: same_size(h, b"'shape'", b"'shope'"),
    "not Python": lambda h, n: same_size(h, b"False", b"Falze"),
    "another beginning": lambda h, n: b"\x00" + h[1:],
    "zeros": lambda h, n: bytes(len(h)),
}


@pytest.mark.parametrize("change", HEADERS)
def test_an_altered_header_is_refused_when_opened(data: Prepared, change: str) -> None:
    file = data.path / "train" / "item.npy"
    content = file.read_bytes()
    file.write_bytes(HEADERS[change](content[:128], len(data["train"].arrays["item"])) + content[128:])
    assert file.stat().st_size == len(content)
    with pytest.raises(DataError, match=r"item.npy was altered: expected a flat array of int32"):
        Prepared(data.path)


def test_offsets_that_do_not_fit_are_refused_when_opened(data: Prepared) -> None:
    for place, number in ((-1, 10**9), (0, 3), (2, 10**9), (2, -1)):
        offsets = np.load(data.path / "train" / "offsets.npy", mmap_mode="r+")
        before = int(offsets[place])
        offsets[place] = number
        offsets.flush()
        with pytest.raises(DataError, match=r"offsets.npy was altered"):
            Prepared(data.path)
        offsets[place] = before
        offsets.flush()
    Prepared(data.path)


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda m: [m],
    "no files": lambda m: m.pop("files"),
    "files of another kind": lambda m: m.update(files=[1, 2]),
    "sizes of another kind": lambda m: m["files"].update({"items.parquet": 7}),
    "a file outside": lambda m: m["files"].update({"../log.parquet": {"bytes": 1, "sha256": ""}}),
    "counts of another kind": lambda m: m.update(counts={"sequences": "many", "items": 3, "events": {}}),
    "another count": lambda m: m["splits"]["train"].update(sequences=m["splits"]["train"]["sequences"] + 1),
    "other events": lambda m: m["splits"]["train"]["events"].update(click=1),
    "a split missing": lambda m: m["splits"].pop("test"),
    "events of another kind": lambda m: m.update(events=3),
    "settings of another kind": lambda m: m.update(settings="all"),
    "another kind of log": lambda m: m.update(kind="poems"),
    "a format of text": lambda m: m.update(format="one"),
}


@pytest.mark.parametrize("change", MANIFESTS)
def test_a_manifest_of_another_shape_is_refused_when_opened(data: Prepared, change: str) -> None:
    path = data.path / "manifest.json"
    manifest = json.loads(path.read_text())
    changed = MANIFESTS[change](manifest)
    path.write_text(json.dumps(changed if isinstance(changed, list) else sealed(manifest)))
    with pytest.raises(DataError, match="manifest|format|prepared data set") as caught:
        Prepared(data.path)
    assert str(data.path) in str(caught.value)


def test_verify_reads_every_file(data: Prepared) -> None:
    files = data.manifest["files"]
    assert verify(data.path) == {"files": len(files), "bytes": sum(file["bytes"] for file in files.values())}
    for name in files:
        path = data.path / name
        content = path.read_bytes()
        for place in (len(content) // 2, len(content) - 1):
            changed = bytearray(content)
            changed[place] ^= 4
            path.write_bytes(changed)
            with pytest.raises(DataError, match=f"{path.name}.* was altered"):
                verify(data.path)
        path.write_bytes(content)
    verify(data.path)


@pytest.mark.parametrize("key", ["digest", "items", "sha256"])
def test_verify_knows_an_altered_manifest(data: Prepared, key: str) -> None:
    path = data.path / "manifest.json"
    manifest = json.loads(path.read_text())
    if key == "digest":
        manifest["digest"] = "0" * 64
    elif key == "items":
        manifest["counts"]["items"] += 1
    else:
        manifest["files"]["items.parquet"]["sha256"] = "0" * 64
    path.write_text(json.dumps(sealed(manifest)))
    with pytest.raises(DataError, match="was altered"):
        verify(data.path)


@pytest.mark.parametrize("name", ["items.parquet", "train/sequences.parquet"])
def test_a_damaged_table_is_named_when_read(data: Prepared, name: str) -> None:
    path = data.path / name
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError, match=f"{name} was altered"):
        Prepared(data.path).to_arrow()
