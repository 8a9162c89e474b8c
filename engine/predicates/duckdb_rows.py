"""SQL that we do not understand, tested on rows by DuckDB (the optional extra `duckdb`).

A text is one scalar, deterministic predicate over the rows of one table, and can read nothing else. DuckDB's own parser
says what is in it: subqueries, windows, aggregates, table functions, volatile functions and functions of the session
are refused here, with their place. The connection is private and in memory: no files, no extensions, no Python
variables, and its settings are locked.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ... import canon
from ...arrays import empty_table
from ...errors import PredicateError
from .bound import near_matches

_ROWS = "__rows"
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
_PLAIN_CLASSES = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA"}
    | {"OPERATOR", "TYPE"}
)
_REFUSED_CLASSES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "* or COLUMNS(...)",
    "PARAMETER": "a parameter without a value",
    "POSITIONAL_REFERENCE": "a column by number",
}
_MACROS = frozenset({"nullif", "split_part", "fmod", "fdiv", "days_in_month", "date_add", "if"})
_MACRO_PREFIXES = ("list_", "array_", "map_contains", "md5_number")
_SESSION_PREFIXES = (
    *("current_", "pg_", "has_", "inet_", "txid_", "in_search_path", "getenv", "getvariable", "version"),
    *("json_serialize_", "json_deserialize_sql", "json_execute_"),  # plan the SQL that they are given, settings and all
)
_TRUTH_TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "NULL", '"NULL"', "BIT"),
)
_connections: dict[int, Any] = {}  # by process: a fork must not touch its parent's


@functools.cache
def is_installed() -> bool:
    """Whether DuckDB is there."""
    return importlib.util.find_spec("duckdb") is not None


def refusal(text: str) -> PredicateError | None:
    """Why a text is refused, whatever the columns; None where it may be a predicate."""
    try:
        _walked(text)
    except PredicateError as error:
        return error
    return None


def checked(text: str, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that a predicate reads, once it is certain that DuckDB can test it on rows of this schema.

    Raises PredicateError for what is no scalar, deterministic predicate, and for what DuckDB cannot bind.
    """
    columns = _columns(text, schema)
    for name in columns:
        kind = schema.field(name).type
        if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in ("arrow.uuid", "arrow.json"):
            raise PredicateError(f"column {name!r} is {kind}, whose values DuckDB does not know", text=text)
    with _rows(text, empty_table(schema).select(columns)) as cursor:
        kind = str(cursor.sql(_query(text)).types[0])
        if not kind.startswith(_TRUTH_TYPES) or kind.endswith("[]"):
            raise PredicateError(f"a predicate is true or false, and this is of type {kind}", text=text)
        if cursor.sql(_query(text, "BOOLEAN")).to_arrow_table().num_rows:
            raise PredicateError("a predicate tests each row by itself, and this counts over rows", text=text)
    return columns


def outcomes(text: str, rows: pa.Table) -> pa.BooleanArray:
    """One outcome a row: true, false, or null. Raises PredicateError where DuckDB fails on a row."""
    with _rows(text, rows) as cursor:
        result = cursor.sql(_query(text, "BOOLEAN")).to_arrow_table().column(0).combine_chunks()
    if len(result) != rows.num_rows:
        raise PredicateError(f"DuckDB gave {len(result)} outcomes for {rows.num_rows} rows", text=text)
    return result


def constant(text: str) -> pa.Scalar:
    """The value of an expression without columns. Raises PredicateError where it has none."""
    _columns(text, pa.schema([]))
    with _rows(text, pa.table({"": pa.nulls(1)})) as cursor:
        return cursor.sql(_query(text)).to_arrow_table().column(0)[0]


def _query(text: str, kind: str | None = None) -> str:
    value = f"(\n{text}\n)"  # a comment at the end of the text ends with its line
    return f"SELECT {value if kind is None else f'CAST({value} AS {kind})'} FROM {_ROWS}"


# -- what is in a text ------------------------------------------------------------------------------------------------

