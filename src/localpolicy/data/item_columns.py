"""Columns of the item table: kind, given or guessed from name and values, and values of that kind.

`id`, `category`, `categories` (a list), `number`, `vector`, `name` (shown, never learnt from) or `skip`.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.errors import DataError

KINDS = ("id", "category", "categories", "number", "vector", "name", "skip")
NAMES = (
    "name",
    "title",
    "label",
    "description",
    "text",
    "url",
    "link",
    "image",
)  # shown, not learnt from
CODES = (
    "id",
    "code",
    "category",
    "brand",
    "type",
    "class",
    "genre",
    "group",
    "cluster",
)  # whole numbers that are names
FEW = 20  # distinct whole numbers that are rather codes than amounts
MOST_VALUES = 100_000  # of a category
LARGEST = 1e300  # of a number: differences of two are still finite
SEPARATOR = "|"
TYPES = {
    "category": pa.string(), "categories": pa.list_(pa.string()), "number": pa.float64(),
    "vector": pa.list_(pa.float32()), "name": pa.string(),
}  # fmt: skip


def understood(
    name: str, column: pa.ChunkedArray, explicit: str | None, label: str, *, few: bool = False
) -> tuple[str, pa.Array, str]:
    """Kind of an item column, its values converted to that kind, and the reason if it is left out.

    With `few`, as for a day's few items, a constant column or one without values is kept.
    """
    values = _parsed(column, explicit=explicit)
    kind = explicit or _guess(name, values)
    given = values.drop_null()
    if few and explicit in TYPES and not len(given):
        return explicit, pa.nulls(len(values), TYPES[explicit]), ""
    if kind == "skip" or not len(given):
        return "skip", values, "no values" if not len(given) else f"a column of {values.type}"
    where = f"{label}: column '{name}'"
    if kind == "number":
        try:
            numbers = values.cast(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(
                f"{where} holds {values.type}, not numbers. Say what it is: --item-columns {name}=category."
            ) from None
        array = numbers.to_numpy(zero_copy_only=False)
        if wild := int((np.abs(array) > LARGEST).sum()):
            raise DataError(f"{where}: {wild:,} numbers are infinite or beyond {LARGEST:g}. Leave such values empty.")
        values = pa.array(array, pa.float64(), from_pandas=True)  # NaN is how frames say that a number is missing
        given = values.drop_null()
    elif kind == "vector":
        values = _checked_vectors(values, where)
        given = values.drop_null()
    elif kind == "categories":
        if not pa.types.is_list(values.type):
            values = _cut(values.cast(pa.string()), SEPARATOR)
        values = values.cast(pa.list_(pa.string()))
        given = pc.list_flatten(values).drop_null()
    else:
        if pa.types.is_nested(values.type):
            raise DataError(f"{where} holds {values.type}; a {kind} is one value an item. Is it categories?")
        values = values.cast(pa.string())
        given = values.drop_null()
    if kind != "name" and not few:
        if kind == "vector":
            rows = given.flatten().to_numpy(zero_copy_only=False).reshape(len(given), -1)
            distinct, missing = 2 - int((rows == rows[0]).all()), 0  # a missing vector counts as the mean
        else:
            distinct, missing = len(pc.unique(given)), values.null_count
        if distinct <= 1 and not missing:
            if explicit:
                raise DataError(f"{where} has the same value for every item, which is not informative. Leave it out.")
            return "skip", values, "the same for every item"
        if kind != "number" and distinct > MOST_VALUES:
            raise DataError(
                f"{where} has {distinct:,} values for {len(values):,} items; a category has at most {MOST_VALUES:,}. "
                f"A name is shown and not learnt from (--item-columns {name}=name); or leave it out ({name}=skip)."
            )
    return kind, values, ""


def _parsed(values: pa.ChunkedArray, *, explicit: str | None) -> pa.Array:
    """Parsed texts: lists from a|b|c, [1, 2, 3], ["a", "b"]; numbers from times, texts from truth values."""
    column = values.combine_chunks()
    kind = column.type
    if pa.types.is_large_string(kind):
        column, kind = column.cast(pa.string()), pa.string()
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
        kind = column.type
    if pa.types.is_duration(kind):
        return column.cast(pa.int64())
    if pa.types.is_temporal(kind):
        return (
            column.cast(pa.timestamp("ms")).cast(pa.int64()) if not pa.types.is_time(kind) else column.cast(pa.string())
        )
    if pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if not pa.types.is_string(kind):
        return column
    column = pc.if_else(pc.equal(pc.utf8_trim_whitespace(column), ""), pa.scalar(None, pa.string()), column)
    given = column.drop_null()
    if explicit == "vector" or (len(given) and pc.all(pc.match_substring_regex(given, r"^\s*\[.*\]\s*$")).as_py()):
        inner = pc.utf8_trim(column, " []()")
        try:
            return pc.split_pattern_regex(inner, r"[,;\s]+").cast(pa.list_(pa.float64()))
        except pa.ArrowInvalid:
            lists = _from_json(column)
            return _cut(inner, ",") if lists is None else lists
    split = explicit == "categories" or (explicit is None and _share(pc.match_substring(given, SEPARATOR)) > 0.1)
    return _cut(column, SEPARATOR) if split else column


def _from_json(column: pa.Array) -> pa.Array | None:
    """Lists of texts, if every value is one in JSON, else None."""
    try:
        lists = [None if text is None else [str(each) for each in json.loads(text)] for text in column.to_pylist()]
    except (ValueError, TypeError):
        return None
    return pa.array(lists, pa.list_(pa.string()))


def _cut(column: pa.Array, separator: str) -> pa.Array:
    """Texts cut at a separator, without blanks and quotes around the parts; an empty part is no value."""
    parts = pc.split_pattern(column, separator)
    texts = pc.utf8_trim(pc.list_flatten(parts), " \t\r\n\"'")
    given = np.asarray(pc.not_equal(texts, "").to_numpy(zero_copy_only=False), bool)
    offsets = np.concatenate([[0], np.cumsum(given)])[parts.offsets.to_numpy()]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts.filter(given), mask=parts.is_null())


def _checked_vectors(values: pa.Array, where: str) -> pa.Array:
    try:
        vectors = values.cast(pa.list_(pa.float32()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"{where} holds {values.type}, not vectors of numbers.") from None
    lengths = pc.value_counts(pc.list_value_length(vectors).drop_null())
    if len(lengths) > 1:
        seen = ", ".join(f"{each['values'].as_py()} ({each['counts'].as_py():,} items)" for each in lengths[:3])
        raise DataError(f"{where} holds vectors of several lengths: {seen}. Give all of them one length, or none.")
    inner = pc.list_flatten(vectors)
    broken = inner.null_count + int((~np.isfinite(inner.drop_null().to_numpy(zero_copy_only=False))).sum())
    if broken:
        raise DataError(
            f"{where}: {broken:,} numbers in its vectors are missing or not finite. Leave such items empty."
        )
    return vectors


def _guess(name: str, values: pa.Array) -> str:
    kind, word = values.type, name.lower()
    if pa.types.is_list(kind):
        if not pa.types.is_floating(kind.value_type):
            return (
                "categories" if pa.types.is_integer(kind.value_type) or pa.types.is_string(kind.value_type) else "skip"
            )
        return "vector"
    given = values.drop_null()
    if pa.types.is_floating(kind):
        return "number"
    if pa.types.is_integer(kind):
        coded = any(word == code or word.endswith((f"_{code}", f"{code}_id")) for code in CODES)
        return "category" if coded or len(pc.unique(given)) <= FEW else "number"
    if pa.types.is_string(kind):
        shown = any(word == each or word.endswith(f"_{each}") for each in NAMES)
        return "name" if shown or (len(given) > FEW and len(pc.unique(given)) > 0.5 * len(given)) else "category"
    return "skip"


def _share(truths: pa.Array) -> float:
    return float(pc.mean(truths.cast(pa.float64())).as_py() or 0.0)
