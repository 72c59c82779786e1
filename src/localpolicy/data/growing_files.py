"""Files that are written a piece at a time, and whose bytes do not depend on the pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_GROUP = 1 << 20


class ArrayFile:
    """A .npy file that is appended to, its length not known before it is closed."""

    HEADER = 128  # bytes; the header is padded to this size so that it can be rewritten in place

    def __init__(self, path: Path, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': ({self.length},), }}"
        body = text.encode("latin1").ljust(self.HEADER - 11) + b"\n"
        self._file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body)

    def append(self, values: np.ndarray) -> None:
        """Add `values`, cast to the file's type."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(values.data)
        self.length += len(values)

    def close(self) -> None:
        """Write the final length and close."""
        self._file.seek(0)
        self._write_header()
        self._file.close()


class ParquetFile:
    """A Parquet file that is appended to, in groups of one size: its bytes must not depend on how rows arrived."""

    def __init__(self, path: Path, *, compression: str = "snappy") -> None:
        self.path, self.compression = path, compression
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0  # that wait

    def append(self, rows: pa.Table) -> None:
        """Add `rows`."""
        self._waiting.append(rows)
        self._rows += len(rows)
        while self._rows >= ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._writer = self._writer or pq.ParquetWriter(self.path, rows.schema, compression=self.compression)
        self._writer.write_table(rows.slice(0, ROWS_PER_GROUP).combine_chunks())
        rest = rows.slice(ROWS_PER_GROUP)
        self._waiting, self._rows = [rest], len(rest)

    def close(self) -> None:
        """Write what waits, and close; a file that nothing was added to is not made."""
        if self._rows or (self._waiting and self._writer is None):
            self._write_group()
        if self._writer is not None:
            self._writer.close()
