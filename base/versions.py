"""Features that older versions of a library lack. No other module of the engine compares versions.

pyproject.toml declares the oldest supported versions, and `make floors` runs the tests with these.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import PredicateError

PYARROW = tuple(int(part) for part in re.findall(r"\d+", pa.__version__)[:2])

_UUIDS_OF_PARQUET = (24, 0)
_EXTENSION_SCALARS = (21, 0)  # since then, an expression with a UUID can be written and printed
_BIT_COUNTS = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)


def schema_of(file: Any) -> pa.Schema:
    """Return the Arrow schema of an open Parquet file, with UUIDs. pyarrow 23 and older read another writer's UUIDs as
    16 bytes, and other literals are compared with a UUID than with bytes."""
    schema: pa.Schema = file.schema_arrow
    if PYARROW >= _UUIDS_OF_PARQUET:
        return schema
    leaves = [file.schema.column(i).logical_type.type for i in range(len(file.schema))]
    if "UUID" not in leaves:
        return schema
    logical = iter(leaves)
    return pa.schema([_with_uuids(field, logical) for field in schema], metadata=schema.metadata)


def _with_uuids(field: pa.Field, logical: Iterator[str]) -> pa.Field:
    """Return a field, whose Parquet leaves have these logical types, with UUIDs in it and in the fields of structs."""
    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_with_uuids(child, logical) for child in kind]))
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_nested(kind):
        for child in [kind.field(i) for i in range(kind.num_fields)]:
            _with_uuids(child, logical)
        return field
    is_uuid = next(logical) == "UUID" and field.type == pa.binary(16)
    return field.with_type(pa.uuid()) if is_uuid else field


def check_readable() -> None:
    """Raise PredicateError for a pyarrow expression that could not be read, if its version may be the reason: below
    pyarrow 21, an expression with a UUID or a column by number cannot be written, and one with a UUID ends the process
    if it is printed."""
    if PYARROW < _EXTENSION_SCALARS:
        raise PredicateError(
            f"this pyarrow expression cannot be read with pyarrow {pa.__version__}: one with a UUID, or with a "
            "column by its number, needs pyarrow 21 or newer; write the predicate as SQL text or with col()"
        )


def is_nan(values: pa.Array | pa.ChunkedArray) -> pa.BooleanArray | pa.ChunkedArray:
    """Return `pc.is_nan`, which pyarrow 20 and older lack for half floats."""
    return pc.is_nan(values.cast(pa.float32()) if pa.types.is_float16(values.type) else values)


def check_nanoseconds(duckdb_version: str, field: pa.Field) -> None:
    """Raise PredicateError for a column whose nanoseconds DuckDB 1 truncates when it tests rows."""
    kind = field.type
    has_nanoseconds = kind == pa.time64("ns") or (pa.types.is_timestamp(kind) and kind.unit == "ns" and kind.tz)
    if has_nanoseconds and int(duckdb_version.split(".")[0]) < 2:
        raise PredicateError(
            f"column {field.name!r} is {kind}, of which DuckDB {duckdb_version} cuts the nanoseconds off: install "
            "DuckDB 2.0 or newer, or write the predicate with col()"
        )


def check_zero_characters(duckdb_version: str, text: str) -> None:
    """Raise PredicateError for SQL with a zero character: DuckDB 1 does not read the text after it."""
    if "\0" in text and int(duckdb_version.split(".")[0]) < 2:
        raise PredicateError(
            f"DuckDB {duckdb_version} ends SQL at a zero character: install DuckDB 2.0 or newer, or write the "
            "predicate with col()",
            text=text,
            position=text.index("\0"),
        )


def shown(where: object) -> str:
    """Return a predicate of any kind as text; below pyarrow 21 an expression is not printed."""
    if PYARROW < _EXTENSION_SCALARS and isinstance(where, pc.Expression):
        return "a pyarrow expression"
    return str(where)


def bit_counts(words: np.ndarray) -> np.ndarray:
    """Return the number of set bits of each uint32 of an array: uint8, of the same shape. numpy 2.0 has a function."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    by_byte = _BIT_COUNTS[np.ascontiguousarray(words).view(np.uint8)]
    return by_byte.reshape(*words.shape, words.itemsize).sum(axis=-1, dtype=np.uint8)


def accepted(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return those of the options that this version of a library's function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}
