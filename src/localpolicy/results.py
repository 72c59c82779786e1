"""What every result can do: print itself, show itself in a notebook, give its numbers back as a dict or a table.

Rooms below `report` know nothing of tables and pages: they know this module. `report.results` registers how each kind
of result is shown, and `import localpolicy` sees to it that it does. Without it a result prints its one-line summary.
"""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpolicy.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


@singledispatch
def tables_of(result: object) -> list[Any]:
    """The tables that show a result (`report.table.Table`)."""
    return []


@singledispatch
def write_page(result: object, path: Path) -> object:
    """Write a result as one self-contained HTML file."""
    raise ConfigError(f"a {type(result).__name__} cannot be written as a page: import localpolicy first.")


@singledispatch
def claims_of(result: object) -> list[Any]:
    """What is claimed of a result, and whether it holds (`judge.claims.Claim`)."""
    return []


class Result:
    """A result of a verb."""

    def summary(self) -> str:
        """One line, without a full stop."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Every number as a field, fit for JSON."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """The numbers as an Arrow table."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The numbers as a pandas DataFrame, or as a Polars one where pandas is not installed."""
        from localpolicy.runtime.frames import to_frame

        return to_frame(self.to_arrow())

    def to_html(self, path: Path | str) -> Path:
        """Write the whole report as one HTML file that needs no network; return its path."""
        write_page(self, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def __str__(self) -> str:
        return "\n".join(str(table) for table in tables_of(self)) or repr(self)

    def _repr_html_(self) -> str | None:
        """For a notebook; None lets it print the summary."""
        return "".join(table._repr_html_() for table in tables_of(self)) or None
