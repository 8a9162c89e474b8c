"""Types that SQL names, and literals cast to them where engines agree on the value."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa

_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "UUID": pa.uuid(),
}


class NotUnderstoodError(Exception):
    """Ends the reading of one leaf; the message says why."""


def arrow_type(to: Any, *, is_spark: bool) -> pa.DataType:
    """The Arrow type of a type that sqlglot parsed. Raises NotUnderstoodError."""
    plain = _TYPES.get(to.this.name)
    if plain is not None and not to.expressions:
        return plain
    if to.this.name == "DECIMAL":
        try:
            sizes = [int(size.this.this) for size in to.expressions] or ([10] if is_spark else [18, 3])
            return pa.decimal128(*sizes)
        except (ValueError, AttributeError, TypeError):
            pass
    raise NotUnderstoodError(f"the type {to} is not understood")


def cast_literal(value: Any, kind: pa.DataType) -> Any:
    """A literal in the type asked for, where engines agree on it."""
    try:
        if pa.types.is_floating(kind):
            if isinstance(value, str):
                value = float(value)
            return pa.scalar(float(value), pa.float64()).cast(kind, safe=False).as_py()
        if isinstance(value, str) and not pa.types.is_string(kind):
            value = decimal.Decimal(value.strip()) if pa.types.is_decimal(kind) or pa.types.is_integer(kind) else None
        if pa.types.is_integer(kind) and type(value) in (int, decimal.Decimal) and value == int(value):
            return pa.scalar(int(value), kind).as_py()
        if pa.types.is_decimal(kind) and type(value) in (int, decimal.Decimal):
            return pa.scalar(decimal.Decimal(value), kind).as_py()
        if pa.types.is_string(kind) and isinstance(value, str):
            return value
        if pa.types.is_boolean(kind) and isinstance(value, bool):
            return value
        if pa.types.is_binary(kind) and isinstance(value, str | bytes):
            return value.encode() if isinstance(value, str) else value
    except (pa.ArrowException, ArithmeticError, ValueError):
        pass
    raise NotUnderstoodError(f"a cast of {value!r} to {kind} is not understood")
