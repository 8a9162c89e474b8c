"""Where DuckDB means by a leaf what we do, given the types of the columns.

DuckDB brings both sides of a comparison to one type, and may round on the way: a text beside a number is cast to the
number's type, a decimal beside a FLOAT becomes one. `as_duckdb` gives a leaf that means exactly the same to us, or
None: DuckDB itself then tests the rows. Its casts are those of DuckDB 1.2 to 2.0.
"""

from __future__ import annotations

import decimal
import math
import re
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ... import canon
from ...errors import PredicateError
from .ast import And, Comparison, Constant, In, IsNaN, IsNull, Like, Node, Not, StartsWith
from .bind import bind
from .bound import resolved, unknowns
from .coerce import is_exact_widening, is_text, ns_per_count, plain_type
from .literals import Temporal, parse_temporal, parse_uuid
from .operands import Cast, Column, Literal, Operand

_DOUBLE_EXACT, _FLOAT_EXACT = 2**53, 2**24
_DOUBLE_SCALE_MAX, _FLOAT_SCALE_MAX = 22, 10  # powers of ten that the type holds exactly
_DECIMAL_DIGITS_MAX = 38
_HUGE = 2**127
_PLAIN_NUMBER = re.compile(r"\s*[+-]?\d{1,18}(?:\.\d{0,18})?\s*", re.ASCII)
_FRACTION = re.compile(r"\.(\d+)")
_HAS_ZONE = re.compile(r":\d{2}(?:\.\d+)?\s?(?:Z|UTC|GMT|[+-]\d)", re.IGNORECASE)
_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def as_duckdb(node: Node, schema: pa.Schema) -> Node | None:
    """The leaf in literals that mean to us what the given ones mean to DuckDB; None where there are none such.

    Raises PredicateError for a name that the schema lacks.
    """
    leaf = _leaf(node, schema)
    if leaf is None:
        return None
    # a list that stayed as it was holds values of one type, of which one stands for all
    sample = replace(leaf, values=leaf.values[:1]) if isinstance(leaf, In) and leaf is node else leaf
    try:
        return None if unknowns(bind(sample, schema)) else leaf
    except PredicateError:
        return None


def _leaf(node: Node, schema: pa.Schema) -> Node | None:
    if isinstance(node, Constant):
        return node
    if isinstance(node, Not):
        child = _leaf(node.child, schema)
        return None if child is None else Not(child)
    if isinstance(node, And):  # of BETWEEN
        return _between(node, schema)
    if isinstance(node, Comparison):
        return _comparison(node, schema)
    if isinstance(node, In):
        kind = _type_of(node.operand, schema)
        if kind is not None and _are_of_its_type(kind, node):
            return node
        values = None if kind is None else _literals(kind, [value.value for value in node.values])
        return None if values is None else In(node.operand, tuple(map(Literal, values)), node.negated)
    if isinstance(node, IsNull):
        return node if isinstance(node.operand, Literal) or _type_of(node.operand, schema) is not None else None
    assert isinstance(node, Like | StartsWith | IsNaN)
    kind = _type_of(node.operand, schema)
    if kind is None or canon.is_uuid(kind):
        return None
    return node if (pa.types.is_floating(kind) if isinstance(node, IsNaN) else canon.is_bytes_like(kind)) else None


def _are_of_its_type(kind: pa.DataType, node: In) -> bool:
    """Integers beside a column of integers, or texts beside texts: a long list is mostly this."""
    if pa.types.is_integer(kind):
        return all(type(literal.value) is int and abs(literal.value) < _HUGE for literal in node.values)
    return is_text(kind) and all(type(literal.value) is str for literal in node.values)


def _type_of(operand: Operand, schema: pa.Schema) -> pa.DataType | None:
    """The type in which an operand's values are compared; None for a literal, and for a cast that may change values."""
    if isinstance(operand, Column):
        ref = resolved(operand, schema)
        return pa.uuid() if ref.is_uuid else plain_type(ref.type)
    if isinstance(operand, Cast):
        source, target = _type_of(operand.operand, schema), operand.type
        if canon.is_uuid(target):
            return target if source is not None and (canon.is_uuid(source) or source == pa.binary(16)) else None
        if source is None or canon.is_uuid(source) or not is_exact_widening(source, target):
            return None
        is_kept = source == target or not canon.is_bytes_like(source)
        return target if is_kept else None
    return None


