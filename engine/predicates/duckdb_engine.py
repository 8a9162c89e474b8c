"""DuckDB: it parses and binds SQL text, computes constants, and tests on rows the terms that we do not understand.

The connection is private and in memory: no files, no extensions, no Python variables, and its settings are locked.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...base import canon
from ...base.arrays import empty_table
from ...base.forks import no_fork
from ...base.versions import check_nanoseconds
from ...errors import PredicateError
from .coerce import is_list
from .literals import literal_value, quoted

ROWS = "__rows"
# Cursors inherit only what is set globally. `temp_directory` is first: DuckDB's default is a folder in the working
# directory, which may no longer exist.
_SETTINGS = {
    "temp_directory": "",
    "TimeZone": "UTC",
    "Calendar": "gregorian",
    "threads": "1",  # the rows come out in the order in which they went in, and a scan has threads of its own
    "memory_limit": "1GB",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",  # the last
}
_TRUTH_TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "NULL", '"NULL"', "BIT"),
)
_CONSTANTS_PER_QUERY = 500
_connections: dict[int, Any] = {}  # by process: a child must not use its parent's
_open_cursors: list[Any] = []


# -- the connection ---------------------------------------------------------------------------------------------------


def _cursor(duckdb: Any) -> Any:
    connection = _connections.get(os.getpid())
    if connection is None:
        connection = _connections.setdefault(os.getpid(), _new_connection(duckdb))  # another thread may be first
    return connection.cursor()


def _new_connection(duckdb: Any) -> Any:
    """A private connection. Its settings are read back on a cursor, and locked, so they apply to all later cursors."""
    connection = duckdb.connect(":memory:")
    try:
        for name, value in _SETTINGS.items():
            connection.execute(f"SET GLOBAL {name} = '{value}'")
        columns = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
        values = connection.cursor().execute(f"SELECT {columns}").fetchone()
    except duckdb.Error as error:
        raise PredicateError(f"DuckDB cannot be set up: {message_of(error)}") from error
    for (name, wanted), value in zip(_SETTINGS.items(), values, strict=True):
        if str(value).lower() != wanted.lower() and name != "memory_limit":  # which DuckDB shows in another unit
            raise PredicateError(f"DuckDB uses {name} = {value!r}, but predicates need {wanted!r}")
    return connection


@contextlib.contextmanager
def cursor_of(text: str) -> Iterator[Any]:
    """A cursor of the private connection. What DuckDB raises is a PredicateError about the text."""
    import duckdb

    with no_fork():
        cursor = _cursor(duckdb)
        _open_cursors.append(cursor)
        try:
            yield cursor
        except (duckdb.Error, pa.ArrowException, UnicodeDecodeError) as error:
            raise PredicateError(f"DuckDB cannot test this: {message_of(error)}", text=text) from None
        finally:
            if cursor in _open_cursors:  # not in a child that was forked meanwhile
                _open_cursors.remove(cursor)
                cursor.close()


def _keep_parents() -> None:
    """In a child: never collect what the parent opened, or the child dies, even at its exit."""
    for kept in [*_connections.values(), *_open_cursors]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    _connections.clear()
    _open_cursors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_parents)


def version() -> str:
    """Return the installed DuckDB's version."""
    import duckdb

    return str(duckdb.__version__)


def message_of(error: BaseException) -> str:
    """The first line of DuckDB's message."""
    if isinstance(error, UnicodeDecodeError):  # DuckDB quotes a value that is not UTF-8
        return error.object.decode("utf-8", "backslashreplace").splitlines()[0]
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# -- planning ---------------------------------------------------------------------------------------------------------


def plan(
    sql: str, columns: Sequence[str], schema: pa.Schema, text: str, *, is_predicate: bool = True
) -> dict[str, Any] | None:
    """The tree that DuckDB's binder makes of an expression over these columns of the schema: its columns are numbers in
    `columns`. None if it makes a join of it, as of x = ANY(list), or writes no valid JSON.

    Raises PredicateError for what cannot be bound, or, with `is_predicate`, is neither true nor false.
    """
    fields = ", ".join(f"NULL::{duckdb_type(schema.field(name), text)} AS {quoted(name)}" for name in columns)
    query = f"SELECT (\n{sql}\n) FROM (SELECT {fields or 'NULL'}) AS {ROWS}"
    with cursor_of(text) as cursor:
        (serialized,) = cursor.execute("SELECT json_serialize_plan(?, optimize := false)", [query]).fetchone()
    try:
        planned = json.loads(serialized)
    except ValueError:  # a constant of NaN, which JSON does not have
        return None
    if planned["error"]:
        raise PredicateError(f"DuckDB cannot test this: {message_of(Exception(planned['error_message']))}", text=text)
    (projection,) = planned["plans"]
    if projection["type"] != "LOGICAL_PROJECTION":
        raise PredicateError("a predicate tests each row by itself, and this reads others", text=text)
    (expression,) = projection["expressions"]
    kind = (expression.get("return_type") or {"id": "BOOLEAN"})["id"]
    if is_predicate and kind not in _TRUTH_TYPES:
        raise PredicateError(f"a predicate is true or false, and this is of type {kind}", text=text)
    (rows,) = projection["children"]
    is_direct = rows["type"] == "LOGICAL_PROJECTION" and rows["children"][0]["type"] == "LOGICAL_DUMMY_SCAN"
    return expression if is_direct else None


