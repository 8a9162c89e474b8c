"""What follows from a leaf that DuckDB tests: a range, or a prefix, of its one column, which prunes beside it.

    TRUE(leaf)  implies  TRUE(what is given here),      for every row, whatever is in it

It never replaces the leaf, and is under no NOT: where the leaf is NULL it may be FALSE. Each rule says why it holds.
Trees are sqlglot's, read as in `sql_leaves`: nothing follows from a tree with an argument that we do not know.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .ast import FLIPPED, And, Comparison, Node, StartsWith
from .bound import resolved
from .coerce import is_text, plain_type
from .duckdb_meaning import time_beside
from .literals import DAY_NS, Temporal, days_from_civil
from .operands import Column, Literal
from .sql_leaves import COMPARISONS, LeafReader, check_arguments
from .sql_types import NotUnderstoodError

_DAYS_AT_MOST = {"week": 7, "month": 31, "quarter": 92, "year": 366}
_NS_AT_MOST = {
    "second": DAY_NS // 86_400,
    "minute": DAY_NS // 1_440,
    "hour": DAY_NS // 24,
    "day": DAY_NS,
    **{unit: days * DAY_NS for unit, days in _DAYS_AT_MOST.items()},
}
_YEARS = range(1, 9_999)


def implied_by(tree: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """What follows from a comparison of a function of one column with a literal; None where nothing that we know."""
    op = COMPARISONS.get(type(tree).__name__)
    if op is None or op in ("<=>", "!="):
        return None
    left, right = tree.this, tree.expression
    for call, other, direction in ((left, right, op), (right, left, FLIPPED[op])):
        rule = _RULES.get(type(_bare(call)).__name__)
        try:
            check_arguments(tree, "this", "expression")
            implied = None if rule is None else rule(_bare(call), direction, other, schema, reader)
        except (NotUnderstoodError, PredicateError):
            continue
        if implied is not None:
            return implied
    return None


def _bare(tree: Any) -> Any:
    while type(tree).__name__ == "Paren":
        tree = tree.this
    return tree


def _column(tree: Any, schema: pa.Schema, reader: LeafReader) -> tuple[Column, pa.DataType] | None:
    operand = reader.operand(tree)
    if not isinstance(operand, Column):
        return None
    ref = resolved(operand, schema)
    return None if ref.is_uuid else (operand, plain_type(ref.type))


def _literal(tree: Any, reader: LeafReader) -> Any:
    operand = reader.operand(tree)
    return operand.value if isinstance(operand, Literal) else None


# -- times, cut down to a unit ----------------------------------------------------------------------------------------


def _cast(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """CAST(ts AS DATE) is the day that ts is in, counted down also before 1970: day <= ts < day + 1."""
    check_arguments(tree, "this", "to")
    if tree.to.this.name != "DATE" or tree.to.expressions:
        return None
    return _in_days(tree.this, op, other, schema, reader)


def _date(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """date(ts) is CAST(ts AS DATE)."""
    check_arguments(tree, "this")
    return _in_days(tree.this, op, other, schema, reader)


def _in_days(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    day = _moment(_literal(other, reader), pa.date32())
    target = _column(tree, schema, reader)
    if target is None or not pa.types.is_timestamp(target[1]) or day is None or day % DAY_NS:
        return None
    return _cut_down(target, op, day, day + DAY_NS)


def _timestamptrunc(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """date_trunc(unit, ts) is the start of the unit that ts is in: start <= ts < start + the longest that a unit is."""
    check_arguments(tree, "this", "unit")
    unit = str(getattr(tree.args.get("unit"), "name", "")).lower()
    target = _column(tree.this, schema, reader)
    if target is None or unit not in _NS_AT_MOST:
        return None
    if not (pa.types.is_timestamp(target[1]) or pa.types.is_date32(target[1])):
        return None
    zone = target[1].tz if pa.types.is_timestamp(target[1]) else None
    moment = _moment(_literal(other, reader), pa.timestamp("us", zone))  # what date_trunc gives
    return None if moment is None else _cut_down(target, op, moment, moment + _NS_AT_MOST[unit])


def _moment(value: Any, kind: pa.DataType) -> int | None:
    """The instant that DuckDB compares with values of a type: it leaves out the zone of a text beside one without."""
    if isinstance(value, str):
        value = time_beside(kind, value)
    is_moment = isinstance(value, Temporal) and value.kind in ("date", "timestamp") and value.ns % 1_000 == 0
    return value.ns if is_moment else None


def _cut_down(target: tuple[Column, pa.DataType], op: str, first: int, stop: int) -> Node:
    """Of f(x) op m, where f(x) = m is first <= x < stop, and f never falls as x grows: f(x) < m and f(x) <= m give
    x < stop; f(x) > m and f(x) >= m give x >= first. DuckDB rounds nanoseconds to microseconds before it cuts."""
    column, kind = target
    slack = 1_000 if pa.types.is_timestamp(kind) and kind.unit == "ns" else 0
    start, end = (Literal(Temporal("timestamp", ns)) for ns in (first - slack, stop + slack))
    if op in ("<", "<="):
        return Comparison("<", column, end)
    if op in (">", ">="):
        return Comparison(">=", column, start)
    return And((Comparison(">=", column, start), Comparison("<", column, end)))


def _year(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """year(ts) = y where ts lies from the first of January of y to that of y + 1, and it never falls as ts grows."""
    check_arguments(tree, "this")
    return _in_years(tree.this, op, other, schema, reader)


def _extract(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    check_arguments(tree, "this", "expression")
    if str(getattr(tree.this, "name", "")).lower() != "year":
        return None
    return _in_years(tree.expression, op, other, schema, reader)


def _in_years(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    year, target = _literal(other, reader), _column(tree, schema, reader)
    if target is None or type(year) is not int or year not in _YEARS:
        return None
    if not (pa.types.is_timestamp(target[1]) or pa.types.is_date32(target[1])):
        return None
    first, stop = (days_from_civil(y, 1, 1) * DAY_NS for y in (year, year + 1))
    if op == "<":  # of whole years: before the year itself
        first, stop = stop, first
    elif op == ">":
        first = stop
    return _cut_down(target, op, first, stop)


# -- numbers and texts ------------------------------------------------------------------------------------------------


def _sum(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """x + c op v, of integers, is x op v - c: DuckDB does not wrap, it fails on a row where a sum leaves the type."""
    check_arguments(tree, "this", "expression")
    is_add = type(tree).__name__ == "Add"
    value = _literal(other, reader)
    for side, rest in ((tree.this, tree.expression), (tree.expression, tree.this)):
        constant = _literal(rest, reader) if type(_bare(side)).__name__ == "Column" else None
        target = None if constant is None else _column(_bare(side), schema, reader)
        if target is None or not pa.types.is_integer(target[1]) or type(constant) is not int or type(value) is not int:
            continue
        if is_add:
            return Comparison(op, target[0], Literal(value - constant))
        if side is tree.this:
            return Comparison(op, target[0], Literal(value + constant))
        return Comparison(FLIPPED[op], target[0], Literal(constant - value))  # c - x op v
    return None


def _substring(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    """substr(s, 1, n) = 'abc': what is cut from the beginning of s, at whatever length, is what s begins with."""
    check_arguments(tree, "this", "start", "length")
    if _literal(tree.args.get("start"), reader) != 1:
        return None
    return _prefix(tree.this, op, other, schema, reader)


def _left(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    check_arguments(tree, "this", "expression")
    return _prefix(tree.this, op, other, schema, reader)


def _prefix(tree: Any, op: str, other: Any, schema: pa.Schema, reader: LeafReader) -> Node | None:
    text, target = _literal(other, reader), _column(tree, schema, reader)
    if op != "=" or target is None or not is_text(target[1]) or not isinstance(text, str) or not text:
        return None
    return StartsWith(target[0], text)


_RULES = {
    "Cast": _cast,
    "Date": _date,
    "TimestampTrunc": _timestamptrunc,
    "DateTrunc": _timestamptrunc,
    "Year": _year,
    "Extract": _extract,
    "Add": _sum,
    "Sub": _sum,
    "Substring": _substring,
    "Left": _left,
}