def _between(node: And, schema: pa.Schema) -> Node | None:
    first, second = node.children
    assert isinstance(first, Comparison) and isinstance(second, Comparison)
    kind = _type_of(first.left, schema)
    ends = first.right, second.right
    if kind is None or not all(isinstance(end, Literal) for end in ends):
        parts = [_comparison(part, schema) for part in (first, second)]
        return None if None in parts or _mixes(ends) else And(tuple(parts))  # type: ignore[arg-type]
    values = _literals(kind, [end.value for end in ends])  # type: ignore[attr-defined]
    if values is None:
        return None
    low, high = map(Literal, values)
    return And((Comparison(">=", first.left, low), Comparison("<=", first.left, high)))


def _mixes(ends: tuple[Operand, ...]) -> bool:
    return len({isinstance(end, Literal) for end in ends}) > 1


def _comparison(node: Comparison, schema: pa.Schema) -> Node | None:
    left, right = node.left, node.right
    if isinstance(left, Literal) and isinstance(right, Literal):
        is_comparable = left.value is None or right.value is None or type(left.value) is type(right.value)
        return node if is_comparable and not isinstance(left.value, float) else None
    if isinstance(left, Literal) or isinstance(right, Literal):
        operand, literal = (right, left) if isinstance(left, Literal) else (left, right)
        kind = _type_of(operand, schema)
        assert isinstance(literal, Literal)
        values = None if kind is None else _literals(kind, [literal.value])
        if values is None:
            return None
        changed = Literal(values[0])
        return Comparison(node.op, changed, right) if literal is left else Comparison(node.op, left, changed)
    kinds = _type_of(left, schema), _type_of(right, schema)
    return node if _are_compared_alike(*kinds) else None


def _are_compared_alike(left: pa.DataType | None, right: pa.DataType | None) -> bool:
    """Columns of these types."""
    if left is None or right is None:
        return False
    if left == right:
        return True
    pair = (left, right)
    if any(map(canon.is_uuid, pair)):
        return any(canon.is_bytes_like(kind) and not is_text(kind) for kind in pair)
    if all(map(is_text, pair)) or all(pa.types.is_integer(k) or pa.types.is_decimal(k) for k in pair):
        return True
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in pair):
        return pa.types.is_float64(left) or pa.types.is_float64(right) or all(map(pa.types.is_floating, pair))
    counts = ns_per_count(left), ns_per_count(right)
    return counts[0] is not None and counts[1] is not None and counts[0][0] == counts[1][0]


# -- literals beside a column -----------------------------------------------------------------------------------------


def _literals(kind: pa.DataType, values: list[Any]) -> list[Any] | None:
    """The literals of one leaf, which DuckDB brings to one type with the column's; None where we would not."""
    present = [value for value in values if value is not None]
    has_double = pa.types.is_float64(kind) or any(isinstance(value, float) for value in present)
    changed = [_literal(kind, value, has_double) for value in present]
    if any(value is None for value in changed):
        return None
    rest = iter(changed)
    return [None if value is None else next(rest) for value in values]


def _literal(kind: pa.DataType, value: Any, has_double: bool) -> Any:
    """One literal that is not null; None where DuckDB's meaning is not ours."""
    if pa.types.is_null(kind):
        return value
    if canon.is_uuid(kind):
        is_uuid = isinstance(value, uuid.UUID | bytes) or (isinstance(value, str) and parse_uuid(value) is not None)
        return value if is_uuid else None
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if is_text(kind):
        return value if isinstance(value, str) else None
    if canon.is_bytes_like(kind):
        is_plain = isinstance(value, str) and "\\" not in value  # beyond ASCII DuckDB refuses: our extension
        return value if isinstance(value, bytes) or is_plain else None
    if pa.types.is_temporal(kind):
        return time_beside(kind, value)
    if isinstance(value, bool | bytes | Temporal | uuid.UUID):
        return None
    if pa.types.is_floating(kind):
        return _beside_floats(kind, value, has_double)
    # one literal with an exponent makes doubles of the column and of all the others; of a type that DuckDB lacks, not
    if has_double and not pa.types.is_decimal256(kind):
        value = _beside_floats(pa.float64(), value, has_double)
    if value is None:
        return None
    if pa.types.is_integer(kind):
        return _beside_integers(value)
    return _beside_decimals(kind, value) if pa.types.is_decimal(kind) else None


