"""The range or prefix of a column that follows from a term that DuckDB tests. It prunes.

    TRUE(term)  implies  TRUE(the result),      for every row and every value

The result does not replace the term, and is never under a NOT: it may be FALSE if the term is NULL. Rules state their
reasons.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .ast import FLIPPED, And, Comparison, In, Node, StartsWith
from .coerce import is_text
from .duckdb_engine import Interval
from .duckdb_trees import Bound, NotUnderstoodError, Parsed, same_operands
from .literals import DAY_NS, INFINITE_NS, NS_PER_UNIT, Column, Literal, Temporal, days_from_civil
from .sql_operands import Operands

_DAYS_AT_MOST = {"week": 7, "month": 31, "quarter": 92, "year": 366}
_NS_AT_MOST = {
    "second": DAY_NS // 86_400,
    "minute": DAY_NS // 1_440,
    "hour": DAY_NS // 24,
    "day": DAY_NS,
    **{unit: days * DAY_NS for unit, days in _DAYS_AT_MOST.items()},
}
_YEARS = range(1, 9_999)


def implied_by(tree: Parsed, bound_tree: Bound, reader: Operands) -> Node | None:
    """Return the condition that follows from a function of a column compared with a constant; None without a rule."""
    paired = same_operands(tree, bound_tree)
    if paired is None or tree.op not in ("=", "<", "<=", ">", ">="):
        return None
    for at, op in ((0, tree.op), (1, FLIPPED[tree.op])):
        call, constant = paired.children[at], paired.children[1 - at]
        if not call.has_columns() or constant.has_columns():
            continue
        value = reader.literal(tree.children[1 - at], constant).value
        while call.op == "cast" and reader.keeps_values(call.children[0].type, call.type):
            call = call.children[0]
        rule = _RULES.get(call.op)
        return None if rule is None or value is None else rule(call, tree.children[at], op, value, reader)
    return None


# -- elements of lists ------------------------------------------------------------------------------------------------


def implied_of_elements(tree: Parsed, bound_tree: Bound, reader: Operands) -> Node | None:
    """Return the condition that follows for a list column: a list that contains a value has an element equal to it.

    Functions of two lists ignore nulls. Nothing follows for a list within a constant list: it may be empty.
    """
    paired = same_operands(tree, bound_tree)
    if paired is None or len(paired.children) != 2 or len(tree.children) != 2:
        return None
    trees, operands = tree.children, paired.children
    if tree.op in _CONTAINS:
        return Comparison("=", reader.elements(operands[0]), reader.literal(trees[1], operands[1]))
    if tree.op in _HAS_ANY:
        at = 0 if operands[0].has_columns() else 1
        members = reader.members(trees[1 - at], operands[1 - at])
        return In(reader.elements(operands[at]), tuple(members)) if members else None
    if tree.op in _HAS_ALL:
        at = _HAS_ALL[tree.op]
        members = reader.members(trees[1 - at], operands[1 - at])
        return And(tuple(Comparison("=", reader.elements(operands[at]), member) for member in members))
    return None


_CONTAINS = frozenset({"list_contains", "array_contains", "list_has", "array_has"})
_HAS_ANY = frozenset({"list_has_any", "array_has_any", "&&"})
_HAS_ALL = {"list_has_all": 0, "array_has_all": 0, "@>": 0, "<@": 1}  # the position of the containing list


# -- times, cut down to a unit, or moved ------------------------------------------------------------------------------


def _cast(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    """Apply: CAST(ts AS DATE) is the day of ts, rounded down also before 1970: day <= ts < day + 1."""
    if call.type != "DATE":
        return None
    return _cut_down(call.children[0], op, value, DAY_NS, reader)


def _date_trunc(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    """Apply: date_trunc(unit, ts) is the start of the unit: start <= ts < start + the longest length of the unit."""
    unit = str(call.children[0].value).lower()
    return _cut_down(call.children[1], op, value, _NS_AT_MOST[unit], reader) if unit in _NS_AT_MOST else None


def _cut_down(operand: Bound, op: str, value: Any, unit_ns: int, reader: Operands) -> Node | None:
    """Apply f(x) <= x < f(x) + unit: f(x) < m and f(x) <= m imply x < m + unit; f(x) > m and f(x) >= m imply x >= m."""
    column, slack, last = _time_column(operand, reader)
    if not isinstance(value, Temporal) or value.kind not in ("date", "timestamp") or abs(value.ns) in INFINITE_NS:
        return None
    return _between(column, op, value.ns - slack, value.ns + unit_ns + slack, last)


def _between(column: Column, op: str, first: int, stop: int, last: int) -> Node:
    """Return the part of first <= x < stop that follows from f(x) op m, if the whole range follows from f(x) = m.
    DuckDB's infinite x, `last` and -`last`, are beyond every m, which is finite."""
    start, end = (Literal(Temporal("timestamp", ns)) for ns in (min(first, last), max(stop, 1 - last)))
    parts = (Comparison(">=", column, start), Comparison("<", column, end))
    return And(parts) if op == "=" else parts[1 if op in ("<", "<=") else 0]


