"""The check of a text: it must be one scalar, deterministic expression over the columns of one table.

DuckDB's parser reads the text; a list of allowed nodes and functions decides. Subqueries, windows, aggregates, table
functions, volatile functions and functions of the session are refused, with their positions. The check runs before a
connection that may read files receives the text.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ...base.versions import check_zero_characters
from ...errors import PredicateError
from .ast import too_deep
from .bound import near_matches
from .duckdb_engine import ROWS, cursor_of, plan, version
from .duckdb_trees import arguments_of, nodes_of, without_places

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
    *("json_serialize_", "json_deserialize_sql", "json_execute_"),  # plan SQL that they receive, with its settings
)
_PIECES = re.compile(
    r"""(?P<refused> (?<!\w)[eE]' | /\* | \$\w*\$)
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]*
    | (?P<name> `(?:[^`]|``)*`)
    | (?P<same> <=>)""",
    re.VERBOSE,
)
# The text has no parentheses here, but it has when it is bound. So `x = 1) OR (x = 2` fails in one of the two.
_HEAD = f"SELECT 1 FROM {ROWS} WHERE\n"


def in_duckdb_sql(text: str) -> str:
    """Return the text in DuckDB's syntax: Skipstone also accepts backticks, and `<=>` for IS NOT DISTINCT FROM.

    Raise PredicateError if such a text also has comments in /* */, dollar quotes or escape strings: these may contain
    such signs.
    """
    if "`" not in text and "<=>" not in text:
        return text
    pieces, end = [], 0
    for match in _PIECES.finditer(text):
        if match["refused"]:
            raise PredicateError(
                f"{match['refused']!r} cannot be combined with backticks or <=>; write names in double quotes, and "
                "IS NOT DISTINCT FROM",
                text=text,
                position=match.start(),
            )
        if match["name"] or match["same"]:
            name = (match["name"] or "")[1:-1].replace("``", "`").replace('"', '""')
            pieces += [text[end : match.start()], f'"{name}"' if match["name"] else " IS NOT DISTINCT FROM "]
            end = match.end()
    return "".join([*pieces, text[end:]])


@functools.lru_cache(maxsize=256)
def parse_sql(text: str) -> dict[str, Any]:
    """Return the tree of a text from DuckDB's parser; do not change it. Raise PredicateError, with the position, if the
    text is not a single expression."""
    statements = _statements(f"{_HEAD}{text}\n", text, len(_HEAD))
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain: dict[str, Any] = {"modifiers": [], "group_expressions": [], "having": None, "qualify": None, "sample": None}
    is_alone = (
        node.get("type") == "SELECT_NODE"
        and all(node.get(name) == value for name, value in plain.items())
        and not node["cte_map"]["map"]
        and node["from_table"].get("table_name") == ROWS
        and node["from_table"]["type"] == "BASE_TABLE"
        and [one["class"] for one in node["select_list"]] == ["CONSTANT"]
    )
    if not is_alone:
        raise PredicateError("not a predicate: one expression is expected", text=text)
    return node["where_clause"]


def _statements(query: str, text: str, head: int) -> list[dict[str, Any]]:
    """Return the statements of a query that contains the text after `head` characters."""
    check_zero_characters(version(), text)
    with cursor_of(text) as cursor:
        ((serialized,),) = cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    # For some texts that it cannot parse, DuckDB 2.0.1 returns nothing, not even an error.
    tree = json.loads(serialized or '{"error": true}')
    if tree["error"]:
        position = str(tree.get("position") or "")
        place = max(0, min(len(text), int(position) - head)) if position.isdigit() else None
        message = tree.get("error_message", "it cannot be parsed")
        if "expression depth" in message or "memory exhausted" in message:
            raise too_deep(text, place)
        raise PredicateError(f"not a predicate: {message}", text=text, position=place)
    return tree["statements"]


class NotWritableError(PredicateError):
    """DuckDB writes a tree as a text that it reads as another tree."""


def text_of(tree: dict[str, Any], text: str) -> str:
    """Return a node of a tree of the text as SQL from DuckDB. Parse it again: its tree must be the same."""
    statement = {**_constant_query(), "node": {**_constant_query()["node"], "select_list": [tree]}}
    with cursor_of(text) as cursor:
        serialized = json.dumps({"error": False, "statements": [statement]})
        ((written,),) = cursor.execute("SELECT json_deserialize_sql(?)", [serialized]).fetchall()
    sql = written.removeprefix("SELECT ")
    for candidate in (sql[1:-1], sql) if sql.startswith("(") else (sql,):
        with contextlib.suppress(PredicateError):
            if without_places(parse_sql(candidate)) == without_places(tree):
                return candidate
    raise NotWritableError("DuckDB cannot write a part of this: write the values of parameters into it", text=text)


@functools.cache
def _constant_query() -> dict[str, Any]:
    return _statements("SELECT 1", "", 0)[0]


def where_of_select(text: str) -> str:
    """Return the WHERE clause of a SELECT from one table, without the names that qualify its columns. Raise
    PredicateError for any other statement, and for a SELECT without WHERE."""
    statements = _statements(text, text, 0)
    node = statements[0]["node"] if len(statements) == 1 else {}
    table = node.get("from_table") or {}
    if node.get("type") != "SELECT_NODE" or table.get("type") == "EMPTY":
        raise PredicateError("no SELECT of one table")
    is_nested = any(each.get("class") == "SUBQUERY" for each in nodes_of(node)) or node["cte_map"]["map"]
    if table["type"] != "BASE_TABLE" or is_nested:
        raise PredicateError("a join or a query within a query: pass the WHERE clause of this table alone")
    if node["where_clause"] is None:
        raise PredicateError("it has no WHERE: every row is read")
    where, name = copy.deepcopy(node["where_clause"]), (table["alias"] or table["table_name"]).lower()
    for each in nodes_of(where):
        names = each["column_names"] if each.get("class") == "COLUMN_REF" else []
        if len(names) > 1 and names[0].lower() == name:
            each["column_names"] = names[1:]
    return text_of(where, text)


def columns_in(tree: dict[str, Any], text: str, schema: pa.Schema, are_tested: bool = False) -> tuple[str, ...]:
    """Return the columns of the schema that a tree of the text uses. Raise PredicateError if the tree contains a node
    that is not allowed, or, with `are_tested`, a column whose values DuckDB cannot read."""
    by_folded: dict[str, list[str]] = {}
    for name in schema.names:
        by_folded.setdefault(name.casefold(), []).append(name)
    parts, variables = _names_in(tree, text)
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
            f"DuckDB reads {', '.join(columns)} as one column: the names differ in case alone", text=text
        )
    for name in columns if are_tested else ():
        dtype = schema.field(name).type
        is_foreign = isinstance(dtype, pa.BaseExtensionType) and dtype.extension_name not in (
            "arrow.uuid",
            "arrow.json",
        )
        if is_foreign or pa.types.is_decimal256(dtype):
            raise PredicateError(f"column {name!r} is {dtype}, which DuckDB does not support", text=text)
    return tuple(columns)


