"""The expression JSON of the Iceberg REST protocol, as a predicate that chooses files.

A client tests the rows itself, and clients differ: is NULL != 5, is NaN > 5, is -0.0 < 0.0? So the predicate is an upper
bound: it is TRUE for each row that any of them may keep. A negated test, `not-eq` and `not-in` also keep NULL and NaN.
A part that is not understood, or whose literal is not exactly of the column's type, is Unknown, which prunes nothing.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..engine.predicates import And, Column, Comparison, Constant, In, IsNull, Literal, Node, Not, Or, StartsWith
from ..engine.predicates import Unknown, is_nan
from ..errors import PredicateError

DEPTH_MAX = 90  # levels of and, or and not; a chain of one of them is one level
_COMPARISONS = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "=", "not-eq": "!="}
_PAIRS = [("lt", "gt-eq"), ("gt", "lt-eq"), ("eq", "not-eq"), ("in", "not-in"), ("is-null", "not-null")]
_PAIRS += [("is-nan", "not-nan"), ("starts-with", "not-starts-with")]
_OPPOSITES = dict(_PAIRS) | {negative: positive for positive, negative in _PAIRS}
_US = dt.timedelta(microseconds=1)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,60}(\.\d{1,60})?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


@dataclass(frozen=True)
class FilterColumn:
    """A column that prunes: its dotted path, and its Iceberg type as text. `is_finer`: files have nanoseconds, of which
    clients see microseconds."""

    path: str
    kind: str
    is_finer: bool = False

    @property
    def is_float(self) -> bool:
        """Whether values may be NaN."""
        return self.kind in ("float", "double")


Lookup = Callable[[str], FilterColumn | None]


def predicate(expression: object, columns: Mapping[str, FilterColumn], *, case_sensitive: bool = True) -> Node:
    """Return the predicate of a filter.

    Args:
        expression: the parsed JSON.
        columns: the columns that prune, by the names that filters use.
        case_sensitive: if False, names match in any case if only one column matches.

    Raises PredicateError if the expression is nested too deeply.
    """
    if case_sensitive:
        return _node(expression, False, columns.get, 0)
    lowered: dict[str, list[FilterColumn]] = {}
    for name, column in columns.items():
        lowered.setdefault(name.lower(), []).append(column)
    single = {name: matches[0] for name, matches in lowered.items() if len(matches) == 1}
    return _node(expression, False, lambda name: single.get(name.lower()), 0)


def _node(expression: Any, negated: bool, column_of: Lookup, depth: int) -> Node:
    if depth > DEPTH_MAX:
        raise PredicateError(f"the filter is nested too deeply: at most {DEPTH_MAX} levels of and, or, not")
    if isinstance(expression, bool):
        return Constant(expression is not negated)
    kind = expression.get("type") if isinstance(expression, dict) else None
    if kind == "not":
        return _node(expression.get("child"), not negated, column_of, depth + 1)
    if kind in ("and", "or"):
        children = tuple(_node(one, negated, column_of, depth + 1) for one in _chain(expression, kind))
        return And(children) if (kind == "and") is not negated else Or(children)
    term = expression.get("term") if isinstance(expression, dict) else None
    column = column_of(term) if isinstance(term, str) else None
    test = None
    if column is not None and isinstance(kind, str) and kind in _OPPOSITES:
        try:
            test = _test(_OPPOSITES[kind] if negated else kind, column, expression, negated)
        except PredicateError:  # a text that is not Unicode, for example
            test = None
    return Unknown(f"{kind} of {term}"[:200], "not exactly a test of a column") if test is None else test


def _chain(expression: Any, kind: str) -> Iterator[Any]:
    """Yield the terms of a chain of one connective; clients nest it to the left or to the right."""
    waiting = [expression]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and one.get("type") == kind:
            waiting += [one.get("right"), one.get("left")]
        else:
            yield one


def _test(kind: str, column: FilterColumn, expression: dict[str, Any], negated: bool) -> Node | None:
    """The test of one column; None if it is not understood. `negated`: it is the opposite of the client's."""
    operand = Column(column.path)
    if kind in ("is-null", "not-null"):
        return IsNull(operand) if kind == "is-null" else Not(IsNull(operand))
    if kind in ("is-nan", "not-nan"):
        nan = is_nan(operand) if column.is_float else None
        return nan if nan is None or kind == "is-nan" else Not(nan)
    raw = expression.get("values") if kind in ("in", "not-in") else [expression.get("value")]
    values = [literal_of(column.kind, one) for one in raw] if isinstance(raw, list) else [None]
    is_negative, has_zero = kind.startswith("not-"), column.is_float and 0 in values
    if any(value is None for value in values) or (is_negative and (column.is_finer or has_zero)):
        return None
    test: Node
    if kind.endswith("starts-with"):
        if not isinstance(values[0], str):
            return None
        test = StartsWith(operand, values[0])
    elif kind.endswith("in"):
        terms = tuple(_comparison("eq", operand, value, column.is_finer) for value in values)
        test = Or(terms) if column.is_finer else In(operand, tuple(map(Literal, values)))
    else:
        if has_zero:  # for some clients -0.0 is less than 0.0
            kind = {"lt": "lt-eq", "gt": "gt-eq"}.get(kind, kind)
        test = _comparison(kind.removeprefix("not-"), operand, values[0], column.is_finer)
    test = Not(test) if is_negative else test
    if not (is_negative or negated):
        return test
    return Or((test, IsNull(operand), *([is_nan(operand)] if column.is_float else ())))


def _comparison(kind: str, operand: Column, value: Any, is_finer: bool) -> Node:
    if not is_finer:
        return Comparison(_COMPARISONS[kind], operand, Literal(value))
    above = [Comparison(">=", operand, Literal(value - _US))] if kind in ("gt", "gt-eq", "eq") else []
    below = [Comparison("<=", operand, Literal(value + _US))] if kind in ("lt", "lt-eq", "eq") else []
    return And((*above, *below))


def literal_of(kind: str, raw: object) -> Any:
    """Return the value of a literal for a column of an Iceberg type; None if it is not exactly a value of that type.
    Clients convert other literals each in their own way."""
    try:
        if isinstance(raw, str):
            return _of_text(kind, raw)
        if isinstance(raw, bool) or raw is None:
            return raw if kind == "boolean" else None
        if isinstance(raw, int) and (kind in ("int", "long") or kind.startswith("decimal")):
            return raw
        if isinstance(raw, (int, float)) and kind in ("float", "double") and math.isfinite(raw):
            value = float(raw)
            is_exact = value == raw and (kind == "double" or struct.unpack("f", struct.pack("f", value))[0] == value)
            return value if is_exact else None
    except (ValueError, OverflowError):
        pass
    return None


def _of_text(kind: str, raw: str) -> Any:
    if kind == "string":
        return raw
    if kind == "date" and _DATE.fullmatch(raw):
        return dt.date.fromisoformat(raw)
    if kind in ("timestamp", "timestamptz") and _TIMESTAMP.fullmatch(raw):
        time = dt.datetime.fromisoformat(raw)
        if kind == "timestamptz":
            return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)
        return None if time.utcoffset() else time.replace(tzinfo=None)
    if kind.startswith("decimal") and _DECIMAL.fullmatch(raw):
        return Decimal(raw)
    return uuid.UUID(raw) if kind == "uuid" and _UUID.fullmatch(raw) else None
