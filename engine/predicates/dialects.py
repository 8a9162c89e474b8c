"""SQL text of another engine than DuckDB: which of its leaves mean to that engine what they mean to DuckDB.

sqlglot reads the text; a leaf is used where it is of the few shapes, beside columns of the few types, in which Spark
(ANSI or not, TimeZone UTC, byte order of texts) or PostgreSQL (TimeZone UTC) and DuckDB agree. Any other leaf is not
understood, and no engine here tests it: it prunes nothing, and rows are refused, by a message that names it. What
differs, and why so little is taken: docs/decisions/0052-texts-of-other-engines.md.
"""

from __future__ import annotations

import decimal
import re
from typing import Any

import numpy as np
import pyarrow as pa

from ... import canon
from ...errors import InvalidArgumentError
from .ast import And, Comparison, Constant, In, IsNull, Like, Node, Not, StartsWith
from .bound import resolved
from .coerce import is_text, plain_type
from .literals import Temporal, parse_uuid
from .operands import Column, Literal, Operand
from .sql_types import NotUnderstoodError

DIALECTS = {"duckdb": "DuckDB", "postgres": "PostgreSQL", "spark": "Spark"}

_SHAPES = frozenset(
    {"And", "Between", "Boolean", "Cast", "Column", "DataType", "Dot", "EQ", "Escape", "GT", "GTE", "Identifier", "In"}
    | {"Is", "LT", "LTE", "Like", "Literal", "NEQ", "Neg", "Not", "Null", "NullSafeEQ", "NullSafeNEQ", "Paren"}
    | {"StartsWith"}
)
_TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ"})
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?", re.ASCII)
_DATE_TEXT = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_INTEGER_TEXT = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_POSTGRES_VALUES = frozenset(
    {"current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"}
    | {"current_user", "localtime", "localtimestamp", "session_user", "system_user", "user"}
)
"""Words that PostgreSQL takes for values of the session, and not for columns, unless they are quoted."""


def check_dialect(dialect: object) -> None:
    """Raises InvalidArgumentError for a dialect that is not read."""
    if dialect not in DIALECTS:
        raise InvalidArgumentError(f"dialect= is one of {', '.join(DIALECTS)}, not {dialect!r}")


def check_tokens(tokens: list[Any], text: str, dialect: str) -> None:
    """Raises NotUnderstoodError where the words of a leaf may be read otherwise by the engine itself."""
    for token in tokens:
        kind, written = token.token_type.name, text[token.start : token.end + 1]
        if kind == "STRING" and ("\\" in written or (dialect == "spark" and len(written) != len(token.text) + 2)):
            raise NotUnderstoodError(f"a backslash, or a quote within quotes, in a text of {DIALECTS[dialect]}")
        if kind == "NUMBER" and not _NUMBER.fullmatch(written):
            raise NotUnderstoodError(f"{written} is not understood as a number")
        if kind == "NULLSAFE_EQ" and dialect == "postgres":
            raise NotUnderstoodError(f"{written} is an operator of no fixed meaning in PostgreSQL")
        if dialect == "postgres" and written.lower() in _POSTGRES_VALUES:
            raise NotUnderstoodError(f"{written} is a value of the session: quote it where it is a column")


def check_tree(tree: Any, exp: Any) -> None:
    """Raises NotUnderstoodError where a leaf is more than a comparison of columns with literals."""
    for node in tree.walk():
        kind = type(node).__name__
        if kind not in _SHAPES:
            raise NotUnderstoodError(f"{kind} is not understood")
        if kind == "Cast" and not (_is_text_literal(node.this, exp) and _is_time(node.this.this, node.to.this.name)):
            raise NotUnderstoodError("only DATE '2024-01-31' and TIMESTAMP '2024-01-31 12:30:00' are understood")


def _is_text_literal(tree: Any, exp: Any) -> bool:
    return isinstance(tree, exp.Literal) and tree.is_string


def _is_time(text: str, type_name: str) -> bool:
    return type_name in _TIMES and (_DATE_TEXT if type_name == "DATE" else _TIME_TEXT).fullmatch(text) is not None


