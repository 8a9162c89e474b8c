"""Predicates as PySpark columns: for Spark's own readers, which then filter exactly the rows that match.

A bound predicate holds its literals in its columns' own types, and each is written in Spark's type for that: nothing
depends on Spark's coercions or on the session's time zone. A part that has no exact equivalent is refused.

Spark pushes comparisons down to its Parquet reader, which skips row groups by statistics and dictionaries. There NaN is
not greater than any value, and -0.0 is not 0.0, so such rows would be lost. Comparisons of floats that could lose rows
are made of `column + 0.0`, which is never pushed down.
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

from ..engine.predicates import And, ColumnRef, Constant, Node, Not, Or, Residual, Term, TwoColumnTerm, terms_of
from ..errors import PredicateError, SchemaError
from .columns import quoted
from .wire_types import spark_schema, wire_schema

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SAFE_TO_PUSH = ("=", "in", "<", "<=")  # of floats: neither NaN nor another zero can satisfy them


def to_column(bound: Node) -> Column:
    """The Column that is TRUE for the same rows as a bound predicate, in a frame whose columns have the wire types.
    Raises PredicateError naming a part that has no exact equivalent in Spark."""
    return _column(bound, False)


def has_floats(bound: Node) -> bool:
    """Whether a predicate compares floating point values."""
    return any(
        pa.types.is_floating(ref.type)
        for term in terms_of(bound)
        for ref in ([term.ref] if isinstance(term, Term) else [term.left, term.right])
    )


def literal(value: pa.Scalar, wire: pa.DataType) -> Column:
    """A value in Spark's form of the Arrow type `wire`."""
    kind = spark_schema(pa.schema([pa.field("v", wire)]))["v"].dataType.simpleString()
    if not value.is_valid:
        return F.lit(None).cast(kind)
    if pa.types.is_timestamp(wire):
        us = value.cast(pa.timestamp("us", value.type.tz)).value
        if wire.tz is not None:
            return F.timestamp_micros(F.lit(us).cast("bigint"))
        return F.lit(str(np.datetime64(us, "us"))).cast(kind)
    if pa.types.is_date(wire):
        return F.date_from_unix_date(F.lit(value.cast(pa.date32()).value).cast("int"))
    if pa.types.is_decimal(wire):
        return F.lit(format(value.as_py(), "f") if pa.types.is_decimal(value.type) else str(value.as_py())).cast(kind)
    return F.lit(value.as_py()).cast(kind)


def _column(node: Node, is_negated: bool) -> Column:
    if isinstance(node, Constant):
        return F.lit(node.value).cast("boolean")
    if isinstance(node, (And, Or)):
        join = operator.and_ if isinstance(node, And) else operator.or_
        return _joined(join, [_column(child, is_negated) for child in node.children])
    if isinstance(node, Not):
        return ~_column(node.child, True)
    if isinstance(node, Residual) and node.engine == "spark":
        return F.lit(True)
    if isinstance(node, Residual):
        raise PredicateError(f"Spark cannot be told what {node.engine} tests: {node.text}; give a Column")
    if isinstance(node, TwoColumnTerm):
        return _of_columns(node)
    assert isinstance(node, Term)
    return _of_term(node, is_negated)


def _joined(join: Callable[[Column, Column], Column], parts: Sequence[Column]) -> Column:
    """As a balanced tree: a chain of thousands would exhaust the stack of Spark's analyzer."""
    if len(parts) < 3:
        return functools.reduce(join, parts)
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


def _of_term(term: Term, is_negated: bool) -> Column:
    column, op = _named(term.ref), term.op
    if op == "is_null":
        return column.isNull()
    if op in ("always", "never"):
        return F.when(column.isNotNull(), F.lit(op == "always"))
    wire = _wire(term, term.ref)
    if pa.types.is_floating(wire):
        return _of_floats(term, column, wire, is_negated)
    if op == "like":
        if term.pattern is None or not pa.types.is_string(wire):
            raise _refused(term, "Spark knows LIKE of texts only")
        return column.like(term.pattern.sql())
    values = [literal(_exact(term, value, wire), wire) for value in term.values]
    if op == "starts_with":
        return F.startswith(column, values[0])
    return _compared(op, column, values)


def _of_floats(term: Term, column: Column, wire: pa.DataType, is_negated: bool) -> Column:
    numbers = [value.as_py() for value in term.values]
    is_special = any(math.isnan(number) or number == 0 for number in numbers)
    if is_negated or is_special or term.op not in _SAFE_TO_PUSH:
        column = column + literal(pa.scalar(0.0, wire), wire)
    values = [literal(pa.scalar(number + 0.0, wire), wire) for number in numbers]
    if term.op not in ("in", "not in"):
        return _compared(term.op, column, values)
    # a long IN becomes a set in Spark, in which -0.0 is not 0.0
    equal = _joined(operator.or_, [column == value for value in values])
    return equal if term.op == "in" else ~equal


def _compared(op: str, column: Column, values: Sequence[Column]) -> Column:
    if op in ("in", "not in"):
        equal = column.isin(*values)
        return equal if op == "in" else ~equal
    if op == "<=>":
        return column.eqNullSafe(values[0])
    return _OPERATORS[op](column, values[0])


def _of_columns(term: TwoColumnTerm) -> Column:
    wires = [_wire(term, ref) for ref in (term.left, term.right)]
    numbers = all(pa.types.is_integer(wire) or pa.types.is_floating(wire) for wire in wires)
    if wires[0] != wires[1] and not numbers:
        raise _refused(term, f"Spark would compare {wires[0]} with {wires[1]} in its own way")
    left, right = _named(term.left), _named(term.right)
    return left.eqNullSafe(right) if term.op == "<=>" else _OPERATORS[term.op](left, right)


def _named(ref: ColumnRef) -> Column:
    return F.col(quoted(*ref.path))


def _wire(term: Node, ref: ColumnRef) -> pa.DataType:
    try:
        return wire_schema(pa.schema([pa.field("value", ref.type)])).field(0).type
    except SchemaError:
        raise _refused(term, f"Spark has no {ref.type}") from None


def _exact(term: Term, value: pa.Scalar, wire: pa.DataType) -> pa.Scalar:
    """The value, if Spark can hold it: its timestamps are microseconds."""
    if pa.types.is_timestamp(wire):
        try:
            value.cast(pa.timestamp("us", value.type.tz))
        except pa.ArrowException:
            raise _refused(term, "Spark's timestamps are microseconds") from None
    return value


def _refused(part: Node, why: str) -> PredicateError:
    return PredicateError(f"{part}: has no exact equivalent for Spark's own reader ({why}); use scan()")