def _time_column(operand: Bound, reader: Operands) -> tuple[Column, int, int]:
    """Return a column of instants, by how many nanoseconds DuckDB may round its values before it uses them, and the
    nanoseconds of its infinite value."""
    while operand.op == "cast" and "_NS" in operand.children[0].type:  # a cast to microseconds
        operand = operand.children[0]
    column = reader.column(operand)
    dtype = reader.type_of(column)
    if dtype is None or not (pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)):
        raise NotUnderstoodError
    if pa.types.is_date(dtype):
        return column, 0, DAY_NS * (2**31 - 1)
    return column, 1_000 if dtype.unit == "ns" else 0, NS_PER_UNIT[dtype.unit] * (2**63 - 1)


def _year(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    """Apply: year(ts) = y if ts is between the first of January of y and of y + 1; the year never falls as ts grows."""
    operand = call.children[-1]
    if call.op == "date_part" and str(call.children[0].value).lower() != "year":
        return None
    column, slack, last = _time_column(operand, reader)
    if type(value) is not int or value not in _YEARS:
        return None
    first, stop = (days_from_civil(y, 1, 1) * DAY_NS for y in (value, value + 1))
    if op == "<":  # of whole years: before the year itself
        stop = first
    elif op == ">":
        first = stop
    return _between(column, op, first - slack, stop + slack, last)


def _moved(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    """Apply: ts + d is between ts + least and ts + most: months have 28 to 31 days, and the day may be cut by 3."""
    column, slack, last = _time_column(call.children[0], reader)
    (step,) = reader.constants(tree.children[1:2], call.children[1:2])
    if not isinstance(value, Temporal) or value.kind not in ("date", "timestamp") or abs(value.ns) in INFINITE_NS:
        return None
    if isinstance(step, int) and not isinstance(step, bool):  # a date and days
        step = Interval(0, step, 0)
    if not isinstance(step, Interval):
        return None
    sign = 1 if call.op == "+" else -1
    exact = step.days * DAY_NS + step.us * 1_000
    ends = [exact + step.months * days * DAY_NS for days in (28, 31)]
    cut = 3 * DAY_NS if step.months else 0
    least, most = sorted(sign * end for end in ends)
    return _between(column, op, value.ns - most - cut - slack, value.ns - least + cut + slack + 1, last)


# -- numbers and texts ------------------------------------------------------------------------------------------------


def _sum(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    """Apply: for integers, x + c op v is x op v - c. DuckDB does not wrap: it fails on a row that overflows."""
    if len(call.children) != 2 or len(tree.children) != 2:
        return None
    at = 0 if call.children[0].has_columns() else 1
    if call.children[1 - at].has_columns():
        return None
    if not _is_integer(call.children[at], reader):
        return _moved(call, tree, op, value, reader) if at == 0 else None
    column = reader.column(call.children[at])
    constant = reader.literal(tree.children[1 - at], call.children[1 - at]).value
    if type(constant) is not int or type(value) is not int:
        return None
    if call.op == "+":
        return Comparison(op, column, Literal(value - constant))
    if at == 0:
        return Comparison(op, column, Literal(value + constant))
    return Comparison(FLIPPED[op], column, Literal(constant - value))  # c - x op v


def _is_integer(operand: Bound, reader: Operands) -> bool:
    dtype = reader.type_of(reader.column(operand))
    return dtype is not None and pa.types.is_integer(dtype) and "INT" in operand.type


def _substring(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    """Apply: substr(s, 1, n) = 'abc' implies that s begins with 'abc', for any n."""
    if len(call.children) != 3 or reader.literal(tree.children[1], call.children[1]).value != 1:
        return None
    return _prefix(call, tree, op, value, reader)


def _prefix(call: Bound, tree: Parsed, op: str, value: Any, reader: Operands) -> Node | None:
    column = reader.column(call.children[0])
    dtype = reader.type_of(column)
    if op != "=" or dtype is None or not is_text(dtype) or not isinstance(value, str) or not value:
        return None
    return StartsWith(column, value)


_RULES = {
    "cast": _cast,
    "date": _cast,
    "date_trunc": _date_trunc,
    "year": _year,
    "date_part": _year,
    "+": _sum,
    "-": _sum,
    "substring": _substring,
    "substr": _substring,
    "left": _prefix,
}