_HEAD = f"SELECT 1 FROM {_ROWS} WHERE (\n"


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> dict[str, Any]:
    """The tree of DuckDB's own parser. Raises PredicateError, with the place, for what is no single expression."""
    duckdb = _duckdb()
    cursor = _cursor(duckdb)
    try:
        (serialized,) = cursor.execute("SELECT json_serialize_sql(?)", [f"{_HEAD}{text}\n)"]).fetchone()
        # Of some texts that it cannot parse DuckDB 2.0.1 gives nothing, not even an error.
        tree = json.loads(serialized or '{"error": true}')
    except (duckdb.Error, UnicodeDecodeError, RecursionError) as error:
        raise PredicateError(f"not a predicate: {_message(error)}", text=text) from None
    finally:
        cursor.close()
    if tree["error"]:
        position = str(tree.get("position") or "")
        place = int(position) - len(_HEAD) if position.isdigit() else None
        place = None if place is None else max(0, min(len(text), place))
        message = tree.get("error_message", "it cannot be parsed")
        raise PredicateError(f"not a predicate: {message}", text=text, position=place)
    statements = tree["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain: dict[str, Any] = {"modifiers": [], "group_expressions": [], "having": None, "qualify": None, "sample": None}
    is_alone = (
        node.get("type") == "SELECT_NODE"
        and all(node.get(name) == value for name, value in plain.items())
        and not node["cte_map"]["map"]
        and node["from_table"].get("table_name") == _ROWS
        and node["from_table"]["type"] == "BASE_TABLE"
        and [one["class"] for one in node["select_list"]] == ["CONSTANT"]
    )
    if not is_alone:
        raise PredicateError("not a predicate: one expression is expected", text=text)
    return node["where_clause"]


def _columns(text: str, schema: pa.Schema) -> tuple[str, ...]:
    """The columns of the schema that a text names."""
    by_folded: dict[str, list[str]] = {}
    for name in schema.names:
        by_folded.setdefault(name.casefold(), []).append(name)
    parts, variables = _walked(text)
    columns: dict[str, None] = {}
    for names, place in parts:
        matching = [by_folded[name.casefold()] for name in names if name.casefold() in by_folded]
        if not matching and names[0].casefold() not in variables:
            hint = near_matches(".".join(names), schema)
            raise PredicateError(f"no column is named {'.'.join(names)!r}{hint}", text=text, position=place)
        for name, same in zip([n for n in names if n.casefold() in by_folded], matching, strict=True):
            if len(same) > 1 and name not in same:
                raise PredicateError(f"{name!r} may be {' or '.join(map(repr, same))}", text=text, position=place)
            columns[name if name in same else same[0]] = None
    if len({name.casefold() for name in columns}) < len(columns):
        raise PredicateError(
            f"DuckDB takes {', '.join(columns)} for one column: the names differ in case alone", text=text
        )
    return tuple(columns)


def _walked(text: str) -> tuple[list[tuple[list[str], int | None]], set[str]]:
    """(the names of columns, each with its place; the variables of lambdas). Refuses what no predicate may hold."""
    columns: list[tuple[list[str], int | None]] = []
    variables: set[str] = set()
    waiting: list[Any] = [_parsed(text)]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, list):
            waiting.extend(reversed(tree))
        elif isinstance(tree, dict):
            kind = tree.get("class")
            place = _place(tree, text)
            if kind == "SUBQUERY" and (inner := _list_of_any(tree)) is not None:
                waiting += [tree["child"], inner]
                continue
            if kind is not None and kind not in _PLAIN_CLASSES:
                what = _REFUSED_CLASSES.get(kind, f"{kind.lower()}")
                raise PredicateError(f"{what} cannot be part of a predicate", text=text, position=place)
            if kind == "FUNCTION":
                arguments = tree.get("arguments") or tree.get("children") or ()
                _check_function(tree["function_name"], len(arguments), text, place)
            elif kind == "COLUMN_REF":
                columns.append((tree["column_names"], place))
            elif kind == "LAMBDA":
                variables.update(_variables(tree))
            waiting.extend(reversed([value for value in tree.values() if isinstance(value, dict | list)]))
    return columns, variables


def _place(tree: dict[str, Any], text: str) -> int | None:
    location = tree.get("query_location")
    if not isinstance(location, int):
        return None
    location -= len(_HEAD)
    return location if 0 <= location < len(text) else None


def _variables(tree: dict[str, Any]) -> Iterator[str]:
    """The names on the left of a lambda's arrow."""
    waiting = [tree.get("lhs"), *(tree.get("parameters") or ())]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one.casefold()
        elif isinstance(one, dict):
            if one.get("class") == "COLUMN_REF":
                yield one["column_names"][-1].casefold()
            for value in one.values():
                waiting += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def _list_of_any(tree: dict[str, Any]) -> dict[str, Any] | None:
    """The list of `x = ANY(list)`, which DuckDB parses as a subquery that unnests it; None for a true subquery."""
    node = tree.get("subquery", {}).get("node", {})
    if tree.get("subquery_type") != "ANY" or node.get("from_table", {}).get("type") != "EMPTY":
        return None
    (one, *more) = node.get("select_list") or [{}]
    is_unnest = not more and one.get("class") == "FUNCTION" and one.get("function_name") == "unnest"
    if not is_unnest or node.get("where_clause") or node["cte_map"]["map"] or node.get("modifiers"):
        return None
    return one["arguments"] if "arguments" in one else one["children"]


