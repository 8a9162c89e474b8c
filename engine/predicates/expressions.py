"""Expressions that an index covers, in a form of our own: nodes with the functions and types that DuckDB resolved.

    ["column", type, path]    ["constant", type, value]    ["cast", type, node]    [function, type, node, ...]

Types are DuckDB's names. DuckDB's own trees differ between its versions, so none is stored. Two expressions are the
same if their nodes are. A node is written as SQL again to evaluate it, and checked like the text of any predicate.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from ...base import canon
from .duckdb_engine import version
from .duckdb_trees import Bound, NotUnderstoodError, plain_value
from .literals import string_sql
from .operands import arrow_type, quoted

# Functions whose values are the same in every DuckDB: tests compare them with a table of values. The index of another
# one serves under the minor version that built it.
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
    """The nodes of an operand. `path_of` gives the dotted path of a column, and raises NotUnderstoodError for what is
    none. Raises NotUnderstoodError for what cannot be indexed."""
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


def _is_number(kind: str) -> bool:
    return kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL") or kind in _INTEGERS


def _number(text: str, kind: str) -> list[Any]:
    """A constant in a type of numbers: DuckDB casts some, and writes others in the type at once."""
    value = decimal.Decimal(text)
    if kind in _INTEGERS:
        if value != int(value):
            raise NotUnderstoodError
        return ["constant", kind, str(int(value))]
    if kind in ("FLOAT", "DOUBLE"):
        return ["constant", kind, repr(float(value))]
    scale = int(kind.partition(",")[2].rstrip(")"))
    return ["constant", kind, str(round(value, scale))]


def sql_of(node: Tree, name: Callable[[str], str] = quoted) -> str:
    """A node as SQL, each call in parentheses. `name` writes the name of a column."""
    op, kind, *rest = node
    if op == "column":
        return name(rest[0])
    if op == "constant":
        if kind == "VARCHAR":
            return string_sql(rest[0])
        return f"CAST({rest[0]} AS {kind})" if _is_number(kind) else str(rest[0]).upper()
    children = [sql_of(child, name) for child in rest]
    if op == "cast":
        return f"CAST({children[0]} AS {kind})"
    if _WORD.fullmatch(op):
        return f"{op}({', '.join(children)})"
    return f"({f' {op} '.join(children)})" if len(children) > 1 else f"({op} {children[0]})"


def shown(node: Tree) -> str:
    """A node as text for people."""
    text = sql_of(node, lambda path: path if _WORD.fullmatch(path) else quoted(path))
    return _PLAIN_CAST.sub(r"\1", text)


def key_of(node: Tree) -> str:
    """What two nodes have in common if they are the same."""
    return json.dumps(node, ensure_ascii=False)


def columns_of_tree(node: Tree) -> list[str]:
    """The dotted paths of the columns of a node, in order, each once."""
    if node[0] == "column":
        return [node[2]]
    if node[0] == "constant":
        return []
    return list(dict.fromkeys(path for child in node[2:] for path in columns_of_tree(child)))


def with_columns(node: Tree, change: Callable[[Any], Any]) -> list[Any]:
    """The node with another name in the place of each column's."""
    if node[0] == "column":
        return [*node[:2], change(node[2])]
    if node[0] == "constant":
        return list(node)
    return [*node[:2], *(with_columns(child, change) for child in node[2:])]


def functions_of(node: Tree) -> set[str]:
    """The functions of a node, and "cast" if it casts to another type than JSON."""
    if node[0] in ("column", "constant"):
        return set()
    own = set() if node[0] == "cast" and node[1] == "JSON" else {node[0]}
    return own.union(*(functions_of(child) for child in node[2:]))


def minor_version() -> str:
    """The installed DuckDB's version without the last number."""
    return ".".join(version().split(".")[:2])


def serves(node: Tree, duckdb_version: str) -> bool:
    """Whether values that a minor version of DuckDB computed are those of the installed one."""
    return functions_of(node) <= PINNED or duckdb_version == minor_version()


def value_type(node: Tree) -> pa.DataType | None:
    """The Arrow type of the values of a node; None if they have no order."""
    kind = arrow_type("VARCHAR" if node[1] == "JSON" else node[1])
    is_other = node[1] in ("UUID", "HUGEINT", "INTERVAL")
    return None if kind is None or is_other or canon.order_class(kind) is None else kind
