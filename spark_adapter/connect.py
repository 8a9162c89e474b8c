"""What a client of Spark Connect knows: its Columns as trees, and the loads in its own part of a plan.

Only the server knows what is behind a view, a table's name or SQL text, and what an analyzer makes of a Column. All
uses of PySpark's private classes of the client are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from ..engine.predicates.literals import DAY_NS, Temporal
from .columns import text_tree
from .spark_semantics import SAME_FUNCTION, Call, CastTo, Extract, Name, Opaque, Tree, Value

_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_TYPES = {
    "NullType": "null", "BooleanType": "boolean", "StringType": "string", "BinaryType": "binary",
    "ByteType": "int", "ShortType": "int", "IntegerType": "int", "LongType": "int", "FloatType": "float",
    "DoubleType": "double", "DecimalType": "decimal",
}  # fmt: skip
_WITHOUT_NAMES = frozenset({"LiteralExpression", "UnresolvedNamedLambdaVariable"})  # leaves of a Column
_OPAQUE_PLANS = {
    "spark.connect.SQL": "SQL text",
    "spark.connect.Read.NamedTable": "a table's or a view's name",
    "spark.connect.CachedRemoteRelation": "a checkpoint",
}


# -- Columns ----------------------------------------------------------------------------------------------------------


def tree_of(column: Any) -> Tree:
    """Return the tree of a client's Column."""
    return _tree(column._expr)


def _tree(node: Any) -> Tree:
    kind = type(node).__name__
    if kind == "UnresolvedFunction" and not node._is_distinct:
        name = _function(node)
        return Call(name, _chain(node, name) if name in ("and", "or") else tuple(map(_tree, node._args)))
    if kind == "ColumnReference":
        if node._plan_id is not None or node._is_metadata_column:
            return Opaque(str(node), "it is bound to another DataFrame")
        parts = _name_parts(node._unparsed_identifier)
        return Opaque(str(node), "it is no name") if parts is None else Name(parts)
    if kind == "LiteralExpression":
        return _literal(node)
    if kind == "CastExpression" and node._eval_mode is None:
        target = node._data_type if isinstance(node._data_type, str) else node._data_type.simpleString()
        return CastTo(_tree(node._expr), target.lower())
    if kind == "UnresolvedExtractValue":
        return Extract(_tree(node._child), _tree(node._extraction))
    if kind == "SQLExpression":
        return text_tree(node._expr)
    return Opaque(str(node), f"{kind} is not understood")


def _function(node: Any) -> str:
    name = node._name.lower()
    return SAME_FUNCTION.get(name, name)


def _chain(node: Any, name: str) -> tuple[Tree, ...]:
    """The terms of a & b & c, which leans left: a loop, so that a long one does not exhaust the stack."""
    children: list[Tree] = []
    while True:
        left, right = node._args
        children.append(_tree(right))
        if type(left).__name__ != "UnresolvedFunction" or _function(left) != name:
            return (_tree(left), *reversed(children))
        node = left


def _literal(node: Any) -> Tree:
    kind, value = type(node._dataType).__name__, node._value
    if value is None:
        return Value("null", None)
    if kind in _TYPES and not (isinstance(value, Decimal) and not value.is_finite()):
        return Value(_TYPES[kind], bytes(value) if kind == "BinaryType" else value)
    if kind == "DateType":
        return Value("date", Temporal("date", value * DAY_NS))
    if kind in ("TimestampType", "TimestampNTZType"):  # microseconds
        return Value("timestamp" if kind == "TimestampType" else "timestamp_ntz", Temporal("timestamp", value * 1000))
    return Opaque(str(node), f"a literal of {node._dataType.simpleString()} is not understood")


def _name_parts(text: str) -> tuple[str, ...] | None:
    """The parts of a name as Spark splits it: at dots, except between backticks. None if Spark would refuse it."""
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


def columns_of(column: Any) -> set[str] | None:
    """Return the names of the columns that a Column reads; None if they are not known."""
    names: set[str] = set()
    waiting = [column._expr]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        tree = _tree(node) if type(node).__name__ == "ColumnReference" else None
        if isinstance(tree, Name):
            names.add(tree.parts[0])
        elif not list(node.children) and type(node).__name__ not in _WITHOUT_NAMES:
            return None  # a text of SQL, a star, a subquery: it may name any
    return names


# -- plans ------------------------------------------------------------------------------------------------------------


def loads_in(frame: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the loads in a client's plan: the name of the source, and the options with the path."""
    for message in _messages(_relation_of(frame)):
        if _name(message) == "spark.connect.Read.DataSource":
            yield _load(message)


def single_load(frame: Any) -> tuple[str, dict[str, str]] | None:
    """Return the load that is the whole plan; None if there is more to it."""
    root = _relation_of(frame)
    return _load(root.read.data_source) if root.WhichOneof("rel_type") == "read" else None


def opaque_part(frame: Any) -> str | None:
    """Return the first part of a client's plan that only the server can search; None if there is none."""
    names = map(_name, _messages(_relation_of(frame)))
    return next((_OPAQUE_PLANS[name] for name in names if name in _OPAQUE_PLANS), None)


def _load(read: Any) -> tuple[str, dict[str, str]]:
    return read.format, {**dict(read.options), **({"path": read.paths[0]} if read.paths else {})}


def _relation_of(frame: Any) -> Any:
    # Not `to_proto`, which compresses a large one.
    return frame._plan.plan(frame.sparkSession.client)


def _name(message: Any) -> str:
    return message.DESCRIPTOR.full_name


def _messages(message: Any) -> Iterator[Any]:
    """A protobuf message and all messages within it, in order; plans are too deep for recursion."""
    waiting = [message]
    while waiting:
        message = waiting.pop()
        yield message
        inner: list[Any] = []
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                value = list(value.values())
            parts = [value] if hasattr(value, "ListFields") else value
            inner.extend(part for part in parts if hasattr(part, "ListFields"))
        waiting.extend(reversed(inner))
