"""What a PySpark Column says, as one small tree, whether it lives in Spark's JVM or is a Spark Connect client's.

    tree_of(column) -> Tree      names, values, calls of functions, casts, extractions, SQL texts; the rest is Opaque
    columns_needed(...)          the columns of a table that a Column reads
    analyzed_filter(...)         Spark's own plan of a filter by a Column, in a classic session

Nothing is decided here: what a tree means for a table is read by `from_columns`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.predicates.literals import DAY_NS, LiteralValue, Temporal, literal_value
from ..errors import PredicateError

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# Before these, Spark moves what the JVM's old classes hold from the Julian calendar and from local mean time.
_FIRST_PLAIN_DATE = dt.date(1583, 1, 1)
_FIRST_PLAIN_INSTANT = dt.datetime(1901, 1, 1, tzinfo=dt.UTC)
_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_CONNECT_TYPES = {
    "NullType": "null", "BooleanType": "boolean", "StringType": "string", "BinaryType": "binary",
    "ByteType": "int", "ShortType": "int", "IntegerType": "int", "LongType": "int", "FloatType": "float",
    "DoubleType": "double", "DecimalType": "decimal",
}  # fmt: skip
# How the two write one function; the rest differ in case alone.
_SAME_FUNCTION = {"==": "=", "not": "!", "equal_null": "<=>"}
_WITHOUT_NAMES = frozenset({"LiteralExpression", "UnresolvedNamedLambdaVariable"})  # leaves of a Connect column


@dataclass(frozen=True)
class Name:
    """A column by the parts of its name."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class Value:
    """A literal. `type` is Spark's: null, boolean, int (of any width), float, double, decimal, string, binary, date,
    timestamp (an instant), timestamp_ntz, or timestamp_sql, which may be either."""

    type: str
    value: LiteralValue

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Call:
    """A function by its name in lower case; operators are functions: =, <=>, <, <=, >, >=, !, and, or."""

    name: str
    arguments: tuple[Tree, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class CastTo:
    """A cast that the session decides how to make (no try_cast). `type` is Spark's name of it, in lower case."""

    child: Tree
    type: str

    def __str__(self) -> str:
        return f"CAST({self.child} AS {self.type})"


@dataclass(frozen=True)
class Extract:
    """A field of a struct, an element of an array, or a value of a map: which one depends on the child's type."""

    child: Tree
    key: Tree

    def __str__(self) -> str:
        return f"{self.child}[{self.key}]"


@dataclass(frozen=True)
class Sql:
    """A text that Spark parses: F.expr."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Opaque:
    """What cannot be looked into, and why."""

    text: str
    reason: str

    def __str__(self) -> str:
        return self.text


Tree: TypeAlias = Name | Value | Call | CastTo | Extract | Sql | Opaque


def tree_of(column: Any) -> Tree:
    """The tree of a Column, classic or of Spark Connect."""
    java = getattr(column, "_jc", None)
    return _classic(java.node()) if java is not None else _connect(column._expr)


# -- classic: nodes of the JVM ----------------------------------------------------------------------------------------


def _classic(node: Any) -> Tree:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedFunction":
        if node.isDistinct() or node.isUserDefinedFunction():
            return Opaque(node.sql(), "it is no function of Spark's own")
        name = _function(node.functionName())
        return Call(name, _chain_of(node, name) if name in ("and", "or") else tuple(map(_classic, _items(node))))
    if kind == "UnresolvedAttribute":
        if node.planId().isDefined() or node.isMetadataColumn():
            return Opaque(node.sql(), "it is bound to another DataFrame")
        parts = node.nameParts()
        return Name(tuple(parts.apply(i) for i in range(parts.size())))
    if kind == "Literal":
        return _classic_literal(node)
    if kind == "Cast" and not node.evalMode().isDefined():
        return CastTo(_classic(node.child()), node.dataType().sql().lower())
    if kind == "UnresolvedExtractValue":
        return Extract(_classic(node.child()), _classic(node.extraction()))
    if kind == "SqlExpression":
        return Sql(node.expression())
    return Opaque(node.sql(), f"{kind} is not understood")


def _chain_of(node: Any, name: str) -> tuple[Tree, ...]:
    # a & b & c leans left: walked in a loop, so that a long one does not exhaust the stack
    children: list[Tree] = []
    while True:
        left, right = _items(node)
        children.append(_classic(right))
        if left.getClass().getSimpleName() != "UnresolvedFunction" or _function(left.functionName()) != name:
            return (_classic(left), *reversed(children))
        node = left


def _classic_literal(node: Any) -> Tree:
    if node.dataType().isDefined():
        return Opaque(node.sql(), "a literal of a type of its own is not understood")
    value = node.value()
    plain = _plain_value(value)
    if plain is not None:
        return plain
    kind = value.getClass().getName()
    if kind == "java.sql.Date":
        date = dt.date.fromisoformat(value.toString())
        if date >= _FIRST_PLAIN_DATE:
            return Value("date", literal_value(date))
    if kind == "java.sql.Timestamp":  # an instant: whole seconds, and nanoseconds within one
        instant = _EPOCH + dt.timedelta(seconds=value.getTime() // 1000, microseconds=value.getNanos() // 1000)
        if instant >= _FIRST_PLAIN_INSTANT:
            return Value("timestamp", literal_value(instant))
    return Opaque(node.sql(), f"a literal of {kind} is not understood")


def _plain_value(value: Any) -> Value | None:
    if value is None:
        return Value("null", None)
    for type_, kind in ((bool, "boolean"), (int, "int"), (float, "double"), (str, "string"), (Decimal, "decimal")):
        if isinstance(value, type_):
            return Value(kind, value)
    return Value("binary", bytes(value)) if isinstance(value, bytes | bytearray) else None


def _items(node: Any) -> list[Any]:
    sequence = node.arguments()
    return [sequence.apply(i) for i in range(sequence.size())]


def _function(name: str) -> str:
    return _SAME_FUNCTION.get(name.lower(), name.lower())


# -- Spark Connect: objects of the client -----------------------------------------------------------------------------


def _connect(node: Any) -> Tree:
    kind = type(node).__name__
    if kind == "UnresolvedFunction" and not node._is_distinct:
        name = _function(node._name)
        children = _connect_chain(node, name) if name in ("and", "or") else tuple(map(_connect, node._args))
        return Call(name, children)
    if kind == "ColumnReference":
        if node._plan_id is not None or node._is_metadata_column:
            return Opaque(str(node), "it is bound to another DataFrame")
        parts = _name_parts(node._unparsed_identifier)
        return Opaque(str(node), "it is no name") if parts is None else Name(parts)
    if kind == "LiteralExpression":
        return _connect_literal(node)
    if kind == "CastExpression" and node._eval_mode is None:
        target = node._data_type if isinstance(node._data_type, str) else node._data_type.simpleString()
        return CastTo(_connect(node._expr), target.lower())
    if kind == "UnresolvedExtractValue":
        return Extract(_connect(node._child), _connect(node._extraction))
    if kind == "SQLExpression":
        return Sql(node._expr)
    return Opaque(str(node), f"{kind} is not understood")


def _connect_chain(node: Any, name: str) -> tuple[Tree, ...]:
    children: list[Tree] = []
    while True:
        left, right = node._args
        children.append(_connect(right))
        if type(left).__name__ != "UnresolvedFunction" or _function(left._name) != name:
            return (_connect(left), *reversed(children))
        node = left


def _connect_literal(node: Any) -> Tree:
    kind, value = type(node._dataType).__name__, node._value
    if value is None:
        return Value("null", None)
    if kind in _CONNECT_TYPES and not (isinstance(value, Decimal) and not value.is_finite()):
        return Value(_CONNECT_TYPES[kind], bytes(value) if kind == "BinaryType" else value)
    if kind == "DateType":
        return Value("date", Temporal("date", value * DAY_NS))
    if kind in ("TimestampType", "TimestampNTZType"):  # microseconds
        return Value("timestamp" if kind == "TimestampType" else "timestamp_ntz", Temporal("timestamp", value * 1000))
    return Opaque(str(node), f"a literal of {node._dataType.simpleString()} is not understood")


def quoted(*parts: str) -> str:
    """A name as Spark takes it for what it is, whatever characters its parts hold: the inverse of `_name_parts`."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _name_parts(text: str) -> tuple[str, ...] | None:
    """The parts of a name as Spark splits it: at dots, save between backticks. None where it would refuse."""
    parts, position = [], 0
    while True:
        match = _NAME_PART.match(text, position)
        if match is None:
            return None
        quoted, plain = match.groups()
        parts.append(plain if quoted is None else quoted.replace("``", "`"))
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            return None
        position += 1


# -- the columns that it reads ----------------------------------------------------------------------------------------


def columns_needed(spark: SparkSession, column: Column, schema: StructType) -> list[str]:
    """The columns of a table that a Column reads, in the table's order; all, where that cannot be known.

    A source of Python learns which columns to read when it is loaded, not when the query is planned: a filter of
    Spark's over columns that nobody reads would not find them.

    Raises PredicateError where Spark cannot resolve it, with Spark's message.
    """
    names = _by_analysis(spark, column, schema) if hasattr(column, "_jc") else _by_walking(column)
    if names is None:
        return schema.names
    lowered = {name.lower() for name in names}
    return [name for name in schema.names if name.lower() in lowered]


def analyzed_filter(spark: Any, column: Column, schema: StructType) -> Any:
    """The plan, in the JVM, of a filter over an empty DataFrame of this schema, resolved by Spark. No job is run.

    Raises PredicateError where Spark cannot resolve it, with Spark's message.
    """
    from pyspark.errors import AnalysisException

    from .spark_versions import classic_frame

    session, java = spark._jsparkSession, spark._jvm.java.util
    empty = classic_frame(session.createDataFrame(java.ArrayList(), session.parseDataType(schema.json())), spark)
    try:
        return empty.where(column)._jdf.queryExecution().analyzed()
    except AnalysisException as error:
        raise PredicateError(f"Spark finds no meaning in the predicate: {error}") from error


def _by_analysis(spark: SparkSession, column: Column, schema: StructType) -> set[str] | None:
    plan = analyzed_filter(spark, column, schema)
    if plan.getClass().getSimpleName() != "Filter":
        return None
    attributes = plan.references().iterator()
    names = set()
    while attributes.hasNext():
        names.add(attributes.next().name())
    return names


def _by_walking(column: Any) -> set[str] | None:
    names: set[str] = set()
    for node in _nodes(column._expr):
        tree = _connect(node) if type(node).__name__ == "ColumnReference" else None
        if isinstance(tree, Name):
            names.add(tree.parts[0])
        elif not list(node.children) and type(node).__name__ not in _WITHOUT_NAMES:
            return None  # a text of SQL, a star, a subquery: it may name any
    return names


def _nodes(node: Any) -> Iterator[Any]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children)
