"""Binding: names become columns of a schema, literals become values of the columns' types, exactly.

    bind(node, schema) -> node        And, Or, Not, Constant, Unknown over bound terms

A name that the schema lacks, or a literal that has no meaning in a column's type, raises PredicateError. A comparison
that has a meaning, but that neither an index nor our evaluator supports, becomes Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...base import canon
from ...errors import PredicateError
from .ast import FLIPPED, And, Comparison, Constant, In, IsNull, Like, Node, Not, Or, StartsWith, Unknown
from .bound import ColumnRef, Residual, Term, TwoColumnTerm, make_term, resolve, unknowns
from .coerce import (
    LiteralPosition,
    NoMeaningError,
    common_type,
    integer_range,
    is_exact_widening,
    is_list,
    is_text,
    locate_literal,
    locate_uuid,
)
from .literals import Cast, Column, Computed, Elements, Literal, LiteralValue, Operand

_TWO_CONSTANTS = "it compares constants with each other, and no column"


def bind(node: Node, schema: pa.Schema) -> Node:
    """Return the predicate over this schema's columns. Bound nodes are returned unchanged."""
    if isinstance(node, And | Or):
        return type(node)(tuple(bind(child, schema) for child in node.children))
    if isinstance(node, Not):
        return Not(bind(node.child, schema))
    binder = _BINDERS.get(type(node))
    if binder is None:
        if isinstance(node, Unknown | Residual) and node.implied is not None:
            return replace(node, implied=_bind_implied(node.implied, schema))
        if isinstance(node, Constant | Unknown | Term | TwoColumnTerm | Residual):
            return node
        raise PredicateError(f"{node!r} is not a predicate")
    return binder(node, schema)


def _bind_implied(implied: Node, schema: pa.Schema) -> Node | None:
    try:
        node = bind(implied, schema)
    except PredicateError:  # another engine tests the part, and may give the literal a meaning
        return None
    return None if unknowns(node) else node


def _column_of(operand: Operand, schema: pa.Schema) -> ColumnRef | None:
    """Return the column under an operand and under casts that keep every value; None under any other cast."""
    if isinstance(operand, Column):
        return resolve(operand.name, schema)
    if isinstance(operand, Computed):
        return ColumnRef(operand.text, ("", operand.key), operand.type)
    if isinstance(operand, Elements):
        lists = resolve(operand.name, schema)
        if not is_list(lists.type):
            raise PredicateError(f"column {operand.name!r} is {lists.type}, and no list")
        return replace(lists, name=str(operand), type=canon.compared_type(lists.type.value_type))
    if isinstance(operand, Cast):
        ref = _column_of(operand.operand, schema)
        if ref is not None and canon.is_uuid(operand.type):
            return replace(ref, is_uuid=True) if ref.type == canon.compared_type(operand.type) else None
        if ref is not None and not ref.is_uuid and is_exact_widening(ref.type, operand.type):
            return ref
    return None


def _cast_by_duckdb(node: Node, reason: str) -> Unknown:
    return Unknown(str(node), reason, "duckdb")


def _unknown(node: Node, reason: str) -> Unknown:
    return Unknown(str(node), reason)


def _no_meaning(node: Node, ref: ColumnRef, literal: Literal) -> PredicateError:
    hint = ""
    if ref.is_uuid:
        return PredicateError(
            f"column {ref.name!r} contains UUIDs, and {literal} is not one: write 32 hexadecimal digits, with or "
            "without hyphens, or give a uuid.UUID or its 16 bytes",
            text=str(node),
        )
    if canon.is_bytes_like(ref.type) and isinstance(literal.value, int | float):
        hint = "; put the value in quotes"
    elif pa.types.is_temporal(ref.type):
        hint = f"; a {ref.type} is compared with a text or a value of its own kind"
    return PredicateError(
        f"column {ref.name!r} is {ref.type}, which {literal} cannot be compared with{hint}", text=str(node)
    )


# -- comparisons ------------------------------------------------------------------------------------------------------


