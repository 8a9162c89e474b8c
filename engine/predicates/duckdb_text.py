"""A bound predicate as SQL of DuckDB, for DuckDB to filter the rows of files by."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ... import canon
from .ast import And, Constant, Node, Not, Or
from .bound import ColumnLeaf, ColumnRef, Leaf, Residual
from .coerce import is_text
from .literals import literal_sql, string_sql
from .operands import Literal, quoted, type_sql

_LISTED_MAX = 100  # values that are written; a longer list is a parameter
_WRITTEN_MAX = 1_000  # values that are written where they cannot be a parameter


class _NoTextError(Exception):
    """DuckDB cannot test this, or tests it in another way."""


def predicate_text(bound: Node) -> tuple[str, list[Any]] | None:
    """Return SQL that is TRUE for exactly the rows that a bound predicate matches, and the values of its parameters
    `$1`, `$2`, ...; None if DuckDB has no such SQL (parts that pyarrow or polars test, types that it lacks).

    The columns must have the table's names, and the types in which DuckDB reads the table's Arrow types. TimeZone must
    be UTC.
    """
    params: list[Any] = []
    try:
        return _sql(bound, params), params
    except _NoTextError:
        return None


def _sql(node: Node, params: list[Any]) -> str:
    if isinstance(node, And | Or):
        word = " AND " if isinstance(node, And) else " OR "
        return f"({word.join(_sql(child, params) for child in node.children)})" if node.children else str(node)
    if isinstance(node, Not):
        return f"(NOT {_sql(node.child, params)})"
    if isinstance(node, Constant):
        return f"CAST({node} AS BOOLEAN)"
    if isinstance(node, Residual) and node.engine == "duckdb":
        return f"(\n{node.text}\n)"  # a comment at the end of the text ends with its line
    if isinstance(node, Leaf):
        return f"({_leaf(node, params)})"
    if isinstance(node, ColumnLeaf):
        kinds = node.left.type, node.right.type
        are_alike = kinds[0] == kinds[1] or any(
            all(map(family, kinds)) for family in (pa.types.is_integer, pa.types.is_floating, is_text)
        )
        if all(map(pa.types.is_timestamp, kinds)):
            are_alike = kinds[0].unit == kinds[1].unit
        if are_alike and node.left.is_uuid == node.right.is_uuid and all(map(_is_served, kinds)):
            return f"({_column(node.left)} {_operator(node.op)} {_column(node.right)})"
    raise _NoTextError


def _leaf(leaf: Leaf, params: list[Any]) -> str:
    column = _column(leaf.ref)
    if leaf.op == "is_null":
        return f"{column} IS NULL"
    if leaf.op == "always":
        return f"{column} IS NOT NULL OR NULL"
    if leaf.op == "never":
        return f"{column} IS NULL AND NULL"
    if not _is_served(leaf.type):
        raise _NoTextError
    if leaf.op in ("in", "not in"):
        return f"{column} {'NOT IN' if leaf.op == 'not in' else 'IN'} ({_listed(leaf, params)})"
    if leaf.op in ("like", "starts_with"):
        if not is_text(leaf.type):
            raise _NoTextError
        if leaf.pattern is not None:
            return f"{column} LIKE {string_sql(leaf.pattern.sql())} ESCAPE '\\'"
        return f"starts_with({column}, {_value(leaf.values[0], leaf)})"
    return f"{column} {_operator(leaf.op)} {_value(leaf.values[0], leaf)}"


def _operator(op: str) -> str:
    return "IS NOT DISTINCT FROM" if op == "<=>" else op


def _column(ref: ColumnRef) -> str:
    sql = quoted(ref.path[0])
    for name in ref.path[1:]:
        sql = f"struct_extract({sql}, {string_sql(name)})"
    return sql


def _is_served(kind: pa.DataType) -> bool:
    """Whether DuckDB has the type's values exactly."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None or kind.unit != "ns"
    if pa.types.is_time(kind):
        return kind.unit != "ns"
    return not (pa.types.is_duration(kind) or pa.types.is_decimal256(kind) or pa.types.is_date64(kind))


def _listed(leaf: Leaf, params: list[Any]) -> str:
    is_plain = pa.types.is_integer(leaf.type) or (is_text(leaf.type) and not leaf.ref.is_uuid)
    if len(leaf.values) <= (_LISTED_MAX if is_plain else _WRITTEN_MAX):
        return ", ".join(_value(value, leaf) for value in leaf.values)
    if not is_plain:
        raise _NoTextError
    params.append(leaf.values.to_pylist())
    kind = "VARCHAR" if is_text(leaf.type) else type_sql(leaf.type)
    return f"SELECT unnest(CAST(${len(params)} AS {kind}[]))"


def _value(scalar: pa.Scalar, leaf: Leaf) -> str:
    """A value in the type of the column, so that DuckDB casts no column."""
    kind = leaf.type
    if leaf.ref.is_uuid:
        return f"CAST('{scalar.as_py().hex()}' AS UUID)"
    value = Literal(scalar).value
    if isinstance(value, str) and "\0" in value:  # where DuckDB 1.4 ends the text
        raise _NoTextError
    if canon.is_bytes_like(kind) and not is_text(kind):
        return literal_sql(value)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return f"TIMESTAMPTZ {literal_sql(value).split(' ', 1)[1][:-1]}+00'"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        half = pa.types.is_float16(kind)
        return f"CAST({literal_sql(value)} AS {type_sql(pa.float32() if half else kind)})"
    return literal_sql(value)
