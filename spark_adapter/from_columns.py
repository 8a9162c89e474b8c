"""PySpark columns read as predicates: `F.col("k") == 5` is a tree in Spark's JVM, which is walked here node by node.

What is not known for certain is `Unknown`: it never prunes, and `scan` refuses to test rows by it, naming it. A column
of a DataFrame (`df.k`), which is bound to that DataFrame's plan, and columns of Spark Connect are not read.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..engine.predicates import (
    And,
    Cast,
    Column,
    Comparison,
    Constant,
    In,
    IsNaN,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    StartsWith,
    Unknown,
    parse,
)
from ..engine.predicates.ast import Operand
from ..engine.predicates.literals import literal_value
from ..errors import PredicateError

_COMPARISONS = frozenset({"=", "<=>", "<", "<=", ">", ">="})
_TYPES = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class _NotUnderstoodError(Exception):
    """Ends the reading of one part, which then becomes Unknown with this reason."""


def from_column(column: Any) -> Node:
    """The predicate that a PySpark Column means.

    Raises PredicateError for a column of Spark Connect, which has no JVM to be asked.
    """
    java = getattr(column, "_jc", None)
    if java is None:
        raise PredicateError("a Column of Spark Connect cannot be read; give SQL text, or build it with skipstone.col")
    try:
        return _predicate(java.node())
    except RecursionError:
        raise PredicateError("the Column is nested too deeply; use isin for a long list of values") from None


def _predicate(node: Any) -> Node:
    try:
        return _understood(node)
    except _NotUnderstoodError as reason:
        return Unknown(node.sql(), str(reason))


def _understood(node: Any) -> Node:
    kind = _kind(node)
    if kind == "UnresolvedAttribute":
        return Comparison("=", _column(node), Literal(True))
    if kind == "Literal":
        value = node.value()
        if value is None or isinstance(value, bool):
            return Constant(value)
        raise _NotUnderstoodError("it is no truth value")
    if kind == "SqlExpression":
        if '"' in node.expression():  # a text for Spark, a name for us
            raise _NotUnderstoodError("it has double quotes")
        return parse(node.expression())
    name, arguments = _call(node)
    if name in ("and", "or"):
        return _connected(node, name)
    if name == "!" and len(arguments) == 1:
        return Not(_predicate(arguments[0]))
    if name in _COMPARISONS and len(arguments) == 2:
        return Comparison(name, _operand(arguments[0]), _operand(arguments[1]))
    if name == "isNull" and len(arguments) == 1:
        return IsNull(_operand(arguments[0]))
    if name == "isNotNull" and len(arguments) == 1:
        return Not(IsNull(_operand(arguments[0])))
    if name == "isNaN" and len(arguments) == 1:
        return IsNaN(_operand(arguments[0]))
    if name == "in" and arguments:
        return In(_operand(arguments[0]), tuple(_literal(value) for value in arguments[1:]))
    if name in ("like", "startswith") and len(arguments) == 2:
        pattern = _literal(arguments[1]).value
        if isinstance(pattern, str):
            operand = _operand(arguments[0])
            return Like(operand, pattern) if name == "like" else StartsWith(operand, pattern)
    raise _NotUnderstoodError(f"{name} is not understood")


def _connected(node: Any, name: str) -> Node:
    # a & b & c leans left: walked in a loop, so that a long one does not exhaust the stack
    children = []
    while _kind(node) == "UnresolvedFunction" and _call(node)[0] == name:
        node, right = _call(node)[1]
        children.append(_predicate(right))
    children.append(_predicate(node))
    return (And if name == "and" else Or)(tuple(reversed(children)))


def _operand(node: Any) -> Operand:
    kind = _kind(node)
    if kind == "UnresolvedAttribute":
        return _column(node)
    if kind == "Literal":
        return _literal(node)
    if kind == "Cast":
        told = node.dataType().sql()
        if told in _TYPES and not node.evalMode().isDefined():
            return Cast(_operand(node.child()), _TYPES[told])
        raise _NotUnderstoodError(f"a cast to {told} is not understood")
    raise _NotUnderstoodError(f"{node.sql()} is no column, literal or cast")


def _column(node: Any) -> Column:
    if node.planId().isDefined() or node.isMetadataColumn():
        raise _NotUnderstoodError("it is bound to another DataFrame")
    return Column(".".join(_items(node.nameParts())))


def _literal(node: Any) -> Literal:
    if _kind(node) != "Literal" or node.dataType().isDefined():
        raise _NotUnderstoodError(f"{node.sql()} is no plain literal")
    value = node.value()
    if value is None or isinstance(value, bool | int | float | str | bytes | bytearray | Decimal):
        return Literal(bytes(value) if isinstance(value, bytearray) else value)
    kind = value.getClass().getName()
    if kind == "java.sql.Date":
        return Literal(literal_value(dt.date.fromisoformat(value.toString())))
    if kind == "java.sql.Timestamp":  # an instant: whole seconds, and nanoseconds within one
        seconds = value.getTime() // 1000
        instant = _EPOCH + dt.timedelta(seconds=seconds, microseconds=value.getNanos() // 1000)
        return Literal(literal_value(instant))
    raise _NotUnderstoodError(f"a literal of {kind} is not understood")


def _call(node: Any) -> tuple[str, list[Any]]:
    if _kind(node) != "UnresolvedFunction" or node.isDistinct() or node.isUserDefinedFunction():
        raise _NotUnderstoodError(f"{node.sql()} is not understood")
    return node.functionName(), _items(node.arguments())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _kind(node: Any) -> str:
    return node.getClass().getSimpleName()