def check_types(node: Node, schema: pa.Schema, dialect: str) -> None:
    """Raises NotUnderstoodError where a leaf, which means to us what it means to DuckDB, may mean something else to
    another engine beside columns of these types."""
    if isinstance(node, Not):
        check_types(node.child, schema, dialect)
    elif isinstance(node, And):  # of BETWEEN
        for child in node.children:
            check_types(child, schema, dialect)
    elif isinstance(node, Comparison):
        _check_comparison(node, schema, dialect)
    elif isinstance(node, In):
        _check_literals(node.operand, node.values, schema, dialect, is_order=False)
    elif isinstance(node, Like | StartsWith):
        if not is_text(_type_of(node.operand, schema)):
            raise NotUnderstoodError("a pattern beside what is no text")
    elif isinstance(node, IsNull):
        _type_of(node.operand, schema)
    elif not isinstance(node, Constant):
        raise NotUnderstoodError(f"{type(node).__name__} is not understood")


def _check_comparison(node: Comparison, schema: pa.Schema, dialect: str) -> None:
    literals = [side for side in (node.left, node.right) if isinstance(side, Literal)]
    columns = [side for side in (node.left, node.right) if not isinstance(side, Literal)]
    is_order = node.op not in ("=", "!=", "<=>")
    if not columns:
        if not all(type(literal.value) is int for literal in literals):  # 1 = 1, which programs write
            raise NotUnderstoodError("a comparison of literals")
    elif literals:
        _check_literals(columns[0], literals, schema, dialect, is_order=is_order)
    else:
        first, second = (_type_of(column, schema) for column in columns)
        if first != second:
            raise NotUnderstoodError(f"{first} beside {second}: which of them is cast, engines do not agree on")
        _check_order(first, dialect, is_order)


def _type_of(operand: Operand, schema: pa.Schema) -> pa.DataType:
    """The type of a column. Raises NotUnderstoodError for what is none, and for a name whose case decides."""
    if not isinstance(operand, Column):
        raise NotUnderstoodError("no column stands there")
    ref = resolved(operand, schema)
    top = ref.path[0].casefold()
    if sum(name.casefold() == top for name in schema.names) > 1:
        raise NotUnderstoodError(f"{operand.name} is the name of several columns where case does not matter")
    return pa.uuid() if ref.is_uuid else plain_type(ref.type)


def _check_order(kind: pa.DataType, dialect: str, is_order: bool) -> None:
    if is_order and dialect == "postgres" and is_text(kind):
        raise NotUnderstoodError("the order of texts depends on the database's collation")


def _check_literals(
    operand: Operand, literals: tuple[Literal, ...] | list[Literal], schema: pa.Schema, dialect: str, *, is_order: bool
) -> None:
    kind = _type_of(operand, schema)
    _check_order(kind, dialect, is_order)
    values = [literal.value for literal in literals if literal.value is not None]
    if len({isinstance(value, str) for value in values}) > 1:
        raise NotUnderstoodError("texts and numbers in one list: which of them are cast, engines do not agree on")
    for value in values:
        if not _is_alike(kind, value, dialect):
            raise NotUnderstoodError(
                f"{Literal(value)} beside a column of {kind}: engines cast it in ways of their own"
            )


def _is_alike(kind: pa.DataType, value: Any, dialect: str) -> bool:
    """Whether every engine compares the column with this literal as DuckDB does (which `as_duckdb` has looked at)."""
    if isinstance(value, bool) or pa.types.is_boolean(kind):
        return isinstance(value, bool) and pa.types.is_boolean(kind)
    if canon.is_uuid(kind):
        return dialect == "postgres" and isinstance(value, str) and len(value) == 36 and parse_uuid(value) is not None
    if is_text(kind):
        return isinstance(value, str)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        if isinstance(value, Temporal):
            return value.kind in ("date", "timestamp")
        pattern = _DATE_TEXT if pa.types.is_date(kind) else _TIME_TEXT
        return isinstance(value, str) and pattern.fullmatch(value) is not None
    if pa.types.is_integer(kind) and isinstance(value, str):
        return _INTEGER_TEXT.fullmatch(value) is not None
    if pa.types.is_integer(kind) or pa.types.is_decimal128(kind):
        return isinstance(value, int | decimal.Decimal)
    if not isinstance(value, int | decimal.Decimal | float):
        return False
    if pa.types.is_float64(kind):
        return True
    # beside a FLOAT, Spark and PostgreSQL compare doubles, and DuckDB FLOATs
    return pa.types.is_float32(kind) and decimal.Decimal(float(np.float32(value))) == decimal.Decimal(value)
