"""Predicates as PySpark columns: for Spark's own readers, which then filter exactly the rows that match.

A bound predicate holds its literals in its columns' own types, and each is said in the type that Spark has for that:
nothing is left to Spark's coercions, or to the session's time zone. What Spark cannot be told exactly is refused.

Spark hands comparisons on to its Parquet reader, which leaves out row groups by their statistics and dictionaries; but
it does not know there that NaN is greater than any value, and that -0.0 equals 0.0, and loses such rows. Comparisons of
floats that might are said of `column + 0.0`, which it hands on to nobody.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from ..engine.predicates import And, ColumnLeaf, ColumnRef, Constant, Leaf, Node, Not, Or, Residual, leaves_of
from ..errors import PredicateError, SchemaError
from .translate import spark_schema, wire_schema

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_HANDED_ON = ("=", "in", "<", "<=")  # of floats: neither NaN nor another zero can satisfy them


def to_column(bound: Node) -> Column:
    """The Column that is TRUE for the rows in which a bound predicate is, of a frame whose columns have the types of
    `translate`. Raises PredicateError naming a part that Spark cannot be told exactly."""
    return _column(bound, False)


def has_floats(bound: Node) -> bool:
    """Whether a predicate compares floating point values."""
    return any(
        pa.types.is_floating(ref.type)
        for leaf in leaves_of(bound)
        for ref in ([leaf.ref] if isinstance(leaf, Leaf) else [leaf.left, leaf.right])
    )


def literal(value: pa.Scalar, wire: pa.DataType) -> Column:
    """A value in Spark's form of the Arrow type `wire`."""
    told = spark_schema(pa.schema([pa.field("v", wire)]))["v"].dataType.simpleString()
    if not value.is_valid:
        return F.lit(None).cast(told)
    if pa.types.is_timestamp(wire):
        us = value.cast(pa.timestamp("us", value.type.tz)).value
        if wire.tz is not None:
            return F.timestamp_micros(F.lit(us).cast("bigint"))
        return F.lit(str(np.datetime64(us, "us"))).cast(told)
    if pa.types.is_date(wire):
        return F.date_from_unix_date(F.lit(value.cast(pa.date32()).value).cast("int"))
    if pa.types.is_decimal(wire):
        return F.lit(format(value.as_py(), "f") if pa.types.is_decimal(value.type) else str(value.as_py())).cast(told)
    return F.lit(value.as_py()).cast(told)


def _column(node: Node, is_negated: bool) -> Column:
    if isinstance(node, Constant):
        return F.lit(node.value).cast("boolean")
    if isinstance(node, (And, Or)):
        join = operator.and_ if isinstance(node, And) else operator.or_
        return _joined(join, [_column(child, is_negated) for child in node.children])
    if isinstance(node, Not):
        return ~_column(node.child, True)
    if isinstance(node, Residual):
        raise PredicateError(f"Spark cannot be told what {node.engine} tests: {node.text}; give a Column")
    if isinstance(node, ColumnLeaf):
        return _of_columns(node)
    assert isinstance(node, Leaf)
    return _of_leaf(node, is_negated)


def _joined(join: Callable[[Column, Column], Column], parts: Sequence[Column]) -> Column:
    """Halved again and again: a chain of thousands would exhaust the stack of Spark's analyzer."""
    if len(parts) < 3:
        return functools.reduce(join, parts)
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


def _of_leaf(leaf: Leaf, is_negated: bool) -> Column:
    column, op = _named(leaf.ref), leaf.op
    if op == "is_null":
        return column.isNull()
    if op in ("always", "never"):
        return F.when(column.isNotNull(), F.lit(op == "always"))
    wire = _wire(leaf, leaf.ref)
    if pa.types.is_floating(wire):
        return _of_floats(leaf, column, wire, is_negated)
    if op == "like":
        if leaf.pattern is None or not pa.types.is_string(wire):
            raise _refused(leaf, "Spark knows LIKE of texts only")
        return column.like(leaf.pattern.sql())
    values = [literal(_exact(leaf, value, wire), wire) for value in leaf.values]
    if op == "starts_with":
        return F.startswith(column, values[0])
    return _compared(op, column, values)


def _of_floats(leaf: Leaf, column: Column, wire: pa.DataType, is_negated: bool) -> Column:
    numbers = [value.as_py() for value in leaf.values]
    odd = any(math.isnan(number) or number == 0 for number in numbers)
    if is_negated or odd or leaf.op not in _HANDED_ON:
        column = column + literal(pa.scalar(0.0, wire), wire)
    values = [literal(pa.scalar(number + 0.0, wire), wire) for number in numbers]
    if leaf.op not in ("in", "not in"):
        return _compared(leaf.op, column, values)
    # a long IN becomes a set in Spark, in which -0.0 is not 0.0
    found = _joined(operator.or_, [column == value for value in values])
    return found if leaf.op == "in" else ~found


def _compared(op: str, column: Column, values: Sequence[Column]) -> Column:
    if op in ("in", "not in"):
        found = column.isin(*values)
        return found if op == "in" else ~found
    if op == "<=>":
        return column.eqNullSafe(values[0])
    return _OPERATORS[op](column, values[0])


def _of_columns(leaf: ColumnLeaf) -> Column:
    wires = [_wire(leaf, ref) for ref in (leaf.left, leaf.right)]
    numbers = all(pa.types.is_integer(wire) or pa.types.is_floating(wire) for wire in wires)
    if wires[0] != wires[1] and not numbers:
        raise _refused(leaf, f"Spark would compare {wires[0]} with {wires[1]} in its own way")
    left, right = _named(leaf.left), _named(leaf.right)
    return left.eqNullSafe(right) if leaf.op == "<=>" else _OPERATORS[leaf.op](left, right)


def _named(ref: ColumnRef) -> Column:
    return F.col(".".join(f"`{name.replace('`', '``')}`" for name in ref.path))


def _wire(leaf: Node, ref: ColumnRef) -> pa.DataType:
    try:
        return wire_schema(pa.schema([pa.field("value", ref.type)])).field(0).type
    except SchemaError:
        raise _refused(leaf, f"Spark has no {ref.type}") from None


def _exact(leaf: Leaf, value: pa.Scalar, wire: pa.DataType) -> pa.Scalar:
    """The value, once it is certain that Spark has it: its timestamps are microseconds."""
    if pa.types.is_timestamp(wire):
        try:
            value.cast(pa.timestamp("us", value.type.tz))
        except pa.ArrowException:
            raise _refused(leaf, "Spark's timestamps are microseconds") from None
    return value


def _refused(part: Node, why: str) -> PredicateError:
    return PredicateError(f"{part}: cannot be told to Spark's own reader ({why}); use scan()")
