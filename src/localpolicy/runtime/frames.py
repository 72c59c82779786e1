"""Tables of users, in and out: pandas, Polars, Arrow, DuckDB. Only Arrow is required.

In, through the Arrow C stream (or the older dataframe protocol), a batch at a time. Out, as pandas if it is installed,
else as Polars.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from uuid import UUID

from localpolicy.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

STREAM, PROTOCOL = "__arrow_c_stream__", "__dataframe__"


def is_table(value: object) -> bool:
    """Whether `value` is a table that `arrow_stream` reads."""
    return any(hasattr(value, name) for name in (STREAM, PROTOCOL)) or _is_lazy(value)


def arrow_stream(table: Any) -> pa.RecordBatchReader:
    """Rows of a table, a batch at a time."""
    import pyarrow as pa
    from pyarrow.interchange import from_dataframe

    try:
        if _is_lazy(table):
            table = table.collect()
        if not hasattr(table, STREAM):
            table = from_dataframe(table)
        return pa.RecordBatchReader.from_stream(_readable(table))
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{table_name(table)} cannot be read as an Arrow table: {str(error)[:500]}") from None


def _readable(table: Any) -> Any:
    """Copy of a pandas frame that Arrow can read: an index is a column if it has a name; UUID objects are texts."""
    if type(table).__module__.split(".")[0] != "pandas" or not hasattr(table, "dtypes"):
        return table
    if (named := any(name is not None for name in table.index.names)) or type(table.index).__name__ != "RangeIndex":
        table = table.reset_index(drop=not named)
    objects = [name for name, kind in table.dtypes.items() if kind == object]  # noqa: E721 - a dtype
    ids = [name for name in objects if len(table) and isinstance(table[name].iloc[0], UUID)]
    return table.assign(**{name: table[name].map(str) for name in ids}) if ids else table


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Arrow type that files can hold: categories become texts, and views become copies."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def plain(array: pa.Array) -> pa.Array:
    """Array cast to its `plain_type`."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary).take(array.indices)
    kind = plain_type(array.type)
    return array if kind == array.type else array.cast(kind)  # Arrow cannot cast lists of nulls, to any type


def plain_table(rows: pa.RecordBatchReader) -> pa.Table:
    """Table of all rows, cast to types that files hold."""
    import pyarrow as pa

    schema = pa.schema([(field.name, plain_type(field.type)) for field in rows.schema])
    return pa.Table.from_batches(
        [pa.record_batch([plain(column) for column in batch.columns], schema=schema) for batch in rows], schema
    )


def to_frame(table: pa.Table) -> Any:
    """Convert a table to a pandas DataFrame, or to a Polars one if pandas is not installed."""
    if find_spec("pandas"):
        return table.to_pandas()
    if find_spec("polars"):
        import polars

        return polars.from_arrow(table)
    raise ConfigError("to_frame() needs pandas or Polars: pip install pandas. to_arrow() works without them.")


def table_name(table: object) -> str:
    """Name of a table in messages: 'the pandas DataFrame'."""
    kind = type(table)
    if kind.__module__ == "builtins":
        return f"a value of type {kind.__name__}"
    return f"the {kind.__module__.split('.')[0].lstrip('_')} {kind.__name__}"


def _is_lazy(value: object) -> bool:
    """Whether a value is a Polars LazyFrame: a plan that becomes a table."""
    return type(value).__module__.split(".")[0] == "polars" and hasattr(value, "collect")
