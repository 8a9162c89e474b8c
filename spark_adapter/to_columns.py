"""Predicates as PySpark columns: for Spark's own readers, which then filter exactly the rows that match.

A bound predicate holds its literals in its columns' own types, and each is written in Spark's type for that: nothing
depends on Spark's coercions or on the session's time zone. A part that has no exact equivalent is refused.

Comparisons of floats are those of frames whose floats are hidden from Spark's reader (`parquet_reader`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from ..engine.predicates import And, ColumnRef, Constant, Node, Not, Or, Residual, Term, TwoColumnTerm
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


def to_column(bound: Node) -> Column:
    """The Column that is TRUE for the same rows as a bound predicate, in a frame whose columns have the wire types.
    Raises PredicateError naming a part that has no exact equivalent in Spark."""
    if isinstance(bound, Constant):
        return F.lit(bound.value).cast("boolean")
    if isinstance(bound, (And, Or)):
        join = operator.and_ if isinstance(bound, And) else operator.or_
        return _joined(join, [to_column(child) for child in bound.children])
    if isinstance(bound, Not):
        return ~to_column(bound.child)
    if isinstance(bound, Residual) and bound.engine == "spark":
        return F.lit(True)
    if isinstance(bound, Residual):
        raise PredicateError(f"Spark cannot express what {bound.engine} tests: {bound.text}; give a Column")
    if isinstance(bound, TwoColumnTerm):
        return _of_columns(bound)
    assert isinstance(bound, Term)
    return _of_term(bound)


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


def _joined(join: Callable[[Column, Column], Column], parts: Sequence[Column]) -> Column:
    """As a balanced tree: a chain of thousands would exhaust the stack of Spark's analyzer."""
    if len(parts) < 3:
        return functools.reduce(join, parts)
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


def _of_term(term: Term) -> Column:
    column, op = _named(term.ref), term.op
    if op == "is_null":
        return column.isNull()
    if op in ("always", "never"):
        return F.when(column.isNotNull(), F.lit(op == "always"))
    wire = _wire(term, term.ref)
    if op == "like":
        if term.pattern is None or not pa.types.is_string(wire):
            raise _refused(term, "Spark knows LIKE of texts only")
        return column.like(term.pattern.sql())
    values = [literal(_exact(term, value, wire), wire) for value in term.values]
    if op in ("in", "not in") and pa.types.is_floating(wire):
        # a long IN becomes a set in Spark, in which -0.0 is not 0.0
        equal = _joined(operator.or_, [column == value for value in values])
        return equal if op == "in" else ~equal
    if op == "starts_with":
        return F.startswith(column, values[0])
    return _compared(op, column, values)


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