def _bind_comparison(node: Comparison, schema: pa.Schema) -> Node:
    op, left, right = node.op, node.left, node.right
    if isinstance(left, Literal) and isinstance(right, Literal):
        return _unknown(node, _TWO_CONSTANTS)
    if isinstance(left, Literal):
        op, left, right = FLIPPED[op], right, left
    ref = _column_of(left, schema)
    if not isinstance(right, Literal):
        return _bind_columns(node, ref, _column_of(right, schema))
    if right.value is None:
        if op != "<=>":
            return Constant(None)
        return _cast_by_duckdb(node, "a cast may change values") if ref is None else make_term(ref, "is_null")
    if ref is None:
        return _cast_by_duckdb(node, "a cast may change values")
    special = _without_order(node, ref, op == "<=>")
    if special is not None:
        return special
    try:
        return compare_values(ref, op, [right.value])
    except NoMeaningError:
        raise _no_meaning(node, ref, right) from None


def _without_order(node: Node, ref: ColumnRef, null_safe: bool = False) -> Node | None:
    """Return the result of a comparison with a value if the column's type has no order; None if it has one."""
    if pa.types.is_null(ref.type):
        return Constant(False if null_safe else None)
    if canon.order_class(ref.type) is None:
        return _unknown(node, f"column {ref.name!r} is {ref.type}, whose values cannot be compared")
    return None


def _described(ref: ColumnRef) -> str:
    return f"column {ref.name!r} ({'uuid' if ref.is_uuid else ref.type})"


def compare_values(ref: ColumnRef, op: str, values: Sequence[LiteralValue]) -> Node:
    """Compare a column of a type that has an order with literals that are not None: one, or any number for "in" and
    "not in". Raise NoMeaningError if a literal has no meaning in the type."""
    if op not in ("in", "not in"):
        return _compare_position(ref, op, locate_in(ref, values[0]))
    exact: list[Any] = []
    parts: list[Node] = []
    if pa.types.is_integer(ref.type) and all(type(value) is int for value in values):  # most long lists are of integers
        low, high = integer_range(ref.type)
        exact, values = [value for value in values if low <= value <= high], ()  # type: ignore[operator]
    elif is_text(ref.type) and not ref.is_uuid and all(type(value) is str for value in values):  # or of texts
        exact, values = list(values), ()
    for value in values:
        position = locate_in(ref, value)
        if position.where == "exact":
            exact.append(position.low)
        elif position.where == "span":
            parts.append(_compare_span(ref, "=", position))
    if exact:
        parts.insert(0, make_term(ref, "in", exact))
    node = parts[0] if len(parts) == 1 else Or(tuple(parts)) if parts else make_term(ref, "never")
    return Not(node) if op == "not in" else node


def locate_in(ref: ColumnRef, value: LiteralValue) -> LiteralPosition:
    """Return the position of a literal (not None) among the values of an ordered column. Raise NoMeaningError."""
    return locate_uuid(value) if ref.is_uuid else locate_literal(value, ref.type)


def _compare_position(ref: ColumnRef, op: str, position: LiteralPosition) -> Node:
    if position.where == "exact":
        return make_term(ref, op, [position.low])
    if position.where == "span":
        return _compare_span(ref, op, position)
    if op == "<=>":
        return Constant(False)
    if op in ("=", "!="):
        return make_term(ref, "never" if op == "=" else "always")
    is_less = op in ("<", "<=")
    if position.where in ("over_all", "under_all"):
        return make_term(ref, "always" if is_less == (position.where == "over_all") else "never")
    if position.where == "above":
        return make_term(ref, "<=" if is_less else ">", [position.low])
    return make_term(ref, "<" if is_less else ">=", [position.low])


def _compare_span(ref: ColumnRef, op: str, position: LiteralPosition) -> Node:
    if op in ("<", ">="):
        return make_term(ref, op, [position.low])
    if op in ("<=", ">"):
        return make_term(ref, op, [position.high])
    if op == "!=":
        return Or((make_term(ref, "<", [position.low]), make_term(ref, ">", [position.high])))
    inside = (make_term(ref, ">=", [position.low]), make_term(ref, "<=", [position.high]))
    return And((*inside, Not(make_term(ref, "is_null")))) if op == "<=>" else And(inside)


