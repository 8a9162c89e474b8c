"""Expressions that an index covers, in our own form: nodes with the functions and types that DuckDB resolved.

    ["column", type, path]    ["constant", type, value]    ["cast", type, node]    [function, type, node, ...]

Types are DuckDB's names. DuckDB's own trees differ between its versions, so none is stored. Two expressions are the
same if their nodes are. A node is written as SQL again, checked like the text of any predicate, and computed by DuckDB.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...base import canon
from ...base.arrays import combine
from ...errors import PredicateError, SchemaError
from .bound import path_of, resolve
from .duckdb_engine import evaluate_values, plan, version
from .duckdb_trees import Bound, NotUnderstoodError, arrow_type, bound, plain_value
from .literals import quoted, string_sql
from .sql_allowed import columns_in, in_duckdb_sql, parse_sql

# Functions with the same values in every DuckDB version: tests compare them with a table of values. An index of another
# function can be used only with the minor version that built it.
PINNED = frozenset(
    {"lower", "upper", "length", "strlen", "substring", "substr", "left", "right", "trim", "ltrim", "rtrim", "replace"}
    | {"||", "concat", "abs", "+", "-", "*", "date_trunc", "year", "month", "day", "hour"}
    | {"->>", "json_extract_string"}
)
_INTEGERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}  # not HUGEINT
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SIGNS = re.compile(r"[-+*/%|&<>~^@#!]{1,3}")
_PLAIN_CAST = re.compile(r"CAST\((-?[\d.]+) AS \w+(?:\(\d+, ?\d+\))?\)")
_ZONED = "WITH TIME ZONE"
Tree = Sequence[Any]


def tree_of(operand: Bound, path_of: Callable[[Bound], str]) -> list[Any]:
    """Return the nodes of an operand. `path_of` returns the dotted path of a column, and raises NotUnderstoodError for
    other operands. Raise NotUnderstoodError for an operand that cannot be indexed."""
    if operand.type == "?" or _ZONED in operand.type or operand.type.startswith("TIMESTAMPTZ"):
        raise NotUnderstoodError
    if operand.op == "constant":
        try:
            value = plain_value(operand)
        except LookupError:
            raise NotUnderstoodError from None
        if value is None:
            raise NotUnderstoodError
        is_number = isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)
        return _number(str(value), operand.type) if is_number else ["constant", operand.type, value]
    if operand.op == "cast":
        child = tree_of(operand.children[0], path_of)
        if child[1] == operand.type:
            return child
        if child[0] == "constant" and _is_number(child[1]) and _is_number(operand.type):
            return _number(child[2], operand.type)
        return ["cast", operand.type, child]
    try:
        return ["column", operand.type, path_of(operand)]
    except NotUnderstoodError:
        pass
    if not operand.children or not (_WORD.fullmatch(operand.op) or _SIGNS.fullmatch(operand.op)):
        raise NotUnderstoodError
    if operand.op == "unknown":
        raise NotUnderstoodError
    return [operand.op, operand.type, *(tree_of(child, path_of) for child in operand.children)]


def _is_number(type_name: str) -> bool:
    return type_name in ("FLOAT", "DOUBLE") or type_name.startswith("DECIMAL") or type_name in _INTEGERS


def _number(text: str, type_name: str) -> list[Any]:
    """Return a constant of a number type: DuckDB casts some, and writes others directly in the type."""
    value = decimal.Decimal(text)
    if type_name in _INTEGERS:
        if value != int(value):
            raise NotUnderstoodError
        return ["constant", type_name, str(int(value))]
    if type_name in ("FLOAT", "DOUBLE"):
        return ["constant", type_name, repr(float(value))]
    rounded = round(value, int(type_name.partition(",")[2].rstrip(")")))
    if value != rounded:  # DuckDB rounds a half away from zero
        raise NotUnderstoodError
    return ["constant", type_name, str(rounded)]


def sql_of(node: Tree, name: Callable[[str], str] = quoted) -> str:
    """Return a node as SQL, each call in parentheses. `name` writes the name of a column."""
    op, type_name, *rest = node
    if op == "column":
        return name(rest[0])
    if op == "constant":
        if type_name == "VARCHAR":
            return string_sql(rest[0])
        return f"CAST({rest[0]} AS {type_name})" if _is_number(type_name) else str(rest[0]).upper()
    children = [sql_of(child, name) for child in rest]
    if op == "cast":
        return f"CAST({children[0]} AS {type_name})"
    if _WORD.fullmatch(op):
        return f"{op}({', '.join(children)})"
    return f"({f' {op} '.join(children)})" if len(children) > 1 else f"({op} {children[0]})"


def shown(node: Tree) -> str:
    """Return a node as text to show."""
    text = sql_of(node, lambda path: path if _WORD.fullmatch(path) else quoted(path))
    return _PLAIN_CAST.sub(r"\1", text)


def key_of(node: Tree) -> str:
    """Return a key that two nodes share if they are the same."""
    return json.dumps(node, ensure_ascii=False)


def columns_of_tree(node: Tree) -> list[str]:
    """Return the dotted paths of the columns of a node, in order, each once."""
    if node[0] == "column":
        return [node[2]]
    if node[0] == "constant":
        return []
    return list(dict.fromkeys(path for child in node[2:] for path in columns_of_tree(child)))


def with_columns(node: Tree, change: Callable[[Any], Any]) -> list[Any]:
    """Return the node with changed names of columns."""
    if node[0] == "column":
        return [*node[:2], change(node[2])]
    if node[0] == "constant":
        return list(node)
    return [*node[:2], *(with_columns(child, change) for child in node[2:])]


def functions_of(node: Tree) -> set[str]:
    """Return the functions of a node, and "cast" if it casts to another type than JSON."""
    if node[0] in ("column", "constant"):
        return set()
    own = set() if node[0] == "cast" and node[1] == "JSON" else {node[0]}
    return own.union(*(functions_of(child) for child in node[2:]))


def minor_version() -> str:
    """Return the installed DuckDB's version without the last number."""
    return ".".join(version().split(".")[:2])