def _names_in(tree: dict[str, Any], text: str) -> tuple[list[tuple[list[str], int | None]], set[str]]:
    """Return the names of columns, with positions, and the variables of lambdas. Refuse nodes that are not allowed."""
    columns: list[tuple[list[str], int | None]] = []
    variables: set[str] = set()
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(reversed(node))
        elif isinstance(node, dict):
            kind = node.get("class")
            place = place_of(node, text)
            if kind == "SUBQUERY" and (inner := _list_of_any(node)) is not None:
                waiting += [node["child"], inner]
                continue
            if kind is not None and kind not in _PLAIN_CLASSES:
                what = _REFUSED_CLASSES.get(kind, f"{kind.lower()}")
                raise PredicateError(f"{what} cannot be part of a predicate", text=text, position=place)
            if kind == "FUNCTION":
                _check_function(node["function_name"], len(arguments_of(node)), text, place)
            elif kind == "COLUMN_REF":
                columns.append((node["column_names"], place))
            elif kind == "LAMBDA":
                variables.update(_variables(node))
            waiting.extend(reversed([value for value in node.values() if isinstance(value, dict | list)]))
    return columns, variables


def validate(text: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that a predicate reads, after checking that DuckDB can test it on rows of this schema.

    Raise PredicateError if it is not a scalar, deterministic predicate, or if DuckDB cannot bind it.
    """
    columns = columns_in(parse_sql(text), text, schema, are_tested=True)
    plan(text, columns, schema, text)
    return columns


def has_low_arrow(text: str) -> bool:
    """Return True if `->` or `->>` in the text applies to a comparison, AND, OR or NOT, which is rarely intended."""
    nodes = list(nodes_of(parse_sql(text)))
    calls = [node for node in nodes if node.get("class") == "FUNCTION" and not node.get("is_operator")]
    lambdas = {id(node) for call in calls for node in arguments_of(call) if node.get("class") == "LAMBDA"}
    arrows = [n for n in nodes if n.get("class") == "LAMBDA" or n.get("function_name") in ("->", "->>")]
    return any(
        node.get("class") in _TRUTH_CLASSES for arrow in arrows if id(arrow) not in lambdas for node in nodes_of(arrow)
    )


_TRUTH_CLASSES = frozenset({"COMPARISON", "CONJUNCTION", "BETWEEN"})


def place_of(tree: dict[str, Any], text: str) -> int | None:
    """Return where a node begins in the text, for messages. DuckDB counts bytes, and is wrong about some nodes."""
    location = tree.get("query_location")
    if not isinstance(location, int):
        return None
    location -= len(_HEAD)
    return len(text.encode()[:location].decode(errors="ignore")) if 0 <= location < len(text.encode()) else None


def _variables(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the names on the left of a lambda's arrow."""
    for part in [tree.get("lhs"), *(tree.get("parameters") or ())]:
        if isinstance(part, str):
            yield part.casefold()
        else:
            yield from (n["column_names"][-1].casefold() for n in nodes_of(part) if n.get("class") == "COLUMN_REF")


def _list_of_any(tree: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the list of `x = ANY(list)`, which DuckDB parses as an unnesting subquery; None for another subquery."""
    node = tree.get("subquery", {}).get("node", {})
    if tree.get("subquery_type") != "ANY" or node.get("from_table", {}).get("type") != "EMPTY":
        return None
    (item, *more) = node.get("select_list") or [{}]
    is_unnest = not more and item.get("class") == "FUNCTION" and item.get("function_name") == "unnest"
    if not is_unnest or node.get("where_clause") or node["cte_map"]["map"] or node.get("modifiers"):
        return None
    return arguments_of(item)


def sides_of_any(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return (x, the list) of `x = ANY(list)`; None for any other tree."""
    if tree.get("class") != "SUBQUERY" or tree.get("comparison_type") != "COMPARE_EQUAL":
        return None
    lists = _list_of_any(tree)
    return None if lists is None or len(lists) != 1 else (tree["child"], lists[0])


@functools.cache
def _functions() -> dict[str, tuple[frozenset[str], bool]]:
    """Return each function's kinds (scalar, aggregate, macro, ...), and if its value follows from its arguments."""
    with cursor_of("") as cursor:
        rows = cursor.execute(
            "SELECT function_name, function_type, stability, parameter_types, return_type FROM duckdb_functions()"
        ).fetchall()
    functions: dict[str, tuple[frozenset[str], bool]] = {}
    for name, kind, stability, parameters, returned in rows:
        kinds, is_stable = functions.get(name, (frozenset(), True))
        is_stable = is_stable and (
            stability in (None, "", "CONSISTENT") or _is_of_zone(stability, parameters, returned)
        )
        functions[name] = (kinds | {kind}, is_stable)
    return functions


def _is_of_zone(stability: str, parameters: list[str] | None, returned: str | None) -> bool:
    """Return True if DuckDB declares a function stable within a query only because it reads the session's time zone.
    DuckDB 2.0.1 does so for functions of instants. Our zone is UTC and locked. The clock has no parameters."""
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
