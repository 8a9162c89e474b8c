"""Expressions of Catalyst, Spark's optimizer, as the trees that a Column is read as (`column_tree`).

    meaning_of(spark, column, schema) -> Tree    what Spark means by a Column over a table of this schema
    tree_of_expression(expression) -> Tree       an expression as it stands in a plan
    parsed(spark, text) -> Tree                  a text as Spark's parser reads it, of no table yet

Spark has read such an expression by the session's settings: a timestamp without a zone is an instant already, and in
a plan casts stand where Spark puts them. Nothing of it exists over Spark Connect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark import SparkContext
from pyspark.errors import ParseException

from ..engine.predicates.literals import DAY_NS, Temporal
from ..errors import PredicateError
from .column_tree import Call, CastTo, Extract, Name, Opaque, Tree, Value, analyzed_filter

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

_FUNCTIONS = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
    "GreaterThanOrEqual": ">=", "Not": "!", "IsNull": "isnull", "IsNotNull": "isnotnull", "IsNaN": "isnan",
    "StartsWith": "startswith",
}  # fmt: skip
_CHAINS = {"And": "and", "Or": "or"}
# What gives the same value whenever it is computed: the clock's functions are constants to Spark, too, of one query.
_CONSTANT = frozenset(
    {"Literal", "Cast", "UnaryMinus", "Add", "Subtract", "Multiply", "Divide", "DateAdd", "DateSub"}
    | {"TimestampAddInterval", "DatetimeSub", "ExtractANSIIntervalDays", "AnsiCast"}
)
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_VALUES_MAX = 20_000  # of a list
_SEPARATOR = "\0"
_classes: dict[str, Any] = {}  # of one JVM, which is under ""


def meaning_of(spark: SparkSession, column: Column, schema: StructType) -> Tree:
    """What Spark means by a Column of a classic session, where it filters a table of this schema. No job is run.

    Raises PredicateError where Spark cannot resolve it, with Spark's message.
    """
    plan = analyzed_filter(spark, column, schema)
    if plan.getClass().getSimpleName() != "Filter":
        return Opaque(str(column), "Spark filters by more than an expression")
    return tree_of_expression(plan.condition())


def parsed(spark: Any, text: str) -> Tree:
    """What a classic session's parser makes of a text.

    Raises PredicateError where it is no expression of Spark SQL, with Spark's message.
    """
    try:
        return tree_of_expression(spark._jsparkSession.sessionState().sqlParser().parseExpression(text))
    except ParseException as error:
        raise PredicateError(f"Spark finds no meaning in the predicate: {error}") from error


def tree_of_expression(node: Any, bound: Mapping[str, Tree] | None = None) -> Tree:
    """The tree of a resolved expression. `bound`: what references to common expressions stand for, by their ids."""
    kind = node.getClass().getSimpleName()
    children = children_of(node)
    if kind in _CHAINS:
        return Call(_CHAINS[kind], tuple(tree_of_expression(part, bound) for part in parts_of(node, kind)))
    if kind in _FUNCTIONS:
        return Call(_FUNCTIONS[kind], tuple(tree_of_expression(child, bound) for child in children))
    if kind == "AttributeReference":
        return Name((node.name(),))
    if kind == "UnresolvedAttribute":
        return Name(tuple(node.nameParts().apply(i) for i in range(node.nameParts().size())))
    if kind == "UnresolvedFunction" and not (node.isDistinct() or node.filter().isDefined()):
        return Call(node.sql().partition("(")[0].lower(), tuple(tree_of_expression(child, bound) for child in children))
    if kind == "GetStructField":
        return Extract(tree_of_expression(children[0], bound), Value("string", node.extractFieldName()))
    if kind == "Literal":
        return _literal(node, node.value())
    if kind == "CommonExpressionRef":
        return (bound or {}).get(node.id().toString()) or Opaque(node.sql(), "it stands for nothing here")
    if kind == "With":
        definitions = [node.defs().apply(i) for i in range(node.defs().size())]
        common = {each.id().toString(): tree_of_expression(each.child(), bound) for each in definitions}
        return tree_of_expression(node.child(), {**(bound or {}), **common})
    if kind == "Between":
        return tree_of_expression(children[0], bound)
    if kind == "In":
        return Call("in", tuple(tree_of_expression(child, bound) for child in children))
    if kind == "InSet":
        return _in_set(node, tree_of_expression(children[0], bound))
    if kind in ("Like", "Contains", "EndsWith"):
        return _like(kind, node, [tree_of_expression(child, bound) for child in children])
    constant = _computed(node)
    if constant is not None:
        return constant
    if kind == "Cast" and node.evalMode().toString() != "TRY":
        return CastTo(tree_of_expression(children[0], bound), node.dataType().sql().lower())
    return Opaque(node.sql(), f"{kind} is not understood")


def java_class(name: str) -> Any:
    """A class of the JVM by its full name. It is kept: each step of a name, and each look at a class, is a call of its
    own to the JVM, and a plan is walked by hundreds."""
    java = SparkContext._jvm
    if _classes.get("") is not java:  # another JVM than the one before
        _classes.clear()
        _classes[""] = java
    if name not in _classes:
        _classes[name] = getattr(java, name)
    return _classes[name]


def texts_of(java_map: Any) -> dict[str, str]:
    """A java.util.Map of texts, by one call, not two for each entry."""
    if "mapper" not in _classes or _classes.get("") is not SparkContext._jvm:
        mapper = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        _classes["mapper"] = mapper
    texts: dict[str, str] = json.loads(_classes["mapper"].writeValueAsString(java_map))
    return texts


def children_of(node: Any) -> list[Any]:
    """The children of a node of a plan, or of an expression."""
    return items_of(node.children())


def items_of(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def sequence_of(items: list[Any]) -> Any:
    """A Scala sequence of these items: the inverse of `items_of`."""
    listed = java_class("java.util.ArrayList")()
    for item in items:
        listed.add(item)
    return java_class("org.apache.spark.api.python.PythonUtils").toSeq(listed)


def parts_of(node: Any, kind: str = "And") -> list[Any]:
    """The terms of a chain of ANDs (or ORs), in order: walked in a loop, so that a long one does not exhaust the
    stack."""
    parts, waiting = [], [node]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() == kind:
            waiting += [node.right(), node.left()]
        else:
            parts.append(node)
    return parts


def _like(kind: str, node: Any, arguments: list[Tree]) -> Tree:
    if kind == "Like":
        return Call("like", (*arguments, Value("string", node.escapeChar())))
    column, text = arguments
    if not (isinstance(text, Value) and isinstance(text.value, str)):
        return Opaque(node.sql(), f"{kind} is not understood")
    escaped = "".join(f"\\{sign}" if sign in "\\%_" else sign for sign in text.value)
    return Call("like", (column, Value("string", f"%{escaped}%" if kind == "Contains" else f"%{escaped}")))


def _in_set(node: Any, child: Tree) -> Tree:
    """A long list, as the optimizer keeps it: values without nulls of one type."""
    values, count = node.hset(), node.hset().size()
    if count > _VALUES_MAX:
        return Opaque(f"a list of {count} values", "the list is long")
    kind = node.child().dataType()
    if values.contains(None):
        return Opaque(node.sql(), "a list with null is not understood")
    texts = values.toSeq().mkString(_SEPARATOR).split(_SEPARATOR)  # one call, not one for each value
    if len(texts) != count:
        return Opaque(node.sql(), "a list is not understood")
    listed = [_value(kind.sql(), text) for text in texts]
    if None in listed:
        return Opaque(node.sql(), f"a list of {kind.sql()} is not understood")
    return Call("in", (child, *(value for value in listed if value is not None)))


def _computed(node: Any) -> Tree | None:
    """The value of a constant expression; None where it depends on the time, or ends in an error."""
    waiting = [node]
    if not node.resolved():
        return None
    while waiting:
        part = waiting.pop()
        if part.getClass().getSimpleName() not in _CONSTANT:
            return None
        waiting += children_of(part)
    try:
        return _literal(node, node.eval(None))
    except Exception:  # Spark raises it, where it comes to that
        return None


def _literal(node: Any, value: Any) -> Tree:
    if value is None:
        return Value("null", None)
    kind = node.dataType().sql()
    if kind == "BINARY" and isinstance(value, bytes | bytearray):
        return Value("binary", bytes(value))
    if kind == "BOOLEAN" and isinstance(value, bool):
        return Value("boolean", value)
    return _value(kind, value.toString() if hasattr(value, "toString") else repr(value)) or Opaque(
        node.sql(), f"a literal of {kind} is not understood"
    )


def _value(kind: str, text: str) -> Value | None:
    """A value of Catalyst's by its type and text: dates are days, timestamps microseconds since 1970."""
    if kind == "STRING":  # of another collation it has a longer name
        return Value("string", text)
    if kind in _INTEGERS:
        return Value("int", int(text))
    if kind == "DOUBLE":
        return Value("double", float(text))
    if kind == "FLOAT":
        return Value("float", float(np.float32(text)))
    if kind == "DATE":
        return Value("date", Temporal("date", int(text) * DAY_NS))
    if kind in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return Value(kind.lower(), Temporal("timestamp", int(text) * 1_000))
    return Value("decimal", Decimal(text)) if kind.startswith("DECIMAL(") else None