def _number(text: str) -> int | decimal.Decimal | None:
    if not _PLAIN_NUMBER.fullmatch(text):
        return None
    number = Literal(decimal.Decimal(text.strip())).value
    return number if isinstance(number, int | decimal.Decimal) else None


def _scale_and_digits(value: int | decimal.Decimal) -> tuple[int, int]:
    _, digits, exponent = decimal.Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    return max(0, -exponent), max(len(digits), -exponent)


def _beside_integers(value: Any) -> Any:
    if isinstance(value, str):
        number = _number(value)
        return number if isinstance(number, int) and "." not in value else None
    if isinstance(value, float):
        # the column becomes a double: exact as long as no two of its values round to this one
        return value if not math.isfinite(value) or abs(value) < _DOUBLE_EXACT or abs(value) > 2**64 else None
    if isinstance(value, int):
        return value if abs(value) < _HUGE else None
    return value if _scale_and_digits(value)[0] <= _DECIMAL_DIGITS_MAX - 20 else None


def _beside_floats(kind: pa.DataType, value: Any, has_double: bool) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        word = value.strip().lower().lstrip("+-")
        number = _number(value)
        if number is None:
            return float(value) if word in ("nan", "inf", "infinity") else None
        value = number
    if isinstance(value, int) and abs(value) < 2**63:
        is_float = pa.types.is_float32(kind) and not has_double
        return float(np.int64(value).astype(np.float32 if is_float else np.float64))
    scale, _ = _scale_and_digits(value)
    unscaled = abs(int(decimal.Decimal(value).scaleb(scale)))
    if pa.types.is_float32(kind) and not has_double:
        is_exact = unscaled <= _FLOAT_EXACT and scale <= _FLOAT_SCALE_MAX
        return float(np.float32(float(value))) if is_exact else None
    return float(value) if unscaled <= _DOUBLE_EXACT and scale <= _DOUBLE_SCALE_MAX else None


def _beside_decimals(kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_decimal256(kind):  # DuckDB has no such type
        return _number(value) if isinstance(value, str) else value
    if isinstance(value, str):
        number = _number(value)
        return number if number is not None and _scale_and_digits(number)[0] <= kind.scale else None
    if isinstance(value, float):  # the column becomes a double, by one division of exact doubles
        return value if kind.precision <= 15 else None
    scale, digits = _scale_and_digits(value)
    whole_digits_max = _DECIMAL_DIGITS_MAX - max(scale, kind.scale)
    if digits - scale > whole_digits_max:  # DuckDB cannot cast it to what both become, and has no answer: ours is exact
        return value
    return value if kind.precision - kind.scale <= whole_digits_max else None


def time_beside(kind: pa.DataType, value: Any) -> Any:
    """What a time, or a text, is beside a column of times: a `Temporal`; None where DuckDB reads it otherwise."""
    if isinstance(value, Temporal):
        return value
    if not isinstance(value, str) or pa.types.is_duration(kind):
        return None
    moment = parse_temporal(value, "time" if pa.types.is_time(kind) else "timestamp")
    if moment is None:
        return None
    fraction = _FRACTION.search(value)
    unit_digits = 0 if pa.types.is_date(kind) else _UNIT_DIGITS[kind.unit]
    if fraction is not None and len(fraction[1]) > (unit_digits if unit_digits == 9 else min(unit_digits, 6)):
        return None
    if pa.types.is_date(kind):
        return moment if re.fullmatch(r"\s*[+-]?\d+-\d+-\d+\s*", value) else None
    is_zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    return moment if is_zoned or not _HAS_ZONE.search(value) else None
