"""Base class of results: printed, shown in a notebook, and given back as a dict or a table.

Packages below `report` know nothing of tables and pages: a result asks its writer for them when it is shown.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa


class Result:
    """Result of a verb, with its numbers and its text."""

    WRITER: ClassVar = "localpolicy.report.results"  # shows this kind of result; imported when one is shown

    def summary(self) -> str:
        """Summary in one line, without a full stop."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """JSON content of the result, with every number in a field."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """The numbers as an Arrow table."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """Numbers of the result as a pandas DataFrame, or as a Polars one if pandas is not installed."""
        from localpolicy.runtime.frames import to_frame

        return to_frame(self.to_arrow())

    def to_html(self, path: Path | str) -> Path:
        """Write the whole report as one HTML file that needs no network; return its path."""
        self._writer().write_page(self, Path(path))
        return Path(path)

    def _writer(self) -> Any:
        return importlib.import_module(self.WRITER)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __str__(self) -> str:
        return "\n".join(str(table) for table in self._writer().tables_of(self)) or repr(self)

    def _repr_html_(self) -> str | None:
        """HTML of the result's tables for a notebook; None, so that it prints the summary, without tables."""
        return "".join(table._repr_html_() for table in self._writer().tables_of(self)) or None
