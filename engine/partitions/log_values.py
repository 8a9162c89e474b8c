"""The text under which a partition of a log is known: its typed values, spelled so that they come back as they were.

It looks as Hive's folders do. But a log tells an empty string from null, so it has a text of its own here (`p=`), and
the name that Hive has for null is only that name where it is a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from . import hive


def partition_texts(names: Sequence[str], values: Sequence[pa.Array | pa.ChunkedArray], count: int) -> pa.Array:
    """One text a file, from a typed array a partition column, each of `count` values."""
    if not names:
        return pa.array([""] * count, pa.string())
    levels = [_level(name, column) for name, column in zip(names, values, strict=True)]
    return levels[0] if len(levels) == 1 else pc.binary_join_element_wise(*levels, "/")


def _level(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    coded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column, null_encoding="encode")
    texts = [f"{hive.escape(name)}={_value(value)}" for value in _spelled(coded.dictionary)]
    return pa.array(texts, pa.string()).take(coded.indices)


def _spelled(values: pa.Array) -> list[object]:
    if pa.types.is_timestamp(values.type):  # not by Python, which has no nanoseconds
        return values.cast(pa.string()).to_pylist()
    return values.to_pylist()


def _value(value: object) -> str:
    if value is None:
        return hive.NULL_VALUE
    if value == hive.NULL_VALUE:
        return f"%5F{hive.NULL_VALUE[1:]}"
    return hive.escape(hive.value_text(value) or "")