def duckdb_type(field: pa.Field, text: str) -> str:
    """DuckDB's name of a column's type. Raises PredicateError for one that it does not know."""
    try:
        return _type_sql(_readable_type(field.type))
    except PredicateError:
        message = f"column {field.name!r} is {field.type}, which DuckDB does not support"
        raise PredicateError(message, text=text) from None


@functools.lru_cache(maxsize=1024)
def _type_sql(dtype: pa.DataType) -> str:
    """DuckDB's name of an Arrow type."""
    with cursor_of(str(dtype)) as cursor:
        return str(cursor.from_arrow(empty_table(pa.schema([("c", dtype)]))).types[0])


def _readable_type(dtype: pa.DataType) -> pa.DataType:
    """The type in which DuckDB reads a column."""
    if isinstance(dtype, pa.BaseExtensionType) and not canon.is_uuid(dtype):
        return _readable_type(dtype.storage_type)
    if pa.types.is_struct(dtype):  # SQL names no field without a name
        return pa.struct([(field.name, _readable_type(field.type)) for field in dtype if field.name])
    if is_list(dtype):
        return pa.list_(_readable_type(dtype.value_type))
    if pa.types.is_float16(dtype):
        return pa.float32()
    if pa.types.is_decimal256(dtype):  # literals next to it have its scale
        return pa.decimal128(38, min(dtype.scale, 38))
    return dtype


def constants(expressions: Sequence[str], text: str) -> list[Any]:
    """The values of SQL expressions without columns, as literals. Raises PredicateError if one of them has none."""
    values: list[Any] = []
    for start in range(0, len(expressions), _CONSTANTS_PER_QUERY):
        with cursor_of(text) as cursor:
            table = cursor.sql(
                f"SELECT {', '.join(expressions[start : start + _CONSTANTS_PER_QUERY])}"
            ).to_arrow_table()
        for column in table.columns:
            is_interval = pa.types.is_interval(column.type)
            values.append(column[0].as_py() if is_interval else literal_value(column[0]))
    return values


# -- rows -------------------------------------------------------------------------------------------------------------


def evaluate(text: str, rows: pa.Table) -> pa.BooleanArray:
    """One outcome per row: true, false, or null. Raises PredicateError if DuckDB fails on a row."""
    return _evaluated(text, rows, "BOOLEAN").combine_chunks()


def evaluate_values(text: str, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """One value per row, cast by DuckDB to its type for the field. Raises PredicateError if DuckDB fails on a row."""
    dtype = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return _evaluated(text, rows, duckdb_type(field.with_type(dtype), text))


def _evaluated(text: str, rows: pa.Table, cast_to: str) -> pa.ChunkedArray:
    for field in rows.schema:
        check_nanoseconds(version(), field)
    if not rows.num_columns:
        rows = pa.table({"": pa.nulls(rows.num_rows)})
    with cursor_of(text) as cursor:
        cursor.register(ROWS, _readable(rows))
        # a comment at the end of the text ends with its line
        result = cursor.sql(f"SELECT CAST((\n{text}\n) AS {cast_to}) FROM {ROWS}").to_arrow_table()
    if result.num_rows != rows.num_rows:
        raise PredicateError(f"DuckDB gave {result.num_rows} values for {rows.num_rows} rows", text=text)
    return result.column(0)


def _readable(rows: pa.Table) -> pa.Table:
    """The rows in types that DuckDB takes from Arrow."""
    for i, field in enumerate(rows.schema):
        column = rows.column(i)
        if pa.types.is_float16(field.type):
            rows = rows.set_column(i, field.name, column.cast(pa.float32()))
        elif isinstance(field.type, pa.BaseExtensionType) and not canon.is_uuid(field.type):
            rows = rows.set_column(i, field.name, column.cast(field.type.storage_type))
    return rows
