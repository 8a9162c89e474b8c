"""DuckDB: it parses and binds SQL text, computes constants, and tests on rows the terms that we do not understand.

The connection is private and in memory: no files, no extensions, no Python variables, and its settings are locked.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa

from ...base import canon
from ...base.arrays import empty_table
from ...base.forks import no_fork
from ...base.versions import check_nanoseconds
from ...errors import PredicateError
from .coerce import is_list
from .duckdb_trees import EXACT_TYPES
from .literals import literal_value, quoted

P = ParamSpec("P")
R = TypeVar("R")

ROWS = "__rows"
_SETTINGS = {
    "TimeZone": "UTC",
    "Calendar": "gregorian",
    "threads": "1",  # rows are returned in the order of the input, and a scan has its own threads
    "memory_limit": "1GB",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",  # must be the last setting
}
_TRUTH_TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "NULL", '"NULL"', "BIT"),
)
_CONSTANTS_PER_QUERY = 500


def _extension() -> ModuleType:
    """Return DuckDB's compiled module, which parses and binds. Loading the package around it takes half as long as
    loading pyarrow, and only tests of rows need it."""
    try:
        return import_module("_duckdb")
    except ImportError:
        return import_module("duckdb")


# -- connections -------------------------------------------------------------------------------------------------------


class PrivateDatabase:
    """A database in memory, which this process opens when it first uses it, and its cursors.

    A connection does not survive a fork: a child that uses its parent's connection hangs, and one that closes or
    collects it dies, even at exit. So each process opens its own, and a child keeps its parent's objects unused.
    An internal error of DuckDB, as of upper() for a text that is not UTF-8, ends a database for all of its cursors. The
    next use opens another one.

    settings    set for all cursors; a name in brackets is one that older versions do not have
    has_bars    False: its cursors show no progress bar; no global setting turns these off
    spills      it may write to a temporary folder. DuckDB's default folder is in the working directory
    """

    _all: ClassVar[list[PrivateDatabase]] = []

    def __init__(self, settings: Mapping[str, str], *, has_bars: bool = True, spills: bool = False):
        self._settings, self._has_bars, self._spills = settings, has_bars, spills
        self._opened: list[Any] = []  # the connection, its cursors and its folder
        self._free: list[Any] = []
        self._lock = threading.Lock()
        PrivateDatabase._all.append(self)

    @contextlib.contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yield a cursor for the use of one thread."""
        process = os.getpid()
        with no_fork():
            try:
                opened = self._free.pop()
            except IndexError:
                opened = self.connection().cursor()
                self._opened.append(opened)
                if not self._has_bars:
                    opened.execute("SET enable_progress_bar = false").fetchall()
            try:
                yield opened
            except BaseException as error:
                if process == os.getpid():
                    if isinstance(error, (_extension().InternalException, _extension().FatalException)):
                        self._free = []
                    with contextlib.suppress(ValueError):  # another thread has replaced the database
                        self._opened.remove(opened)
                    opened.close()
                if isinstance(error, RuntimeError) and str(error) == "Query interrupted":  # DuckDB catches the signal
                    raise KeyboardInterrupt from error
                raise
            if process == os.getpid() and opened in self._opened:
                self._free.append(opened)

    def connection(self) -> Any:
        """Return the connection. Each thread uses a cursor of it."""
        with self._lock:
            try:
                self._opened[0].execute("DEALLOCATE nothing")  # the fastest statement that such a database refuses
            except (IndexError, _extension().FatalException):  # none is open, or an error has ended it
                self._opened, self._free = self._connected(), []
            return self._opened[0]

    def _connected(self) -> list[Any]:
        duckdb, folders = _extension(), []
        if self._spills:
            import tempfile  # loads three codecs, which a look-up does not need

            folders.append(tempfile.TemporaryDirectory(prefix="skipstone-", ignore_cleanup_errors=True))
        folder = folders[0].name if folders else ""
        connection = duckdb.connect(":memory:", config={"temp_directory": folder})
        for name, value in self._settings.items():
            with contextlib.suppress(*([duckdb.CatalogException] if name[0] == "[" else [])):
                connection.execute(f"SET GLOBAL {name.strip('[]')} = '{value}'")
        # DuckDB shows the memory limit in another unit, and may not have a setting in brackets.
        names = [name for name in self._settings if name != "memory_limit" and name[0] != "["]
        columns = ", ".join(f"current_setting('{name}')" for name in names)
        (values,) = connection.cursor().execute(f"SELECT {columns}").fetchall()
        for name, value in zip(names, values, strict=True):
            if str(value).lower() != self._settings[name].lower():
                raise PredicateError(f"DuckDB uses {name} = {value!r}, but Skipstone needs {self._settings[name]!r}")
        return [connection, *folders]

    @classmethod
    def keep_parents(cls) -> None:
        """Keep a child process from using or collecting the objects that its parent opened."""
        for database in cls._all:
            for kept in database._opened:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            database._opened, database._free, database._lock = [], [], threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PrivateDatabase.keep_parents)