def has_same_values(node: Tree, duckdb_version: str) -> bool:
    """Return True if the installed DuckDB computes the same values as a minor version did."""
    return functions_of(node) <= PINNED or duckdb_version == minor_version()


def value_type(node: Tree) -> pa.DataType | None:
    """Return the Arrow type of the values of a node; None if they have no order."""
    dtype = arrow_type("VARCHAR" if node[1] == "JSON" else node[1])
    is_other = node[1] in ("UUID", "HUGEINT", "INTERVAL")
    return None if dtype is None or is_other or canon.order_class(dtype) is None else dtype


# -- reading and computing ---------------------------------------------------------------------------------------------


def read_expression(text: str, schema: pa.Schema) -> Tree:
    """Return the node of a text over the columns of a schema.

    Raise PredicateError for a text that is not a scalar, deterministic expression; SchemaError if its values have no
    order, or if it is not a call of functions on columns and constants.
    """
    sql = in_duckdb_sql(text)
    node = _read(sql, schema)
    if node[0] in ("column", "constant") or not columns_of_tree(node):
        raise SchemaError(f"{text!r} is no expression of columns: name a column by its name alone")
    if value_type(node) is None:
        raise SchemaError(f"{text!r} is of type {node[1]}, whose values have no order: no index can cover it")
    if _read(sql_of(node), flat_schema(node, schema)) != node:
        raise SchemaError(f"{text!r} cannot be indexed: DuckDB reads its functions otherwise once they are written out")
    return node


def flat_schema(node: Tree, schema: pa.Schema) -> pa.Schema:
    """Return the leaves that a node reads as columns, each named by its dotted path."""
    return pa.schema([pa.field(path, resolve(path, schema).type) for path in columns_of_tree(node)])


def _read(sql: str, schema: pa.Schema) -> Tree:
    columns = columns_in(parse_sql(sql), sql, schema, are_tested=True)
    planned = plan(sql, columns, schema, sql, is_predicate=False)
    try:
        if planned is None:
            raise NotUnderstoodError
        return tree_of(bound(planned), lambda operand: path_of(operand, columns, schema))
    except NotUnderstoodError:
        raise SchemaError(
            f"{sql!r} cannot be indexed: an index covers calls of functions, operators and casts over columns and "
            "plain constants, without times that depend on a time zone"
        ) from None


@dataclass(frozen=True)
class Computation:
    """Computes an expression over columns by DuckDB. Picklable.

    node      its columns are names of `schema`
    schema    the columns, in the types of the table
    duckdb    the minor version whose values are required
    """

    node: Tree
    schema: pa.Schema
    duckdb: str

    @property
    def type(self) -> pa.DataType | None:
        """The type of the values."""
        return value_type(self.node)

    def values(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the value in each row. Raise SchemaError if DuckDB fails, or its version may compute other values."""
        text, dtype, pairs = sql_of(self.node), value_type(self.node), zip(columns, self.schema, strict=True)
        if not has_same_values(self.node, self.duckdb):
            raise SchemaError(f"{text} is indexed by DuckDB {self.duckdb}, and DuckDB {minor_version()} is installed")
        try:
            columns_in(parse_sql(text), text, self.schema, are_tested=True)  # an index may have an untrusted source
            arrays = [column if column.type == field.type else column.cast(field.type) for column, field in pairs]
            rows = pa.Table.from_arrays(arrays, schema=self.schema)
            return combine(evaluate_values(text, rows, pa.field("value", dtype)))
        except (PredicateError, pa.ArrowException) as error:
            raise SchemaError(f"{text} cannot be computed: {error}") from None