@functools.cache
def _functions() -> dict[str, tuple[frozenset[str], bool]]:
    """Each function's kinds (scalar, aggregate, macro, ...), and whether its value follows from its arguments alone."""
    cursor = _cursor(_duckdb())
    try:
        rows = cursor.execute(
            "SELECT function_name, function_type, stability, parameter_types, return_type FROM duckdb_functions()"
        ).fetchall()
    finally:
        cursor.close()
    functions: dict[str, tuple[frozenset[str], bool]] = {}
    for name, kind, stability, parameters, returned in rows:
        kinds, is_stable = functions.get(name, (frozenset(), True))
        is_stable = is_stable and (
            stability in (None, "", "CONSISTENT") or _is_of_zone(stability, parameters, returned)
        )
        functions[name] = (kinds | {kind}, is_stable)
    return functions


def _is_of_zone(stability: str, parameters: list[str] | None, returned: str | None) -> bool:
    """Whether a function is held to be stable within a query only because it asks the session's time zone, as DuckDB
    2.0.1 says of those of instants. Ours is UTC and locked. The clock has no parameters."""
    types = [*(parameters or ()), returned or ""]
    return stability == "CONSISTENT_WITHIN_QUERY" and bool(parameters) and any("TIMESTAMP" in one for one in types)


def _check_function(name: str, arguments: int, text: str, place: int | None) -> None:
    name = name.lower()
    kinds, is_stable = _functions().get(name, (frozenset(), True))
    reason = ""
    if not kinds:
        reason = "DuckDB has no function of this name"
    elif name.startswith(_SESSION_PREFIXES) and name != "pg_typeof":
        reason = "it describes the session, not a row"
    elif name in ("ago", "age") and arguments == 1:
        reason = "it depends on the clock: write now() - INTERVAL ..., or age(now(), x)"
    elif "scalar" in kinds:
        if not is_stable:
            reason = "its value is not the same each time"
    elif "macro" in kinds:
        if name not in _MACROS and not name.startswith(_MACRO_PREFIXES):
            reason = "macros are not called in predicates"
    else:
        reason = f"it is a function of kind {'/'.join(sorted(kinds))}, not of one row's values"
    if reason:
        raise PredicateError(f"{name}() cannot be part of a predicate: {reason}", text=text, position=place)


# -- the connection ---------------------------------------------------------------------------------------------------


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise PredicateError('this predicate is tested by DuckDB: pip install "skipstone[duckdb]"') from error
    return duckdb


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
        raise PredicateError(f"DuckDB cannot be set up: {_message(error)}") from error
    for (name, wanted), value in zip(_SETTINGS.items(), values, strict=True):
        if str(value).lower() != wanted.lower() and name != "memory_limit":  # which DuckDB shows in another unit
            raise PredicateError(f"DuckDB uses {name} = {value!r}, but predicates need {wanted!r}")
    return connection


@contextlib.contextmanager
def _rows(text: str, rows: pa.Table) -> Iterator[Any]:
    """A cursor that knows the rows; what DuckDB raises is a PredicateError about the text."""
    duckdb = _duckdb()
    if not rows.num_columns:
        rows = pa.table({"": pa.nulls(rows.num_rows)})
    cursor = _cursor(duckdb)
    try:
        cursor.register(_ROWS, _readable(rows))
        yield cursor
    except (duckdb.Error, pa.ArrowException, UnicodeDecodeError) as error:
        raise PredicateError(f"DuckDB cannot test this: {_message(error)}", text=text) from None
    finally:
        cursor.close()


def _message(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):  # DuckDB quotes a value that is not UTF-8
        return error.object.decode("utf-8", "backslashreplace").splitlines()[0]
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _readable(rows: pa.Table) -> pa.Table:
    """The rows in types that DuckDB takes from Arrow."""
    for i, field in enumerate(rows.schema):
        column = rows.column(i)
        if pa.types.is_float16(field.type):
            rows = rows.set_column(i, field.name, column.cast(pa.float32()))
        elif isinstance(field.type, pa.BaseExtensionType) and not canon.is_uuid(field.type):
            rows = rows.set_column(i, field.name, column.cast(field.type.storage_type))
    return rows
