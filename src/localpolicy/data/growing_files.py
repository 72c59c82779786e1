"""Files that are written a piece at a time, and whose bytes do not depend on the pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import DataError

ROWS_PER_GROUP = 1 << 20
ROWS_PER_SMALL_GROUP = 1 << 17  # for wide rows: a group stays in memory until it is full


HEADER = 128  # bytes; an array's header is padded to this size so that it can be rewritten in place


def header(dtype: np.dtype[Any], length: int) -> bytes:
    """First bytes of a .npy file of a flat array."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({length},), }}"
    body = text.encode("latin1").ljust(HEADER - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def open_array(path: Path, dtype: Any) -> np.ndarray:
    """Map the array in a file of `ArrayFile`'s copy-on-write: torch may hold it, and the file is never written."""
    dtype = np.dtype(dtype)
    try:
        with path.open("rb") as file:
            start = file.read(HEADER)
            length, rest = divmod(path.stat().st_size - HEADER, dtype.itemsize)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Prepare the data set again.") from None
    if rest or length < 0 or start != header(dtype, length):
        raise DataError(f"{path} was altered: expected a flat array of {dtype}. Prepare the data set again.")
    return np.memmap(path, dtype, mode="c", offset=HEADER, shape=(length,))


class ArrayFile:
    """A .npy file that is appended to, its length not known before it is closed."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file: BinaryIO = path.open("wb")
        self._file.write(header(self.dtype, 0))

    def append(self, values: np.ndarray) -> None:
        """Add `values`, cast to the file's type."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(values.data)
        self.length += len(values)

    def close(self) -> None:
        """Write the final length and close."""
        self._file.seek(0)
        self._file.write(header(self.dtype, self.length))
        self._file.close()


class ParquetFile:
    """A Parquet file that is appended to, in groups of one size: its bytes must not depend on how rows arrived."""

    def __init__(self, path: Path, *, compression: str = "snappy", group: int = ROWS_PER_GROUP) -> None:
        self.path, self.compression, self.group = path, compression, group
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0  # rows not written yet

    def append(self, rows: pa.Table) -> None:
        """Add the rows."""
        self._waiting.append(rows)
        self._rows += len(rows)
        while self._rows >= self.group:
            self._write_group()

    def _write_group(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._writer = self._writer or pq.ParquetWriter(self.path, rows.schema, compression=self.compression)
        self._writer.write_table(rows.slice(0, self.group).combine_chunks())
        rest = rows.slice(self.group)
        self._waiting, self._rows = [rest], len(rest)

    def close(self) -> None:
        """Write the remaining rows, and close; without any rows no file is made."""
        if self._rows or (self._waiting and self._writer is None):
            self._write_group()
        if self._writer is not None:
            self._writer.close()