_database = PrivateDatabase(_SETTINGS)


@contextlib.contextmanager
def cursor_of(text: str) -> Iterator[Any]:
    """Yield a cursor of the private database. DuckDB's errors become PredicateErrors about the text."""
    try:
        with _database.cursor() as cursor:
            yield cursor
    except (_extension().Error, pa.ArrowException, UnicodeDecodeError) as error:
        cause = error if isinstance(error, _extension().FatalException) else None
        raise PredicateError(f"DuckDB cannot test this: {message_of(error)}", text=text) from cause


def _retried(work: Callable[P, R]) -> Callable[P, R]:
    """Return a function that repeats its work if an error of another thread's query ended the database meanwhile."""

    @functools.wraps(work)
    def retried(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except PredicateError as error:
            if error.__cause__ is None:
                raise
        return work(*args, **kwargs)

    return retried


def _rows_cursor_of(text: str) -> contextlib.AbstractContextManager[Any]:
    """Return `cursor_of` with the methods that exchange rows; the package adds them to those of its compiled module."""
    import_module("duckdb")
    return cursor_of(text)


def version() -> str:
    """Return the installed DuckDB's version."""
    return str(_extension().__version__)


def message_of(error: BaseException) -> str:
    """Return the first line of DuckDB's message."""
    if isinstance(error, UnicodeDecodeError):  # DuckDB quotes a value that is not UTF-8
        return error.object.decode("utf-8", "backslashreplace").splitlines()[0]
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# -- planning ---------------------------------------------------------------------------------------------------------


@_retried
def plan(
    sql: str, columns: Sequence[str], schema: pa.Schema, text: str, *, is_predicate: bool = True
) -> dict[str, Any] | None:
    """Return the tree that DuckDB's binder creates for an expression over these columns of the schema; in it columns
    are positions in `columns`. Return None if DuckDB creates a join, as for x = ANY(list), or writes invalid JSON.

    Raise PredicateError if DuckDB cannot bind it or, with `is_predicate`, if it is not boolean.
    """
    fields = ", ".join(f"NULL::{duckdb_type(schema.field(name), text)} AS {quoted(name)}" for name in columns)
    query = f"SELECT (\n{sql}\n) FROM (SELECT {fields or 'NULL'}) AS {ROWS}"
    with cursor_of(text) as cursor:
        ((serialized,),) = cursor.execute("SELECT json_serialize_plan(?, optimize := false)", [query]).fetchall()
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
    """Return DuckDB's name of a column's type. Raise PredicateError for a type that DuckDB does not have."""
    try:
        return _type_sql(_readable_type(field.type))
    except PredicateError:
        message = f"column {field.name!r} is {field.type}, which DuckDB does not support"
        raise PredicateError(message, text=text) from None


@functools.lru_cache(maxsize=1024)
@_retried
def _type_sql(dtype: pa.DataType) -> str:
    """Return DuckDB's name of an Arrow type."""
    if dtype in EXACT_TYPES:
        return EXACT_TYPES[dtype]
    with _rows_cursor_of(str(dtype)) as cursor:
        return str(cursor.from_arrow(empty_table(pa.schema([("c", dtype)]))).types[0])


def _readable_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type in which DuckDB reads a column."""
    if isinstance(dtype, pa.BaseExtensionType) and not canon.is_uuid(dtype):
        return _readable_type(dtype.storage_type)
    if pa.types.is_struct(dtype):  # SQL cannot refer to a field without a name
        return pa.struct([(field.name, _readable_type(field.type)) for field in dtype if field.name])
    if is_list(dtype):
        return pa.list_(_readable_type(dtype.value_type))
    if pa.types.is_float16(dtype):
        return pa.float32()
    if pa.types.is_decimal256(dtype):  # literals next to it have its scale
        return pa.decimal128(38, min(dtype.scale, 38))
    return dtype


class Interval(NamedTuple):
    """A value of DuckDB's INTERVAL. Arrow's has nanoseconds instead, which overflow after 292 years."""

    months: int
    days: int
    us: int


@_retried
def constants(expressions: Sequence[str], text: str) -> list[Any]:
    """Return the literal values and Intervals of SQL without columns. Raise PredicateError if one has no value."""
    values: list[Any] = []
    for start in range(0, len(expressions), _CONSTANTS_PER_QUERY):
        columns = list(expressions[start : start + _CONSTANTS_PER_QUERY])
        with _rows_cursor_of(text) as cursor:
            relation = cursor.sql(f"SELECT {', '.join(columns)}")
            intervals = [i for i, dtype in enumerate(relation.types) if str(dtype) == "INTERVAL"]
            for i in intervals:
                columns[i] = f"datepart(['year', 'month', 'day', 'hour', 'minute', 'microseconds'], {columns[i]})"
            table = (cursor.sql(f"SELECT {', '.join(columns)}") if intervals else relation).to_arrow_table()
        for i, column in enumerate(table.columns):
            values.append(_interval(column[0].as_py()) if i in intervals else literal_value(column[0]))
    return values


def _interval(parts: dict[str, int] | None) -> Interval | None:
    if parts is None or None in parts.values():
        return None
    us = (parts["hour"] * 60 + parts["minute"]) * 60_000_000 + parts["microseconds"]
    return Interval(parts["year"] * 12 + parts["month"], parts["day"], us)


# -- rows -------------------------------------------------------------------------------------------------------------


def evaluate(text: str, rows: pa.Table) -> pa.BooleanArray:
    """Return one outcome per row: true, false, or null. Raise PredicateError if DuckDB fails on a row."""
    return _evaluated(text, rows, "BOOLEAN").combine_chunks()


def evaluate_values(text: str, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """Return one value per row, cast to DuckDB's type for the field. Raise PredicateError if DuckDB fails on a row."""
    dtype = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return _evaluated(text, rows, duckdb_type(field.with_type(dtype), text))


@_retried
def _evaluated(text: str, rows: pa.Table, cast_to: str) -> pa.ChunkedArray:
    for field in rows.schema:
        check_nanoseconds(version(), field)
    if not rows.num_columns:
        rows = pa.table({"": pa.nulls(rows.num_rows)})
    with _rows_cursor_of(text) as cursor:
        cursor.register(ROWS, _readable(rows))
        # the line break ends a comment at the end of the text
        result = cursor.sql(f"SELECT CAST((\n{text}\n) AS {cast_to}) FROM {ROWS}").to_arrow_table()
        cursor.unregister(ROWS)
    if result.num_rows != rows.num_rows:
        raise PredicateError(f"DuckDB gave {result.num_rows} values for {rows.num_rows} rows", text=text)
    return result.column(0)


def _readable(rows: pa.Table) -> pa.Table:
    """Return the rows in types that DuckDB accepts from Arrow."""
    for i, field in enumerate(rows.schema):
        column = rows.column(i)
        if pa.types.is_float16(field.type):
            rows = rows.set_column(i, field.name, column.cast(pa.float32()))
        elif isinstance(field.type, pa.BaseExtensionType) and not canon.is_uuid(field.type):
            rows = rows.set_column(i, field.name, column.cast(field.type.storage_type))
    return rows
