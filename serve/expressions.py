"""The expression JSON of the Iceberg REST protocol, as a predicate that chooses files.

Clients test the rows, and differ: is NULL != 5, is NaN > 5, is -0.0 < 0.0? So the predicate is an upper bound: TRUE for
each row that any of them may keep. A negated test, `not-eq` and `not-in` also keep NULL and NaN. A part that is
unknown, or whose literal is not exactly of the column's type, is Unknown, which prunes nothing.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..engine import predicates as nodes
from ..engine.predicates import Column, Literal, Node
from ..errors import PredicateError

DEPTH_MAX = 90  # levels of and, or and not; a chain of one of them is one level
_COMPARISONS = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "="}
_PAIRS = [("lt", "gt-eq"), ("gt", "lt-eq"), ("eq", "not-eq"), ("in", "not-in"), ("is-null", "not-null")]
_PAIRS += [("is-nan", "not-nan"), ("starts-with", "not-starts-with")]
_OPPOSITES = dict(_PAIRS) | {opposite: kind for kind, opposite in _PAIRS}
_US = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class FilterColumn:
    """A column that prunes: its dotted path, and its Iceberg type as text. `is_finer`: files have nanoseconds, but
    clients see microseconds."""

    path: str
    kind: str
    is_finer: bool = False


def predicate(expression: object, columns: Mapping[str, FilterColumn], *, case_sensitive: bool = True) -> Node:
    """Return the predicate of a filter (parsed JSON) over columns by name. If `case_sensitive` is False, names match in
    any case if only one column matches. Raises PredicateError for a filter that is nested too deeply."""
    if not case_sensitive:
        lowered = [name.lower() for name in columns]
        columns = {name.lower(): column for name, column in columns.items() if lowered.count(name.lower()) == 1}
    return _node(expression, False, columns, case_sensitive, 0)


def _node(expression: Any, negated: bool, columns: Mapping[str, FilterColumn], is_exact: bool, depth: int) -> Node:
    if depth > DEPTH_MAX:
        raise PredicateError(f"the filter is nested too deeply: at most {DEPTH_MAX} levels of and, or, not")
    if isinstance(expression, bool):
        return nodes.Constant(expression is not negated)
    expression = expression if isinstance(expression, dict) else {}
    kind, term = expression.get("type"), expression.get("term")
    if kind == "not":
        return _node(expression.get("child"), not negated, columns, is_exact, depth + 1)
    if kind in ("and", "or"):
        terms = tuple(_node(one, negated, columns, is_exact, depth + 1) for one in _chain(expression, kind))
        return nodes.And(terms) if (kind == "and") is not negated else nodes.Or(terms)
    column, test = columns.get(term if is_exact else term.lower()) if isinstance(term, str) else None, None
    if column is not None and isinstance(kind, str) and kind in _OPPOSITES:
        try:
            test = _test(_OPPOSITES[kind] if negated else kind, column, expression, negated)
        except PredicateError:  # for example, a text that is not Unicode
            test = None
    return nodes.Unknown(f"{kind} of {term}"[:200], "not exactly a test of a column") if test is None else test


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
    """Return the test of one column; None if it is unknown. `negated`: it is the opposite of the client's."""
    operand, is_float = Column(column.path), column.kind in ("float", "double")
    if kind in ("is-null", "not-null"):
        return nodes.IsNull(operand) if kind == "is-null" else nodes.Not(nodes.IsNull(operand))
    is_nan = nodes.is_nan(operand) if is_float else None
    if kind in ("is-nan", "not-nan"):
        return is_nan if is_nan is None or kind == "is-nan" else nodes.Not(is_nan)
    raw = expression.get("values") if kind in ("in", "not-in") else [expression.get("value")]
    values = [literal_of(column.kind, one) for one in raw] if isinstance(raw, list) else [None]
    positive, has_zero = kind.removeprefix("not-"), is_float and 0 in values
    if None in values or (positive != kind and (column.is_finer or has_zero)):
        return None
    if positive == "starts-with":
        if not isinstance(values[0], str):
            return None
        test: Node = nodes.StartsWith(operand, values[0])
    elif column.is_finer:
        test = nodes.Or(tuple(_of_finer(positive, operand, value) for value in values))
    elif positive == "in":
        test = nodes.In(operand, tuple(map(Literal, values)))
    else:
        if has_zero:  # for some clients -0.0 is less than 0.0
            positive = {"lt": "lt-eq", "gt": "gt-eq"}.get(positive, positive)
        test = nodes.Comparison(_COMPARISONS[positive], operand, Literal(values[0]))
    if kind.startswith("not-"):
        test = nodes.Not(test)
    elif not negated:
        return test
    return nodes.Or((test, nodes.IsNull(operand), *([] if is_nan is None else [is_nan])))


def _of_finer(kind: str, operand: Column, value: Any) -> Node:
    """Return a test of nanoseconds that is TRUE if it is TRUE for the microseconds, however a client rounds."""
    above = [nodes.Comparison(">=", operand, Literal(value - _US))] if kind in ("gt", "gt-eq", "eq", "in") else []
    below = [nodes.Comparison("<=", operand, Literal(value + _US))] if kind in ("lt", "lt-eq", "eq", "in") else []
    return nodes.And((*above, *below))


def literal_of(kind: str, raw: object) -> Any:
    """Return a literal of an Iceberg type; None for any other, which each client converts in its own way."""
    try:
        if isinstance(raw, str):
            return _of_text(kind, raw)
        if isinstance(raw, bool):
            return raw if kind == "boolean" else None
        if isinstance(raw, int) and (kind in ("int", "long") or kind.startswith("decimal")):
            return raw
        if isinstance(raw, (int, float)) and kind in ("float", "double"):
            value = float(raw)
            is_exact = value == raw and (kind == "double" or struct.unpack("f", struct.pack("f", value))[0] == value)
            return value if is_exact and abs(value) != float("inf") else None
    except (ValueError, ArithmeticError):
        pass
    return None


def _of_text(kind: str, raw: str) -> Any:
    if kind == "string":
        return raw
    if kind == "date":
        return dt.date.fromisoformat(raw)
    if kind == "uuid":
        return uuid.UUID(raw)
    if kind.startswith("decimal"):
        return Decimal(raw) if Decimal(raw).is_finite() else None
    if not kind.startswith("timestamp") or "T" not in raw or re.search(r"\.\d{7}", raw):  # Python cuts nanoseconds
        return None
    time = dt.datetime.fromisoformat(raw)
    if kind == "timestamptz":
        return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)
    return None if time.utcoffset() else time.replace(tzinfo=None)