def _bind_columns(node: Comparison, left: ColumnRef | None, right: ColumnRef | None) -> Node:
    if left is None or right is None:
        return _cast_by_duckdb(node, "a cast may change values")
    dtype = common_type(left.type, right.type)
    if dtype is None or (left.is_uuid != right.is_uuid and (is_text(left.type) or is_text(right.type))):
        return _unknown(node, f"{_described(left)} and {_described(right)} cannot be compared")
    return TwoColumnTerm(node.op, left, right, dtype)


# -- the other terms -------------------------------------------------------------------------------------------------


def _bind_in(node: In, schema: pa.Schema) -> Node:
    if isinstance(node.operand, Literal):
        return _unknown(node, _TWO_CONSTANTS)
    ref = _column_of(node.operand, schema)
    if ref is None:
        return _cast_by_duckdb(node, "a cast may change values")
    values = [value for value in node.values if value.value is not None]
    if not node.values:
        return Constant(node.negated)
    special = _without_order(node, ref) if values else None
    if special is not None:
        return special
    try:
        parts = [compare_values(ref, "in", [value.value for value in values])] if values else []
    except NoMeaningError as error:
        raise _no_meaning(node, ref, Literal(error.value)) from None
    if len(values) < len(node.values):
        parts.append(Constant(None))
    bound = parts[0] if len(parts) == 1 else Or(tuple(parts))
    return Not(bound) if node.negated else bound


def _bind_like(node: Like, schema: pa.Schema) -> Node:
    from .patterns import LENGTH_MAX, parse_pattern

    pattern = parse_pattern(node.pattern, node.escape)
    ref = _text_column(node, schema)
    if not isinstance(ref, ColumnRef):
        return ref
    if pattern.is_plain:
        return _compare_position(ref, "=", locate_literal(pattern.prefix, ref.type))
    if pattern.is_prefix:
        return _starts_with(ref, pattern.prefix)
    if len(node.pattern) > LENGTH_MAX:
        raise PredicateError(
            f"the LIKE pattern has {len(node.pattern):,} characters, and at most {LENGTH_MAX:,} are matched; "
            "starts_with and = take any length"
        )
    return make_term(ref, "like", [_as_stored(pattern.prefix, ref.type)], pattern)


def _bind_starts_with(node: StartsWith, schema: pa.Schema) -> Node:
    ref = _text_column(node, schema)
    if not isinstance(ref, ColumnRef):
        return ref
    try:
        locate_literal(node.prefix, ref.type)
    except NoMeaningError:
        raise _no_meaning(node, ref, Literal(node.prefix)) from None
    return _starts_with(ref, node.prefix)


def _starts_with(ref: ColumnRef, prefix: str | bytes) -> Node:
    if not prefix:
        return make_term(ref, "always")
    return make_term(ref, "starts_with", [_as_stored(prefix, ref.type)])


def _as_stored(text: str | bytes, dtype: pa.DataType) -> str | bytes:
    if is_text(dtype):
        return text if isinstance(text, str) else text.decode()
    return text.encode() if isinstance(text, str) else text


def _text_column(node: Like | StartsWith, schema: pa.Schema) -> ColumnRef | Node:
    """Return the column of strings or bytes under a pattern; the result of the pattern if there is none."""
    ref = _column_of(node.operand, schema)
    if ref is None:
        return _cast_by_duckdb(node, "a cast may change values, or no column is named")
    if pa.types.is_null(ref.type):
        return Constant(None)
    if ref.is_uuid or not canon.is_bytes_like(ref.type):
        return _unknown(node, f"a pattern over {_described(ref)}")
    return ref


def _bind_is_null(node: IsNull, schema: pa.Schema) -> Node:
    if isinstance(node.operand, Literal):
        return Constant(node.operand.value is None)
    ref = _column_of(node.operand, schema)
    return _cast_by_duckdb(node, "a cast may make nulls") if ref is None else make_term(ref, "is_null")


_BINDERS: dict[type, Callable[[Any, pa.Schema], Node]] = {
    Comparison: _bind_comparison,
    In: _bind_in,
    Like: _bind_like,
    StartsWith: _bind_starts_with,
    IsNull: _bind_is_null,
}
